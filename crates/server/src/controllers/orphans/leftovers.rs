//! Leftovers of a run that will not be resumed, apart from snapshots in flight.

use std::collections::BTreeSet;
use std::sync::Arc;

use bowline_api::Backup;
use bowline_engine::journal::{RecoveredRun, VolumeRequest};
use bowline_engine::phase::Stage;
use bowline_engine::restore;
use bowline_store::BackupName;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, ResourceExt as _};

use super::bucket::{BucketRecord, RunBucket, find_record, was_whole};
use super::kept_journal::KeptJournal;
use super::{CleanupError, take_over_journal};
use crate::controllers::backup::{journal_cleanup, leftovers};
use crate::journal::ListedJournal;
use crate::queue::NamespaceScope;
use crate::server::Context;

/// True if the bucket cannot have the record of a backup, which is written only while finalizing: the backup waited for
/// its bucket at an earlier stage.
pub(super) fn is_uncommitted(recovered: &RecoveredRun) -> bool {
    recovered.bucket_lost_at_stage.is_some_and(|stage| stage < Stage::Finalizing)
}

/// Volumes that plugins created for a restore that was given up, and that no PersistentVolume refers to.
pub(super) async fn find_leftover_volumes(
    context: &Context,
    recovered: &RecoveredRun,
) -> Result<Vec<String>, CleanupError> {
    let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
    let mut used = BTreeSet::new();
    for VolumeRequest { started: request, .. } in &recovered.volumes {
        if volumes.get_metadata_opt(&request.name).await?.is_some() {
            used.insert(request.name.as_str());
        }
    }
    Ok(unused_volumes(recovered, &used))
}

/// Unused volumes that plugins created, or may have created without answering.
pub(super) fn unused_volumes(recovered: &RecoveredRun, used: &BTreeSet<&str>) -> Vec<String> {
    let is_unused =
        |one: &&VolumeRequest| one.ended.is_none() || !used.contains(&*one.started.name);
    let volumes = recovered.volumes.iter().filter(is_unused).cloned().collect();
    let unused = RecoveredRun { volumes, ..RecoveredRun::default() };
    let leftovers = restore::leftover_volumes(&unused).into_iter();
    leftovers.map(|(id, text)| format!("volume {}: {text}", id.name)).collect()
}

/// True if a completely empty location says something about a run: that it has no record, or that there is nothing to
/// decide. A record may also name a snapshot in flight, if the end of its block could not be journaled.
pub(super) fn may_be_empty(recovered: &RecoveredRun) -> bool {
    let has_made_nothing =
        journal_cleanup::created_objects(recovered).is_empty() && recovered.in_flight.is_empty();
    has_made_nothing || has_no_record(recovered)
}

/// True if the bucket has no record of a backup, according to the journal: the run ended before it could write one, or
/// cleanup has found none.
pub(super) fn has_no_record(recovered: &RecoveredRun) -> bool {
    recovered.ended_without_bucket.is_some_and(|stage| stage < Stage::Finalizing)
}

/// Deletes snapshots and files of a backup. Returns the leftovers that only the journal knows of.
pub(super) async fn delete_unless_recorded(
    context: &Context,
    journal: &ListedJournal,
    backup: &Backup,
    recovered: &RecoveredRun,
    bucket: &RunBucket,
    kept_journal: &mut KeptJournal,
) -> Result<Vec<String>, CleanupError> {
    let created = journal_cleanup::created_objects(recovered);
    let store = match bucket {
        RunBucket::Same(store) => store,
        RunBucket::Away(error) => {
            kept_journal.no_record_since = None;
            return Err(Arc::clone(error).into());
        }
        // The bucket that the run used may have the complete backup, whose snapshots must stay.
        RunBucket::Unknown(reason) => {
            return Ok(created.into_iter().map(|one| format!("{one}: {reason}")).collect());
        }
    };
    let name = BackupName::new(backup.name_any())?;
    let found = find_record(store, &name, &journal.id.run, may_be_empty(recovered)).await;
    if found.is_err() {
        kept_journal.no_record_since = None;
    }
    let recorded = found?;
    if recorded == BucketRecord::Ours {
        return Ok(Vec::new());
    }
    let may_arrive = recovered.commit_attempted.is_some() && !has_no_record(recovered);
    if may_arrive && !kept_journal.is_commit_settled(Timestamp::now()) {
        let arriving = "velero-backup.json, whose write the bucket did not confirm: it may still \
                        arrive, so nothing is deleted until the bucket was without it for an hour";
        return Ok(vec![arriving.to_owned()]);
    }
    let leftovers = journal_cleanup::delete_created(context, backup, recovered).await;
    if leftovers.is_empty() && recorded == BucketRecord::Nothing {
        // Keeps other backups from starting meanwhile: one of the same name would write to the same folder.
        let _registration = context.runs.register(backup, Some(NamespaceScope::All));
        let namesake = context.api::<Backup>().get_opt(name.as_str()).await;
        if namesake?.is_none() {
            // If the journal stays for another reason, an empty location is expected next time. Each append starts a
            // page, so one is enough.
            if recovered.ended_without_bucket != Some(Stage::Items) {
                let lock = context.runs.lock_journal_when_free(journal.id.run.as_str()).await;
                let _lock = lock.ok_or(CleanupError::Opened)?;
                take_over_journal(context, &journal.id)
                    .await?
                    .0
                    .end_without_bucket(Stage::Items)
                    .await?;
            }
            leftovers::delete_bucket_files(store, &name).await;
        }
    }
    Ok(leftovers)
}

/// Deletes what a backup created that ended without its bucket. Returns the leftovers, including those of a restore.
pub(super) async fn clean_up_after_end_without_bucket(
    context: &Context,
    journal: &ListedJournal,
    backup: &Backup,
    recovered: &RecoveredRun,
    bucket: &RunBucket,
    kept_journal: &mut KeptJournal,
) -> Result<Vec<String>, CleanupError> {
    match recovered.ended_without_bucket {
        None => Ok(Vec::new()),
        Some(_) if journal.id.kind != "Backup" => find_leftover_volumes(context, recovered).await,
        // Another server has completed the backup.
        Some(_) if was_whole(backup) => Ok(Vec::new()),
        Some(Stage::Items | Stage::Waiting) => {
            Ok(journal_cleanup::delete_created(context, backup, recovered).await)
        }
        Some(Stage::Finalizing | Stage::Over) => {
            delete_unless_recorded(context, journal, backup, recovered, bucket, kept_journal).await
        }
    }
}
