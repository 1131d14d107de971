//! Plugin processes that exit and restart during calls.

use std::cell::RefCell;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bowline_plugin::{Class, Code};
use bowline_plugin_host::{Host, Limits, Options};
use bowline_testbed::eventually;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fixture::{Fixture, Set, backup, pick, pod, short_limits};

/// Time limit for the start or the end of a process.
const LIMIT: Duration = Duration::from_secs(20);

/// The plugin processes that were started for a folder.
fn processes(fixture: &Fixture) -> Vec<Pid> {
    processes_in(&fixture.plugin_dir())
}

/// The processes whose program is in a folder.
fn processes_in(folder: &Path) -> Vec<Pid> {
    let is_ours = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).starts_with(&*folder.to_string_lossy())
    };
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(is_ours)
        .map(Pid::from_raw)
        .collect()
}

/// Kills a process and waits until the host has noticed: only then is its number free.
async fn kill_and_wait(process: Pid) {
    kill(process, Signal::SIGKILL).unwrap();
    eventually("the process is gone", LIMIT, async || kill(process, None).is_err()).await;
}

async fn until_no_process(fixture: &Fixture) {
    until_no_process_in(&fixture.plugin_dir()).await;
}

async fn until_no_process_in(folder: &Path) {
    eventually("no process remains", LIMIT, async || {
        let remaining = processes_in(folder);
        if remaining.is_empty() { Ok(()) } else { Err(remaining) }
    })
    .await;
}

#[tokio::test]
async fn discovery_leaves_no_process_running() {
    let fixture = Fixture::start(Set::Go).await;
    assert_eq!(processes(&fixture), []);
}

#[tokio::test]
async fn actions_of_a_run_share_one_process_that_ends_with_the_run() {
    let fixture = Fixture::start(Set::Go).await;
    let run = fixture.host.run();
    let other = fixture.host.run();
    for run in [&run, &other] {
        let old = pick(run.backup_item_actions(), "bia-v1").plugin;
        let new = pick(run.restore_item_actions(), "ria-v2").plugin;
        let (old, new) = tokio::join!(old.applies_to(), new.applies_to());
        old.unwrap();
        new.unwrap();
    }
    assert_eq!(processes(&fixture).len(), 2, "one for each run");
    run.shut_down().await;
    assert_eq!(processes(&fixture).len(), 1);
    drop(other);
    until_no_process(&fixture).await;
}

#[tokio::test]
async fn process_that_died_between_calls_is_replaced_transparently() {
    let fixture = Fixture::start(Set::Go).await;
    let run = fixture.host.run();
    let action = pick(run.backup_item_actions(), "bia-v1").plugin;
    for _ in 0..3 {
        action.execute(&pod(&[]), &backup()).await.unwrap();
        let [process] = processes(&fixture)[..] else { panic!("not one process") };
        kill_and_wait(process).await;
    }
    action.execute(&pod(&[]), &backup()).await.unwrap();
    run.shut_down().await;
}

#[tokio::test]
async fn store_is_initialised_again_after_its_process_died() {
    let fixture = Fixture::start(Set::Go).await;
    let config = fixture.config(&[("identity", "me")]);
    let store = fixture.host.object_store("fixture.bowline.io/os", config).await.unwrap().unwrap();
    assert!(!store.object_exists("b", "k").await.unwrap());
    for process in processes(&fixture) {
        kill_and_wait(process).await;
    }
    // Without its configuration it would say that Init has not been called.
    assert!(!store.object_exists("b", "k").await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_killed_repeatedly_under_load_answers_or_reports_why() {
    let fixture = Fixture::start(Set::Go).await;
    let run = fixture.host.run();
    let over = Arc::new(AtomicBool::new(false));
    let answers = Arc::new(AtomicUsize::new(0));
    let backup = Arc::new(backup());
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..32 {
        let name = ["bia-v1", "bia-v2", "both"][n % 3];
        let action = pick(run.backup_item_actions(), name).plugin;
        let (over, answers, backup) =
            (Arc::clone(&over), Arc::clone(&answers), Arc::clone(&backup));
        callers.spawn(async move {
            let item = pod(&[]);
            while !over.load(Ordering::Relaxed) {
                match action.execute(&item, &backup).await {
                    Ok(_) => {
                        answers.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => {
                        assert_eq!(error.class(), Class::Transient, "{error}");
                        let ended = error.message().contains("exited during Execute (signal: 9");
                        let in_warm_up =
                            error.message().contains("exited during AppliesTo (signal: 9");
                        let before =
                            error.message().contains("ended before its handshake (signal: 9");
                        let after = error.message().contains("cannot connect to the socket");
                        assert!(ended || in_warm_up || before || after, "{error}");
                    }
                }
            }
        });
    }
    let mut killed = std::collections::HashSet::new();
    let deadline = tokio::time::Instant::now() + Duration::from_mins(3);
    while killed.len() < 100 {
        assert!(tokio::time::Instant::now() < deadline, "{} kills", killed.len());
        // Calls get through between any two kills.
        let reached = answers.load(Ordering::Relaxed) + 64;
        eventually("calls are answered", Duration::from_mins(1), async || {
            answers.load(Ordering::Relaxed) >= reached
        })
        .await;
        let found = processes(&fixture);
        assert!(found.len() <= 1, "{found:?}");
        killed.extend(found.into_iter().filter(|&process| kill(process, Signal::SIGKILL).is_ok()));
    }
    over.store(true, Ordering::Relaxed);
    while let Some(caller) = callers.join_next().await {
        caller.unwrap();
    }
    run.shut_down().await;
}

#[tokio::test]
async fn rotated_credentials_get_a_new_process() {
    let fixture = Fixture::start(Set::Go).await;
    let credentials = fixture.state("credentials");
    let config = fixture.config(&[("credentialsFile", credentials.to_str().unwrap())]);
    let whoami = async || {
        let store = fixture.host.object_store("fixture.bowline.io/os", config.clone()).await;
        let stream = store.unwrap().unwrap().get_object("b", "whoami").await.unwrap();
        let pieces: Vec<bytes::Bytes> = futures::TryStreamExt::try_collect(stream).await.unwrap();
        String::from_utf8(pieces.concat()).unwrap()
    };
    std::fs::write(&credentials, "alice").unwrap();
    assert_eq!(whoami().await, "alice");
    assert_eq!(processes(&fixture).len(), 1);
    std::fs::write(&credentials, "bob").unwrap();
    assert_eq!(whoami().await, "bob");
    assert_eq!(processes(&fixture).len(), 2, "the old one may still be in use");
}

#[tokio::test]
async fn idle_process_is_stopped_and_restarted_on_demand() {
    let limits = Limits { idle: Duration::from_millis(200), ..short_limits() };
    let fixture = Fixture::with_limits(Set::Go, limits).await;
    let store = fixture.host.object_store("fixture.bowline.io/os", fixture.config(&[])).await;
    let store = store.unwrap().unwrap();
    assert!(!store.object_exists("b", "k").await.unwrap());
    until_no_process(&fixture).await;
    assert!(!store.object_exists("b", "k").await.unwrap());
}

#[tokio::test]
async fn missing_provider_is_no_error_but_an_invalid_name_is() {
    let fixture = Fixture::start(Set::Go).await;
    assert!(fixture.host.object_store("aws", fixture.config(&[])).await.unwrap().is_none());
    let Err(error) = fixture.host.object_store("a/b/c", fixture.config(&[])).await else {
        panic!("that is no name");
    };
    assert_eq!(error.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_plugin_behind_a_script_ends_with_the_script() {
    let folder = tempfile::tempdir().unwrap();
    let (plugins, hidden) = (folder.path().join("plugins"), folder.path().join("hidden"));
    std::fs::create_dir(&plugins).unwrap();
    std::fs::create_dir(&hidden).unwrap();
    let real = hidden.join("real");
    std::os::unix::fs::symlink(Set::Go.binaries().await.remove(0).1, &real).unwrap();
    let script = plugins.join("wrapped");
    // No `exec`: the plugin is a child of the script, and knows nothing of us.
    std::fs::write(&script, format!("#!/bin/sh\n'{}' \"$@\"\nexit $?\n", real.display())).unwrap();
    std::fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let host = Host::discover(Options { plugin_dir: plugins, ..Options::default() }).await;
    assert_eq!(host.registry().problems(), []);
    until_no_process_in(&hidden).await;
    let run = host.run();
    let action = pick(run.backup_item_actions(), "bia-v1").plugin;
    action.execute(&pod(&[]), &backup()).await.unwrap();
    assert_eq!(processes_in(&hidden).len(), 1);
    drop((run, action));
    until_no_process_in(&hidden).await;
}

/// The victim is this test binary, started again as a host with calls in flight.
#[tokio::test]
async fn plugins_do_not_outlive_a_host_that_is_killed() {
    use tokio::io::{AsyncBufReadExt as _, BufReader};
    // Leftovers of the host are removed with this folder.
    let folder = tempfile::tempdir().unwrap();
    let mut host = tokio::process::Command::new(std::env::current_exe().unwrap())
        .env("TMPDIR", folder.path())
        .args(["--ignored", "--nocapture", "--exact", "supervision::host_with_calls_in_flight"])
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(host.stdout.take().unwrap()).lines();
    let plugins: Vec<Pid> = loop {
        let line = lines.next_line().await.unwrap().expect("the host ended by itself");
        if let Some((_, pids)) = line.split_once("plugins ") {
            let pid = |word: &str| Pid::from_raw(word.parse().unwrap());
            break pids.split_whitespace().map(pid).collect();
        }
    };
    assert_eq!(plugins.len(), 2, "an action and a store");
    assert!(plugins.iter().all(|&plugin| kill(plugin, None).is_ok()));
    host.kill().await.unwrap();
    for plugin in plugins {
        let command_line = format!("/proc/{plugin}/cmdline");
        eventually("the plugin has ended", LIMIT, async || {
            std::fs::read(&command_line).is_ok_and(|line| line.is_empty())
                || !Path::new(&command_line).exists()
        })
        .await;
    }
}

#[tokio::test]
#[ignore = "started by another test, in a process of its own"]
async fn host_with_calls_in_flight() {
    let fixture = Fixture::start(Set::Go).await;
    let run = fixture.host.run();
    let action = pick(run.backup_item_actions(), "bia-v1").plugin;
    let store = fixture.host.object_store("fixture.bowline.io/os", fixture.config(&[])).await;
    let store = store.unwrap().unwrap();
    store.object_exists("b", "k").await.unwrap();
    let item = pod(&[("do", "hang")]);
    let in_flight = Arc::clone(&action);
    tokio::spawn(async move { in_flight.execute(&item, &backup()).await });
    // Both share a connection: when this one is answered, the other has arrived.
    action.execute(&pod(&[("do", "sleep=100")]), &backup()).await.unwrap();
    let pids: Vec<String> = processes(&fixture).iter().map(ToString::to_string).collect();
    println!("plugins {}", pids.join(" "));
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn metadata_calls_do_not_wait_for_running_work() {
    let fixture = Fixture::with(Set::Go, |options| options.concurrency = 1).await;
    let run = fixture.host.run();
    let action = pick(run.backup_item_actions(), "bia-v2").plugin;
    let item = pod(&[("do", "operation=600000")]);
    let operation = action.execute(&item, &backup()).await.unwrap().operation.unwrap();
    let busy = Arc::clone(&action);
    let work =
        tokio::spawn(
            async move { busy.execute(&pod(&[("do", "hang")]), &backup()).await.map(drop) },
        );
    // The only permit is in use for ten minutes.
    let metadata_calls = async {
        action.progress(&operation, &backup()).await.unwrap();
        action.cancel(&operation, &backup()).await.unwrap();
    };
    tokio::time::timeout(Duration::from_secs(20), metadata_calls).await.expect("they go past it");
    work.abort();
    run.shut_down().await;
}

#[tokio::test]
async fn object_can_be_copied_with_a_concurrency_of_one() {
    let fixture = Fixture::with(Set::Go, |options| options.concurrency = 1).await;
    let store = fixture.host.object_store("fixture.bowline.io/os", fixture.config(&[])).await;
    let store = store.unwrap().unwrap();
    let piece = bytes::Bytes::from(vec![1; 300_000]);
    let body = futures::stream::iter((0..20).map(move |_| Ok(piece.clone())));
    store.put_object("b", "one", Box::pin(body)).await.unwrap();
    let copy = async {
        let stream = store.get_object("b", "one").await.unwrap();
        store.put_object("b", "two", stream).await.unwrap();
    };
    tokio::time::timeout(Duration::from_secs(30), copy).await.expect("reading holds no place");
}

#[tokio::test]
async fn unresponsive_process_is_replaced() {
    let fixture = Fixture::with(Set::Go, |options| options.limits = short_limits()).await;
    let run = fixture.host.run();
    let action = pick(run.backup_item_actions(), "bia-v1").plugin;
    action.execute(&pod(&[]), &backup()).await.unwrap();
    let [process] = processes(&fixture)[..] else { panic!("not one process") };
    kill(process, Signal::SIGSTOP).unwrap();
    // The signal stops its threads one after the other.
    let is_stopped = |thread: std::fs::DirEntry| {
        std::fs::read_to_string(thread.path().join("stat")).is_ok_and(|stat| stat.contains(") T "))
    };
    let threads = || std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    eventually("all threads are stopped", LIMIT, async || threads().all(is_stopped)).await;
    let error = action.execute(&pod(&[]), &backup()).await.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    action.execute(&pod(&[]), &backup()).await.unwrap();
    run.shut_down().await;
    until_no_process(&fixture).await;
}

#[tokio::test]
async fn cancelled_caller_does_not_abort_the_start_for_others() {
    let fixture = Fixture::start(Set::Go).await;
    let run = fixture.host.run();
    let action = pick(run.backup_item_actions(), "bia-v1").plugin;
    let (item, backup) = (pod(&[]), backup());
    // Polled once, so that the start has begun, and dropped.
    {
        let mut first = action.execute(&item, &backup);
        assert!(futures::poll!(&mut first).is_pending());
    }
    let second = action.execute(&item, &backup);
    tokio::time::timeout(Duration::from_secs(20), second).await.unwrap().unwrap();
    assert_eq!(processes(&fixture).len(), 1);
    run.shut_down().await;
}

#[tokio::test]
async fn run_can_be_shut_down_while_its_plugin_hangs_at_start() {
    let fixture = Fixture::start(Set::Go).await;
    let script = fixture.plugin_dir().join("fixture");
    let run = fixture.host.run();
    let action = pick(run.backup_item_actions(), "bia-v1").plugin;
    // Since its listing, the binary was replaced by one that reports nothing.
    let started = fixture.plugin_dir().join("started");
    let hanging = format!("#!/bin/sh\n: > '{}'\nexec sleep 600\n", started.display());
    std::fs::remove_file(&script).unwrap();
    std::fs::write(&script, hanging).unwrap();
    std::fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let (item, backup) = (pod(&[]), backup());
    let call = action.execute(&item, &backup);
    let end = async {
        eventually("the plugin is being started", LIMIT, async || started.exists()).await;
        run.shut_down().await;
    };
    let both = async { tokio::join!(call, end) };
    let (outcome, ()) = tokio::time::timeout(Duration::from_secs(20), both).await.unwrap();
    assert!(outcome.unwrap_err().message().ends_with("is no longer used"));
}

thread_local! {
    /// Log lines of the test on this thread, while the test captures them, as `LEVEL plugin message fields`.
    static CAPTURED_LINES: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Keeps the log lines of threads that capture them.
///
/// The layer belongs to the subscriber of the whole binary. A subscriber for one thread would miss lines: while it is
/// the only one, `tracing` asks just the thread that reaches a log statement first, so a test on another thread would
/// disable that statement for good.
struct LogCapture;

/// Fields of a log event, as text.
struct FieldText(std::collections::BTreeMap<&'static str, String>);

impl tracing::field::Visit for FieldText {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for LogCapture {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        if CAPTURED_LINES.with_borrow(Option::is_none) {
            return;
        }
        let mut text = FieldText(std::collections::BTreeMap::new());
        event.record(&mut text);
        let part = |name| text.0.get(name).cloned().unwrap_or_default();
        let line = [part("plugin"), part("message"), part("fields")].join(" ");
        let line = format!("{} {line}", event.metadata().level());
        CAPTURED_LINES.with_borrow_mut(|lines| lines.as_mut().unwrap().push(line));
    }
}

#[tokio::test]
async fn plugin_logs_keep_plugin_name_and_level() {
    use tracing_subscriber::layer::SubscriberExt as _;
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(LogCapture))
        .unwrap();
    // Statements that were reached while the subscriber was being installed are asked again.
    tracing::callsite::rebuild_interest_cache();
    // This test and the tasks of its host run on one thread.
    CAPTURED_LINES.set(Some(Vec::new()));
    let fixture = Fixture::start(Set::Go).await;
    let run = fixture.host.run();
    let action = pick(run.backup_item_actions(), "bia-v1").plugin;
    action.execute(&pod(&[("do", "log=warn,log=info")]), &backup()).await.unwrap();
    run.shut_down().await;
    let logged = CAPTURED_LINES.take().unwrap();
    let hello: Vec<&String> =
        logged.iter().filter(|line| line.contains("fixture says hello")).collect();
    assert_eq!(hello.len(), 2, "{logged:#?}");
    assert!(hello[0].starts_with(r#"WARN "fixture" fixture says hello"#), "{}", hello[0]);
    assert!(hello[1].starts_with(r#"INFO "fixture" fixture says hello"#), "{}", hello[1]);
    assert!(hello.iter().all(|line| line.contains(r#"\"item\":\"p\""#)), "{hello:?}");
}
