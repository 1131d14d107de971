//! The names of the snapshot API of CSI, and of what its controllers note on their objects.

use bowline_plugin::ResourceIdentifier;
use serde_json::{Value, json};

use crate::resource::GroupResource;

/// The API group of VolumeSnapshots.
pub(crate) const GROUP: &str = "snapshot.storage.k8s.io";
/// Its plural names.
pub(crate) const SNAPSHOTS: &str = "volumesnapshots";
pub(crate) const CONTENTS: &str = "volumesnapshotcontents";
pub(crate) const CLASSES: &str = "volumesnapshotclasses";

/// The API group of VolumeGroupSnapshots.
pub(crate) const GROUP_OF_GROUPS: &str = "groupsnapshot.storage.k8s.io";
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

/// A resource of the snapshot API.
pub(crate) fn resource(plural: &str) -> GroupResource {
    GroupResource::new(GROUP, plural)
}

/// A resource of the API of groups.
pub(crate) fn resource_of_groups(plural: &str) -> GroupResource {
    GroupResource::new(GROUP_OF_GROUPS, plural)
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
pub(crate) fn policy(policy: &str) -> Value {
    json!({ "spec": { "deletionPolicy": policy } })
}

/// The mark by which the controller tells the snapshotter that a content may go.
pub(crate) fn being_deleted() -> Value {
    json!({ "metadata": { "annotations": { BEING_DELETED: "yes" } } })
}

/// What the plugin of a CSI driver's snapshots is called, where plugins are named.
pub fn plugin_of(driver: &str) -> String {
    format!("velero.io/csi/{driver}")
}
