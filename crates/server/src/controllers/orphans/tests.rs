use std::collections::BTreeSet;

use bowline_api::{Backup, BackupPhase, BackupSpec, BackupStorageLocation};
use bowline_engine::journal::{
    Intent, SnapshotIntent, VolumeAnswered, VolumeRequest, VolumeRequested,
};
use bowline_engine::phase::Stage;
use bowline_store::backend::Memory;
use bowline_store::file::{ResourceIdentifier, Snapshot};
use bowline_store::{BackupName, BackupStore, Prefix};
use serde_json::{Value, json};

use super::bucket::{
    BucketRecord, UnknownBucket, classify_record, find_record, moved, recorded, recorded_in,
};
use super::leftovers::{may_be_empty, unused_volumes};
use super::*;
use crate::controllers::lookup::{OpenError, bucket_identity};

#[test]
fn a_backup_that_has_its_record_keeps_its_snapshots() {
    let run = RunUid::new("0a-1b").unwrap();
    let record = |uid: Option<&str>| {
        let mut record = Backup::new("b", BackupSpec::default());
        record.metadata.uid = uid.map(str::to_owned);
        record
    };
    assert_eq!(classify_record(None, &run), BucketRecord::Nothing);
    assert_eq!(classify_record(Some(&record(Some("0a-1b"))), &run), BucketRecord::Ours);
    assert_eq!(classify_record(Some(&record(Some("0a-1c"))), &run), BucketRecord::Other);
    assert_eq!(classify_record(Some(&record(None)), &run), BucketRecord::Other);
}

#[test]
fn retries_slow_down_until_a_round_leaves_nothing() {
    let mut backoff = CleanupBackoff::default();
    let mut pauses = |rounds: &[bool]| -> Vec<u64> {
        rounds.iter().map(|&is_clean| backoff.after_round(is_clean).as_secs()).collect()
    };
    assert_eq!(pauses(&[false; 8]), [10, 20, 40, 80, 160, 320, 600, 600]);
    assert_eq!(pauses(&[true, true, false, false]), [600, 600, 10, 20]);
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn a_journal_that_stays_is_reported_once_a_day_however_often_cleanup_is_retried() {
    let mut kept_journal = KeptJournal::default();
    let reports = (0..=3 * 8640).filter(|round| kept_journal.is_report_due(at(round * 10))).count();
    assert_eq!(reports, 4, "at the beginning and after 24, 48 and 72 hours");
}

fn intent(request: &str) -> Intent {
    let snapshot = SnapshotIntent { request: request.into(), ..SnapshotIntent::default() };
    Intent { snapshot: Some(snapshot), ..Intent::default() }
}

#[test]
fn a_snapshot_in_flight_is_given_up_a_day_after_its_own_first_failure() {
    let mut kept_journal = KeptJournal::default();
    let (early, late) = (intent("early"), intent("late"));
    for round in 0..8640 {
        assert!(!kept_journal.gives_up(&early, at(round * 10)), "after {round} rounds");
    }
    assert!(!kept_journal.gives_up(&late, at(86_399)));
    assert!(kept_journal.gives_up(&early, at(86_400)));
    assert!(!kept_journal.gives_up(&late, at(86_400)), "it has failed for a second");
}

#[test]
fn a_commit_may_arrive_until_the_bucket_was_without_it_for_an_hour() {
    let mut journal = KeptJournal::default();
    assert!(!journal.is_commit_settled(at(0)));
    assert!(!journal.is_commit_settled(at(3599)));
    assert!(journal.is_commit_settled(at(3600)));
    // The bucket was away meanwhile.
    journal.no_record_since = None;
    assert!(!journal.is_commit_settled(at(7200)));
}

#[test]
fn an_empty_location_proves_nothing_about_a_snapshot_in_flight() {
    assert!(may_be_empty(&RecoveredRun::default()), "there is nothing to decide");
    let in_flight = RecoveredRun { in_flight: vec![intent("r1")], ..RecoveredRun::default() };
    assert!(!may_be_empty(&in_flight));
    let ended = |stage| RecoveredRun { ended_without_bucket: Some(stage), ..in_flight.clone() };
    assert!(may_be_empty(&ended(Stage::Items)), "it has written no record");
    assert!(!may_be_empty(&ended(Stage::Finalizing)));
}

#[test]
fn a_snapshot_that_is_known_to_exist_is_never_given_up() {
    let mut journal = KeptJournal::default();
    let mut known = intent("known");
    known.snapshot.as_mut().unwrap().created = Some("snap-1".to_owned());
    for day in 0..1000 {
        assert!(!journal.gives_up(&known, at(day * 86_400)), "after {day} days");
    }
}

fn listed_journal(bucket: Option<&str>) -> ListedJournal {
    ListedJournal {
        id: JournalId {
            run: RunUid::new("0a-1b").unwrap(),
            kind: "Backup".to_owned(),
            name: "b".to_owned(),
        },
        fingerprint: 0,
        location: Some("main".to_owned()),
        bucket: bucket.map(str::to_owned),
    }
}

#[test]
fn a_run_whose_backup_is_gone_has_its_files_where_the_journal_says() {
    let backup = backup_or_placeholder(None, "velero", &listed_journal(None));
    assert_eq!(backup.spec.storage_location, "main");
    let mut other = Backup::default();
    other.spec.storage_location = "other".to_owned();
    let backup = backup_or_placeholder(Some(Box::new(other)), "velero", &listed_journal(None));
    assert_eq!(backup.spec.storage_location, "other");
}

#[test]
fn a_location_that_names_another_bucket_is_not_believed() {
    let location = |spec: Value| -> BackupStorageLocation {
        serde_json::from_value(json!({"metadata": {"name": "main"}, "spec": spec})).unwrap()
    };
    let of = |provider: &str, bucket: &str, prefix: &str, url: &str| {
        let storage = json!({"bucket": bucket, "prefix": prefix});
        let config = json!({"s3Url": url, "region": "x"});
        location(json!({"provider": provider, "objectStorage": storage, "config": config}))
    };
    let used = bucket_identity(&of("velero.io/aws", "b", "p", "http://minio"));
    assert_eq!(moved(Some(&used), &of("aws", "b", "/p/", "http://minio/")), None);
    for (provider, bucket, prefix, url) in [
        ("gcp", "b", "p", "http://minio"),
        ("aws", "c", "p", "http://minio"),
        ("aws", "b", "", "http://minio"),
        ("aws", "b", "p", "http://other"),
    ] {
        let reason = moved(Some(&used), &of(provider, bucket, prefix, url)).unwrap();
        assert!(reason.to_string().contains(&used), "{reason}");
    }
    assert_eq!(moved(None, &of("aws", "c", "", "")), None, "older servers did not write it");
}

fn store() -> BackupStore {
    let memory = Arc::new(Memory::with_bucket("b"));
    BackupStore::new(memory, "b", &Prefix::default())
}

fn backup(phase: BackupPhase) -> Backup {
    let mut backup = placeholder_backup("velero", &listed_journal(None));
    backup.status.get_or_insert_default().phase = Some(phase);
    backup
}

#[tokio::test]
async fn an_empty_location_does_not_say_that_a_backup_has_no_record() {
    let (store, name) = (store(), BackupName::new("b").unwrap());
    let run = RunUid::new("0a-1b").unwrap();
    let refused = find_record(&store, &name, &run, false).await.unwrap_err();
    assert!(refused.to_string().contains("is empty"), "{refused}");
    assert_eq!(find_record(&store, &name, &run, true).await.unwrap(), BucketRecord::Nothing);
    store.put_scratch(&run, 0, "1".into()).await.unwrap();
    assert_eq!(find_record(&store, &name, &run, false).await.unwrap(), BucketRecord::Nothing);
    store.commit(&backup(BackupPhase::Completed)).await.unwrap();
    assert_eq!(find_record(&store, &name, &run, false).await.unwrap(), BucketRecord::Ours);
}

#[tokio::test]
async fn snapshots_of_a_complete_backup_are_unknown_without_its_files() {
    let run = RunUid::new("0a-1b").unwrap();
    let name = BackupName::new("b").unwrap();
    for phase in [BackupPhase::Completed, BackupPhase::PartiallyFailed] {
        let (store, whole) = (store(), backup(phase));
        let asked = || recorded(&store, &whole, &run, false);
        asked().await.expect_err("the bucket has nothing");
        store.put(&name, &vec![Snapshot::default()]).await.unwrap();
        asked().await.expect_err("the record is missing");
        store.commit(&whole).await.unwrap();
        assert_eq!(asked().await.unwrap().len(), 1);
        let other = RunUid::new("0a-1c").unwrap();
        recorded(&store, &whole, &other, false).await.expect_err("the record is another backup's");
    }
    // The Backup is gone, but the record shows that it was complete.
    let (store, gone) = (store(), placeholder_backup("velero", &listed_journal(None)));
    let unmounted = recorded(&store, &gone, &run, false).await.unwrap_err();
    assert!(matches!(unmounted, CleanupError::EmptyLocation), "{unmounted}");
    assert_eq!(recorded(&store, &gone, &run, true).await.unwrap(), Vec::new());
    store.put_scratch(&run, 0, "1".into()).await.unwrap();
    assert_eq!(recorded(&store, &gone, &run, false).await.unwrap(), Vec::new());
    store.commit(&backup(BackupPhase::Completed)).await.unwrap();
    recorded(&store, &gone, &run, false).await.expect_err("the list is missing");
    // A failed backup may have no snapshots, and no list of them.
    let failed = backup(BackupPhase::Failed);
    let store = self::store();
    store.commit(&failed).await.unwrap();
    assert_eq!(recorded(&store, &failed, &run, false).await.unwrap(), Vec::new());
}

#[tokio::test]
async fn a_snapshot_is_given_up_with_its_location_and_not_for_a_bucket_that_is_away() {
    let (run, gone) =
        (RunUid::new("0a-1b").unwrap(), placeholder_backup("velero", &listed_journal(None)));
    let unknown = RunBucket::Unknown(UnknownBucket::LocationGone);
    recorded_in(&unknown, &gone, &run, false)
        .await
        .expect("each snapshot has its day")
        .unwrap_err();
    let away = RunBucket::Away(Arc::new(BucketAway::Open(OpenError::Missing)));
    recorded_in(&away, &gone, &run, false).await.expect_err("the journal stays");
    let same = RunBucket::Same(store());
    assert_eq!(recorded_in(&same, &gone, &run, true).await.unwrap(), Ok(Vec::new()));
}

#[test]
fn volumes_of_a_restore_are_left_over_unless_a_persistent_volume_uses_them() {
    let volume = |name: &str, answer: Option<Option<&str>>| {
        let text = str::to_owned;
        let item = ResourceIdentifier { name: text(name), ..ResourceIdentifier::default() };
        let started = VolumeRequested { item, name: text(name), ..VolumeRequested::default() };
        let ended = |volume: Option<&str>| VolumeAnswered {
            volume: volume.map(text),
            block: started.block,
        };
        VolumeRequest { ended: answer.map(ended), started }
    };
    let recovered = RecoveredRun {
        volumes: vec![
            volume("pv-used", Some(Some("vol-1"))),
            volume("pv-unused", Some(Some("vol-2"))),
            volume("pv-refused", Some(None)),
            volume("pv-unanswered", None),
        ],
        ..RecoveredRun::default()
    };
    let unused = unused_volumes(&recovered, &BTreeSet::from(["pv-used"]));
    assert_eq!(unused.len(), 2, "{unused:?}");
    assert!(
        unused[0].starts_with("volume pv-unused: ") && unused[0].contains("vol-2"),
        "{unused:?}"
    );
    assert!(unused[1].starts_with("volume pv-unanswered: "), "{unused:?}");
}
