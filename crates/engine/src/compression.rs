//! Compression of archives, on several cores.
//!
//! The one place where the engine takes work off the async task because it takes long on the CPU. Tests that need the
//! same order of events each time set [`CompressionMode::Inline`].
//!
//! The compressor is libdeflate, chosen by measurement: docs/decisions/051. It compresses a buffer that is in memory
//! as a whole, which a member of an archive is.

use std::io;
use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use bowline_store::blocking;
use libdeflater::{CompressionLvl, Compressor};
use parking_lot::Mutex;

/// Compression level: the lowest whose archives are about as large as Velero's.
const LEVEL: i32 = 6;
/// The output buffer of a compressor is given back above this size.
const KEPT_OUTPUT_BYTES: usize = 2 << 20;

/// Where compression runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressionMode {
    /// On the async task itself, one after the other.
    Inline,
    /// On so many threads of the async runtime for blocking work.
    Workers(NonZeroUsize),
}

impl Default for CompressionMode {
    /// As many workers as the process may use cores.
    fn default() -> Self {
        if blocking::is_inline() {
            return Self::Inline;
        }
        Self::Workers(available_parallelism().unwrap_or(NonZeroUsize::MIN))
    }
}

impl CompressionMode {
    /// Number of jobs that run at the same time.
    pub(crate) fn workers(self) -> usize {
        match self {
            Self::Inline => 1,
            Self::Workers(count) => count.get(),
        }
    }

    /// Runs a job that takes long on the CPU.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        job: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        match self {
            Self::Inline => job(),
            Self::Workers(_) => {
                let ended = blocking::run(job).await;
                ended.unwrap_or_else(|error| Err(io::Error::other(error)))
            }
        }
    }
}

/// Gzip compressors. Each takes a megabyte, so those that are idle are used again.
#[derive(Default)]
pub(crate) struct GzipCompressors {
    idle: Mutex<Vec<GzipCompressor>>,
}

struct GzipCompressor {
    compressor: Compressor,
    output: Vec<u8>,
}

impl GzipCompressors {
    /// Compresses bytes into one gzip member.
    pub(crate) fn compress(&self, content: &[u8]) -> io::Result<Vec<u8>> {
        let idle = self.idle.lock().pop();
        let mut compressor = idle.unwrap_or_else(GzipCompressor::new);
        let compressed = compressor.compress(content);
        self.idle.lock().push(compressor);
        compressed
    }
}

impl GzipCompressor {
    fn new() -> Self {
        let level = CompressionLvl::new(LEVEL).unwrap_or_default();
        Self { compressor: Compressor::new(level), output: Vec::new() }
    }

    fn compress(&mut self, content: &[u8]) -> io::Result<Vec<u8>> {
        let bound = self.compressor.gzip_compress_bound(content.len());
        if self.output.len() < bound {
            self.output.resize(bound, 0);
        }
        let length = self.compressor.gzip_compress(content, &mut self.output);
        let length = length.map_err(|error| io::Error::other(error.to_string()))?;
        let compressed = self.output[..length].to_vec();
        if self.output.len() > KEPT_OUTPUT_BYTES {
            self.output = Vec::new();
        }
        Ok(compressed)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn compressed_bytes_come_back_as_they_were() {
        let compressors = GzipCompressors::default();
        let long: Vec<u8> = (0..3_000_000_u32).flat_map(|n| (n / 3).to_le_bytes()).collect();
        for content in [&b""[..], b"{}", &long, b"again"] {
            let compressed = compressors.compress(content).unwrap();
            let mut read = Vec::new();
            GzDecoder::new(&compressed[..]).read_to_end(&mut read).unwrap();
            assert!(read == content);
        }
        let idle = compressors.idle.lock();
        assert_eq!(idle.len(), 1);
        assert!(idle[0].output.len() < KEPT_OUTPUT_BYTES, "the large buffer is given back");
    }

    #[tokio::test]
    async fn job_that_panics_is_an_error() {
        let mode = CompressionMode::default();
        let panicking = mode.run(|| -> io::Result<()> { panic!("a bug") });
        assert!(panicking.await.is_err());
        assert_eq!(mode.run(|| Ok(7)).await.unwrap(), 7);
    }
}
