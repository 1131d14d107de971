//! Fuzz targets: everything that Bowline reads and did not write.
//!
//! | module | content |
//! |---|---|
//! | [`targets`] | one module per target: a function of the bytes of an input, which panics if a property does not hold |
//! | [`memory`] | what an input costs, counted by the allocator |
//! | [`replay`] | the driver without coverage guidance: the corpus, and mutations of it from a fixed seed |
//!
//! Both drivers call [`Target::execute`]. `bowline-fuzz-replay` is what the tests run; `bowline-fuzz-guided` is built
//! by `fuzz/run`, with libFuzzer. How to use them: CONTRIBUTING.md.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a target reports a fault by panicking"
)]

pub mod memory;
pub mod replay;
pub mod targets;

/// A function under test.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is that of its corpus.
    pub name: &'static str,
    /// Memory that any input may take, in bytes.
    pub base_memory: usize,
    /// Panics if a property does not hold.
    pub run: fn(&[u8]),
}

/// Memory that each byte of an input may take in addition: a value of a few bytes is a tree of maps when it is parsed.
const MEMORY_PER_BYTE: usize = 1024;

impl Target {
    /// The target with this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        targets::ALL.iter().find(|target| target.name == name)
    }

    /// Runs the target on an input. Panics if a property does not hold, or if it takes more memory than it may.
    pub fn execute(&self, input: &[u8]) {
        let peak = memory::peak_of(|| (self.run)(input));
        let limit = self.base_memory + input.len() * MEMORY_PER_BYTE;
        assert!(
            peak <= limit,
            "{} bytes of input took {peak} bytes of memory, more than {limit}",
            input.len()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "bytes of memory, more than")]
    fn input_that_takes_more_memory_than_its_target_allows_is_a_fault() {
        let run = |_: &[u8]| drop(std::hint::black_box(vec![1_u8; 4 << 20]));
        Target { name: "greedy", base_memory: 1 << 20, run }.execute(b"a");
    }
}
