//! A backup for programs. Keys and shapes are those of Velero 1.18 where it has them
//! (`pkg/cmd/util/output/backup_structured_describer.go`); others are added beside them.

mod volumes;

use bowline_api::backup::{BackupResourceHook, BackupResourceHooks};
use bowline_api::{Backup, BackupPhase, BackupSpec, BackupStatus, VolumePluginBackup};
use serde_json::{Map, Value, json};

use super::super::phase;
use super::text::has_scoped_filters;
use super::{Files, deletion, freeze};
use crate::describe::section::{choice_text, excluded, included, selector_text, time};
use crate::describe::{self, FetchedVolumeProgress, document};
use crate::output::error_chain;
use crate::run::Run as _;

pub(super) fn render(
    backup: &Backup,
    files: &Files,
    transfers: &FetchedVolumeProgress,
    details: bool,
) -> Value {
    let status = backup.status.clone().unwrap_or_default();
    let mut document = document::run_document(backup);
    document["spec"] = spec(&backup.spec);
    document["status"] = self::status(backup, &status, files, details);
    describe::volumes::json::<VolumePluginBackup>(&mut document["status"], transfers, details);
    freeze::json(&mut document["status"], &status.freeze_windows, details);
    if let Some(policy) = &backup.spec.resource_policy {
        document["resourcePolicies"] = json!({"type": policy.kind, "name": policy.name});
    }
    document::results(&mut document, &backup.summary(), files.results.as_ref());
    deletion::json(&mut document, files.deletions.as_ref());
    document
}

pub(crate) fn spec(spec: &BackupSpec) -> Value {
    let mut resources = json!({
        "included": included(&spec.included_resources),
        "excluded": excluded(&spec.excluded_resources),
        "clusterScoped": choice_text(spec.include_cluster_resources, "excluded", "included", "auto"),
    });
    // Velero's document does not have these.
    if has_scoped_filters(spec) {
        for (key, value) in [
            ("includedClusterScoped", excluded(&spec.included_cluster_scoped_resources)),
            ("excludedClusterScoped", excluded(&spec.excluded_cluster_scoped_resources)),
            ("includedNamespaceScoped", included(&spec.included_namespace_scoped_resources)),
            ("excludedNamespaceScoped", excluded(&spec.excluded_namespace_scoped_resources)),
        ] {
            resources[key] = json!(value);
        }
    }
    let any = spec.or_label_selectors.iter().map(|selector| selector_text(Some(selector)));
    let mut document = json!({
        "namespaces": {
            "included": included(&spec.included_namespaces),
            "excluded": excluded(&spec.excluded_namespaces),
        },
        "resources": resources,
        "labelSelector": selector_text(spec.label_selector.as_ref()),
        "orLabelSelectors": any.collect::<Vec<_>>(),
        "storageLocation": spec.storage_location,
        "volumeSnapshotLocations": spec.volume_snapshot_locations,
        "veleroNativeSnapshotPVs": choice_text(spec.snapshot_volumes, "false", "true", "auto"),
        "veleroSnapshotMoveData": choice_text(spec.snapshot_move_data, "false", "true", "auto"),
        "dataMover": if spec.data_mover.is_empty() { "<none>" } else { &spec.data_mover },
        "TTL": spec.ttl,
        "CSISnapshotTimeout": spec.csi_snapshot_timeout,
        "itemOperationTimeout": spec.item_operation_timeout,
    });
    if !spec.hooks.resources.is_empty() {
        let hooks = spec.hooks.resources.iter().map(|hook| (hook.name.clone(), self::hook(hook)));
        document["hooks"] = json!({"resources": hooks.collect::<Map<_, _>>()});
    }
    if !spec.ordered_resources.is_empty() {
        document["orderedResources"] = json!(spec.ordered_resources);
    }
    document
}

fn hook(hook: &BackupResourceHooks) -> Value {
    let exec = |hooks: &[BackupResourceHook]| {
        let exec = hooks.iter().filter_map(|hook| hook.exec.as_ref()).map(|exec| {
            json!({
                "container": exec.container,
                "command": exec.command.join(" "),
                "onError": exec.on_error,
                // Velero's key has a colon.
                "onError:": exec.on_error,
                "timeout": exec.timeout,
            })
        });
        exec.collect::<Vec<_>>()
    };
    json!({
        "namespaces": {
            "included": included(&hook.included_namespaces),
            "excluded": excluded(&hook.excluded_namespaces),
        },
        "resources": {
            "included": included(&hook.included_resources),
            "excluded": excluded(&hook.excluded_resources),
        },
        "labelSelector": selector_text(hook.label_selector.as_ref()),
        "preExecHook": exec(&hook.pre),
        "postExecHook": exec(&hook.post),
    })
}

fn status(backup: &Backup, status: &BackupStatus, files: &Files, details: bool) -> Value {
    let mut document = json!({
        "backupFormatVersion": status.format_version,
        "started": time(status.start_timestamp.as_ref()),
        "completed": time(status.completion_timestamp.as_ref()),
        "expiration": time(status.expiration.as_ref()),
    });
    let mut add = |key: &str, value: Value| document[key] = value;
    if let Some(progress) = &status.progress {
        let (total, done) = match phase(backup) {
            BackupPhase::InProgress => ("estimatedTotalItemsToBeBackedUp", "itemsBackedUpSoFar"),
            _ => ("totalItemsToBeBackedUp", "itemsBackedUp"),
        };
        add(total, progress.total_items.into());
        add(done, progress.items_backed_up.into());
    }
    if status.backup_item_operations_attempted > 0 {
        let counts = (
            status.backup_item_operations_attempted,
            status.backup_item_operations_completed,
            status.backup_item_operations_failed,
        );
        let operations = document::operations(counts, files.operations.as_ref());
        add("backupItemOperations", operations);
    }
    match &files.volumes {
        None => {}
        Some(Ok(volumes)) => add("backupVolumes", volumes::render(volumes, details)),
        Some(Err(error)) => {
            add("backupVolumes", json!({"errorGetBackupVolumeInfo": error_chain(error)}));
        }
    }
    if let Some(hooks) = &status.hook_status {
        add("hooksAttempted", hooks.hooks_attempted.into());
        add("hooksFailed", hooks.hooks_failed.into());
    }
    let (key, error) = ("resourceList", "errorGettingResourceList");
    document::add_fetched(&mut document, key, error, files.resources.as_ref());
    document
}
