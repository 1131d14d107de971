use std::collections::HashMap;

use bowline_plugin::{Name, OperationId, ResourceIdentifier, State as PluginState};

use super::*;
use crate::operation::{Kind, OperationFailure};

/// Behaviour of a plugin for one operation.
#[derive(Clone, Debug)]
enum Behaviour {
    /// Succeeds at the poll of this number.
    SucceedsAt(u32),
    /// Never answers a poll.
    Hangs,
    /// Fails this many polls, and then succeeds.
    Recovers(u32),
    /// Continues until asked to stop.
    StopsWhenCanceled,
    /// Continues despite stop requests.
    IgnoresCancel,
}

#[derive(Default)]
struct Plugin {
    behaviours: HashMap<String, Behaviour>,
    polls: Mutex<HashMap<String, u32>>,
    cancels: Mutex<Vec<String>>,
}

#[async_trait]
impl OperationClient for Plugin {
    async fn progress(&self, operation: &Operation) -> Result<Progress> {
        let id = operation.id.to_string();
        let polls = {
            let mut polls = self.polls.lock();
            let count = polls.entry(id.clone()).or_default();
            *count += 1;
            *count
        };
        let state = match &self.behaviours[&id] {
            Behaviour::SucceedsAt(number) if polls >= *number => PluginState::Succeeded,
            Behaviour::Hangs => std::future::pending().await,
            Behaviour::Recovers(failures) if polls <= *failures => {
                return Err(Error::new(Code::Unavailable, "away"));
            }
            Behaviour::Recovers(_) => PluginState::Succeeded,
            Behaviour::StopsWhenCanceled if self.cancels.lock().contains(&id) => {
                PluginState::Failed("stopped".into())
            }
            Behaviour::SucceedsAt(_) | Behaviour::IgnoresCancel | Behaviour::StopsWhenCanceled => {
                PluginState::Running
            }
        };
        Ok(Progress { state, done: polls.into(), ..Progress::default() })
    }

    async fn cancel(&self, operation: &Operation) -> Result<()> {
        self.cancels.lock().push(operation.id.to_string());
        if matches!(self.behaviours[operation.id.as_str()], Behaviour::IgnoresCancel) {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

fn operation(id: &str, timeout: Duration) -> Operation {
    let item = ResourceIdentifier {
        group: String::new(),
        resource: "pods".into(),
        namespace: "shop".into(),
        name: id.into(),
    };
    let plugin: Name = "x.io/a".parse().unwrap();
    let id = OperationId::new(id).unwrap();
    Operation::started(Kind::ItemBackup, plugin, item, id, Timestamp::now(), timeout)
}

/// Pauses are short: the tracker reads the real clock.
const QUICK: Deadlines = Deadlines {
    poll: Duration::from_secs(5),
    cancel: Duration::from_millis(50),
    longest_pause: Duration::from_millis(1),
};
const LONG: Duration = Duration::from_hours(1);

async fn track(
    behaviours: &[(&str, Behaviour)],
    timeout: Duration,
    cancel: &CancellationToken,
    stop: &CancellationToken,
) -> (Vec<Operation>, Plugin) {
    let plugin = Plugin {
        behaviours: behaviours
            .iter()
            .map(|(id, behaviour)| ((*id).to_owned(), behaviour.clone()))
            .collect(),
        ..Plugin::default()
    };
    let operations = behaviours.iter().map(|(id, _)| operation(id, timeout)).collect();
    let board = Arc::new(OperationTable::new(operations));
    let tracker = Tracker {
        table: Arc::clone(&board),
        client: &plugin,
        poll_limiter: &PollRateLimiter::default(),
        deadlines: QUICK,
        uploads: &UploadSlots::new(1),
    };
    tracker.run(cancel, "by a test", stop).await;
    (board.operations(), plugin)
}

fn state(operations: &[Operation], id: &str) -> State {
    operations.iter().find(|operation| operation.id.as_str() == id).unwrap().state.clone()
}

#[tokio::test]
async fn each_operation_is_followed_to_its_end_and_trouble_that_passes_is_forgiven() {
    let (cancel, stop) = Default::default();
    let behaviours = [
        ("at-once", Behaviour::SucceedsAt(1)),
        ("later", Behaviour::SucceedsAt(3)),
        ("away", Behaviour::Recovers(2)),
    ];
    let (operations, plugin) = track(&behaviours, LONG, &cancel, &stop).await;
    assert!(operations.iter().all(|operation| operation.state == State::Completed));
    assert_eq!(plugin.polls.lock()["later"], 3);
    assert!(plugin.cancels.lock().is_empty());
}

#[tokio::test]
async fn hanging_operation_delays_no_other_and_ends_at_its_deadline() {
    let (cancel, stop) = Default::default();
    let behaviours = [("hangs", Behaviour::Hangs), ("good", Behaviour::SucceedsAt(2))];
    let (operations, plugin) =
        track(&behaviours, Duration::from_millis(1500), &cancel, &stop).await;
    assert_eq!(state(&operations, "good"), State::Completed);
    let State::Failed(reason) = state(&operations, "hangs") else { panic!("{operations:?}") };
    assert!(reason.to_string().starts_with("timed out"), "{reason}");
    assert_eq!(*plugin.cancels.lock(), ["hangs"]);
}

#[tokio::test]
async fn cancel_reaches_every_operation_once_and_reports_its_outcome() {
    let (cancel, stop) = <(CancellationToken, CancellationToken)>::default();
    let behaviours =
        [("stops", Behaviour::StopsWhenCanceled), ("hangs", Behaviour::StopsWhenCanceled)];
    cancel.cancel();
    let (operations, plugin) = track(&behaviours, LONG, &cancel, &stop).await;
    assert_eq!(state(&operations, "stops"), State::Failed("canceled: stopped".into()));
    let mut cancels = plugin.cancels.lock().clone();
    cancels.sort();
    assert_eq!(cancels, ["hangs", "stops"]);
}

#[tokio::test]
async fn operation_that_ignores_its_deadline_is_ended() {
    let (cancel, stop) = Default::default();
    let behaviours = [("deaf", Behaviour::IgnoresCancel)];
    let (operations, _) = track(&behaviours, Duration::from_millis(30), &cancel, &stop).await;
    let State::Failed(reason) = state(&operations, "deaf") else { panic!("{operations:?}") };
    assert!(
        reason.to_string().contains("could not cancel the operation, which may continue"),
        "{reason}"
    );
}

#[tokio::test]
async fn stopping_server_leaves_operations_unchanged() {
    let (cancel, stop) = <(CancellationToken, CancellationToken)>::default();
    stop.cancel();
    let behaviours = [("long", Behaviour::SucceedsAt(u32::MAX))];
    let (operations, plugin) = track(&behaviours, LONG, &cancel, &stop).await;
    assert!(!state(&operations, "long").is_terminal());
    assert!(plugin.cancels.lock().is_empty());
}

/// Behaviour of a plugin for uploads.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Upload {
    Succeeds,
    /// Fails this many times for a transient reason, and then succeeds.
    SucceedsAfter(u32),
    RunsUntilCanceled,
    NotImplemented,
}

struct Uploader {
    upload: Upload,
    /// True if the creation of the snapshot succeeds.
    creates: bool,
    calls: Mutex<Vec<&'static str>>,
    canceled: CancellationToken,
    running: Mutex<(usize, usize)>,
}

#[async_trait]
impl OperationClient for Uploader {
    async fn progress(&self, operation: &Operation) -> Result<Progress> {
        // The polled state of an upload is ignored.
        let state = match operation.kind {
            Kind::SnapshotCreation if !self.creates => PluginState::Failed("no room".into()),
            _ => PluginState::Succeeded,
        };
        Ok(Progress { state, ..Progress::default() })
    }

    async fn cancel(&self, _: &Operation) -> Result<()> {
        self.calls.lock().push("cancel");
        self.canceled.cancel();
        Ok(())
    }

    async fn upload(&self, _: &Operation) -> Result<()> {
        let number = {
            let mut calls = self.calls.lock();
            calls.push("upload");
            u32::try_from(calls.len()).unwrap()
        };
        {
            let mut running = self.running.lock();
            running.0 += 1;
            running.1 = running.1.max(running.0);
        }
        tokio::task::yield_now().await;
        self.running.lock().0 -= 1;
        match self.upload {
            Upload::Succeeds => Ok(()),
            Upload::SucceedsAfter(failures) if number > failures => Ok(()),
            Upload::SucceedsAfter(_) => Err(Error::new(Code::Unavailable, "away")),
            Upload::RunsUntilCanceled => {
                self.canceled.cancelled().await;
                Err(Error::new(Code::Cancelled, "stopped"))
            }
            Upload::NotImplemented => Err(Error::unimplemented("UploadSnapshot")),
        }
    }
}

/// Tracks snapshots with their uploads. Returns the states of creation and upload of each, the
/// calls, and the maximum number of concurrent uploads.
async fn upload(
    upload: Upload,
    creates: bool,
    count: usize,
    cancel: &CancellationToken,
) -> (Vec<[State; 2]>, Vec<&'static str>, usize) {
    let volume = Some(crate::operation::VolumeDetails {
        location: "here".into(),
        snapshot_type: bowline_api::snapshot_type::SnapshotType::Auto,
    });
    let mut operations = Vec::new();
    for number in 0..count {
        for kind in [Kind::SnapshotUpload, Kind::SnapshotCreation] {
            let operation = operation(&format!("snap-{number}"), LONG);
            operations.push(Operation { kind, volume: volume.clone(), ..operation });
        }
    }
    let table = Arc::new(OperationTable::new(operations));
    let (canceled, calls, running) = Default::default();
    let client = Uploader { upload, creates, calls, canceled, running };
    let tracker = Tracker {
        table: Arc::clone(&table),
        client: &client,
        poll_limiter: &PollRateLimiter::default(),
        deadlines: QUICK,
        uploads: &UploadSlots::new(2),
    };
    // Saves the published operations.
    let keeping = async {
        let mut changes = table.changes();
        while changes.changed().await.is_ok() {
            table.mark_saved(&table.operations());
        }
    };
    let stop = CancellationToken::new();
    tokio::select! {
        () = tracker.run(cancel, "by a test", &stop) => {}
        () = keeping => {}
    }
    let operations = table.operations();
    let states = operations.chunks(2).map(|pair| [pair[1].state.clone(), pair[0].state.clone()]);
    let most = client.running.lock().1;
    (states.collect(), client.calls.into_inner(), most)
}

#[tokio::test]
async fn upload_starts_when_its_snapshot_is_complete_and_is_retried_on_failure() {
    let cancel = CancellationToken::new();
    let completed = [State::Completed, State::Completed];
    for (upload_behaviour, calls) in [
        (Upload::Succeeds, vec!["upload"]),
        (Upload::SucceedsAfter(2), vec!["upload", "upload", "upload"]),
        (Upload::NotImplemented, vec!["upload"]),
    ] {
        let (states, called, _) = upload(upload_behaviour, true, 1, &cancel).await;
        assert_eq!((states, called), (vec![completed.clone()], calls), "{upload_behaviour:?}");
    }
    let (states, called, _) = upload(Upload::Succeeds, false, 1, &cancel).await;
    let not_begun = State::Failed(OperationFailure::SnapshotNotCompleted);
    assert_eq!(states, [[State::Failed("no room".into()), not_begun]]);
    assert!(called.is_empty(), "nothing is uploaded of a snapshot that is not there");
}

#[tokio::test]
async fn concurrent_uploads_are_limited() {
    let (states, called, most) = upload(Upload::Succeeds, true, 9, &CancellationToken::new()).await;
    assert!(states.iter().flatten().all(|state| *state == State::Completed), "{states:?}");
    assert_eq!(called.len(), 9);
    assert!(most <= 2, "{most}");
}

#[tokio::test]
async fn canceled_upload_is_notified_and_waited_for() {
    let cancel = CancellationToken::new();
    let canceling = async {
        tokio::task::yield_now().await;
        cancel.cancel();
    };
    let (done, ()) = tokio::join!(upload(Upload::RunsUntilCanceled, true, 1, &cancel), canceling);
    let (states, called, _) = done;
    assert!(matches!(&states[0][1], State::Failed(OperationFailure::Canceled(_))), "{states:?}");
    assert!(called.contains(&"cancel"), "{called:?}");
}

/// Uploads of two locations, of which one never answers.
struct OneHangs;

#[async_trait]
impl OperationClient for OneHangs {
    async fn progress(&self, _: &Operation) -> Result<Progress> {
        Ok(Progress { state: PluginState::Succeeded, ..Progress::default() })
    }

    async fn cancel(&self, _: &Operation) -> Result<()> {
        Ok(())
    }

    async fn upload(&self, operation: &Operation) -> Result<()> {
        if operation.volume.as_ref().is_some_and(|volume| volume.location == "stuck") {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

#[tokio::test]
async fn hung_location_does_not_delay_uploads_of_other_locations() {
    let upload = |location: &str, id: &str| Operation {
        kind: Kind::SnapshotUpload,
        volume: Some(crate::operation::VolumeDetails {
            location: location.into(),
            snapshot_type: bowline_api::snapshot_type::SnapshotType::Auto,
        }),
        ..operation(id, LONG)
    };
    let operations = vec![
        upload("stuck", "s-1"),
        upload("stuck", "s-2"),
        upload("good", "g-1"),
        upload("good", "g-2"),
    ];
    let board = Arc::new(OperationTable::new(operations));
    let tracker = Tracker {
        table: Arc::clone(&board),
        client: &OneHangs,
        poll_limiter: &PollRateLimiter::default(),
        deadlines: QUICK,
        uploads: &UploadSlots::new(1),
    };
    let (cancel, stop) = <(CancellationToken, CancellationToken)>::default();
    let good = async {
        let mut changes = board.changes();
        while board.counts().completed < 2 {
            changes.changed().await.unwrap();
        }
        stop.cancel();
    };
    let both = async { tokio::join!(tracker.run(&cancel, "by a test", &stop), good) };
    timeout(Duration::from_mins(1), both).await.expect("the uploads of the good location end");
    for id in ["g-1", "g-2"] {
        assert_eq!(state(&board.operations(), id), State::Completed);
    }
    assert!(!state(&board.operations(), "s-1").is_terminal());
}

#[tokio::test]
async fn operation_is_polled_once_before_its_deadline_decides() {
    let (cancel, stop) = <(CancellationToken, CancellationToken)>::default();
    let behaviours =
        [("done", Behaviour::SucceedsAt(1)), ("long", Behaviour::SucceedsAt(u32::MAX))];
    // The deadlines have passed before tracking starts.
    let (operations, plugin) = track(&behaviours, Duration::ZERO, &cancel, &stop).await;
    assert_eq!(state(&operations, "done"), State::Completed);
    let State::Failed(reason) = state(&operations, "long") else { panic!("{operations:?}") };
    assert!(reason.to_string().starts_with("timed out"), "{reason}");
    assert_eq!(*plugin.cancels.lock(), ["long"]);
    assert_eq!(plugin.polls.lock()["long"], 1);
}
