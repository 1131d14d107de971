//! The targets on the corpus that is checked in, without coverage guidance. `fuzz/run` has it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may end at once; clippy exempts only functions marked as tests by itself"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bowline_fuzz::targets;

mod velero;

/// Mutations of the corpus for each target.
const MUTATIONS: usize = 500;
/// Longest run of a target, many times of what it takes.
const TIMEOUT: Duration = Duration::from_mins(3);
/// Size of all corpora.
const MAX_CORPUS: u64 = 1 << 20;
/// Size of one input.
const MAX_INPUT: u64 = 64 << 10;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

/// Ends with the failure of a target, if it has one.
fn replay(target: &str) -> Option<String> {
    let current = Path::new(env!("CARGO_TARGET_TMPDIR")).join(target);
    let child = Command::new(env!("CARGO_BIN_EXE_bowline-fuzz-replay"))
        .args(["corpus", target])
        .arg(corpus(target))
        .arg(MUTATIONS.to_string())
        .arg(&current)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let reason = failure(child)?;
    Some(format!("{target}: {reason}\nthe input is in {}", current.display()))
}

/// Waits for a child; the reason if it does not succeed.
fn failure(mut child: Child) -> Option<String> {
    let stderr = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || std::io::read_to_string(stderr).unwrap_or_default());
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > TIMEOUT {
            child.kill().unwrap();
            break child.wait().unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let stderr = reader.join().unwrap();
    (!status.success()).then(|| format!("{status} after {:?}\n{stderr}", start.elapsed()))
}

#[test]
fn targets_keep_their_properties_on_the_corpus_and_mutations_of_it() {
    let waiting = Mutex::new(targets::ALL.iter());
    let failures = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().unwrap().get();
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(target) = { waiting.lock().unwrap().next() } {
                    failures.lock().unwrap().extend(replay(target.name));
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn each_target_has_a_corpus_and_all_are_small() {
    let folders = fs::read_dir(corpus("")).unwrap();
    let folders: BTreeSet<String> =
        folders.map(|folder| folder.unwrap().file_name().into_string().unwrap()).collect();
    let targets: BTreeSet<String> = targets::ALL.iter().map(|it| it.name.to_owned()).collect();
    assert_eq!(folders, targets);
    let mut total = 0;
    for target in &targets {
        let files = fs::read_dir(corpus(target)).unwrap();
        let sizes: Vec<u64> = files.map(|it| it.unwrap().metadata().unwrap().len()).collect();
        assert!(!sizes.is_empty(), "{target}");
        assert!(sizes.iter().all(|size| *size <= MAX_INPUT), "{target}");
        total += sizes.iter().sum::<u64>();
    }
    assert!(total <= MAX_CORPUS, "{total} bytes");
}
