//! Database of the sample application: it writes orders to a file in its volume, one after the other, and pauses on
//! request.
//!
//! Its pod is simulated, so a thread of the demo does this. Hooks are executed for real: they create a file `hold` in a
//! folder, wait for `held`, and remove `hold` afterwards. An order is written in two parts: a copy of the file without
//! a freeze contains half an order, or more orders than there were.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;

/// File that requests a pause, and the file that confirms it.
const HOLD_REQUEST_FILE: &str = "hold";
const HOLD_ANSWER_FILE: &str = "held";
/// Length of an order, with its line end.
pub(super) const ORDER_BYTES: usize = 64;
/// Interval of writes and of checks for a request.
const WRITE_INTERVAL: Duration = Duration::from_millis(1);

/// Running database. Dropping it ends it.
pub(super) struct OrderDatabase {
    stop: Arc<AtomicBool>,
    last_hold: Arc<Mutex<Option<Hold>>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// Period in which the database paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    /// Length of the file during the pause.
    pub(super) bytes: u64,
    pub(super) duration: Duration,
}

impl Hold {
    /// Number of orders at that time.
    pub(super) fn order_count(self) -> u64 {
        order_count(self.bytes)
    }
}

/// Number of orders in so many bytes.
pub(super) fn order_count(bytes: u64) -> u64 {
    bytes / ORDER_BYTES as u64
}

impl OrderDatabase {
    /// Continues the file `journal`. Requests are files in the folder `requests`.
    pub(super) fn start(journal: &Path, requests: &Path) -> anyhow::Result<Self> {
        let file = File::options().append(true).open(journal);
        let file = file.with_context(|| format!("cannot open {}", journal.display()))?;
        let bytes = file.metadata().context("cannot read the orders")?.len();
        let (stop, last_hold) = (Arc::default(), Arc::default());
        let mut writer = Writer {
            file,
            bytes,
            requests: requests.to_owned(),
            stop: Arc::clone(&stop),
            last_hold: Arc::clone(&last_hold),
        };
        let thread = std::thread::Builder::new().name("orders".to_owned());
        let thread = thread.spawn(move || writer.run()).context("cannot start the database")?;
        Ok(Self { stop, last_hold, thread: Some(thread) })
    }

    /// Last pause; none if none has ended.
    pub(super) fn last_hold(&self) -> Option<Hold> {
        *self.last_hold.lock()
    }

    /// Ends the database. Returns an error if a write failed.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        self.stop.store(true, Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(written)) => written.context("cannot write orders"),
            Some(Err(_)) => bail!("the database has exited unexpectedly"),
            None => Ok(()),
        }
    }
}

impl Drop for OrderDatabase {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Writer {
    file: File,
    bytes: u64,
    requests: PathBuf,
    stop: Arc<AtomicBool>,
    last_hold: Arc<Mutex<Option<Hold>>>,
}

impl Writer {
    fn run(&mut self) -> io::Result<()> {
        while !self.stop.load(Relaxed) {
            if self.is_hold_requested() {
                self.hold()?;
            } else {
                self.write()?;
            }
        }
        Ok(())
    }

    fn is_hold_requested(&self) -> bool {
        self.requests.join(HOLD_REQUEST_FILE).exists()
    }

    fn write(&mut self) -> io::Result<()> {
        let number = order_count(self.bytes);
        let order = format!("{:<1$}\n", format!("order {number}: a coil of rope"), ORDER_BYTES - 1);
        let (begin, rest) = order.as_bytes().split_at(ORDER_BYTES / 2);
        for part in [begin, rest] {
            self.file.write_all(part)?;
            std::thread::sleep(WRITE_INTERVAL);
        }
        self.bytes += order.len() as u64;
        Ok(())
    }

    /// Pauses as long as requested.
    fn hold(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        let started = Instant::now();
        let answer = self.requests.join(HOLD_ANSWER_FILE);
        fs::write(&answer, "")?;
        while self.is_hold_requested() && !self.stop.load(Relaxed) {
            std::thread::sleep(WRITE_INTERVAL);
        }
        let hold = Hold { bytes: self.bytes, duration: started.elapsed() };
        *self.last_hold.lock() = Some(hold);
        fs::remove_file(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_until(what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_mins(1);
        while !condition() {
            assert!(Instant::now() < deadline, "waited in vain: {what}");
            std::thread::sleep(WRITE_INTERVAL);
        }
    }

    #[test]
    fn nothing_is_written_during_a_hold_and_no_order_is_partial() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let journal = path("journal");
        fs::write(&journal, "").unwrap();
        let length = || fs::metadata(&journal).unwrap().len();
        let orders = OrderDatabase::start(&journal, folder.path()).unwrap();
        wait_until("orders come in", || length() > 1000);
        assert_eq!(orders.last_hold(), None);

        fs::write(path(HOLD_REQUEST_FILE), "").unwrap();
        wait_until("it holds still", || path(HOLD_ANSWER_FILE).exists());
        let content = fs::read(&journal).unwrap();
        assert_eq!(content.len() % ORDER_BYTES, 0);
        std::thread::sleep(20 * WRITE_INTERVAL);
        assert_eq!(fs::read(&journal).unwrap(), content);

        fs::remove_file(path(HOLD_REQUEST_FILE)).unwrap();
        wait_until("it goes on", || {
            !path(HOLD_ANSWER_FILE).exists() && length() > content.len() as u64
        });
        let hold = orders.last_hold().unwrap();
        assert_eq!(hold.bytes, content.len() as u64);
        assert_eq!(hold.order_count(), String::from_utf8(content).unwrap().lines().count() as u64);
        assert!(hold.duration >= 20 * WRITE_INTERVAL);
        orders.end().unwrap();
        assert_eq!(length() % ORDER_BYTES as u64, 0);

        // The next database continues where the last one ended.
        let last = orders_in(&journal);
        let orders = OrderDatabase::start(&journal, folder.path()).unwrap();
        wait_until("orders come in again", || orders_in(&journal) > last);
        orders.end().unwrap();
        let text = fs::read_to_string(&journal).unwrap();
        for (number, line) in text.lines().enumerate() {
            assert!(line.starts_with(&format!("order {number}: ")), "{line}");
        }
    }

    fn orders_in(journal: &Path) -> u64 {
        order_count(fs::metadata(journal).unwrap().len())
    }
}
