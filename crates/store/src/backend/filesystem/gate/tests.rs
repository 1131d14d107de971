use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{self, ThreadId};

use bowline_testbed::eventually;

use super::*;

const TIMEOUT: Duration = Duration::from_millis(50);
/// Longest wait for a condition.
const LIMIT: Duration = Duration::from_mins(1);

fn gate() -> BucketGate {
    BucketGate::new(4, 2, TIMEOUT)
}

/// Calls that hang until this is dropped.
struct HangingCalls {
    _release: mpsc::Sender<()>,
    started: Arc<AtomicUsize>,
}

/// Starts calls that hang, each for a path of its own: `0`, `1`, ….
async fn hang(gate: &BucketGate, calls: usize) -> HangingCalls {
    let (release, hang) = mpsc::channel::<()>();
    let hang = Arc::new(Mutex::new(hang));
    let started = Arc::new(AtomicUsize::new(0));
    for number in 0..calls {
        let (gate, hang, started) = (gate.clone(), Arc::clone(&hang), Arc::clone(&started));
        tokio::spawn(async move {
            gate.run_blocking(&number.to_string(), move || {
                started.fetch_add(1, Ordering::SeqCst);
                let _ = hang.lock().recv();
            })
            .await
        });
    }
    let expected = calls.min(gate.0.calls.size);
    let hanging = || {
        let running = gate.0.calls.lock_running();
        running.values().filter(|call| call.at.elapsed() >= TIMEOUT).count()
    };
    eventually("the calls hang", LIMIT, async || {
        started.load(Ordering::SeqCst) >= expected && hanging() >= expected
    })
    .await;
    HangingCalls { _release: release, started }
}

fn assert_hanging(outcome: Result<()>) {
    let error = outcome.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert!(error.message().contains("does not respond"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_file_system_uses_few_threads_and_later_calls_fail_fast() {
    let gate = gate();
    let calls = hang(&gate, 40).await;
    for _ in 0..100 {
        assert_hanging(gate.run_blocking("other", || ()).await);
    }
    assert_eq!(calls.started.load(Ordering::SeqCst), 4, "the others have not begun");
    // The hanging calls return.
    drop(calls);
    eventually("calls are possible", LIMIT, async || gate.run_blocking("other", || ()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn call_that_hangs_fails_only_later_calls_for_the_same_path() {
    let gate = gate();
    let _calls = hang(&gate, 3).await;
    for _ in 0..100 {
        assert_hanging(gate.run_blocking("0", || ()).await);
        gate.run_blocking("other", || ()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_upload_is_published_while_all_other_calls_hang() {
    let gate = gate();
    let _calls = hang(&gate, 4).await;
    assert_hanging(gate.run_blocking("other", || ()).await);
    gate.run_publication("0", || ()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn object_is_not_absent_while_its_publication_hangs() {
    let gate = gate();
    let (release, hang) = mpsc::channel::<()>();
    let (publishing, started) = (gate.clone(), Arc::new(AtomicUsize::new(0)));
    let has_started = Arc::clone(&started);
    let caller = tokio::spawn(async move {
        let publish = move || {
            has_started.fetch_add(1, Ordering::SeqCst);
            let _ = hang.recv();
        };
        publishing.run_publication("k", publish).await
    });
    while started.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Its caller gives it up, and asks whether the object exists.
    caller.abort();
    assert_hanging(gate.run_blocking("k", || ()).await);
    gate.run_blocking("other", || ()).await.unwrap();
    drop(release);
    while gate.run_blocking("k", || ()).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn call_waits_for_a_publication_that_does_not_hang() {
    let gate = BucketGate::new(4, 2, Duration::from_mins(1));
    let (release, hang) = mpsc::channel::<()>();
    let publishing = gate.clone();
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let publication = tokio::spawn(async move {
        let publish = move || {
            let _ = started.send(());
            let _ = hang.recv();
        };
        publishing.run_publication("k", publish).await
    });
    starts.recv().await.unwrap();
    let mut call = Box::pin(gate.run_blocking("k", || ()));
    assert!(futures::poll!(&mut call).is_pending());
    drop(release);
    call.await.unwrap();
    publication.await.unwrap().unwrap();
}

/// Sends the thread that drops it, after a message or the end of its channel.
struct SlowDrop(mpsc::Receiver<()>, mpsc::Sender<ThreadId>);

impl Drop for SlowDrop {
    fn drop(&mut self) {
        let _ = self.0.recv_timeout(Duration::from_secs(20));
        let _ = self.1.send(thread::current().id());
    }
}

/// A value that is dropped without delay.
fn quick_drop(report: &mpsc::Sender<ThreadId>) -> SlowDrop {
    let (_, ended) = mpsc::channel();
    SlowDrop(ended, report.clone())
}

#[tokio::test]
async fn discarded_values_are_dropped_by_one_thread_beside_the_runtime() {
    let gate = gate();
    let (report, dropped) = mpsc::channel();
    let releases = [(); 3].map(|()| {
        let (release, hang) = mpsc::channel();
        gate.discard(SlowDrop(hang, report.clone()));
        release
    });
    // The runtime has one thread, which is here and not blocked.
    assert!(dropped.try_recv().is_err());
    drop(releases);
    let threads: Vec<ThreadId> = (0..3).map(|_| dropped.recv().unwrap()).collect();
    assert!(threads.iter().all(|one| *one == threads[0] && *one != thread::current().id()));
}

#[test]
fn discarded_values_are_dropped_without_a_runtime_and_at_its_end() {
    let gate = gate();
    let (report, dropped) = mpsc::channel();
    gate.discard(quick_drop(&report));
    assert_eq!(dropped.try_recv(), Ok(thread::current().id()));
    // The only thread is busy until the runtime shuts down.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().max_blocking_threads(1).build().unwrap();
    let (release, busy) = mpsc::channel::<()>();
    runtime.spawn_blocking(move || busy.recv());
    runtime.block_on(async { gate.discard(quick_drop(&report)) });
    assert!(dropped.try_recv().is_err());
    drop(release);
    drop(runtime);
    dropped.recv().unwrap();
    gate.discard(());
    assert!(!gate.0.lock_discarded().has_cleaner);
}

#[test]
fn all_users_of_a_bucket_share_one_gate() {
    let (root, other) = (Path::new("/nowhere/gate-a"), Path::new("/nowhere/gate-b"));
    let first = BucketGate::for_bucket(root, "b");
    assert!(Arc::ptr_eq(&first.0, &BucketGate::for_bucket(root, "b").0));
    assert!(!Arc::ptr_eq(&first.0, &BucketGate::for_bucket(root, "c").0));
    assert!(!Arc::ptr_eq(&first.0, &BucketGate::for_bucket(other, "b").0));
}
