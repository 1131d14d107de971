//! Names of the CSI snapshot API, and of the annotations of its controllers.

pub(crate) mod object;
pub(crate) mod record;
pub(crate) mod target;

use bowline_plugin::ResourceIdentifier;
use serde_json::{Value, json};

use crate::cluster::{self, Cluster, Discovery};
use crate::resource::GroupResource;

/// API group of VolumeSnapshots.
pub(crate) const GROUP: &str = "snapshot.storage.k8s.io";
/// Plural names of its resources.
pub(crate) const SNAPSHOTS: &str = "volumesnapshots";
pub(crate) const CONTENTS: &str = "volumesnapshotcontents";
pub(crate) const CLASSES: &str = "volumesnapshotclasses";

/// API group of VolumeGroupSnapshots.
pub(crate) const GROUP_SNAPSHOT_API_GROUP: &str = "groupsnapshot.storage.k8s.io";
/// Plural names of its resources.
pub(crate) const GROUPS: &str = "volumegroupsnapshots";
pub(crate) const GROUP_CONTENTS: &str = "volumegroupsnapshotcontents";
pub(crate) const GROUP_CLASSES: &str = "volumegroupsnapshotclasses";

/// On a content while its driver takes the snapshot.
pub(crate) const BEING_CREATED: &str =
    "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
/// On a content whose VolumeSnapshot is deleted: the snapshotter may delete the content.
pub(crate) const BEING_DELETED: &str =
    "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";

/// The same on the content of a group.
pub(crate) const GROUP_BEING_DELETED: &str =
    "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted";

/// Secret for the deletion of a snapshot: name and namespace, on its content.
pub(crate) const DELETION_SECRET: [&str; 2] = [
    "snapshot.storage.kubernetes.io/deletion-secret-name",
    "snapshot.storage.kubernetes.io/deletion-secret-namespace",
];
/// The same for a group, on the content of the group.
pub(crate) const GROUP_DELETION_SECRET: [&str; 2] = [
    "groupsnapshot.storage.kubernetes.io/deletion-secret-name",
    "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace",
];

/// Resources of the cluster. An error if the API group of snapshots, or of group snapshots, does
/// not answer: that does not mean that it is not served.
pub(crate) async fn discover(cluster: &dyn Cluster) -> cluster::Result<Discovery> {
    let discovery = cluster.discover().await?;
    let is_snapshot_group = |failed: &&String| {
        [GROUP, GROUP_SNAPSHOT_API_GROUP]
            .into_iter()
            .any(|group| failed.starts_with(&format!("{group}/")))
    };
    match discovery.failed.iter().find(is_snapshot_group) {
        Some(failed) => Err(cluster::Error::Unreachable(failed.clone())),
        None => Ok(discovery),
    }
}

/// Resource of the snapshot API.
pub(crate) fn resource(plural: &str) -> GroupResource {
    GroupResource::new(GROUP, plural)
}

/// Resource of the group snapshot API.
pub(crate) fn group_resource(plural: &str) -> GroupResource {
    GroupResource::new(GROUP_SNAPSHOT_API_GROUP, plural)
}

/// Identifier of an object of the snapshot API.
pub(crate) fn id(plural: &str, namespace: &str, name: &str) -> ResourceIdentifier {
    ResourceIdentifier {
        group: GROUP.to_owned(),
        resource: plural.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

/// Patch of the deletion policy, which decides if a snapshot is deleted with its content.
pub(crate) fn deletion_policy_patch(policy: &str) -> Value {
    json!({ "spec": { "deletionPolicy": policy } })
}

/// Patch with the annotation by which the controller permits the snapshotter to delete a content.
pub(crate) fn being_deleted_patch() -> Value {
    json!({ "metadata": { "annotations": { BEING_DELETED: "yes" } } })
}

/// The same for the content of a group.
pub(crate) fn group_being_deleted_patch() -> Value {
    json!({ "metadata": { "annotations": { GROUP_BEING_DELETED: "yes" } } })
}

/// Plugin name that stands for the snapshots of a CSI driver.
pub fn plugin_name(driver: &str) -> String {
    format!("velero.io/csi/{driver}")
}
