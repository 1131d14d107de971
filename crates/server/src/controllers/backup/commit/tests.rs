use std::sync::Arc;

use bowline_api::BackupPhase;
use bowline_plugin::{Code, Error};
use bowline_store::Prefix;
use bowline_store::backend::Memory;
use bowline_store::backend::memory::Call;

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
async fn a_commit_whose_answer_is_lost_is_neither_a_failure_nor_a_success() {
    let memory = Memory::with_bucket("bucket");
    let unavailable = |call, _: &str| {
        (call == Call::Create).then(|| Error::new(Code::Unavailable, "the network is down"))
    };
    let broken = store(&memory.clone().failing(unavailable));
    let error = commit(&broken, &backup("1"), &status()).await.err().unwrap();
    assert!(matches!(&error, WorkError::Commit(reason) if reason.contains("network")), "{error}");
    let end = commit(&store(&memory), &backup("1"), &status()).await.unwrap().status;
    assert_eq!(end.phase, Some(BackupPhase::PartiallyFailed));
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_is_refused_is_a_failure_and_a_repeated_one_is_none() {
    let memory = Memory::with_bucket("bucket");
    let first = commit(&store(&memory), &backup("1"), &status()).await.unwrap().status;
    let again = BackupStatus { errors: 100, ..status() };
    let again = commit(&store(&memory), &backup("1"), &again).await.unwrap().status;
    assert_eq!((again.phase, again.errors), (first.phase, 3), "what the record says counts");
    let end = commit(&store(&memory), &backup("2"), &status()).await.unwrap().status;
    assert_eq!((end.phase, end.errors), (Some(BackupPhase::Failed), 4));
    assert!(end.failure_reason.contains("not in the bucket"), "{}", end.failure_reason);
}

#[tokio::test(start_paused = true)]
async fn a_backup_counts_as_not_in_the_bucket_only_if_no_try_can_have_put_it_there() {
    let tries = |first: Code| {
        let asked = Arc::new(AtomicBool::new(false));
        move |call, _: &str| {
            let code = if asked.load(Ordering::Relaxed) { Code::PermissionDenied } else { first };
            (call == Call::Create).then(|| {
                asked.store(true, Ordering::Relaxed);
                Error::new(code, "no luck")
            })
        }
    };
    for (first, expected, told) in [
        (Code::PermissionDenied, Recorded::No, "the backup is not in the bucket"),
        (
            Code::Unavailable,
            Recorded::Unknown,
            "it is not known whether the backup is in the bucket",
        ),
    ] {
        let memory = Memory::with_bucket("bucket").failing(tries(first));
        let end = commit(&store(&memory), &backup("1"), &status()).await.unwrap();
        assert_eq!(end.recorded, expected);
        assert!(end.status.failure_reason.starts_with(told), "{}", end.status.failure_reason);
    }
}
