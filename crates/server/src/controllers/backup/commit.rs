//! The last write to the bucket: a backup is there once its record is.

use std::sync::atomic::{AtomicBool, Ordering};

use bowline_api::{Backup, BackupStatus};
use bowline_engine::backup::finalize;
use bowline_engine::point::{self, Point};
use bowline_store::store::Committed;
use bowline_store::{BackupName, BackupStore};
use jiff::Timestamp;
use kube::ResourceExt as _;

use super::{WorkError, failed, recover};
use crate::controllers::bucket_wait::BucketFailure;
use crate::controllers::run::patiently;
use crate::story::one_line;

/// How a backup has ended.
pub(super) struct Conclusion {
    pub(super) status: BackupStatus,
    pub(super) recorded: Recorded,
    /// Why the bucket refuses to have the record written, if it does. It may not for ever.
    pub(super) refusal: Option<String>,
}

/// Whether the bucket has the record of a backup. Only without one may its snapshots go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    Yes,
    No,
    /// A try may have written it, though no answer came.
    Unknown,
}

/// Writes the commit record of a backup whose files are written. Returns what is true then. Where
/// that is not known but can be found out it is an error, and the bucket is asked later.
pub(super) async fn commit(
    store: &BackupStore,
    backup: &Backup,
    status: &BackupStatus,
) -> Result<Conclusion, WorkError> {
    let end = finalize::conclude(status, Timestamp::now());
    let record = Backup { status: Some(end.clone()), ..backup.clone() };
    point::pass(Point::Commit);
    // A try without an answer may have written it, whatever the next ones say.
    let is_unclear = AtomicBool::new(false);
    let committed = patiently(|| async {
        let committed = store.commit(&record).await;
        if committed.as_ref().is_err_and(bowline_store::Error::is_retryable) {
            is_unclear.store(true, Ordering::Relaxed);
        }
        committed
    });
    let committed = committed.await;
    point::pass(Point::Committed);
    let error = match committed {
        Ok(Committed::Before(found)) => {
            let status = found.status.unwrap_or(end);
            return Ok(Conclusion { status, recorded: Recorded::Yes, refusal: None });
        }
        Ok(Committed::Created(_) | Committed::Replaced) => {
            return Ok(Conclusion { status: end, recorded: Recorded::Yes, refusal: None });
        }
        Err(error) if error.is_retryable() => return Err(WorkError::Commit(one_line(&error))),
        Err(error) => error,
    };
    let name =
        BackupName::new(backup.name_any()).map_err(|error| WorkError::Commit(one_line(&error)))?;
    let (told, recorded) = match store
        .backup(&name)
        .await
        .map(|found| recover::end_of(backup, found))
    {
        Ok(Some(status)) => {
            return Ok(Conclusion { status, recorded: Recorded::Yes, refusal: None });
        }
        Ok(None) if !is_unclear.into_inner() => {
            ("the backup is not in the bucket, because its record cannot be written", Recorded::No)
        }
        Ok(None) | Err(_) => (
            "it is not known whether the backup is in the bucket, because the answer to the writing \
              of its record is not",
            Recorded::Unknown,
        ),
    };
    let refusal = BucketFailure::of_write(&error).map(|_| one_line(&error));
    let status = failed(status, format!("{told}: {}", one_line(&error)));
    Ok(Conclusion { status, recorded, refusal })
}

#[cfg(test)]
mod tests;
