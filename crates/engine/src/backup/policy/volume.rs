//! Facts about a volume.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    NFSVolumeSource, PersistentVolume, PersistentVolumeClaim, Volume,
};

use crate::quantity;

/// The types of volumes that a policy may name.
const TYPES: [&str; 30] = [
    "awsAzureDisk",
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "glusterfs",
    "hostPath",
    "iscsi",
    "local",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "projected",
    "quobyte",
    "rbd",
    "scaleIO",
    "secret",
    "storageOS",
    "vsphereVolume",
];

/// Facts about a volume that a policy can test. Unknown or absent ones are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeFacts {
    /// Its size in bytes.
    pub capacity: u64,
    /// Its StorageClass.
    pub storage_class: String,
    /// Its NFS share, if it is one.
    pub nfs: Option<Nfs>,
    /// Its CSI driver, if it has one.
    pub csi: Option<Csi>,
    /// Its type: `csi`, `hostPath`.
    pub volume_type: Option<&'static str>,
    /// The labels of its claim.
    pub pvc_labels: BTreeMap<String, String>,
    /// The phase of its claim.
    pub pvc_phase: String,
    /// The mode of its claim: `Filesystem`, `Block`.
    pub pvc_volume_mode: String,
    /// The access modes of its claim.
    pub pvc_access_modes: BTreeSet<String>,
}

/// An NFS share. In a condition, an empty field matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nfs {
    /// The server.
    pub server: String,
    /// The path on the server.
    pub path: String,
}

/// A volume of a CSI driver. In a condition, an empty field matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Csi {
    /// The driver.
    pub driver: String,
    /// The volume attributes.
    pub attributes: BTreeMap<String, String>,
}

impl From<&NFSVolumeSource> for Nfs {
    fn from(nfs: &NFSVolumeSource) -> Self {
        Self { server: nfs.server.clone(), path: nfs.path.clone() }
    }
}

/// True if a volume can be of this type.
pub(super) fn is_type(name: &str) -> bool {
    TYPES.contains(&name)
}

/// The name of the first source that is set.
macro_rules! volume_type {
    ($volume:expr, $($field:ident = $name:literal),+ $(,)?) => {{
        let volume = $volume;
        [$(volume.$field.is_some().then_some($name)),+].into_iter().flatten().next()
    }};
}

impl VolumeFacts {
    /// Facts from a PersistentVolume and its claim, if it is bound.
    pub fn of_persistent_volume(
        volume: &PersistentVolume,
        claim: Option<&PersistentVolumeClaim>,
    ) -> Self {
        let Some(spec) = &volume.spec else { return Self::default().with_claim(claim) };
        let capacity = spec.capacity.as_ref().and_then(|capacity| capacity.get("storage"));
        let csi = spec.csi.as_ref().map(|csi| Csi {
            driver: csi.driver.clone(),
            attributes: csi.volume_attributes.clone().unwrap_or_default(),
        });
        let facts = Self {
            // The API server does not admit an invalid quantity.
            capacity: capacity.and_then(|size| quantity::bytes(&size.0).ok()).unwrap_or_default(),
            storage_class: spec.storage_class_name.clone().unwrap_or_default(),
            nfs: spec.nfs.as_ref().map(Nfs::from),
            csi,
            volume_type: volume_type!(
                spec,
                aws_elastic_block_store = "awsElasticBlockStore",
                azure_disk = "azureDisk",
                azure_file = "azureFile",
                cephfs = "cephfs",
                cinder = "cinder",
                csi = "csi",
                fc = "fc",
                flex_volume = "flexVolume",
                flocker = "flocker",
                gce_persistent_disk = "gcePersistentDisk",
                glusterfs = "glusterfs",
                host_path = "hostPath",
                iscsi = "iscsi",
                local = "local",
                nfs = "nfs",
                photon_persistent_disk = "photonPersistentDisk",
                portworx_volume = "portworxVolume",
                quobyte = "quobyte",
                rbd = "rbd",
                scale_io = "scaleIO",
                storageos = "storageOS",
                vsphere_volume = "vsphereVolume",
            ),
            ..Self::default()
        };
        facts.with_claim(claim)
    }

    /// Facts from a volume of a pod, and the claim behind it, if there is one.
    ///
    /// Where the claim is bound, its PersistentVolume has more.
    pub fn of_pod_volume(volume: &Volume, claim: Option<&PersistentVolumeClaim>) -> Self {
        let csi = volume.csi.as_ref().map(|csi| Csi {
            driver: csi.driver.clone(),
            attributes: csi.volume_attributes.clone().unwrap_or_default(),
        });
        let facts = Self {
            nfs: volume.nfs.as_ref().map(Nfs::from),
            csi,
            volume_type: volume_type!(
                volume,
                aws_elastic_block_store = "awsElasticBlockStore",
                azure_disk = "azureDisk",
                azure_file = "azureFile",
                cephfs = "cephfs",
                cinder = "cinder",
                config_map = "configMap",
                csi = "csi",
                downward_api = "downwardAPI",
                empty_dir = "emptyDir",
                ephemeral = "ephemeral",
                fc = "fc",
                flex_volume = "flexVolume",
                flocker = "flocker",
                gce_persistent_disk = "gcePersistentDisk",
                git_repo = "gitRepo",
                glusterfs = "glusterfs",
                host_path = "hostPath",
                iscsi = "iscsi",
                nfs = "nfs",
                photon_persistent_disk = "photonPersistentDisk",
                portworx_volume = "portworxVolume",
                projected = "projected",
                quobyte = "quobyte",
                rbd = "rbd",
                scale_io = "scaleIO",
                secret = "secret",
                storageos = "storageOS",
                vsphere_volume = "vsphereVolume",
            ),
            ..Self::default()
        };
        facts.with_claim(claim)
    }

    /// Facts from a claim without a volume.
    pub fn of_claim(claim: &PersistentVolumeClaim) -> Self {
        Self::default().with_claim(Some(claim))
    }

    fn with_claim(mut self, claim: Option<&PersistentVolumeClaim>) -> Self {
        let Some(claim) = claim else { return self };
        self.pvc_labels = claim.metadata.labels.clone().unwrap_or_default();
        if let Some(status) = &claim.status {
            self.pvc_phase = status.phase.clone().unwrap_or_default();
        }
        if let Some(spec) = &claim.spec {
            self.pvc_volume_mode = spec.volume_mode.clone().unwrap_or_default();
            self.pvc_access_modes = spec.access_modes.iter().flatten().cloned().collect();
        }
        self
    }
}
