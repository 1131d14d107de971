//! What processes use, from `/proc`.
//!
//! A contender is a process and all that it starts. Its memory is the sum of their resident sets,
//! so pages that two of them share count twice. Its processor time is that of those alive plus what
//! they have inherited from children that ended.

use std::collections::BTreeMap;
use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::say;

/// How often a sample is taken.
const INTERVAL: Duration = Duration::from_millis(50);

/// The unit of time in `/proc`: a hundredth of a second on every system that we run on.
const TICKS_PER_SECOND: f64 = 100.0;

/// A machine is quiet when all that we started uses less than this share of one core for so long.
const QUIET_SHARE: f64 = 0.15;
const QUIET_WINDOW: Duration = Duration::from_secs(1);
const QUIET_LIMIT: Duration = Duration::from_secs(90);

/// What a tree of processes has used while it was watched.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    pub(crate) cpu_s: f64,
    pub(crate) peak_rss_bytes: u64,
}

/// Watches a tree of processes from a thread of its own, until asked to stop or dropped.
pub(crate) struct Watch {
    stop: Sender<()>,
    thread: JoinHandle<Usage>,
}

impl Watch {
    /// Watches the process `root` and all below it.
    pub(crate) fn start(root: u32) -> Self {
        let (stop, stopped) = mpsc::channel();
        let before = ticks(&tree(root));
        let thread = std::thread::spawn(move || {
            let mut usage = Usage::default();
            loop {
                let processes = tree(root);
                // The largest of all samples: one that is taken while a child ends may miss it.
                let used = ticks(&processes).saturating_sub(before);
                usage.cpu_s = usage.cpu_s.max(seconds(used));
                let resident = processes.iter().map(|process| resident_bytes(process.pid)).sum();
                usage.peak_rss_bytes = usage.peak_rss_bytes.max(resident);
                match stopped.recv_timeout(INTERVAL) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return usage,
                }
            }
        });
        Self { stop, thread }
    }

    /// What was used since the start.
    pub(crate) fn stop(self) -> anyhow::Result<Usage> {
        drop(self.stop);
        self.thread.join().map_err(|_| anyhow::anyhow!("the watching thread has died"))
    }
}

/// Whether a process is there and has not ended.
pub(crate) fn is_running(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|text| Process::parse(pid, &text))
        .is_some_and(|process| process.state != 'Z')
}

/// The first process of this name below ours.
pub(crate) fn find(name: &str) -> Option<u32> {
    let is_named = |process: &&Process| process.name == name;
    tree(std::process::id()).iter().find(is_named).map(|process| process.pid)
}

/// Waits until what we started has finished what it does on its own account.
pub(crate) async fn until_quiet() {
    let used = || {
        let ours = std::process::id();
        let processes: Vec<Process> =
            tree(ours).into_iter().filter(|process| process.pid != ours).collect();
        ticks(&processes)
    };
    let deadline = Instant::now() + QUIET_LIMIT;
    while Instant::now() < deadline {
        let before = used();
        tokio::time::sleep(QUIET_WINDOW).await;
        let used = seconds(used().saturating_sub(before));
        if used < QUIET_SHARE * QUIET_WINDOW.as_secs_f64() {
            return;
        }
    }
    say(format_args!("going on, although it is not quiet after {} s", QUIET_LIMIT.as_secs()));
}

/// One line of `/proc`.
#[derive(Clone, Debug, PartialEq)]
struct Process {
    pid: u32,
    parent: u32,
    name: String,
    state: char,
    /// Its own and that of its children that ended.
    ticks: u64,
}

impl Process {
    /// Reads `/proc/<pid>/stat`, in which the name may hold anything, blanks and brackets included.
    fn parse(pid: u32, text: &str) -> Option<Self> {
        let (start, end) = (text.find('(')?, text.rfind(')')?);
        let fields: Vec<&str> = text.get(end + 1..)?.split_whitespace().collect();
        let ticks = fields.get(11..15)?.iter().filter_map(|field| field.parse::<u64>().ok()).sum();
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            name: text.get(start + 1..end)?.to_owned(),
            state: fields.first()?.chars().next()?,
            ticks,
        })
    }
}

/// A process and all below it, parents first.
fn tree(root: u32) -> Vec<Process> {
    let mut children = BTreeMap::<u32, Vec<Process>>::new();
    let mut found = Vec::new();
    // In the order of their ids, so parents are read before the children that they inherit from.
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
        match Process::parse(pid, &text) {
            Some(process) if pid == root => found.push(process),
            Some(process) => children.entry(process.parent).or_default().push(process),
            None => {}
        }
    }
    let mut next = 0;
    while let Some(process) = found.get(next) {
        let below = children.remove(&process.pid).unwrap_or_default();
        found.extend(below);
        next += 1;
    }
    found
}

fn ticks(processes: &[Process]) -> u64 {
    processes.iter().map(|process| process.ticks).sum()
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52 ticks")]
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / TICKS_PER_SECOND
}

fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    resident_in(&status).unwrap_or_default()
}

fn resident_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_proc_is_read_also_when_the_name_has_brackets() {
        let text = "7 (a (b) c) S 3 7 7 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 5 0 99 1 2";
        let process = Process::parse(7, text).unwrap();
        assert_eq!((process.parent, process.name.as_str(), process.state), (3, "a (b) c", 'S'));
        assert_eq!(process.ticks, 100);
        assert_eq!(Process::parse(7, "7 (cut"), None);
        assert_eq!(resident_in("Name:\tx\nVmRSS:\t    12 kB\n"), Some(12 * 1024));
        assert_eq!(resident_in("Name:\tkernel thread\n"), None);
    }

    /// The child of a child works for a moment and ends; what it used must not be lost.
    #[test]
    fn the_time_and_memory_of_grandchildren_count_also_after_their_end() {
        let script = "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; echo; read _";
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let watch = Watch::start(child.id());
        let mut line = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        assert!(is_running(child.id()));
        let usage = watch.stop().unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!is_running(child.id()));
        assert!(usage.cpu_s > 0.05, "{usage:?}");
        assert!(usage.peak_rss_bytes > 500_000, "{usage:?}");
    }
}
