//! Resource usage of processes, from `/proc`.
//!
//! A contender is a process and all its descendants. Its memory is the sum of their resident sets, so pages that two of
//! them share count twice. Its CPU time is that of the living processes plus the time they inherited from children that
//! ended.

use std::collections::BTreeMap;
use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::print_line;

/// Interval of samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);

/// Unit of time in `/proc`: a hundredth of a second on every supported system.
const TICKS_PER_SECOND: f64 = 100.0;

/// A machine is quiet when all started processes use less than this share of one core for so long.
const QUIET_SHARE: f64 = 0.15;
const QUIET_WINDOW: Duration = Duration::from_secs(1);
const QUIET_TIMEOUT: Duration = Duration::from_secs(90);

/// Usage of a process tree while it was watched.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    pub(crate) cpu_s: f64,
    pub(crate) peak_rss_bytes: u64,
}

/// Watches some process trees from a separate thread, until stopped or dropped.
pub(crate) struct UsageWatch<const N: usize> {
    stop: Sender<()>,
    thread: JoinHandle<[Usage; N]>,
}

impl<const N: usize> UsageWatch<N> {
    /// Watches these processes and all their descendants.
    pub(crate) fn start(roots: [u32; N]) -> Self {
        let (stop, stopped) = mpsc::channel();
        let before = process_trees(roots).map(|tree| ticks(&tree));
        let thread = std::thread::spawn(move || {
            let mut usages = [Usage::default(); N];
            loop {
                for ((usage, processes), before) in
                    usages.iter_mut().zip(process_trees(roots)).zip(before)
                {
                    // The largest of all samples: a sample taken while a child ends may miss the child.
                    let used = ticks(&processes).saturating_sub(before);
                    usage.cpu_s = usage.cpu_s.max(seconds(used));
                    let resident = processes.iter().map(|process| resident_bytes(process.pid));
                    usage.peak_rss_bytes = usage.peak_rss_bytes.max(resident.sum());
                }
                match stopped.recv_timeout(SAMPLE_INTERVAL) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return usages,
                }
            }
        });
        Self { stop, thread }
    }

    /// Usage of each tree since the start.
    pub(crate) fn stop(self) -> anyhow::Result<[Usage; N]> {
        drop(self.stop);
        self.thread.join().map_err(|_| anyhow::anyhow!("the watching thread has died"))
    }
}

/// CPU time of this process so far, without that of its children.
pub(crate) fn own_cpu_s() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    Process::parse(std::process::id(), &text).map_or(0.0, |process| seconds(process.own_ticks))
}

/// Idle time of all cores of this machine so far.
pub(crate) fn idle_s() -> f64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    idle_in(&text).map_or(0.0, seconds)
}

/// Reads the fourth and fifth column of the first line: idle, and idle while a disk works.
fn idle_in(stat: &str) -> Option<u64> {
    let mut columns = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().skip(3);
    let mut next = || columns.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// True if a process exists and has not ended.
pub(crate) fn is_running(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|text| Process::parse(pid, &text))
        .is_some_and(|process| process.state != 'Z')
}

/// First descendant of this process with this name.
pub(crate) fn find_process(name: &str) -> Option<u32> {
    let is_named = |process: &&Process| process.name == name;
    process_tree(std::process::id()).iter().find(is_named).map(|process| process.pid)
}

/// Waits until the started processes have finished their own background work.
pub(crate) async fn wait_until_quiet() {
    wait_until_quiet_beyond(Duration::ZERO).await;
}

/// The same, for longer by this time.
pub(crate) async fn wait_until_quiet_beyond(extra: Duration) {
    let limit = QUIET_TIMEOUT + extra;
    let used = || {
        let own_pid = std::process::id();
        let processes: Vec<Process> =
            process_tree(own_pid).into_iter().filter(|process| process.pid != own_pid).collect();
        ticks(&processes)
    };
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        let before = used();
        tokio::time::sleep(QUIET_WINDOW).await;
        let used = seconds(used().saturating_sub(before));
        if used < QUIET_SHARE * QUIET_WINDOW.as_secs_f64() {
            return;
        }
    }
    print_line(format_args!("going on, although it is not quiet after {} s", limit.as_secs()));
}

/// One line of `/proc`.
#[derive(Clone, Debug, PartialEq)]
struct Process {
    pid: u32,
    parent: u32,
    name: String,
    state: char,
    /// Without that of its children.
    own_ticks: u64,
    /// Its own and that of its children that ended.
    ticks: u64,
}

impl Process {
    /// Reads `/proc/<pid>/stat`, in which the name may hold anything, blanks and brackets included.
    fn parse(pid: u32, text: &str) -> Option<Self> {
        let (start, end) = (text.find('(')?, text.rfind(')')?);
        let fields: Vec<&str> = text.get(end + 1..)?.split_whitespace().collect();
        let ticks: Vec<u64> =
            fields.get(11..15)?.iter().map(|field| field.parse().unwrap_or_default()).collect();
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            name: text.get(start + 1..end)?.to_owned(),
            state: fields.first()?.chars().next()?,
            own_ticks: ticks[..2].iter().sum(),
            ticks: ticks.iter().sum(),
        })
    }
}

/// A process and all below it, parents first.
fn process_tree(root: u32) -> Vec<Process> {
    let [tree] = process_trees([root]);
    tree
}

/// The same for several, from one scan of all processes.
fn process_trees<const N: usize>(roots: [u32; N]) -> [Vec<Process>; N] {
    let mut children = BTreeMap::<u32, Vec<Process>>::new();
    let mut found = [const { Vec::new() }; N];
    // In the order of their ids, so parents are read before the children that they inherit from.
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some(process) = Process::parse(pid, &text) else { continue };
        if let Some(index) = roots.iter().position(|root| *root == pid) {
            found[index].push(process.clone());
        }
        children.entry(process.parent).or_default().push(process);
    }
    for tree in &mut found {
        let mut next = 0;
        while let Some(process) = tree.get(next) {
            let below = children.get(&process.pid).cloned().unwrap_or_default();
            tree.extend(below);
            next += 1;
        }
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

/// Resident set of a process.
pub(crate) fn resident_bytes(pid: u32) -> u64 {
    memory(pid, "VmRSS:")
}

/// Largest resident set of a process since its start.
pub(crate) fn peak_resident_bytes(pid: u32) -> u64 {
    memory(pid, "VmHWM:")
}

fn memory(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    memory_in(&status, field).unwrap_or_default()
}

fn memory_in(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_stat_is_parsed_even_with_brackets_in_the_name() {
        let text = "7 (a (b) c) S 3 7 7 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 5 0 99 1 2";
        let process = Process::parse(7, text).unwrap();
        assert_eq!((process.parent, process.name.as_str(), process.state), (3, "a (b) c", 'S'));
        assert_eq!((process.own_ticks, process.ticks), (30, 100));
        assert_eq!(Process::parse(7, "7 (cut"), None);
        let status = "Name:\tx\nVmHWM:\t    15 kB\nVmRSS:\t    12 kB\n";
        assert_eq!(memory_in(status, "VmRSS:"), Some(12 * 1024));
        assert_eq!(memory_in(status, "VmHWM:"), Some(15 * 1024));
        assert_eq!(memory_in("Name:\tkernel thread\n", "VmRSS:"), None);
        assert_eq!(idle_in("cpu  1 2 3 40 50 6 7 8 9 10\ncpu0 1 2 3 4 5\n"), Some(90));
        assert_eq!(idle_in("intr 1 2 3 4 5\n"), None);
    }

    /// A grandchild works for a moment and ends; its usage must not be lost.
    #[test]
    fn usage_of_grandchildren_counts_after_they_exit() {
        let script = "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; echo; read _";
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let watch = UsageWatch::start([child.id(), std::process::id()]);
        let mut line = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        assert!(is_running(child.id()));
        let [usage, ours] = watch.stop().unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!is_running(child.id()));
        assert!(usage.cpu_s > 0.05, "{usage:?}");
        assert!(usage.peak_rss_bytes > 500_000, "{usage:?}");
        // One process is a child of the other, and both totals include it.
        assert!(ours.cpu_s + 0.02 > usage.cpu_s, "{ours:?} {usage:?}");
        assert!(ours.peak_rss_bytes > usage.peak_rss_bytes, "{ours:?} {usage:?}");
    }
}
