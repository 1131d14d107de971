//! Locks between processes, so that what several tests need is made once.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::say::say;

/// How often a lock that another process holds is tried again.
const POLL: Duration = Duration::from_millis(200);

/// Waits for the lock on a file; says so, naming `what`, if another process holds it. It is held
/// until the returned file is dropped, and the system frees it when we are killed.
pub(crate) async fn acquire(path: &Path, what: &str) -> io::Result<File> {
    let file = File::create(path)?;
    let mut waits = false;
    while file.try_lock().is_err() {
        if !waits {
            say(&format!("waiting for another {what}"));
            waits = true;
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(file)
}
