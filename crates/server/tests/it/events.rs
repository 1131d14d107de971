//! Events and conditions on a real API server. A rejected Event would only show in the log.

use bowline_api::{Backup, BackupPhase, Restore, condition};
use bowline_server::conditions::{self, CancelState, RunSummary};
use bowline_server::events::{Events, Milestone};
use bowline_server::patch;
use bowline_server::run_state::{RunState, TerminalPhase};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use serde_json::json;

use crate::bed::World;

#[tokio::test]
async fn every_milestone_is_published_as_an_event() {
    let world = World::without_server("events").await;
    let metadata = json!({"metadata": {"name": "nightly"}, "spec": {}});
    let backup: Backup = world.create(metadata.clone()).await;
    let restore: Restore = world.create(metadata).await;
    let milestones = [
        Milestone::Started,
        Milestone::Progress { percent: 25, items_done: 1, items_total: 4 },
        Milestone::Progress { percent: 50, items_done: 2, items_total: 4 },
        Milestone::OperationsStarted { count: 2 },
        Milestone::OperationsProgress { ended: 1, total: 2 },
        Milestone::Canceling,
        Milestone::Canceled,
        Milestone::Deleting,
        Milestone::NotDeleted,
        Milestone::Resumed { attempt: 2 },
    ];
    let ends = TerminalPhase::ALL.map(|phase| Milestone::Ended { phase });
    let events = Events::new(world.client.clone());
    let (mut of_backup, mut of_restore) = (Vec::new(), Vec::new());
    for milestone in milestones.into_iter().chain(ends) {
        events.publish(&backup, milestone).await;
        events.publish(&restore, milestone).await;
        for (event, expected) in [
            (milestone.event(&backup), &mut of_backup),
            (milestone.event(&restore), &mut of_restore),
        ] {
            expected.push((event.reason, event.note.unwrap()));
        }
    }
    // One Event with a count of two.
    events.publish(&backup, Milestone::Started).await;
    of_backup.sort();
    of_restore.sort();

    // The old kind, which is the same to the API server and what most people list.
    let found = world.api::<Event>().list(&ListParams::default()).await.unwrap().items;
    for (kind, uid, expected) in [
        ("Backup", &backup.metadata.uid, of_backup),
        ("Restore", &restore.metadata.uid, of_restore),
    ] {
        let of_run = |event: &&Event| event.involved_object.kind.as_deref() == Some(kind);
        let mut published = Vec::new();
        for event in found.iter().filter(of_run) {
            assert_eq!(event.involved_object.uid, *uid);
            published.push((event.reason.clone().unwrap(), event.message.clone().unwrap()));
        }
        published.sort();
        assert_eq!(published, expected, "{kind}");
    }
    let twice = found.iter().filter_map(|event| event.series.as_ref()?.count);
    assert_eq!(twice.collect::<Vec<_>>(), [2]);
}

#[tokio::test]
async fn conditions_survive_the_api_server_unchanged() {
    let world = World::without_server("conditions").await;
    let object = json!({"metadata": {"name": "nightly"}, "spec": {}});
    let mut backup: Backup = world.create(object).await;
    let failed = BackupPhase::Failed;
    for (phase, cancel) in [
        (None, CancelState::NotRequested),
        (Some(&BackupPhase::InProgress), CancelState::Requested),
        (Some(&failed), CancelState::Effective),
        (Some(&failed), CancelState::Effective),
    ] {
        let before = backup.status.clone().unwrap_or_default().conditions;
        let run = RunSummary { state: RunState::from(phase), cancel, message: "2 errors" };
        let conditions = conditions::update(&before, run, Timestamp::now());
        let change = json!({ "conditions": conditions });
        let api = world.api::<Backup>();
        backup = patch::patch_status_of(&api, &backup, change).await.unwrap().unwrap();
        assert_eq!(backup.status.clone().unwrap().conditions, conditions);
    }
    let conditions = backup.status.unwrap().conditions;
    assert!(condition::is_true(&conditions, condition::CANCELED), "{conditions:?}");
    assert!(!condition::is_true(&conditions, condition::CANCELING), "{conditions:?}");
    assert!(!condition::is_true(&conditions, condition::COMPLETED), "{conditions:?}");
}
