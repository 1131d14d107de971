//! CSI snapshots of a backup that ends: those that count are retained, all others are deleted.

use std::collections::BTreeSet;

use bowline_api::label;
use bowline_engine::backup::csi::{self, Leftovers, SnapshotApi, Target};
use bowline_engine::cluster::ApiServer;
use bowline_engine::operation::record::RunRef;
use bowline_engine::operation::{Operation, State};
use bowline_engine::report::{Report, ReportSubject};
use bowline_plugin::ResourceIdentifier;
use bowline_store::BackupStore;
use bowline_store::file::BackupVolumeInfo;

use super::leftovers::leftovers_message;
use super::wait::file_contents;
use super::{BackupRun, RunError};
use crate::controllers::bucket_wait::BucketFailure;
use crate::error_text::status_message;
use crate::server::Context;

/// Reason why snapshots cannot be deleted where their API is gone.
const NOT_SERVED: &str = "the cluster no longer serves VolumeSnapshots";

impl BackupRun<'_> {
    /// Deletes CSI snapshots that have failed, or whose backup is discarded. Returns those that could not be deleted,
    /// which are reported.
    pub(super) async fn delete_csi_snapshots(
        &self,
        targets: &[Target],
        report: &Report,
    ) -> Leftovers {
        delete_csi_snapshots(self.context, self.run_ref(), targets, report).await
    }

    /// Deletes the CSI snapshots of a backup that ends without a record, since nothing refers to them then. Returns a
    /// message about the leftovers: there is no results file to report them in.
    pub(super) async fn delete_unrecorded_csi_snapshots(&self, operations: &[Operation]) -> String {
        let targets: Vec<Target> = operations.iter().filter_map(Target::of_operation).collect();
        let leftovers = self.delete_csi_snapshots(&targets, &Report::default()).await;
        leftovers_message(&leftovers.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    /// Message about the CSI snapshots of a backup that may or may not have a record: they are kept.
    pub(super) fn kept_csi_message(&self) -> String {
        if self.status().csi_volume_snapshots_attempted == 0 {
            return String::new();
        }
        let (label, uid) = (label::BACKUP_UID, self.resources.uid.as_str());
        format!("; the VolumeSnapshots of the backup ({label}={uid}) are kept")
    }

    /// Ensures that the CSI snapshots of a backup outlive their objects. A snapshot that was lost before counts as
    /// failed from here on.
    pub(super) async fn retain_csi(
        &self,
        operations: &mut [Operation],
        infos: &[BackupVolumeInfo],
        report: &Report,
    ) -> Result<(), RunError> {
        let (retained, _) = csi::targets_of_operations(operations);
        if retained.is_empty() {
            return Ok(());
        }
        let cluster = self.cluster();
        let lost = match SnapshotApi::discover(&*cluster, self.run_ref()).await {
            Ok(Some(api)) => csi::retain(&api, &retained, report).await,
            Ok(None) => retained.into_iter().map(|one| (one, NOT_SERVED.to_owned())).collect(),
            Err(error) => return Err(error.into()),
        };
        fail_lost(&lost, operations, infos, report);
        Ok(())
    }

    /// Removes the objects of retained CSI snapshots. Leftover objects do no harm but clutter the list, so a failure is
    /// only logged.
    pub(super) async fn release_csi(&self, store: &BackupStore) -> Result<(), RunError> {
        let operations = match self.load_operations(store).await {
            Ok(known) => known.operations,
            // The backup has ended, even if its snapshots cannot be listed.
            Err(error) if error.bucket_failure() == Some(BucketFailure::Refused) => {
                let reason = status_message(&error);
                tracing::warn!("VolumeSnapshots may be left over in the cluster: {reason}");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let (retained, _) = csi::targets_of_operations(&operations);
        if retained.is_empty() {
            return Ok(());
        }
        let cluster = self.cluster();
        let leftovers = match SnapshotApi::discover(&*cluster, self.run_ref()).await {
            Ok(Some(api)) => csi::release(&api, &retained).await,
            Ok(None) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        for (Target { namespace, name, .. }, reason) in leftovers {
            tracing::warn!(
                namespace,
                name,
                "a VolumeSnapshot is left over in the cluster: {reason}"
            );
        }
        Ok(())
    }

    /// Volume infos of the backup in the bucket, if it involves CSI drivers.
    pub(super) async fn csi_infos(
        &self,
        store: &BackupStore,
        operations: &[Operation],
    ) -> Result<Vec<BackupVolumeInfo>, RunError> {
        if !operations.iter().any(csi::is_csi_operation) {
            return Ok(Vec::new());
        }
        let infos = file_contents(store.get::<Vec<BackupVolumeInfo>>(&self.name).await)?;
        Ok(infos.into_found().unwrap_or_default())
    }
}

/// Deletes CSI snapshots that have failed, or whose backup is discarded. Returns those that could not be deleted, which
/// are reported.
pub(super) async fn delete_csi_snapshots(
    context: &Context,
    run_ref: RunRef<'_>,
    targets: &[Target],
    report: &Report,
) -> Leftovers {
    if targets.is_empty() {
        return Leftovers::default();
    }
    tracing::info!(snapshots = targets.len(), "deleting CSI snapshots of the backup");
    let cluster = ApiServer::new(context.client.clone(), context.options.client_page_size);
    let reason = match SnapshotApi::discover(&cluster, run_ref).await {
        Ok(Some(api)) => return csi::discard_and_report(&api, targets, report).await,
        Ok(None) => NOT_SERVED.to_owned(),
        Err(error) => error.to_string(),
    };
    report.error(
        ReportSubject::Run,
        format!("the CSI snapshots of the backup could not be deleted: {reason}"),
    );
    targets.to_vec().into()
}

/// Marks operations whose snapshots are lost as failed. Each is reported for its claim.
fn fail_lost(
    lost: &[(Target, String)],
    operations: &mut [Operation],
    infos: &[BackupVolumeInfo],
    report: &Report,
) {
    for operation in operations {
        let Some(target) = Target::of_operation(operation) else { continue };
        let Some((_, reason)) = lost.iter().find(|(lost, _)| *lost == target) else { continue };
        let about = claim_of(operation, infos).unwrap_or_else(|| operation.item.clone());
        report
            .error(&about, format!("the CSI snapshot was lost before the backup ended: {reason}"));
        operation.state = State::Failed(reason.clone().into());
    }
}

/// The claim whose snapshot an operation waits for.
fn claim_of(operation: &Operation, infos: &[BackupVolumeInfo]) -> Option<ResourceIdentifier> {
    let info = infos.iter().find(|info| {
        let csi = info.csi_snapshot_info.as_ref();
        csi.is_some_and(|csi| csi.operation_id == operation.id.as_str())
    })?;
    let is_known = !info.pvc_name.is_empty();
    is_known.then(|| ResourceIdentifier {
        group: String::new(),
        resource: "persistentvolumeclaims".to_owned(),
        namespace: info.pvc_namespace.clone(),
        name: info.pvc_name.clone(),
    })
}

/// Items to store again: for failed snapshots not their objects, but their claims, which must not name a snapshot that
/// is gone.
pub(super) fn without_failed(
    items: BTreeSet<ResourceIdentifier>,
    operations: &[Operation],
    infos: &[BackupVolumeInfo],
) -> BTreeSet<ResourceIdentifier> {
    let mut items = items;
    let failed =
        operations.iter().filter(|one| csi::is_csi_operation(one) && one.state != State::Completed);
    for operation in failed {
        for item in &operation.post_operation_items {
            items.remove(item);
        }
        items.extend(claim_of(operation, infos));
    }
    items
}

#[cfg(test)]
mod tests {
    use bowline_engine::operation::Kind;
    use bowline_plugin::OperationId;
    use bowline_store::file::{CsiSnapshotInfo, Outcome};
    use jiff::Timestamp;

    use super::*;

    fn item(resource: &str, name: &str) -> ResourceIdentifier {
        ResourceIdentifier {
            group: String::new(),
            resource: resource.to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        }
    }

    fn operation(claim: &str, state: State) -> Operation {
        Operation {
            post_operation_items: vec![item("volumesnapshots", claim)],
            state,
            ..Operation::started(
                Kind::ItemBackup,
                csi::BACKUPPER.parse().unwrap(),
                item("volumesnapshots", claim),
                OperationId::new(claim).unwrap(),
                Timestamp::UNIX_EPOCH,
                std::time::Duration::ZERO,
            )
        }
    }

    fn info(claim: &str) -> BackupVolumeInfo {
        BackupVolumeInfo {
            pvc_namespace: "shop".to_owned(),
            pvc_name: claim.to_owned(),
            csi_snapshot_info: Some(CsiSnapshotInfo {
                operation_id: claim.to_owned(),
                ..CsiSnapshotInfo::default()
            }),
            ..BackupVolumeInfo::default()
        }
    }

    #[test]
    fn failed_snapshot_is_replaced_by_its_claim() {
        let operations =
            [operation("a", State::Completed), operation("b", State::Failed("no".into()))];
        let items = ["a", "b"].map(|name| item("volumesnapshots", name)).into();
        let items = without_failed(items, &operations, &[info("a"), info("b")]);
        let expected = [item("volumesnapshots", "a"), item("persistentvolumeclaims", "b")];
        assert_eq!(items, expected.into());
    }

    #[test]
    fn lost_snapshot_fails_and_is_reported_on_its_claim() {
        let mut operations = [operation("a", State::Completed), operation("b", State::Completed)];
        let mut infos = [info("a"), info("b")];
        let lost = Target::of_operation(&operations[1]).unwrap();
        let report = Report::default();
        fail_lost(&[(lost, "it is gone".to_owned())], &mut operations, &infos, &report);
        assert_eq!(operations[0].state, State::Completed);
        assert_eq!(operations[1].state, State::Failed("it is gone".into()));
        assert_eq!(report.error_count(), 1, "so that the backup is no whole one");
        let results_json = serde_json::to_string(&report.results()).unwrap();
        assert!(
            results_json.contains("persistentvolumeclaims") && results_json.contains("it is gone"),
            "{results_json}"
        );
        csi::apply_operation_results(&operations, &mut infos);
        let results = infos.map(|info| info.result);
        assert_eq!(results, [Some(Outcome::Succeeded), Some(Outcome::Failed)]);
    }
}
