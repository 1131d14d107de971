use bowline_plugin::{Code, Name, OperationId, ResourceIdentifier};
use proptest::prelude::*;

use super::*;
use crate::operation::{Counts, Kind};

const LONGEST_PAUSE: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_hours(4);

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn at(second: u64) -> Timestamp {
    saturating_add(Timestamp::from_second(1_700_000_000).unwrap(), seconds(second))
}

fn fresh() -> Operation {
    let item = ResourceIdentifier {
        group: String::new(),
        resource: "pods".into(),
        namespace: "shop".into(),
        name: "db".into(),
    };
    let plugin: Name = "x.io/a".parse().unwrap();
    let id = OperationId::new("op-1").unwrap();
    Operation::started(Kind::ItemBackup, plugin, item, id, at(0), TIMEOUT)
}

fn running(done: i64, is_started: bool) -> Observation {
    let started = is_started.then(|| at(0));
    Observation::Progressed(Progress { done, total: 10, started, ..Progress::default() })
}

fn ended(state: PluginState) -> Observation {
    Observation::Progressed(Progress { state, ..Progress::default() })
}

fn failed(code: Code) -> Observation {
    Observation::PollFailed(Error::new(code, "no"))
}

fn canceled() -> Observation {
    Observation::StopRequested(StopCause::Canceled("by a user".into()))
}

/// Drives an operation through observations at the given seconds of its life.
fn drive(steps: Vec<(u64, Observation)>) -> (Operation, Effects) {
    let mut state = (fresh(), Effects::default());
    for (second, observation) in steps {
        state = step(&state.0, observation, LONGEST_PAUSE, at(second));
    }
    state
}

fn state_after(steps: Vec<(u64, Observation)>) -> String {
    match drive(steps).0.state {
        State::Failed(reason) => format!("Failed: {reason}"),
        state => state.as_str().to_owned(),
    }
}

#[test]
fn every_observation_has_its_outcome() {
    use Observation::{StopAnswered, TimePassed};
    let over = TIMEOUT.as_secs();
    let unclear = |count: u64| (1..=count).map(|second| (second, failed(Code::Unknown))).collect();
    let invalid = Observation::PollFailed(Error::invalid_operation("op-1"));
    for (steps, expected) in [
        (vec![(0, TimePassed)], "New"),
        (vec![(1, running(0, false))], "New"),
        (vec![(1, running(0, true))], "InProgress"),
        (vec![(1, running(3, false))], "InProgress"),
        (vec![(1, ended(PluginState::Succeeded))], "Completed"),
        (vec![(1, ended(PluginState::Failed("disk full".into())))], "Failed: disk full"),
        (vec![(1, ended(PluginState::Failed(" ".into())))], "Failed: the plugin gave no reason"),
        // Errors: transient, permanent and unclear ones.
        (vec![(1, failed(Code::Unavailable)), (599, failed(Code::Unavailable))], "New"),
        (
            vec![(1, failed(Code::Unavailable)), (601, failed(Code::Unavailable))],
            "Failed: the plugin has not answered for 600 s: no",
        ),
        (vec![(1, failed(Code::NotFound))], "Failed: no"),
        (vec![(1, failed(Code::Unimplemented))], "Failed: no"),
        (vec![(1, invalid)], "Failed: operation ID op-1 is invalid"),
        (unclear(4), "New"),
        (unclear(5), "Failed: the plugin could not report progress, 5 times in 4 s: no"),
        (
            vec![(1, failed(Code::Unknown)), (121, failed(Code::Unknown))],
            "Failed: the plugin could not report progress, 2 times in 120 s: no",
        ),
        (
            vec![
                (1, failed(Code::Unknown)),
                (2, failed(Code::Unknown)),
                (3, failed(Code::Unknown)),
                (4, failed(Code::Unknown)),
                (5, running(1, true)),
                (6, failed(Code::Unknown)),
            ],
            "InProgress",
        ),
        // The deadline.
        (vec![(over - 1, TimePassed)], "New"),
        (vec![(over, TimePassed)], "New"),
        (
            vec![(over, TimePassed), (over + 1, StopAnswered(Ok(())))],
            "Failed: timed out: the operation has not ended within 14400 s; the plugin accepted \
             the cancellation but has not confirmed that the operation stopped",
        ),
        (
            vec![(over, TimePassed), (over + 1, StopAnswered(Err(Error::unknown("busy").into())))],
            "Failed: timed out: the operation has not ended within 14400 s; the plugin could not \
             cancel the operation, which may continue: busy",
        ),
        (vec![(over, ended(PluginState::Succeeded))], "Completed"),
        // A cancellation.
        (vec![(1, canceled())], "New"),
        (vec![(1, canceled()), (2, StopAnswered(Ok(()))), (3, running(1, true))], "InProgress"),
        (
            vec![(1, canceled()), (2, StopAnswered(Ok(()))), (3, ended(PluginState::Succeeded))],
            "Completed",
        ),
        (
            vec![
                (1, canceled()),
                (2, StopAnswered(Ok(()))),
                (3, ended(PluginState::Failed("stopped".into()))),
            ],
            "Failed: canceled: stopped",
        ),
        (
            vec![(1, canceled()), (2, StopAnswered(Ok(()))), (31, running(1, true))],
            "Failed: canceled: by a user; the plugin accepted the cancellation but has not \
             confirmed that the operation stopped",
        ),
        (
            vec![(1, canceled()), (31, TimePassed)],
            "Failed: canceled: by a user; the plugin did not respond to the cancellation, and \
             the operation may continue",
        ),
        (
            vec![(1, canceled()), (2, StopAnswered(Ok(()))), (3, failed(Code::NotFound))],
            "Failed: canceled: by a user; the plugin accepted the cancellation but has not \
             confirmed that the operation stopped: no",
        ),
        // Without a request.
        (vec![(1, StopAnswered(Ok(())))], "New"),
        // A terminal state never changes.
        (
            vec![(1, ended(PluginState::Succeeded)), (2, ended(PluginState::Failed("x".into())))],
            "Completed",
        ),
        (vec![(1, failed(Code::NotFound)), (2, ended(PluginState::Succeeded))], "Failed: no"),
        (vec![(1, ended(PluginState::Succeeded)), (2, canceled())], "Completed"),
    ] {
        let description = format!("{steps:?}");
        assert_eq!(state_after(steps), expected, "{description}");
    }
}

#[test]
fn cancel_is_requested_once() {
    let (operation, effects) = drive(vec![(1, canceled())]);
    assert!(effects.cancel && effects.changed && !effects.ended);
    let (operation, effects) = step(&operation, canceled(), LONGEST_PAUSE, at(2));
    assert!(!effects.cancel, "{effects:?}");
    let (_, effects) = step(&operation, running(1, true), LONGEST_PAUSE, at(3));
    assert!(!effects.cancel, "{effects:?}");
}

#[test]
fn poll_pauses_grow_with_age_and_failures() {
    let pause = |steps: Vec<(u64, Observation)>| {
        let now = steps.last().unwrap().0;
        duration_between(at(now), drive(steps).1.poll_at.unwrap()).as_secs()
    };
    assert_eq!(pause(vec![(0, Observation::TimePassed)]), 1);
    assert_eq!(pause(vec![(9, running(0, true))]), 1);
    assert_eq!(pause(vec![(50, running(0, true))]), 5);
    assert_eq!(pause(vec![(1000, running(0, true))]), 10);
    let failing_polls =
        |count: u64| (1..=count).map(|at| (at, failed(Code::Unavailable))).collect();
    assert_eq!([1, 2, 3, 4, 5, 60].map(|count| pause(failing_polls(count))), [1, 2, 4, 8, 10, 10]);
    assert_eq!(pause(vec![(1000, canceled())]), 1, "it should end at any moment");
    let last = TIMEOUT.as_secs() - 3;
    assert_eq!(pause(vec![(last, running(0, true))]), 3, "never past the deadline");
}

fn observations() -> impl Strategy<Value = Observation> {
    prop_oneof![
        4 => (0..10_i64, any::<bool>()).prop_map(|(done, started)| running(done, started)),
        1 => Just(ended(PluginState::Succeeded)),
        1 => Just(ended(PluginState::Failed("bad".into()))),
        2 => Just(failed(Code::Unavailable)),
        2 => Just(failed(Code::Unknown)),
        1 => Just(failed(Code::NotFound)),
        1 => Just(canceled()),
        1 => Just(Observation::StopRequested(StopCause::Deadline)),
        1 => Just(Observation::StopAnswered(Ok(()))),
        1 => Just(Observation::StopAnswered(Err(Error::unknown("busy").into()))),
        2 => Just(Observation::TimePassed),
    ]
}

proptest! {
    #[test]
    fn any_observations_lead_to_one_end_and_one_cancel(
        steps in prop::collection::vec((0..2000_u64, observations()), 1..60)
    ) {
        let (mut operation, mut second) = (fresh(), 0);
        let (mut cancels, mut ends) = (0, 0);
        for (pause, observation) in steps {
            second += pause;
            let before = operation.clone();
            let was_good = matches!(
                &observation,
                Observation::Progressed(Progress { state: PluginState::Succeeded, .. })
            );
            let (next, effects) = step(&operation, observation, LONGEST_PAUSE, at(second));
            cancels += u32::from(effects.cancel);
            ends += u32::from(effects.ended);
            prop_assert!(!before.state.is_terminal() || next == before, "it ended twice");
            prop_assert!(before.stop_request.is_none() || next.stop_request.is_some(), "a cancel was lost");
            let cause = |operation: &Operation| operation.stop_request.as_ref().map(|s| s.cause.clone());
            prop_assert!(before.stop_request.is_none() || cause(&before) == cause(&next));
            prop_assert_eq!(effects.ended || before.state.is_terminal(), next.state.is_terminal());
            prop_assert_eq!(effects.poll_at.is_none(), next.state.is_terminal());
            if next.state == State::Completed && before.state != State::Completed {
                prop_assert!(was_good, "completed without the plugin's word");
            }
            if let Some(at_) = effects.poll_at {
                prop_assert!(at_ >= at(second) && duration_between(at(second), at_) <= LONGEST_PAUSE);
            }
            operation = next;
        }
        prop_assert!(cancels <= 1 && ends <= 1, "{} cancels, {} ends", cancels, ends);
        // In any case, time ends it.
        for _ in 0..3 {
            second += TIMEOUT.as_secs();
            operation = step(&operation, Observation::TimePassed, LONGEST_PAUSE, at(second)).0;
        }
        prop_assert!(operation.state.is_terminal());
        let counts = Counts::of(&[operation.clone()]);
        prop_assert_eq!(counts.completed + counts.failed, 1);
        prop_assert_eq!(counts.failed == 1, matches!(operation.state, State::Failed(_)));
    }
}

fn of_snapshot(kind: Kind) -> Operation {
    Operation { kind, ..fresh() }
}

fn returned(answer: std::result::Result<(), Code>) -> Observation {
    Observation::UploadReturned(answer.map_err(|code| Error::new(code, "no")))
}

#[test]
fn snapshot_without_progress_support_is_complete_and_unobservable_one_stays_in_progress() {
    let creation = of_snapshot(Kind::SnapshotCreation);
    let (next, _) = step(&creation, failed(Code::Unimplemented), LONGEST_PAUSE, at(1));
    assert_eq!(next.state, State::Completed);
    assert_eq!(next.progress.description, SYNCHRONOUS);
    let (next, _) = step(&creation, running(3, true), LONGEST_PAUSE, at(1));
    let (next, effects) = step(&next, failed(Code::Unimplemented), LONGEST_PAUSE, at(2));
    assert_eq!(next.state, State::InProgress, "it is neither complete nor has it failed");
    assert!(effects.poll_at.is_some() && !effects.cancel);
    // The deadline decides, and the last description is the reason.
    let progress = Progress {
        description: "phase Done".to_owned(),
        started: Some(at(0)),
        ..Progress::default()
    };
    let over = TIMEOUT.as_secs();
    let (next, _) = step(&next, Observation::Progressed(progress), LONGEST_PAUSE, at(3));
    let (next, effects) = step(&next, failed(Code::Unimplemented), LONGEST_PAUSE, at(over));
    assert!(effects.cancel);
    let (next, _) = step(&next, Observation::StopAnswered(Ok(())), LONGEST_PAUSE, at(over + 1));
    assert_eq!(
        next.state,
        State::Failed(
            "timed out: the operation has not ended within 14400 s; the plugin accepted the \
             cancellation but has not confirmed that the operation stopped: phase Done"
                .into()
        )
    );
}

/// One call that reports progress each second, and then fails.
fn attempt(
    start: u64,
    progress: &[i64],
    fails: impl Fn(u64) -> (u64, Observation),
) -> Vec<(u64, Observation)> {
    let mut steps = vec![(start, Observation::UploadStarted)];
    for (second, done) in (start + 1..).zip(progress) {
        steps.push((second, running(*done, true)));
    }
    steps.push(fails(start + 5));
    steps
}

#[test]
fn an_upload_ends_when_its_call_returns_and_never_by_a_poll() {
    use Observation::{StopAnswered, TimePassed, UploadStarted};
    let over = TIMEOUT.as_secs();
    let unavailable = |second| (second, returned(Err(Code::Unavailable)));
    let unknown = |second| (second, returned(Err(Code::Unknown)));
    for (steps, expected) in [
        (vec![(0, TimePassed)], "New"),
        (vec![(0, UploadStarted)], "InProgress"),
        (vec![(0, UploadStarted), (1, ended(PluginState::Succeeded))], "InProgress"),
        (vec![(0, UploadStarted), (1, ended(PluginState::Failed("x".into())))], "InProgress"),
        (vec![(0, UploadStarted), (1, failed(Code::NotFound))], "InProgress"),
        (vec![(0, UploadStarted), (9, returned(Ok(())))], "Completed"),
        (vec![(0, UploadStarted), (1, returned(Err(Code::Unimplemented)))], "Completed"),
        (vec![(0, UploadStarted), (1, returned(Err(Code::PermissionDenied)))], "Failed: no"),
        (vec![(0, UploadStarted), unavailable(1), unavailable(1700)], "InProgress"),
        (
            vec![(0, UploadStarted), unavailable(1), unavailable(1801)],
            "Failed: the upload failed 2 times within 1800 s: no",
        ),
        (vec![(0, UploadStarted), unknown(1), unknown(2)], "InProgress"),
        (
            vec![(0, UploadStarted), unknown(1), unknown(2), unknown(3)],
            "Failed: the upload failed 3 times: no",
        ),
        // Each attempt gets as far as the previous one, and no further.
        (
            [0, 10, 20].into_iter().flat_map(|start| attempt(start, &[30, 90], unknown)).collect(),
            "Failed: the upload failed 3 times: no",
        ),
        // Unavailable only now.
        (
            [attempt(0, &[30, 90], unknown), attempt(1900, &[30, 90], unavailable)].concat(),
            "InProgress",
        ),
        // The plugin is available again, even if it starts from the beginning.
        (
            [0, 1900]
                .into_iter()
                .flat_map(|start| attempt(start, &[30, 90], unavailable))
                .collect(),
            "InProgress",
        ),
        (vec![(0, UploadStarted), (1, canceled()), (2, StopAnswered(Ok(())))], "InProgress"),
        (
            vec![(0, UploadStarted), (1, canceled()), (2, StopAnswered(Ok(()))), unknown(3)],
            "Failed: canceled: no",
        ),
        // The upload was faster than the cancellation.
        (vec![(0, UploadStarted), (1, canceled()), (2, returned(Ok(())))], "Completed"),
        (
            vec![(0, UploadStarted), (over, TimePassed), (over + 1, StopAnswered(Ok(())))],
            "Failed: timed out: the operation has not ended within 14400 s; the plugin accepted \
             the cancellation but has not confirmed that the operation stopped",
        ),
    ] {
        let description = format!("{steps:?}");
        let mut operation = of_snapshot(Kind::SnapshotUpload);
        for (second, observation) in steps {
            operation = step(&operation, observation, LONGEST_PAUSE, at(second)).0;
        }
        let state = match operation.state {
            State::Failed(reason) => format!("Failed: {reason}"),
            state => state.as_str().to_owned(),
        };
        assert_eq!(state, expected, "{description}");
    }
}
