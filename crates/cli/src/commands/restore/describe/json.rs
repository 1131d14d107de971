//! A restore for programs. Velero has no such document; keys are those of the one for backups.

use bowline_api::{Restore, RestorePhase, RestoreSpec, RestoreStatus, VolumePluginRestore};
use bowline_store::file::{Method, RestoreVolumeInfo};
use serde_json::{Value, json};

use super::super::phase;
use super::Files;
use crate::describe::section::{choice_text, excluded, included, selector_text, time};
use crate::describe::{FetchedVolumeProgress, document, volumes};
use crate::output::error_chain;
use crate::run::Run as _;

pub(super) fn render(
    restore: &Restore,
    files: &Files,
    transfers: &FetchedVolumeProgress,
    details: bool,
) -> Value {
    let status = restore.status.clone().unwrap_or_default();
    let mut document = document::run_document(restore);
    document["spec"] = spec(&restore.spec);
    document["status"] = self::status(restore, &status, files, details);
    volumes::json::<VolumePluginRestore>(&mut document["status"], transfers, details);
    document::results(&mut document, &restore.summary(), files.results.as_ref());
    document
}

fn spec(spec: &RestoreSpec) -> Value {
    let any = spec.or_label_selectors.iter().map(|selector| selector_text(Some(selector)));
    let mut document = json!({
        "backupName": spec.backup_name,
        "scheduleName": spec.schedule_name,
        "namespaces": {
            "included": included(&spec.included_namespaces),
            "excluded": excluded(&spec.excluded_namespaces),
        },
        "resources": {
            "included": included(&spec.included_resources),
            "excluded": excluded(&spec.excluded_resources),
            "clusterScoped": choice_text(spec.include_cluster_resources, "excluded", "included", "auto"),
        },
        "namespaceMapping": spec.namespace_mapping,
        "labelSelector": selector_text(spec.label_selector.as_ref()),
        "orLabelSelectors": any.collect::<Vec<_>>(),
        "restorePVs": choice_text(spec.restore_pvs, "false", "true", "auto"),
        "existingResourcePolicy": spec.existing_resource_policy,
        "itemOperationTimeout": spec.item_operation_timeout,
        "preserveNodePorts": choice_text(spec.preserve_node_ports, "false", "true", "auto"),
    });
    let mut add = |key: &str, value: Value| document[key] = value;
    for (key, reference) in
        [("resourceModifier", &spec.resource_modifier), ("resourcePolicies", &spec.resource_policy)]
    {
        if let Some(reference) = reference {
            add(key, json!({"type": reference.kind, "name": reference.name}));
        }
    }
    if let Some(status) = &spec.restore_status {
        let resources = json!({
            "included": included(&status.included_resources),
            "excluded": excluded(&status.excluded_resources),
        });
        add("restoreStatus", resources);
    }
    if let Some(uploader) = &spec.uploader_config {
        add("uploaderConfig", json!(uploader));
    }
    document
}

fn status(restore: &Restore, status: &RestoreStatus, files: &Files, details: bool) -> Value {
    let mut document = json!({
        "started": time(status.start_timestamp.as_ref()),
        "completed": time(status.completion_timestamp.as_ref()),
    });
    let mut add = |key: &str, value: Value| document[key] = value;
    if let Some(progress) = &status.progress {
        let (total, done) = match phase(restore) {
            RestorePhase::InProgress => ("estimatedTotalItemsToBeRestored", "itemsRestoredSoFar"),
            _ => ("totalItemsToBeRestored", "itemsRestored"),
        };
        add(total, progress.total_items.into());
        add(done, progress.items_restored.into());
    }
    if status.restore_item_operations_attempted > 0 {
        let counts = (
            status.restore_item_operations_attempted,
            status.restore_item_operations_completed,
            status.restore_item_operations_failed,
        );
        let operations = document::operations(counts, files.operations.as_ref());
        add("restoreItemOperations", operations);
    }
    match &files.volumes {
        None => {}
        Some(Ok(volumes)) => add("restoreVolumes", self::volumes(volumes, details)),
        Some(Err(error)) => {
            add("restoreVolumes", json!({"errorGetRestoreVolumeInfo": error_chain(error)}));
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

/// Volumes by restore method: with details as in the file, else by name.
fn volumes(volumes: &[RestoreVolumeInfo], details: bool) -> Value {
    let volume_document = |volume: &RestoreVolumeInfo| {
        let RestoreVolumeInfo { pvc_namespace, pvc_name, pv_name, .. } = volume;
        if details {
            json!(volume)
        } else {
            json!({"pvcNamespace": pvc_namespace, "pvcName": pvc_name, "pvName": pv_name})
        }
    };
    let listed = |is_meant: &dyn Fn(Option<&Method>) -> bool| -> Vec<Value> {
        volumes
            .iter()
            .filter(|v| is_meant(v.restore_method.as_ref()))
            .map(volume_document)
            .collect()
    };
    json!({
        "nativeSnapshots": listed(&|method| method == Some(&Method::NativeSnapshot)),
        "csiSnapshots": listed(&|method| method == Some(&Method::CsiSnapshot)),
        "podVolumeRestores": listed(&|method| method == Some(&Method::PodVolumeRestore)),
        "others": listed(&|method| {
            matches!(method, None | Some(Method::Other(_) | Method::PodVolumeBackup))
        }),
    })
}
