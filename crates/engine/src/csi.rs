//! The names of the snapshot API of CSI, and of what its controllers note on their objects.

use bowline_plugin::ResourceIdentifier;
use serde_json::{Value, json};

use crate::cluster::{self, Cluster, Discovery};
use crate::resource::GroupResource;

/// The API group of VolumeSnapshots.
pub(crate) const GROUP: &str = "snapshot.storage.k8s.io";
/// Its plural names.
pub(crate) const SNAPSHOTS: &str = "volumesnapshots";
pub(crate) const CONTENTS: &str = "volumesnapshotcontents";
pub(crate) const CLASSES: &str = "volumesnapshotclasses";

/// The API group of VolumeGroupSnapshots.
pub(crate) const GROUP_SNAPSHOT_API_GROUP: &str = "groupsnapshot.storage.k8s.io";
/// Its plural names.
pub(crate) const GROUPS: &str = "volumegroupsnapshots";
pub(crate) const GROUP_CONTENTS: &str = "volumegroupsnapshotcontents";
pub(crate) const GROUP_CLASSES: &str = "volumegroupsnapshotclasses";

/// On a content while its driver takes the snapshot.
pub(crate) const BEING_CREATED: &str =
    "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
/// On a content whose VolumeSnapshot is gone: the snapshotter may let it go.
pub(crate) const BEING_DELETED: &str =
    "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";

/// The same on the content of a group.
pub(crate) const GROUP_BEING_DELETED: &str =
    "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted";

/// The secret with which a snapshot is deleted: name and namespace, on its content.
pub(crate) const DELETION_SECRET: [&str; 2] = [
    "snapshot.storage.kubernetes.io/deletion-secret-name",
    "snapshot.storage.kubernetes.io/deletion-secret-namespace",
];
/// The same for a group, on the content of that.
pub(crate) const GROUP_DELETION_SECRET: [&str; 2] = [
    "groupsnapshot.storage.kubernetes.io/deletion-secret-name",
    "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace",
];

/// What the cluster serves. It is an error if the snapshot API does not answer, or that of groups: that does
/// not mean that it is not served.
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

/// A resource of the snapshot API.
pub(crate) fn resource(plural: &str) -> GroupResource {
    GroupResource::new(GROUP, plural)
}

/// A resource of the API of groups.
pub(crate) fn group_resource(plural: &str) -> GroupResource {
    GroupResource::new(GROUP_SNAPSHOT_API_GROUP, plural)
}

/// An object of the snapshot API.
pub(crate) fn id(plural: &str, namespace: &str, name: &str) -> ResourceIdentifier {
    ResourceIdentifier {
        group: GROUP.to_owned(),
        resource: plural.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

/// A change of the policy that says what becomes of a snapshot with its content.
pub(crate) fn deletion_policy_patch(policy: &str) -> Value {
    json!({ "spec": { "deletionPolicy": policy } })
}

/// The mark by which the controller tells the snapshotter that a content may go.
pub(crate) fn being_deleted_patch() -> Value {
    json!({ "metadata": { "annotations": { BEING_DELETED: "yes" } } })
}

/// The same for the content of a group.
pub(crate) fn group_being_deleted_patch() -> Value {
    json!({ "metadata": { "annotations": { GROUP_BEING_DELETED: "yes" } } })
}

/// What the plugin of a CSI driver's snapshots is called, where plugins are named.
pub fn plugin_name(driver: &str) -> String {
    format!("velero.io/csi/{driver}")
}
