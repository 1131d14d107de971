//! Merge strategies of the lists of Kubernetes' own types: `patchStrategy` and `patchMergeKey` of core v1, apps v1 and
//! batch v1.
//!
//! Only types that have such a list, or lead to one, have a name here. In all others, objects are merged field by field
//! and lists are replaced.

/// Shape of a part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MergeShape {
    /// No special lists: fields are merged, lists replaced.
    Plain,
    /// An object in which only the metadata is special.
    Object,
    Metadata,
    Pod,
    PodStatus,
    PodSpec,
    Container,
    ContainerStatus,
    Volume,
    EphemeralVolume,
    /// A type with a pod template in its `spec`: a Deployment, a Job, the jobs of a CronJob.
    Workload,
    WorkloadSpec,
    /// A pod template within another object.
    Template,
    /// A PodTemplate object.
    PodTemplate,
    CronJob,
    CronJobSpec,
    Service,
    ServiceSpec,
    ServiceAccount,
    Node,
    NodeSpec,
    NodeStatus,
    /// An object whose status has conditions.
    WithConditions,
    /// A status, or an object, with conditions.
    Conditions,
}

/// Merge strategy of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    /// The patch replaces the list.
    Replace,
    /// Objects with the same value of this field are merged.
    ByKey(&'static str),
    /// The union of both lists.
    Union,
}

/// Kinds of core v1 whose only lists to merge are those of their metadata.
const CORE: [&str; 10] = [
    "Binding",
    "ConfigMap",
    "Endpoints",
    "Event",
    "LimitRange",
    "PersistentVolume",
    "PodStatusResult",
    "RangeAllocation",
    "ResourceQuota",
    "Secret",
];

/// Velero's kinds.
const VELERO: [&str; 11] = [
    "Backup",
    "BackupRepository",
    "BackupStorageLocation",
    "DeleteBackupRequest",
    "DownloadRequest",
    "PodVolumeBackup",
    "PodVolumeRestore",
    "Restore",
    "Schedule",
    "ServerStatusRequest",
    "VolumeSnapshotLocation",
];

/// The shape of a kind, if it supports strategic merge patches.
pub(super) fn of(api_version: &str, kind: &str) -> Option<MergeShape> {
    use MergeShape::{
        CronJob, Node, Object, Pod, PodTemplate, Service, ServiceAccount, WithConditions, Workload,
    };
    let shape = match (api_version, kind) {
        ("v1", "Pod") => Pod,
        ("v1", "PodTemplate") => PodTemplate,
        ("v1", "Service") => Service,
        ("v1", "ServiceAccount") => ServiceAccount,
        ("v1", "Node") => Node,
        ("v1", "Namespace" | "PersistentVolumeClaim") => WithConditions,
        ("v1", "ComponentStatus") => MergeShape::Conditions,
        ("v1", "ReplicationController")
        | ("apps/v1", "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet")
        | ("batch/v1", "Job") => Workload,
        ("batch/v1", "CronJob") => CronJob,
        ("apps/v1", "ControllerRevision")
        | ("velero.io/v2alpha1", "DataDownload" | "DataUpload")
        | (
            "snapshot.storage.k8s.io/v1",
            "VolumeSnapshot" | "VolumeSnapshotClass" | "VolumeSnapshotContent",
        )
        | (
            "groupsnapshot.storage.k8s.io/v1beta2",
            "VolumeGroupSnapshot" | "VolumeGroupSnapshotClass" | "VolumeGroupSnapshotContent",
        ) => Object,
        ("v1", kind) if CORE.contains(&kind) => Object,
        ("velero.io/v1", kind) if VELERO.contains(&kind) => Object,
        _ => return None,
    };
    Some(shape)
}

impl MergeShape {
    /// The shape of a field, or of the elements if it is a list, and the merge strategy of the list.
    pub(super) fn field(self, name: &str) -> (Self, Strategy) {
        use Strategy::{ByKey, Replace, Union};
        match (self, name) {
            (
                Self::Plain
                | Self::Metadata
                | Self::PodSpec
                | Self::Container
                | Self::Volume
                | Self::EphemeralVolume,
                _,
            ) => self.part(name),
            (Self::WorkloadSpec | Self::PodTemplate, "template") => (Self::Template, Replace),
            (Self::Template | Self::Pod, "spec") => (Self::PodSpec, Replace),
            (Self::CronJobSpec, "jobTemplate") => (Self::Workload, Replace),
            (Self::ServiceSpec, "ports") => (Self::Plain, ByKey("port")),
            (Self::NodeSpec, "podCIDRs") => (Self::Plain, Union),
            (Self::ServiceAccount, "secrets")
            | (Self::ContainerStatus, "allocatedResourcesStatus")
            | (Self::PodStatus, "resourceClaimStatuses") => (Self::Plain, ByKey("name")),
            (Self::ContainerStatus, "volumeMounts") => (Self::Plain, ByKey("mountPath")),
            (Self::PodStatus, "podIPs" | "hostIPs") => (Self::Plain, ByKey("ip")),
            (Self::NodeStatus, "addresses")
            | (Self::PodStatus | Self::NodeStatus | Self::Conditions, "conditions") => {
                (Self::Plain, ByKey("type"))
            }
            (
                Self::PodStatus,
                "containerStatuses" | "initContainerStatuses" | "ephemeralContainerStatuses",
            ) => (Self::ContainerStatus, Replace),
            (
                Self::WorkloadSpec
                | Self::CronJobSpec
                | Self::ServiceSpec
                | Self::NodeSpec
                | Self::NodeStatus
                | Self::PodStatus
                | Self::ContainerStatus,
                _,
            ) => (Self::Plain, Replace),
            // The others are objects with metadata.
            (_, "metadata") => (Self::Metadata, Replace),
            (Self::Pod, "status") => (Self::PodStatus, Replace),
            (Self::Workload, "spec") => (Self::WorkloadSpec, Replace),
            (Self::CronJob, "spec") => (Self::CronJobSpec, Replace),
            (Self::Service, "spec") => (Self::ServiceSpec, Replace),
            (Self::Node, "spec") => (Self::NodeSpec, Replace),
            (Self::Node, "status") => (Self::NodeStatus, Replace),
            (Self::Workload | Self::Service | Self::WithConditions, "status") => {
                (Self::Conditions, Replace)
            }
            _ => (Self::Plain, Replace),
        }
    }

    /// The fields of pods and of all metadata.
    fn part(self, name: &str) -> (Self, Strategy) {
        use Strategy::{ByKey, Replace, Union};
        match (self, name) {
            (Self::Metadata, "ownerReferences") => (Self::Plain, ByKey("uid")),
            (Self::Metadata, "finalizers") => (Self::Plain, Union),
            (Self::PodSpec, "containers" | "initContainers" | "ephemeralContainers") => {
                (Self::Container, ByKey("name"))
            }
            (Self::PodSpec, "volumes") => (Self::Volume, ByKey("name")),
            (Self::PodSpec, "imagePullSecrets" | "resourceClaims" | "schedulingGates") => {
                (Self::Plain, ByKey("name"))
            }
            (Self::PodSpec, "hostAliases") => (Self::Plain, ByKey("ip")),
            (Self::PodSpec, "topologySpreadConstraints") => (Self::Plain, ByKey("topologyKey")),
            (Self::Container, "ports") => (Self::Plain, ByKey("containerPort")),
            (Self::Container, "env") => (Self::Plain, ByKey("name")),
            (Self::Container, "volumeMounts") => (Self::Plain, ByKey("mountPath")),
            (Self::Container, "volumeDevices") => (Self::Plain, ByKey("devicePath")),
            (Self::Volume, "ephemeral") => (Self::EphemeralVolume, Replace),
            (Self::EphemeralVolume, "volumeClaimTemplate") => (Self::Object, Replace),
            _ => (Self::Plain, Replace),
        }
    }
}
