//! Features of the cluster that a claim from a snapshot needs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bowline_plugin::{Result, error_chain};
use futures::StreamExt as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::OnceCell;

use super::super::lookup::{CachedLookup, action_error, cached_or_read};
use super::{CLASSES, SNAPSHOTS, kind};
use crate::cluster::{self, Cluster, Query, drivers};
use crate::resource::{GroupResource, Resource, Resources};

/// The cluster and its cached features.
pub(in crate::restore) struct ClusterCapabilities {
    pub(super) cluster: Arc<dyn Cluster>,
    /// Resources that the cluster served when the restore began.
    resources: Arc<Resources>,
    /// Resources served since definitions were restored. Discovered only if something was missing.
    rediscovered: OnceCell<Resources>,
    drivers: CachedLookup<BTreeSet<String>>,
    snapshot_classes: CachedLookup<Vec<SnapshotClass>>,
    storage_classes: CachedLookup<Vec<StorageClass>>,
}

/// A VolumeSnapshotClass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SnapshotClass {
    pub(super) name: String,
    pub(super) driver: String,
    pub(super) is_default: bool,
}

/// A StorageClass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::restore) struct StorageClass {
    pub(in crate::restore) name: String,
    pub(in crate::restore) provisioner: String,
    pub(in crate::restore) is_default: bool,
    /// True if volumes are provisioned only when a pod needs them.
    pub(in crate::restore) waits_for_consumer: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    annotations: Option<BTreeMap<String, String>>,
}

impl Metadata {
    fn is_annotated(&self, keys: &[&str]) -> bool {
        let has = |key: &&str| {
            self.annotations.as_ref().and_then(|all| all.get(*key)).is_some_and(|it| it == "true")
        };
        keys.iter().any(has)
    }
}

/// Annotations that mark a class as the default.
const DEFAULT_CLASS_ANNOTATIONS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

impl ClusterCapabilities {
    pub(super) fn new(cluster: &Arc<dyn Cluster>, resources: &Arc<Resources>) -> Self {
        Self {
            cluster: Arc::clone(cluster),
            resources: Arc::clone(resources),
            rediscovered: OnceCell::new(),
            drivers: CachedLookup::new(),
            snapshot_classes: CachedLookup::new(),
            storage_classes: CachedLookup::new(),
        }
    }

    /// A resource, if the cluster serves it by now.
    pub(in crate::restore) async fn resource(
        &self,
        id: &GroupResource,
    ) -> Result<Option<Arc<Resource>>> {
        if let Some(found) = self.resources.find(id) {
            return Ok(Some(Arc::clone(found)));
        }
        let discover = async || {
            let discovery = self.cluster.discover().await;
            let discovery = discovery.map_err(|error| {
                action_error(&error, "cannot discover the resources of the cluster")
            })?;
            let served = discovery.resources.into_iter();
            Ok(Resources::new(served.filter(|served| !served.id.resource.contains('/'))))
        };
        Ok(self.rediscovered.get_or_try_init(discover).await?.find(id).cloned())
    }

    /// True if the cluster serves the snapshot API.
    pub(super) async fn serves_snapshots(&self) -> Result<bool> {
        Ok(self.resource(&kind(SNAPSHOTS)).await?.is_some())
    }

    /// The installed drivers: those registered on a node, and those announced by anyone other than a restore.
    pub(super) async fn drivers(&self) -> Result<&BTreeSet<String>> {
        cached_or_read(&self.drivers, self.find_drivers()).await
    }

    async fn find_drivers(&self) -> Result<BTreeSet<String>> {
        let found = drivers::installed(&*self.cluster, &self.resources).await;
        found.map_err(|error| action_error(&error, "cannot list the installed CSI drivers"))
    }

    /// The StorageClasses.
    pub(in crate::restore) async fn storage_classes(&self) -> Result<&[StorageClass]> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Class {
            metadata: Metadata,
            #[serde(default)]
            provisioner: String,
            volume_binding_mode: Option<String>,
        }
        let read = async {
            let classes: Vec<Class> = self.list("storage.k8s.io", "storageclasses").await?;
            let class = |class: Class| StorageClass {
                is_default: class.metadata.is_annotated(&DEFAULT_CLASS_ANNOTATIONS),
                name: class.metadata.name,
                provisioner: class.provisioner,
                waits_for_consumer: class.volume_binding_mode.as_deref()
                    == Some("WaitForFirstConsumer"),
            };
            Ok(classes.into_iter().map(class).collect())
        };
        Ok(cached_or_read(&self.storage_classes, read).await?)
    }

    /// The VolumeSnapshotClasses.
    pub(super) async fn snapshot_classes(&self) -> Result<&[SnapshotClass]> {
        #[derive(Deserialize)]
        struct Class {
            metadata: Metadata,
            #[serde(default)]
            driver: String,
        }
        let read = async {
            let classes: Vec<Class> = self.list(&kind(CLASSES).group, CLASSES).await?;
            let class = |class: Class| SnapshotClass {
                is_default: class
                    .metadata
                    .is_annotated(&[bowline_api::annotation::DEFAULT_SNAPSHOT_CLASS]),
                name: class.metadata.name,
                driver: class.driver,
            };
            Ok(classes.into_iter().map(class).collect())
        };
        Ok(cached_or_read(&self.snapshot_classes, read).await?)
    }

    /// All objects of a kind; empty if it is not served. Objects that cannot be decoded are skipped.
    pub(super) async fn list<T: DeserializeOwned>(
        &self,
        group: &str,
        plural: &str,
    ) -> Result<Vec<T>> {
        let Some(resource) = self.resource(&GroupResource::new(group, plural)).await? else {
            return Ok(Vec::new());
        };
        let mut list = self.cluster.list(&resource, Query::default());
        let mut all = Vec::new();
        while let Some(found) = list.next().await {
            match found {
                Ok(object) => match object.item.parse() {
                    Ok(read) => all.push(read),
                    Err(error) => {
                        tracing::warn!(object = %object.id(), "ignored: {}", error_chain(&error));
                    }
                },
                Err(cluster::Error::Object(error)) => tracing::warn!("ignored: {error}"),
                Err(error) => {
                    return Err(action_error(&error, &format!("cannot list the {plural}")));
                }
            }
        }
        Ok(all)
    }
}
