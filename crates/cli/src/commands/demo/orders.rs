//! What the database of the sample application does: it writes orders to a file in its volume, one
//! after the other, and holds still if it is asked to.
//!
//! Its pod runs in name only, so this is done by a thread of the demo. Hooks are executed for real: they
//! put a file `hold` into a folder and wait for `held`, and take it away again afterwards. An order is
//! written in two parts. Whoever copies the file without asking gets half of one, or more orders than
//! there were.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// What asks it to hold still, and its answer.
const HOLD_REQUEST_FILE: &str = "hold";
const HOLD_ANSWER_FILE: &str = "held";
/// The length of an order, with the end of its line.
pub(super) const ORDER_BYTES: usize = 64;
/// How often it writes, and looks whether it is asked for something.
const WRITE_INTERVAL: Duration = Duration::from_millis(1);

/// The database while it runs. Dropping it ends it.
pub(super) struct OrderDatabase {
    stop: Arc<AtomicBool>,
    last_hold: Arc<Mutex<Option<Hold>>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// A time in which it held still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    /// The length of the file meanwhile.
    pub(super) bytes: u64,
    pub(super) duration: Duration,
}

impl Hold {
    /// How many orders there were.
    pub(super) fn order_count(self) -> u64 {
        order_count(self.bytes)
    }
}

/// How many orders so many bytes are.
pub(super) fn order_count(bytes: u64) -> u64 {
    bytes / ORDER_BYTES as u64
}

impl OrderDatabase {
    /// Goes on with the file `journal`. Requests are files in the folder `requests`.
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

    /// The last time in which it held still; none if there is none that has ended.
    pub(super) fn last_hold(&self) -> Option<Hold> {
        *self.last_hold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it. An error if it has not written all that it should have.
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

    /// Holds still for as long as it is asked to.
    fn hold(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        let started = Instant::now();
        let answer = self.requests.join(HOLD_ANSWER_FILE);
        fs::write(&answer, "")?;
        while self.is_hold_requested() && !self.stop.load(Relaxed) {
            std::thread::sleep(WRITE_INTERVAL);
        }
        let hold = Hold { bytes: self.bytes, duration: started.elapsed() };
        *self.last_hold.lock().unwrap_or_else(PoisonError::into_inner) = Some(hold);
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

        // Where one ends, the next goes on.
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
