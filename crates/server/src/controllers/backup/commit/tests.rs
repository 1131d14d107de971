use std::sync::Arc;

use bowline_api::BackupPhase;
use bowline_plugin::{Code, Error};
use bowline_store::Prefix;
use bowline_store::backend::Memory;
use bowline_store::backend::memory::StoreCall;

use super::super::tests::status;
use super::*;

fn backup(uid: &str) -> Backup {
    let mut backup = Backup::new("b", bowline_api::BackupSpec::default());
    backup.metadata.uid = Some(uid.to_owned());
    backup
}

fn store(memory: &Memory) -> BackupStore {
    BackupStore::new(Arc::new(memory.clone()), "bucket", &Prefix::default())
}

#[tokio::test(start_paused = true)]
async fn commit_without_answer_is_unknown() {
    let memory = Memory::with_bucket("bucket");
    let unavailable = |call, _: &str| {
        (call == StoreCall::Create).then(|| Error::new(Code::Unavailable, "the network is down"))
    };
    let broken = store(&memory.clone().failing(unavailable));
    let error = commit(&broken, &backup("1"), &status(), false).await.err().unwrap();
    assert!(error.to_string().starts_with("the bucket did not confirm whether"), "{error}");
    assert!(status_message(&error).contains("network"), "{error}");
    let end = commit(&store(&memory), &backup("1"), &status(), false).await.unwrap().status;
    assert_eq!(end.phase, Some(BackupPhase::PartiallyFailed));
}

#[tokio::test(start_paused = true)]
async fn refused_commit_fails_and_repeated_commit_succeeds() {
    let memory = Memory::with_bucket("bucket");
    let first = commit(&store(&memory), &backup("1"), &status(), false).await.unwrap().status;
    let again = BackupStatus { errors: 100, ..status() };
    let again = commit(&store(&memory), &backup("1"), &again, false).await.unwrap().status;
    assert_eq!((again.phase, again.errors), (first.phase, 3), "what the record says counts");
    let end = commit(&store(&memory), &backup("2"), &status(), false).await.unwrap().status;
    assert_eq!((end.phase, end.errors), (Some(BackupPhase::Failed), 4));
    assert!(end.failure_reason.contains("not in the bucket"), "{}", end.failure_reason);
}

#[tokio::test(start_paused = true)]
async fn record_is_absent_only_if_no_attempt_can_have_written_it() {
    let attempts = |first: Code| {
        let asked = Arc::new(AtomicBool::new(false));
        move |call, _: &str| {
            let code = if asked.load(Ordering::Relaxed) { Code::PermissionDenied } else { first };
            (call == StoreCall::Create).then(|| {
                asked.store(true, Ordering::Relaxed);
                Error::new(code, "no luck")
            })
        }
    };
    for (first, expected, message) in [
        (Code::PermissionDenied, RecordState::No, "the backup is not in the bucket"),
        (Code::Unavailable, RecordState::Unknown, "the bucket did not confirm the write"),
    ] {
        let memory = Memory::with_bucket("bucket").failing(attempts(first));
        let end = commit(&store(&memory), &backup("1"), &status(), false).await.unwrap();
        assert_eq!(end.recorded, expected);
        assert!(end.status.failure_reason.starts_with(message), "{}", end.status.failure_reason);
    }
}

#[tokio::test(start_paused = true)]
async fn record_may_exist_after_an_earlier_attempt_whatever_the_bucket_answers() {
    let refused = |call, _: &str| {
        (call == StoreCall::Create).then(|| Error::new(Code::PermissionDenied, "no luck"))
    };
    let store = store(&Memory::with_bucket("bucket").failing(refused));
    let end = commit(&store, &backup("1"), &status(), true).await.unwrap();
    assert_eq!(end.recorded, RecordState::Unknown);
}
