//! Work that takes long on the CPU or on a local disk, kept off the threads of the async runtime.
//!
//! A simulation calls [`run_inline`]: when a thread ends is nothing that follows from a seed.

use tokio::task::{JoinError, spawn_blocking};

#[cfg(feature = "testing")]
static IS_INLINE: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Does all blocking work of this process in the task that asks for it, from now on.
#[cfg(feature = "testing")]
pub fn run_inline() {
    IS_INLINE.store(true, std::sync::atomic::Ordering::SeqCst);
}

/// True if blocking work is done in the task that asks for it. Never so in the binary that ships.
pub fn is_inline() -> bool {
    #[cfg(feature = "testing")]
    return IS_INLINE.load(std::sync::atomic::Ordering::SeqCst);
    #[cfg(not(feature = "testing"))]
    false
}

/// Runs blocking work. It is an error if the work panics.
pub async fn run<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    if is_inline() { Ok(work()) } else { spawn_blocking(work).await }
}
