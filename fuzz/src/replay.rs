//! The driver without coverage guidance: a corpus, and mutations of it from a fixed seed.
//!
//! It needs no instrumentation, so tests run it with the build that they have. The same inputs come in the same order
//! each time. Each one is in a file while it runs, so that it survives the end of the process.

mod mutation;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::Target;
use mutation::{Generator, mutate};

/// Memory of the process.
pub const MEMORY_LIMIT: u64 = 512 << 20;
/// Stack of the thread that runs a target: that of the server's threads.
const STACK: usize = 2 << 20;
/// Longest input that a mutation makes.
const MAX_LENGTH: usize = 64 << 10;

/// Limits the memory of this process. An allocation beyond it ends the process.
pub fn limit_memory() -> io::Result<()> {
    let limit = Rlimit { current: Some(MEMORY_LIMIT), maximum: Some(MEMORY_LIMIT) };
    Ok(setrlimit(Resource::Data, limit)?)
}

/// Inputs in a folder, sorted by name.
pub fn corpus(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let files = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut files = files.collect::<io::Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

/// Runs a target on its corpus and on so many mutations of it, on a thread of its own. Each input is written to
/// `current` before it runs.
pub fn run(
    target: &'static Target,
    folder: &Path,
    mutations: usize,
    current: &Path,
) -> io::Result<()> {
    let inputs = corpus(folder)?.iter().map(fs::read).collect::<io::Result<Vec<_>>>()?;
    let mut generator = Generator::new(target.name);
    let work = || -> io::Result<()> {
        for input in &inputs {
            fs::write(current, input)?;
            target.execute(input);
        }
        for number in 0..mutations {
            let Some(base) = inputs.get(number % inputs.len().max(1)) else { break };
            let mut input = base.clone();
            mutate(&mut input, &inputs, &mut generator);
            input.truncate(MAX_LENGTH);
            fs::write(current, &input)?;
            target.execute(&input);
        }
        Ok(())
    };
    on_small_stack(work)?
}

/// Runs a target on one input.
pub fn run_one(target: &'static Target, input: &[u8]) -> io::Result<()> {
    on_small_stack(|| target.execute(input))
}

/// A panic on the thread is one here.
fn on_small_stack<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work)?;
        thread.join().map_err(|_| io::Error::other("the target panicked"))
    })
}
