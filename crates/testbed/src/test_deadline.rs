//! A time limit for each test: `cargo test` has none, so that one test that hangs would cost the whole run.
//!
//! Each test runs on its own thread, which has the name of the test and ends with it. Creating a bed, and asking for one
//! that the tests of a binary share, calls [`test_deadline`]; the first call on a thread starts the time of its test.
//! When the time is over, the process is aborted with the names of the tests that ran. All beds end with it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::env;

/// Enough to build all programs of the test bed with Go on two cores, which the first test does.
const DEFAULT_MINUTES: u64 = 45;

/// Interval of the checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Tests that run now.
static RUNNING_TESTS: Mutex<Vec<RunningTest>> = Mutex::new(Vec::new());

struct RunningTest {
    thread: thread::ThreadId,
    name: String,
    begin: Instant,
}

thread_local! {
    static REGISTRATION: Registration = Registration::new();
}

/// Entry of a thread in the list of running tests, for as long as the thread lives.
struct Registration {
    is_test: bool,
}

impl Registration {
    fn new() -> Self {
        let current = thread::current();
        let Some(name) = current.name().filter(|name| is_test_name(name)) else {
            return Self { is_test: false };
        };
        let test =
            RunningTest { thread: current.id(), name: name.to_owned(), begin: Instant::now() };
        RUNNING_TESTS.lock().push(test);
        Self { is_test: true }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let ended = thread::current().id();
        let mut running = RUNNING_TESTS.lock();
        running.retain(|test| test.thread != ended);
    }
}

/// Programs create beds on their main thread. With `--test-threads=1` all tests share it as well, and none can be timed.
/// Tasks on the threads of a runtime belong to a test that is timed already.
fn is_test_name(thread_name: &str) -> bool {
    !matches!(thread_name, "main" | "tokio-rt-worker" | "tokio-runtime-worker")
}

/// Starts the time of the current test, unless it runs already.
pub fn test_deadline() {
    static WATCHDOG: OnceLock<()> = OnceLock::new();
    if !REGISTRATION.with(|registration| registration.is_test) {
        return;
    }
    WATCHDOG.get_or_init(|| {
        let minutes = env::get(env::TEST_MINUTES).and_then(|text| text.parse().ok());
        let limit = Duration::from_mins(minutes.unwrap_or(DEFAULT_MINUTES));
        if !limit.is_zero() {
            thread::spawn(move || watch(limit));
        }
    });
}

fn watch(limit: Duration) {
    loop {
        thread::sleep(CHECK_INTERVAL);
        let running = RUNNING_TESTS.lock();
        if let Some(message) = overdue_message(&running, limit, Instant::now()) {
            // Not by a macro: its output would be captured with that of the test that started this thread.
            let _ = std::io::stderr().write_all(message.as_bytes());
            std::process::abort();
        }
    }
}

/// Message with all tests that run, if one is over its limit.
fn overdue_message(running: &[RunningTest], limit: Duration, now: Instant) -> Option<String> {
    let is_overdue = |test: &RunningTest| now.duration_since(test.begin) >= limit;
    if !running.iter().any(is_overdue) {
        return None;
    }
    let mut message = format!(
        "a test runs for more than {} minutes, see {} in CONTRIBUTING.md; running are:\n",
        limit.as_secs() / 60,
        env::TEST_MINUTES
    );
    for test in running {
        let seconds = now.duration_since(test.begin).as_secs();
        let _ = writeln!(message, "- {} ({} min {} s)", test.name, seconds / 60, seconds % 60);
    }
    Some(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_running(name: &str) -> bool {
        let running = RUNNING_TESTS.lock();
        running.iter().any(|test| test.name == name)
    }

    #[test]
    fn test_is_timed_from_its_first_call_to_the_end_of_its_thread() {
        let name = "some::test";
        let (to_test, from_test) = std::sync::mpsc::channel::<()>();
        let (to_main, is_registered) = std::sync::mpsc::channel();
        let test = thread::Builder::new().name(name.to_owned()).spawn(move || {
            test_deadline();
            test_deadline();
            to_main.send(()).unwrap();
            let _ = from_test.recv();
        });
        is_registered.recv().unwrap();
        assert!(is_running(name));
        drop(to_test);
        test.unwrap().join().unwrap();
        assert!(!is_running(name));
    }

    #[test]
    fn message_names_the_tests_that_run_once_one_is_overdue() {
        let (limit, begin) = (Duration::from_mins(2), Instant::now());
        let test = |name: &str, begin| RunningTest {
            thread: thread::current().id(),
            name: name.to_owned(),
            begin,
        };
        let running = [test("hangs", begin), test("is::young", begin + Duration::from_mins(1))];
        let at = |seconds| overdue_message(&running, limit, begin + Duration::from_secs(seconds));
        assert_eq!(at(119), None);
        let expected = "a test runs for more than 2 minutes, see BOWLINE_TEST_MINUTES in \
                        CONTRIBUTING.md; running are:\n- hangs (2 min 5 s)\n- is::young (1 min 5 \
                        s)\n";
        assert_eq!(at(125).as_deref(), Some(expected));
    }
}
