//! Schedules that create backups, on a real API server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bowline_api::{Backup, BackupPhase, Schedule, ScheduleStatus};
use http::{Method, Uri};
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::bed::{World, eventually};
use crate::fault_injection;
use crate::support::runs::{application, is_over_or_deleting};

/// Due once a year, so that a test makes only missed backups.
const YEARLY: &str = "0 0 1 1 *";

fn status(schedule: &Schedule) -> ScheduleStatus {
    schedule.status.clone().unwrap_or_default()
}

fn phase(schedule: &Schedule) -> String {
    status(schedule).phase.map(|phase| phase.to_string()).unwrap_or_default()
}

fn has_run(schedule: &Schedule) -> bool {
    let last = status(schedule).last_backup.map(|last| last.0);
    last.is_some_and(|last| last > "2025-01-01T00:00:00Z".parse().unwrap())
}

/// Creates a Schedule for a namespace.
async fn schedule(world: &World, name: &str, app: &str, expression: &str, more: Value) -> Schedule {
    let mut object = json!({
        "metadata": {"name": name},
        "spec": {"schedule": expression, "template": {"includedNamespaces": [app]}},
    });
    for (part, fields) in more.as_object().unwrap() {
        for (field, value) in fields.as_object().unwrap() {
            object[part][field] = value.clone();
        }
    }
    world.create(object).await
}

/// The Backups of a Schedule, the oldest first.
async fn backups(world: &World, schedule: &str) -> Vec<Backup> {
    let params = ListParams::default().labels(&format!("velero.io/schedule-name={schedule}"));
    let mut backups = world.api::<Backup>().list(&params).await.unwrap().items;
    backups.sort_by_key(kube::ResourceExt::name_any);
    backups
}

#[tokio::test]
async fn schedule_creates_backups_sequentially() {
    let world = World::start("schedule-runs").await;
    world.filesystem_location("default").await;
    application(&world.client, "schedule-runs-app").await;
    let more = json!({
        "metadata": {
            "labels": {"team": "a"},
            "annotations": {"bowline.io/snapshot-type": "local"},
        },
        "spec": {"useOwnerReferencesInBackup": true},
    });
    let created = schedule(&world, "often", "schedule-runs-app", "@every 1s", more).await;
    eventually("the schedule has made three backups", async || {
        let ended = backups(&world, "often").await.into_iter().filter(is_over_or_deleting);
        ended.count() >= 3
    })
    .await;
    let schedule = world.until::<Schedule>("often", has_run).await;
    assert_eq!(phase(&schedule), "Enabled");
    assert_eq!(schedule.spec.skip_immediately, Some(false));
    for backup in backups(&world, "often").await.into_iter().filter(is_over_or_deleting) {
        assert_eq!(backup.status.as_ref().unwrap().phase, Some(BackupPhase::Completed));
        assert_eq!(backup.labels()["team"], "a");
        assert_eq!(backup.annotations()["bowline.io/snapshot-type"], "local");
        assert_eq!(backup.owner_references()[0].uid, created.uid().unwrap());
        let time = backup.name_any().strip_prefix("often-").unwrap().to_owned();
        assert!(time.len() == 14 && time.bytes().all(|digit| digit.is_ascii_digit()), "{time}");
    }
}

#[tokio::test]
async fn invalid_schedule_is_refused_until_fixed() {
    let world = World::start("schedule-wrong").await;
    schedule(&world, "wrong", "none", "0 0 30 2 *", json!({})).await;
    let refused =
        world.until::<Schedule>("wrong", |found| phase(found) == "FailedValidation").await;
    let errors = status(&refused).validation_errors;
    assert!(errors.len() == 1 && errors[0].starts_with("invalid schedule: "), "{errors:?}");
    world.patch::<Schedule>("wrong", json!({"spec": {"schedule": ""}})).await;
    let empty = "Schedule must be a non-empty valid Cron expression";
    world.until::<Schedule>("wrong", |found| status(found).validation_errors == [empty]).await;
    world.patch::<Schedule>("wrong", json!({"spec": {"schedule": YEARLY}})).await;
    let mended = world.until::<Schedule>("wrong", |found| phase(found) == "Enabled").await;
    assert!(status(&mended).validation_errors.is_empty());
    assert!(backups(&world, "wrong").await.is_empty());
}

#[tokio::test]
async fn missed_backup_is_made_once_unless_skipped_or_paused() {
    let world = World::start("schedule-missed").await;
    world.filesystem_location("default").await;
    application(&world.client, "schedule-missed-app").await;
    let long_ago = json!({"lastBackup": "2020-06-01T00:00:00Z"});
    let make = async |name: &str, spec: Value| {
        let more = json!({"spec": spec, "status": long_ago});
        schedule(&world, name, "schedule-missed-app", YEARLY, more).await;
    };
    make("paused", json!({"paused": true})).await;
    make("skipped", json!({"skipImmediately": true})).await;
    make("missed", json!({})).await;
    world.until::<Schedule>("missed", has_run).await;
    let skipped =
        world.until::<Schedule>("skipped", |found| status(found).last_skipped.is_some()).await;
    assert_eq!(skipped.spec.skip_immediately, Some(false), "it is asked for once");
    world.until::<Schedule>("skipped", |found| phase(found) == "Enabled").await;
    let found = backups(&world, "missed").await;
    let year = jiff::Timestamp::now().strftime("%Y").to_string();
    let names: Vec<_> = found.iter().map(kube::ResourceExt::name_any).collect();
    assert_eq!(names, [format!("missed-{year}0101000000")], "one, for the last time");
    assert!(backups(&world, "skipped").await.is_empty());
    assert!(backups(&world, "paused").await.is_empty());
    let paused = world.api::<Schedule>().get("paused").await.unwrap();
    assert_eq!(phase(&paused), "", "nobody looks at it");

    world.patch::<Schedule>("paused", json!({"spec": {"paused": false}})).await;
    world.until::<Schedule>("paused", has_run).await;
    assert_eq!(backups(&world, "paused").await.len(), 1);
}

#[tokio::test]
async fn backup_is_created_once_across_a_server_exit() {
    let mut world = World::without_server("schedule-crash").await;
    let refused = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&refused);
    // The status of the Schedule after the creation of the Backup cannot be written.
    let is_created = Arc::new(AtomicBool::new(false));
    let judge = move |method: &Method, uri: &Uri| {
        let path = uri.path();
        if *method == Method::POST && path.ends_with("/backups") {
            is_created.store(true, Ordering::SeqCst);
        }
        let fails = *method == Method::PATCH
            && path.contains("/schedules/")
            && is_created.load(Ordering::SeqCst);
        count.fetch_add(usize::from(fails), Ordering::SeqCst);
        fails
    };
    world.run_through(world.options(), |client| fault_injection::faulty_client(client, judge));
    world.filesystem_location("default").await;
    application(&world.client, "schedule-crash-app").await;
    let more = json!({"status": {"lastBackup": "2020-06-01T00:00:00Z"}});
    schedule(&world, "once", "schedule-crash-app", YEARLY, more).await;
    // Several tries, each of which could make another.
    eventually("the write was refused three times", async || refused.load(Ordering::SeqCst) >= 3)
        .await;
    world.end().await.unwrap();
    let before = world.api::<Schedule>().get("once").await.unwrap();
    assert!(!has_run(&before), "the sabotage does not work: {before:?}");
    assert_eq!(backups(&world, "once").await.len(), 1);
    world.run(world.options());
    world.until::<Schedule>("once", has_run).await;
    assert_eq!(backups(&world, "once").await.len(), 1);
}

#[tokio::test]
async fn backup_of_another_cluster_for_the_same_time_is_ignored() {
    let world = World::start("schedule-shared").await;
    world.filesystem_location("default").await;
    application(&world.client, "schedule-shared-app").await;
    let year = jiff::Timestamp::now().strftime("%Y").to_string();
    let usual = format!("shared-{year}0101000000");
    // As imported from a bucket.
    let foreign_backup = json!({
        "metadata": {
            "name": usual,
            "labels": {"velero.io/schedule-name": "shared"},
            "annotations": {"bowline.io/record-uid": "theirs"},
        },
        "spec": {"storageLocation": "default"},
        "status": {"phase": "Completed"},
    });
    world.create::<Backup>(foreign_backup).await;
    let more = json!({"status": {"lastBackup": "2020-06-01T00:00:00Z"}});
    let expression = format!("CRON_TZ=UTC {YEARLY}");
    let created = schedule(&world, "shared", "schedule-shared-app", &expression, more).await;
    world.until::<Schedule>("shared", has_run).await;
    let uid = created.uid().unwrap();
    let own = format!("{usual}-{}", uid.split('-').next().unwrap());
    let names: Vec<String> =
        backups(&world, "shared").await.iter().map(kube::ResourceExt::name_any).collect();
    assert_eq!(names, [usual, own.clone()]);
    let own = world.until::<Backup>(&own, is_over_or_deleting).await;
    assert_eq!(own.status.unwrap().phase, Some(BackupPhase::Completed));
}

#[tokio::test]
async fn schedule_waits_for_its_last_backup_to_start() {
    let mut world = World::without_server("schedule-held").await;
    let is_stuck = Arc::new(AtomicBool::new(true));
    let [lists, reads] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let judge = {
        let is_stuck = Arc::clone(&is_stuck);
        let (lists, reads) = (Arc::clone(&lists), Arc::clone(&reads));
        move |method: &Method, uri: &Uri| {
            let is_list = uri.query().is_some_and(|query| query.contains("schedule-name"));
            lists.fetch_add(usize::from(is_list), Ordering::SeqCst);
            let is_look = *method == Method::GET && uri.path().contains("/backups/held-");
            reads.fetch_add(usize::from(is_look), Ordering::SeqCst);
            let is_backup = uri.path().contains("/backups/");
            is_stuck.load(Ordering::SeqCst) && *method == Method::PATCH && is_backup
        }
    };
    world.run_through(world.options(), |client| fault_injection::faulty_client(client, judge));
    world.filesystem_location("default").await;
    application(&world.client, "schedule-held-app").await;
    schedule(&world, "held", "schedule-held-app", "@every 1s", json!({})).await;
    world.until::<Schedule>("held", has_run).await;
    // One list before each backup, when the next one was due. After that, only the Backup that the Schedule waits for
    // is read.
    let before = lists.load(Ordering::SeqCst);
    eventually("the schedule was due again", async || lists.load(Ordering::SeqCst) > before).await;
    let before = (lists.load(Ordering::SeqCst), reads.load(Ordering::SeqCst));
    eventually("the schedule was checked twice", async || {
        reads.load(Ordering::SeqCst) >= before.1 + 2
    })
    .await;
    assert_eq!(lists.load(Ordering::SeqCst), before.0, "all are listed again");
    assert_eq!(backups(&world, "held").await.len(), 1);
    is_stuck.store(false, Ordering::SeqCst);
    eventually("the next backup is made", async || backups(&world, "held").await.len() >= 2).await;
}
