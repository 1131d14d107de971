//! Snapshots that were taken as a group.
//!
//! Some drivers report the group of such a snapshot, and then the snapshot controller requires the group to exist. So a
//! stub for it exists until the contents are ready: one per group, with the restored snapshots. Its policy is `Retain`,
//! as for everything that a restore creates.

use bowline_api::{Restore, annotation, label};
use bowline_plugin::{Item, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::lookup::action_error;
use super::super::write;
use super::cluster_capabilities::ClusterCapabilities;
use crate::cluster::Subresource;
use crate::csi::{
    GROUP_CLASSES, GROUP_CONTENTS, GROUP_DELETION_SECRET, GROUP_SNAPSHOT_API_GROUP, group_resource,
};
use crate::journal::digest;
use crate::json::{annotation as annotated, text};

/// Maximum number of attempts to update a stub after conflicts.
const MAX_ATTEMPTS: u32 = 5;

/// Parameters of a class, and the annotations of a content that name the same secret.
const SECRET_PARAMETERS: [(&str, &str); 2] = [
    ("csi.storage.k8s.io/group-snapshotter-secret-name", GROUP_DELETION_SECRET[0]),
    ("csi.storage.k8s.io/group-snapshotter-secret-namespace", GROUP_DELETION_SECRET[1]),
];

/// A snapshot that was taken as a member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupMember<'a> {
    /// The driver's handle of the group.
    group: &'a str,
    handle: &'a str,
    driver: &'a str,
    namespace: &'a str,
}

impl<'a> GroupMember<'a> {
    /// Group membership of a VolumeSnapshot of the backup, if it has all required information.
    pub(super) fn of(snapshot: &'a Value) -> Option<Self> {
        let annotation_value = |key| annotated(snapshot, key).filter(|value| !value.is_empty());
        Some(Self {
            group: annotation_value(annotation::VOLUME_GROUP_SNAPSHOT_HANDLE)?,
            handle: annotation_value(annotation::VOLUME_SNAPSHOT_HANDLE)?,
            driver: annotation_value(annotation::CSI_DRIVER_NAME)?,
            namespace: text(snapshot, "/metadata/namespace"),
        })
    }

    /// The stub with this snapshot alone.
    fn stub(&self, name: &str, api_version: &str, restore: &str, secret: &Value) -> Value {
        json!({
            "apiVersion": api_version,
            "kind": "VolumeGroupSnapshotContent",
            "metadata": {
                "name": name,
                "labels": { label::RESTORE_NAME: label::value(restore) },
                "annotations": secret,
            },
            "spec": {
                "deletionPolicy": "Retain",
                "driver": self.driver,
                "source": { "groupSnapshotHandles": {
                    "volumeGroupSnapshotHandle": self.group,
                    "volumeSnapshotHandles": [self.handle],
                } },
                "volumeGroupSnapshotRef": {
                    "name": format!("stub-vgs-{}", name.get(..8).unwrap_or(name)),
                    "namespace": self.namespace,
                },
            },
        })
    }
}

/// Patch that adds a handle to a stub, if it is missing.
fn add_handle_patch(stub: &Value, handle: &str) -> Option<Value> {
    let pointer = "/spec/source/groupSnapshotHandles/volumeSnapshotHandles";
    let mut handles = stub.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default();
    if handles.iter().any(|known| known == handle) {
        return None;
    }
    handles.push(handle.into());
    Some(json!({
        "metadata": { "resourceVersion": text(stub, "/metadata/resourceVersion") },
        "spec": { "source": { "groupSnapshotHandles": { "volumeSnapshotHandles": handles } } },
    }))
}

/// Name of the stub for a group in this restore, as in Velero. Group handles are unique per driver.
fn stub_name(restore: &str, group: &str) -> String {
    digest(format!("{restore}/{group}").as_bytes())
}

/// Ensures that the stub for the group of a snapshot exists and contains it. No-op if the cluster does not serve
/// groups.
pub(super) async fn ensure_stub(
    capabilities: &ClusterCapabilities,
    member: &GroupMember<'_>,
    restore: &Restore,
) -> Result<()> {
    let kind = group_resource(GROUP_CONTENTS);
    let Some(resource) = capabilities.resource(&kind).await? else { return Ok(()) };
    let failed = |error| action_error(&error, "cannot write the VolumeGroupSnapshotContent");
    let uid = restore.metadata.uid.as_deref().unwrap_or_default();
    let name = stub_name(uid, member.group);
    let cluster = &capabilities.cluster;
    let mut attempts = 0;
    loop {
        attempts += 1;
        if let Some(found) = cluster.get(&resource, "", &name).await.map_err(failed)? {
            let found: Value = super::super::read(&found.item)?;
            let Some(patch) = add_handle_patch(&found, member.handle) else { return Ok(()) };
            match cluster.patch(&resource, "", &name, Subresource::None, &patch).await {
                Err(error) if error.is_conflict() && attempts < MAX_ATTEMPTS => continue,
                patched => return patched.map(drop).map_err(failed),
            }
        }
        let secret = secret(capabilities, member.driver).await?;
        let restore_name = restore.metadata.name.as_deref().unwrap_or_default();
        let stub = member.stub(&name, &resource.api_version(), restore_name, &secret);
        let stub: Item = write(&stub)?;
        match cluster.create(&resource, "", &stub).await {
            // Another snapshot of the group created the stub first.
            Err(error) if error.is_already_exists() && attempts < MAX_ATTEMPTS => {}
            Err(error) => return Err(failed(error)),
            Ok(_) => {
                let status = json!({"status": {"volumeGroupSnapshotHandle": member.group}});
                let patched =
                    cluster.patch(&resource, "", &name, Subresource::Status, &status).await;
                return patched.map(drop).map_err(failed);
            }
        }
    }
}

/// The secret of a driver for groups, as annotations.
async fn secret(capabilities: &ClusterCapabilities, driver: &str) -> Result<Value> {
    #[derive(Deserialize)]
    struct Class {
        #[serde(default)]
        driver: String,
        #[serde(default)]
        parameters: Value,
    }
    let classes: Vec<Class> = capabilities.list(GROUP_SNAPSHOT_API_GROUP, GROUP_CLASSES).await?;
    let mut annotations = json!({});
    if let Some(class) = classes.into_iter().find(|class| class.driver == driver) {
        for (parameter, annotation) in SECRET_PARAMETERS {
            if let Some(value) = class.parameters.get(parameter).and_then(Value::as_str) {
                annotations[annotation] = value.into();
            }
        }
    }
    Ok(annotations)
}

#[cfg(test)]
mod tests;
