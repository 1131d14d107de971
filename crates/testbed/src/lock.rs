//! Locks between processes, so that a resource that several tests need is made once.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use crate::console::print_line;

/// Interval of attempts while another process holds the lock.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Longest time for which another process may hold a lock: more than the longest build.
const LOCK_TIMEOUT: Duration = Duration::from_hours(1);

/// Waits for the lock on a file; prints a message that names `purpose` if another process holds it. The lock is held
/// until the returned file is dropped, and the system releases it when this process is killed.
pub(crate) async fn acquire(path: &Path, purpose: &str) -> io::Result<File> {
    let file = File::create(path)?;
    let deadline = Instant::now() + LOCK_TIMEOUT;
    let mut waits = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                let text = format!("{purpose} by another process takes too long");
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            Err(TryLockError::WouldBlock) if !waits => {
                print_line(&format!("waiting for {purpose} by another process"));
                waits = true;
            }
            Err(TryLockError::WouldBlock) => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}
