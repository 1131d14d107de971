//! Backups and restores in a bucket.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_api::download_request::DownloadTarget;
use bowline_api::{Backup, BackupStatus, PodVolumeBackup};
use bowline_plugin::{Code, Error as PluginError, ObjectStore};
use bowline_store::backend::memory::StoreCall;
use bowline_store::backend::{Memory, Plugin};
use bowline_store::file::{BackupOperation, ResourceList, RestoreOperation, Results, Snapshot};
use bowline_store::name::RunUid;
use bowline_store::store::commit::CommitRefusal;
use bowline_store::store::{CommitOutcome, Listing};
use bowline_store::{
    Backend, BackupFile, BackupName, BackupStore, Error, Guarantee, Key, Prefix, RestoreName,
};
use bytes::Bytes;
use futures::TryStreamExt as _;

use crate::conformance::body;

const BUCKET: &str = "bucket";

fn store(backend: impl Backend + 'static) -> BackupStore {
    BackupStore::new(Arc::new(backend), BUCKET, &Prefix::new("p").unwrap())
}

fn memory() -> Memory {
    Memory::with_bucket(BUCKET)
}

fn name() -> BackupName {
    BackupName::new("b").unwrap()
}

fn backup(uid: &str, phase: &str) -> Backup {
    let mut backup = Backup::default();
    backup.metadata.name = Some("b".to_owned());
    backup.metadata.uid = Some(uid.to_owned());
    backup.status = Some(BackupStatus { phase: Some(phase.into()), ..BackupStatus::default() });
    backup
}

async fn put_object(backend: &Memory, key: &str, content: impl Into<Bytes>) {
    backend.put_object(BUCKET, key, body(content)).await.unwrap();
}

fn refusal(outcome: Result<CommitOutcome, Error>) -> CommitRefusal {
    match outcome {
        Err(Error::Commit(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

/// The whole story, as users see it.
fn error_chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", error_chain(source)),
        None => error.to_string(),
    }
}

#[tokio::test]
async fn files_round_trip() {
    let memory = memory();
    let store = store(memory.clone());
    let mut results = Results::default();
    results.errors.add("ns", "a < b");
    results.warnings.add("", "of the cluster");
    store.put(&name(), &results).await.unwrap();
    assert_eq!(store.get::<Results>(&name()).await.unwrap(), Some(results));
    assert_eq!(store.get::<ResourceList>(&name()).await.unwrap(), None);
    store.put_contents(&name(), body("tar")).await.unwrap();
    let archive = store.contents(&name()).await.unwrap().unwrap();
    assert_eq!(archive.try_collect::<Vec<Bytes>>().await.unwrap().concat(), b"tar");
    store.put_log(&name(), body("log")).await.unwrap();
    let restore = RestoreName::new("r").unwrap();
    store.put_restore_file(&restore, &vec![RestoreOperation::default()]).await.unwrap();
    store.put_restore_log(&restore, body("log")).await.unwrap();
    let operations = store.get_restore_file::<Vec<RestoreOperation>>(&restore).await.unwrap();
    assert_eq!(operations.unwrap().len(), 1);
    let run = RunUid::new("run-1").unwrap();
    store.put_scratch(&run, 3, Bytes::from("items")).await.unwrap();
    assert_eq!(store.scratch(&run, 3, 5).await.unwrap(), Some(Bytes::from("items")));
    assert!(store.scratch(&run, 3, 4).await.is_err());
    assert_eq!(store.scratch(&run, 4, 5).await.unwrap(), None);
    assert_eq!(
        memory.list_objects(BUCKET, "").await.unwrap(),
        [
            "p/backups/b/b-logs.gz",
            "p/backups/b/b-results.gz",
            "p/backups/b/b.tar.gz",
            "p/plugins/bowline/run-1/000003",
            "p/restores/r/restore-r-itemoperations.json.gz",
            "p/restores/r/restore-r-logs.gz",
        ]
    );
    store.validate().await.unwrap();
    store.delete_scratch(&run).await.unwrap();
    store.delete_restore(&restore).await.unwrap();
    store.delete_backup(&name()).await.unwrap();
    assert_eq!(memory.list_objects(BUCKET, "").await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn lists_absent_in_veleros_files_are_empty() {
    let memory = memory();
    let store = store(memory.clone());
    let mut null = bowline_store::encode::gzip(Vec::new());
    std::io::Write::write_all(&mut null, b"null\n").unwrap();
    let null = Bytes::from(null.finish().unwrap());
    put_object(&memory, "p/backups/b/b-podvolumebackups.json.gz", null.clone()).await;
    put_object(&memory, "p/backups/b/b-volumesnapshots.json.gz", null).await;
    assert_eq!(store.get::<Vec<PodVolumeBackup>>(&name()).await.unwrap(), Some(vec![]));
    assert_eq!(store.get::<Vec<Snapshot>>(&name()).await.unwrap(), Some(vec![]));
    assert_eq!(store.get::<Vec<BackupOperation>>(&name()).await.unwrap(), None);
}

#[tokio::test]
async fn backup_is_listed_with_any_file_but_exists_only_with_its_record() {
    let memory = memory();
    let store = store(memory.clone());
    assert_eq!(store.list().await.unwrap(), Listing::default());
    put_object(&memory, "p/backups/b/b-logs.gz", "").await;
    put_object(&memory, "p/backups/Not A Name/x", "").await;
    put_object(&memory, "q/backups/elsewhere/x", "").await;
    let listing = store.list().await.unwrap();
    assert_eq!(listing.backups, [name()]);
    assert_eq!(listing.unexpected, ["Not A Name"]);
    assert!(!store.exists(&name()).await.unwrap());
    assert_eq!(store.backup(&name()).await.unwrap(), None);
    store.commit(&backup("u", "Completed")).await.unwrap();
    assert!(store.exists(&name()).await.unwrap());
    assert_eq!(store.backup(&name()).await.unwrap(), Some(backup("u", "Completed")));
}

#[tokio::test]
async fn location_with_foreign_folders_is_invalid() {
    let memory = memory();
    let store = store(memory.clone());
    store.validate().await.unwrap();
    put_object(&memory, "p/kopia/ns/x", "").await;
    put_object(&memory, "p/a-file", "").await;
    put_object(&memory, "photos/x", "").await;
    store.validate().await.unwrap();
    put_object(&memory, "p/photos/x", "").await;
    let error = store.validate().await.unwrap_err();
    assert_eq!(error.to_string(), "Backup store contains invalid top-level directories: [photos]");
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn commit_creates_replaces_or_finds_its_own_record() {
    let memory = memory();
    let store = store(memory.clone());
    let committed = store.commit(&backup("u", "PartiallyFailed")).await.unwrap();
    assert_eq!(committed, CommitOutcome::Created(Guarantee::Atomic));
    // The answer was lost, and the retry has other contents: the committed record counts.
    let CommitOutcome::AlreadyCommitted(found) =
        store.commit(&backup("u", "Completed")).await.unwrap()
    else {
        panic!("it was committed before")
    };
    assert_eq!(*found, backup("u", "PartiallyFailed"));
    assert_eq!(store.backup(&name()).await.unwrap(), Some(*found));
    // A backup of Velero, which writes the record early.
    let early = bowline_store::encode::json_indented(&backup("u", "Finalizing")).unwrap();
    put_object(&memory, "p/backups/b/velero-backup.json", early).await;
    let committed = store.commit(&backup("u", "Completed")).await.unwrap();
    assert_eq!(committed, CommitOutcome::Replaced);
    assert_eq!(store.backup(&name()).await.unwrap(), Some(backup("u", "Completed")));
}

#[tokio::test]
async fn commit_never_touches_another_backup() {
    let memory = memory();
    let store = store(memory.clone());
    store.commit(&backup("theirs", "Completed")).await.unwrap();
    let refused = refusal(store.commit(&backup("ours", "Completed")).await);
    assert_eq!(refused, CommitRefusal::OtherUid { found: "theirs".to_owned() });
    assert_eq!(store.backup(&name()).await.unwrap(), Some(backup("theirs", "Completed")));
    put_object(&memory, "p/backups/b/velero-backup.json", "{").await;
    let error = store.commit(&backup("ours", "Completed")).await.unwrap_err();
    assert!(matches!(error, Error::Unreadable { .. }), "{error}");
    let refused = refusal(store.commit(&backup("ours", "InProgress")).await);
    assert!(matches!(refused, CommitRefusal::NotTerminal { .. }));
    let mut nameless = backup("ours", "Completed");
    nameless.metadata.name = Some("../b".to_owned());
    assert!(matches!(refusal(store.commit(&nameless).await), CommitRefusal::Name(_)));
}

#[tokio::test]
async fn one_of_two_concurrent_commits_wins() {
    let store = store(memory());
    let (a, b) = (backup("a", "Completed"), backup("b", "Completed"));
    let (first, second) = tokio::join!(store.commit(&a), store.commit(&b));
    let won = [first.is_ok(), second.is_ok()];
    assert!(won[0] != won[1], "{won:?}");
}

#[tokio::test]
async fn without_conditional_create_the_record_is_read_back_after_the_commit() {
    let memory = memory();
    // Another server writes its record between our check and our write.
    let other = memory.clone();
    let sneaky = memory.failing(move |call, key| {
        if call == StoreCall::Get {
            let other_record = bowline_store::encode::json_indented(&backup("theirs", "Completed"));
            let put = other.put_object(BUCKET, key, body(other_record.unwrap()));
            futures::executor::block_on(put).unwrap();
        }
        None
    });
    let plugin: Arc<dyn ObjectStore> = Arc::new(sneaky);
    let refused = refusal(store(Plugin::new(plugin)).commit(&backup("ours", "Completed")).await);
    assert_eq!(refused, CommitRefusal::OtherUid { found: "theirs".to_owned() });
    let plugin: Arc<dyn ObjectStore> = Arc::new(self::memory());
    let committed = store(Plugin::new(plugin)).commit(&backup("ours", "Completed")).await.unwrap();
    assert_eq!(committed, CommitOutcome::Created(Guarantee::CheckedFirst));
}

/// A backup with all its files.
async fn complete_backup(memory: &Memory) -> BackupStore {
    let complete = store(memory.clone());
    for file in BackupFile::ALL {
        put_object(memory, &complete.layout().key(&Key::Backup(name(), file)), "x").await;
    }
    let record = bowline_store::encode::json_indented(&backup("u", "Completed")).unwrap();
    put_object(memory, "p/backups/b/velero-backup.json", record).await;
    put_object(memory, "p/backups/bb/bb.tar.gz", "of another").await;
    complete
}

/// The phase in the record of the backup; none without a record.
async fn recorded_phase(store: &BackupStore) -> Option<String> {
    let record = store.backup(&name()).await.unwrap()?;
    Some(record.status.unwrap().phase.unwrap().to_string())
}

#[tokio::test]
async fn delete_killed_at_any_point_leaves_a_truthful_record_and_can_be_resumed() {
    let names_data = ["volumesnapshots", "volumeinfo", "podvolumebackups", "volumepluginbackups"];
    for allowed in 0..=BackupFile::ALL.len() {
        let memory = memory();
        let complete = complete_backup(&memory).await;
        let count = AtomicUsize::new(0);
        let dying = memory.failing(move |call, _| {
            let is_over =
                call == StoreCall::Delete && count.fetch_add(1, Ordering::SeqCst) >= allowed;
            is_over.then(|| PluginError::new(Code::Unavailable, "killed"))
        });
        let outcome = store(dying).delete_backup(&name()).await;
        assert_eq!(outcome.is_ok(), allowed == BackupFile::ALL.len());
        let remaining = memory.list_objects(BUCKET, "p/backups/b/").await.unwrap();
        assert_eq!(remaining.len(), BackupFile::ALL.len() - allowed);
        let expected = (!remaining.is_empty()).then(|| "Deleting".to_owned());
        assert_eq!(
            recorded_phase(&complete).await,
            expected,
            "a record tells of what is left: {remaining:?}"
        );
        let has_archive = remaining.iter().any(|key| key.ends_with(".tar.gz"));
        let has_names =
            names_data.iter().all(|name| remaining.iter().any(|key| key.contains(name)));
        assert!(has_names || !has_archive, "{remaining:?}");
        complete.delete_backup(&name()).await.unwrap();
        assert_eq!(memory.list_objects(BUCKET, "").await.unwrap(), ["p/backups/bb/bb.tar.gz"]);
    }
}

#[tokio::test]
async fn nothing_is_deleted_before_the_record_is_marked_deleting() {
    let memory = memory();
    let complete = complete_backup(&memory).await;
    let full = memory.failing(|call, _| {
        (call == StoreCall::Put).then(|| PluginError::new(Code::ResourceExhausted, "full"))
    });
    assert!(store(full).delete_backup(&name()).await.is_err());
    let blind = memory.failing(|call, _| {
        (call == StoreCall::Get).then(|| PluginError::new(Code::Unavailable, "away"))
    });
    assert!(store(blind).delete_backup(&name()).await.is_err());
    assert_eq!(recorded_phase(&complete).await.as_deref(), Some("Completed"));
    let remaining = memory.list_objects(BUCKET, "p/backups/b/").await.unwrap();
    assert_eq!(remaining.len(), BackupFile::ALL.len());
}

#[tokio::test]
async fn unreadable_record_does_not_block_deletion() {
    let memory = memory();
    let complete = complete_backup(&memory).await;
    put_object(&memory, "p/backups/b/velero-backup.json", "{").await;
    complete.delete_backup(&name()).await.unwrap();
    assert_eq!(memory.list_objects(BUCKET, "p/backups/b/").await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn marking_as_deleting_changes_only_the_phase() {
    let memory = memory();
    let store = complete_backup(&memory).await;
    let mut record = backup("u", "PartiallyFailed");
    record.status.as_mut().unwrap().errors = 3;
    record.spec.unknown.0.insert("future".to_owned(), true.into());
    let text = bowline_store::encode::json_indented(&record).unwrap();
    put_object(&memory, "p/backups/b/velero-backup.json", text).await;
    for _ in 0..2 {
        store.mark_deleting(&name()).await.unwrap();
        record.status.as_mut().unwrap().phase = Some("Deleting".into());
        assert_eq!(store.backup(&name()).await.unwrap().as_ref(), Some(&record));
    }
}

#[tokio::test]
async fn existence_is_queried_when_a_plugin_does_not_report_not_found() {
    let memory = memory();
    let flaky = memory.failing(|call, _| {
        (call == StoreCall::Get)
            .then(|| PluginError::unknown("rpc error: NoSuchKey: the key is gone"))
    });
    let store = store(flaky);
    assert_eq!(store.get::<Results>(&name()).await.unwrap(), None);
    put_object(&memory, "p/backups/b/b-results.gz", "x").await;
    let error = store.get::<Results>(&name()).await.unwrap_err();
    assert!(error.is_retryable() && error_chain(&error).contains("NoSuchKey"), "{error}");
}

#[tokio::test]
async fn invalid_file_is_an_error_naming_its_key() {
    let memory = memory();
    let store = store(memory.clone());
    put_object(&memory, "p/backups/b/b-results.gz", "no gzip").await;
    let error = store.get::<Results>(&name()).await.unwrap_err();
    let expected = "\"p/backups/b/b-results.gz\" cannot be used: the file is damaged: ";
    assert!(error_chain(&error).starts_with(expected), "{}", error_chain(&error));
    put_object(&memory, "p/backups/b/velero-backup.json", vec![b' '; 17 << 20]).await;
    let error = store.backup(&name()).await.unwrap_err();
    assert!(error_chain(&error).contains("larger than 3145728 bytes"), "{error}");
    for (from, to) in [("\"b\"", "\"c\""), ("Backup", "Restore"), ("velero.io/v1", "v1")] {
        let record = bowline_store::encode::json_indented(&backup("u", "Completed")).unwrap();
        let record = String::from_utf8(record.to_vec()).unwrap().replace(from, to);
        put_object(&memory, "p/backups/b/velero-backup.json", record).await;
        let error = store.backup(&name()).await.unwrap_err();
        assert!(
            error_chain(&error).contains("not to velero.io/v1 Backup \"b\""),
            "{}",
            error_chain(&error)
        );
    }
}

#[tokio::test]
async fn download_url_names_the_right_file_for_ten_minutes() {
    let store = store(memory());
    let target = |kind: &str| DownloadTarget {
        kind: kind.into(),
        name: "b".to_owned(),
        ..DownloadTarget::default()
    };
    let url = store.download_url(&target("BackupLog")).await.unwrap();
    assert_eq!(url, "memory://bucket/p/backups/b/b-logs.gz?seconds=600");
    let error = store.download_url(&target("Everything")).await.unwrap_err();
    assert_eq!(error.to_string(), "unsupported download target kind \"Everything\"");
}
