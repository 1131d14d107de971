//! Scratch files of a run that has ended.
//!
//! They are only in the way. A bucket that refuses to delete them, and will do so for ever, does not keep the journal.

use std::sync::Arc;
use std::time::Duration;

use bowline_api::{Backup, Restore};
use bowline_store::BackupStore;
use jiff::Timestamp;
use kube::ResourceExt as _;

use super::bucket::RunBucket;
use super::{CleanupError, DAY, MAX_LOGGED_LEFTOVERS};
use crate::controllers::bucket_wait::elapsed;
use crate::error_text::status_message;
use crate::events::Milestone;
use crate::journal::{JournalId, ListedJournal};
use crate::server::Context;

/// Number of attempts to delete files that the bucket refuses to delete, and the time that they cover at least: other
/// leftovers may cause many attempts within seconds.
const MAX_REFUSALS: u32 = 5;
const MIN_REFUSED_TIME: Duration = Duration::from_hours(1);
/// Time for which a bucket may be away before its files are given up.
const MAX_ABSENCE: Duration = DAY;

/// Attempts to delete the scratch files of a run.
#[derive(Debug, Default)]
pub(super) struct ScratchAttempts {
    /// Time of the first failure.
    failing_since: Option<Timestamp>,
    refusals: u32,
}

impl ScratchAttempts {
    /// True if the files are given up after one more failure.
    fn gives_up(&mut self, is_refusal: bool, now: Timestamp) -> bool {
        let since = *self.failing_since.get_or_insert(now);
        self.refusals += u32::from(is_refusal);
        let failing_for = elapsed(since, now);
        let is_refused = self.refusals >= MAX_REFUSALS && failing_for >= MIN_REFUSED_TIME;
        is_refused || failing_for >= MAX_ABSENCE
    }
}

/// Result of the deletion of scratch files.
#[derive(Debug)]
pub(super) enum ScratchOutcome {
    /// The files are gone, or their bucket is not known.
    Done,
    /// The files cannot be deleted.
    GivenUp { error: CleanupError, remaining: Remaining },
}

/// Scratch files that remain in the bucket.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Remaining {
    Keys(Vec<String>),
    /// The keys are not known.
    Folder(String),
    /// The bucket is away.
    Location(String),
}

/// Removes the scratch files of a run that has ended, if its bucket is known. Fails while another attempt may succeed.
pub(super) async fn delete_scratch(
    journal: &ListedJournal,
    bucket: &RunBucket,
    attempts: &mut ScratchAttempts,
    now: Timestamp,
) -> Result<ScratchOutcome, CleanupError> {
    match bucket {
        RunBucket::Same(store) => {
            let Err(error) = store.delete_scratch(&journal.id.run).await else {
                return Ok(ScratchOutcome::Done);
            };
            // A bucket that cannot be read is away. One that can be read and deletes nothing will hardly change.
            let is_refusal =
                matches!(error, bowline_store::Error::Delete { .. }) && !error.is_retryable();
            if !attempts.gives_up(is_refusal, now) {
                return Err(error.into());
            }
            let remaining = find_remaining(store, journal).await;
            Ok(ScratchOutcome::GivenUp { error: error.into(), remaining })
        }
        RunBucket::Away(error) => {
            let error = CleanupError::from(Arc::clone(error));
            if !attempts.gives_up(false, now) {
                return Err(error);
            }
            let remaining = Remaining::Location(journal.location.clone().unwrap_or_default());
            Ok(ScratchOutcome::GivenUp { error, remaining })
        }
        RunBucket::Unknown(reason) => {
            let JournalId { kind, name, .. } = &journal.id;
            tracing::warn!("files of the {kind} {name} may be left over: {reason}");
            Ok(ScratchOutcome::Done)
        }
    }
}

async fn find_remaining(store: &BackupStore, journal: &ListedJournal) -> Remaining {
    match store.scratch_keys(&journal.id.run).await {
        Ok(keys) => Remaining::Keys(keys),
        Err(_) => Remaining::Folder(store.scratch_folder(&journal.id.run)),
    }
}

/// Reports scratch files that were given up: in the log, and by an Event of the run if its object still exists.
pub(super) async fn report_remaining(
    context: &Context,
    journal: &ListedJournal,
    error: &CleanupError,
    remaining: &Remaining,
) {
    let JournalId { run, kind, name } = &journal.id;
    match remaining {
        Remaining::Keys(keys) => {
            for key in keys.iter().take(MAX_LOGGED_LEFTOVERS) {
                tracing::error!("scratch file of the {kind} {name} is left over: {key}");
            }
            tracing::error!(
                leftovers = keys.len(),
                "cannot delete scratch files of the {kind} {name}: {}",
                status_message(error)
            );
        }
        Remaining::Folder(folder) => tracing::error!(
            "scratch files of the {kind} {name} may be left over in {folder}: {}",
            status_message(error)
        ),
        Remaining::Location(location) => tracing::error!(
            "scratch files of the {kind} {name} (uid {run}) may be left over in storage location {location}: {}",
            status_message(error)
        ),
    }
    let is_it = |uid: Option<String>| uid.as_deref() == Some(run.as_str());
    if kind == "Backup" {
        if let Ok(Some(backup)) = context.api::<Backup>().get_opt(name).await
            && is_it(backup.uid())
        {
            context.events.publish(&backup, Milestone::ScratchFilesLeft).await;
        }
    } else if let Ok(Some(restore)) = context.api::<Restore>().get_opt(name).await
        && is_it(restore.uid())
    {
        context.events.publish(&restore, Milestone::ScratchFilesLeft).await;
    }
}

#[cfg(test)]
mod tests {
    use bowline_plugin::{Code, Error};
    use bowline_store::Prefix;
    use bowline_store::backend::Memory;
    use bowline_store::backend::memory::StoreCall;
    use bowline_store::name::RunUid;

    use super::super::bucket::BucketAway;
    use super::*;
    use crate::controllers::lookup::OpenError;

    fn listed_journal() -> ListedJournal {
        ListedJournal {
            id: JournalId {
                run: RunUid::new("0a-1b").unwrap(),
                kind: "Backup".to_owned(),
                name: "b".to_owned(),
            },
            fingerprint: 0,
            location: Some("main".to_owned()),
            bucket: None,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A bucket with a scratch file, in which these calls fail.
    async fn bucket(failing: StoreCall, code: Code) -> RunBucket {
        let memory = Memory::with_bucket("b")
            .failing(move |call, _| (call == failing).then(|| Error::new(code, "denied")));
        let store = BackupStore::new(Arc::new(memory), "b", &Prefix::default());
        store.put_scratch(&listed_journal().id.run, 0, "1".into()).await.unwrap();
        RunBucket::Same(store)
    }

    #[tokio::test]
    async fn files_that_may_not_be_deleted_are_given_up_with_their_keys() {
        let bucket = bucket(StoreCall::Delete, Code::PermissionDenied).await;
        let mut attempts = ScratchAttempts::default();
        for second in 0..60 {
            let outcome =
                delete_scratch(&listed_journal(), &bucket, &mut attempts, at(second)).await;
            outcome.expect_err("a role may just be changed");
        }
        let outcome = delete_scratch(&listed_journal(), &bucket, &mut attempts, at(3600)).await;
        let outcome = outcome.expect("the journal is kept for a scratch file");
        let ScratchOutcome::GivenUp { error, remaining: Remaining::Keys(keys) } = outcome else {
            panic!("{outcome:?}");
        };
        assert!(status_message(&error).contains("denied"), "{error}");
        assert!(matches!(&*keys, [key] if key.contains("0a-1b")), "{keys:?}");
    }

    #[tokio::test]
    async fn bucket_that_is_away_keeps_the_journal_for_a_day() {
        let away = RunBucket::Away(Arc::new(BucketAway::Open(OpenError::Missing)));
        let slow = bucket(StoreCall::Delete, Code::Unavailable).await;
        let locked = bucket(StoreCall::List, Code::Unauthenticated).await;
        for bucket in [away, slow, locked] {
            let mut attempts = ScratchAttempts::default();
            for hour in 0..24 {
                let failure =
                    delete_scratch(&listed_journal(), &bucket, &mut attempts, at(hour * 3600))
                        .await;
                failure.expect_err("the bucket may answer later");
            }
            let outcome =
                delete_scratch(&listed_journal(), &bucket, &mut attempts, at(86_400)).await;
            assert!(matches!(outcome, Ok(ScratchOutcome::GivenUp { .. })), "{outcome:?}");
        }
    }
}
