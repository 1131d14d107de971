//! What the new volumes of a restore get from those that they stand for.
//!
//! A volume that its storage class has made from a CSI snapshot has the labels and the reclaim policy
//! of the class. Those of the backup are written to it when it is there. Volumes that are made only
//! when a pod needs them, and are not there yet, are left alone, as in Velero.
//!
//! Here also go the stubs for groups of snapshots, when the contents do not need them any more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bowline_api::{Restore, label};
use bowline_plugin::{ResourceIdentifier, one_line};
use bowline_store::file::{
    BackupVolumeInfo, Method, PersistentVolumeInfo, ResourceList, RestoreVolumeInfo,
};
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::action::CSI_CLAIMS;
use super::super::action::csi::{CONTENTS, GROUP_CONTENTS, GROUP_GROUP, kind};
use crate::cluster::watch::{Waited, until};
use crate::cluster::{Cluster, Door, Error, Query};
use crate::operation::{Operation, State};
use crate::report::{About, Report};
use crate::resource::{GroupResource, Resource, Resources};

/// How many volumes are worked on at a time.
const AT_ONCE: usize = 16;

/// A restore whose operations have ended.
pub struct Settling<'a> {
    /// Where its objects are.
    pub cluster: &'a dyn Cluster,
    /// The Restore.
    pub restore: &'a Restore,
    /// How the backup saved volumes.
    pub saved: &'a [BackupVolumeInfo],
    /// What became of the items.
    pub items: &'a ResourceList,
    /// The operations.
    pub operations: &'a [Operation],
    /// How long to wait for a volume, or for a content.
    pub limit: Duration,
}

/// Whether there is anything to do for a backup.
pub fn is_concerned(saved: &[BackupVolumeInfo]) -> bool {
    saved.iter().any(is_of_csi)
}

fn is_of_csi(info: &BackupVolumeInfo) -> bool {
    info.backup_method == Some(Method::CsiSnapshot) && !info.skipped
}

/// A volume that is to get something.
#[derive(Clone, Debug, PartialEq)]
struct Wanted<'a> {
    /// Its claim, as the backup calls it.
    id: ResourceIdentifier,
    /// The namespace of the claim in the cluster.
    namespace: &'a str,
    name: &'a str,
    info: &'a PersistentVolumeInfo,
}

impl Settling<'_> {
    /// Does it. Tells what went wrong, and notes the names of volumes that are there by now.
    pub async fn run(&self, volumes: &mut [RestoreVolumeInfo]) -> Result<Report, Error> {
        let served = self.cluster.discover().await?.resources.into_iter();
        let resources = Resources::new(served.filter(|served| !served.id.resource.contains('/')));
        let report = Report::default();
        let (wanted, report_ref, resources_ref) = (self.wanted(), &report, &resources);
        let work = wanted.iter().map(|wanted| async move {
            if let Err(error) = self.settle(resources_ref, wanted).await {
                report_ref.error(&wanted.id, error);
            }
        });
        // Collected, since a closure over borrowed values must not live across a wait.
        let work: Vec<_> = work.collect();
        stream::iter(work).buffer_unordered(AT_ONCE).collect::<()>().await;
        let is_group = |info: &BackupVolumeInfo| {
            let csi = info.csi_snapshot_info.as_ref();
            csi.is_some_and(|csi| !csi.volume_group_snapshot_handle.is_empty())
        };
        if self.saved.iter().any(is_group) {
            self.remove_stubs(&resources, &report).await;
        }
        self.name(&resources, volumes).await;
        Ok(report)
    }

    /// The volumes of claims that this restore has created from CSI snapshots.
    fn wanted(&self) -> Vec<Wanted<'_>> {
        let created = self.items.0.get("v1/PersistentVolumeClaim");
        let created: BTreeSet<&str> =
            created.into_iter().flatten().filter_map(|one| one.strip_suffix("(created)")).collect();
        let mapping = &self.restore.spec.namespace_mapping;
        let is_followed_to_its_end = |id: &ResourceIdentifier| {
            let mut of_claim = self
                .operations
                .iter()
                .filter(|one| one.item == *id && one.plugin.as_str() == CSI_CLAIMS);
            of_claim.all(|one| one.state == State::Completed)
        };
        let mut all = Vec::new();
        for saved in self.saved.iter().filter(|saved| is_of_csi(saved)) {
            let BackupVolumeInfo { pvc_namespace, pvc_name: name, .. } = saved;
            let id = ResourceIdentifier {
                group: String::new(),
                resource: "persistentvolumeclaims".to_owned(),
                namespace: pvc_namespace.clone(),
                name: name.clone(),
            };
            let namespace = mapping.get(pvc_namespace).unwrap_or(pvc_namespace);
            let is_created = created.contains(format!("{namespace}/{name}").as_str());
            if let Some(info) = &saved.pv_info
                && is_created
                && is_followed_to_its_end(&id)
            {
                all.push(Wanted { id, namespace, name, info });
            }
        }
        all
    }

    /// Gives a volume what it is to have, if it is there or will be.
    async fn settle(&self, resources: &Resources, wanted: &Wanted<'_>) -> Result<(), String> {
        let Wanted { namespace, name, info, .. } = wanted;
        let claims = core(resources, "persistentvolumeclaims")?;
        let volumes = core(resources, "persistentvolumes")?;
        let deadline = Instant::now() + self.limit;
        let Some(claim) = self.get(claims, namespace, name).await? else { return Ok(()) };
        let volume = match bound(&claim) {
            Some(volume) => volume.to_owned(),
            None if self.waits_for_consumer(resources, &claim).await? => {
                let text =
                    "its volume is made when a pod first needs it, and keeps what its class says";
                tracing::info!(item = %wanted.id, "{text}");
                return Ok(());
            }
            None => {
                let query = named(Some(namespace), name);
                let look = |claim: &Value| bound(claim).map(str::to_owned);
                let late = || format!("it has no volume after {} s", self.limit.as_secs());
                self.wait(claims, query, deadline, look).await?.ok_or_else(late)?
            }
        };
        let is_bound =
            |volume: &Value| (text(volume, "/status/phase") == "Bound").then(|| volume.clone());
        let found = self.get(volumes, "", &volume).await?.as_ref().and_then(is_bound);
        let found = if let Some(found) = found {
            found
        } else {
            let late =
                || format!("its volume {volume} is not bound after {} s", self.limit.as_secs());
            let query = named(None, &volume);
            self.wait(volumes, query, deadline, is_bound).await?.ok_or_else(late)?
        };
        let owner = |field: &str| text(&found, &format!("/spec/claimRef/{field}")).to_owned();
        if (owner("namespace").as_str(), owner("name").as_str()) != (*namespace, *name) {
            return Err(format!(
                "its volume {volume} is bound to another claim, {}/{}",
                owner("namespace"),
                owner("name")
            ));
        }
        let Some(patch) = difference(&found, info) else { return Ok(()) };
        let patched = self.cluster.patch(volumes, "", &volume, Door::Whole, &patch).await;
        patched.map(drop).map_err(|error| {
            format!("its volume {volume} does not get what it had: {}", one_line(&error))
        })
    }

    async fn get(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, String> {
        let found = self.cluster.get(resource, namespace, name).await;
        let found = found.map_err(|error| one_line(&error))?;
        found.map(|found| found.item.parse().map_err(|error| one_line(&error))).transpose()
    }

    /// Waits for an object. None if that takes too long.
    async fn wait<T>(
        &self,
        resource: &Arc<Resource>,
        query: Query,
        deadline: Instant,
        look: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let look = |seen: &crate::cluster::watch::Seen| seen.iter().find_map(&look);
        match until(self.cluster, resource, query, deadline, look).await {
            Ok(Waited::For(found)) => Ok(Some(found)),
            Ok(Waited::TooLong) => Ok(None),
            Err(error) => Err(one_line(&error)),
        }
    }

    async fn waits_for_consumer(
        &self,
        resources: &Resources,
        claim: &Value,
    ) -> Result<bool, String> {
        let classes = resources.find(&GroupResource::new("storage.k8s.io", "storageclasses"));
        let name = text(claim, "/spec/storageClassName");
        let class = match classes {
            Some(classes) if !name.is_empty() => self.get(classes, "", name).await?,
            _ => None,
        };
        let mode = class.as_ref().map(|class| text(class, "/volumeBindingMode"));
        Ok(mode == Some("WaitForFirstConsumer"))
    }

    /// Removes the stubs for groups, when the contents that needed them are ready.
    async fn remove_stubs(&self, resources: &Resources, report: &Report) {
        let Some(stubs) = resources.find(&GroupResource::new(GROUP_GROUP, GROUP_CONTENTS)) else {
            return;
        };
        let restore = self.restore.metadata.name.as_deref().unwrap_or_default();
        let label_selector = format!("{}={}", label::RESTORE_NAME, label::value(restore));
        let ours = Query { label_selector, ..Query::default() };
        let mut list = self.cluster.list(stubs, ours.clone());
        let deadline = Instant::now() + self.limit;
        while let Some(stub) = list.next().await {
            let stub = match stub {
                Ok(stub) => stub,
                Err(error) => {
                    let text = "the stubs of snapshot groups cannot be found";
                    report.warning(About::Run, format!("{text}: {}", one_line(&error)));
                    return;
                }
            };
            let value: Value = stub.item.parse().unwrap_or_default();
            if let Some(contents) = resources.find(&kind(CONTENTS)) {
                let waited = self.until_ready(contents, &ours, &handles(&value), deadline).await;
                if let Err(why) = waited {
                    let text = format!("the stub of a snapshot group goes all the same: {why}");
                    report.warning(&stub.id(), text);
                }
            }
            match self.cluster.delete(stubs, "", &stub.name, None).await {
                Err(error) if !error.is_not_found() => {
                    let text = "the stub of a snapshot group cannot be removed";
                    report.warning(&stub.id(), format!("{text}: {}", one_line(&error)));
                }
                _ => {}
            }
        }
    }

    /// Waits until the contents that stand for these snapshots are ready.
    async fn until_ready(
        &self,
        contents: &Arc<Resource>,
        query: &Query,
        handles: &BTreeSet<String>,
        deadline: Instant,
    ) -> Result<(), String> {
        let mut list = self.cluster.list(contents, query.clone());
        let mut names = BTreeSet::new();
        while let Some(content) = list.next().await {
            let content = content.map_err(|error| one_line(&error))?;
            let value: Value = content.item.parse().map_err(|error| one_line(&error))?;
            if handles.contains(text(&value, "/spec/source/snapshotHandle")) {
                names.insert(content.name);
            }
        }
        if names.is_empty() {
            return Ok(());
        }
        let look = |seen: &crate::cluster::watch::Seen| {
            let is_ready = |name: &String| {
                let content = seen.get("", name);
                let ready = content.and_then(|content| content.pointer("/status/readyToUse"));
                ready.and_then(Value::as_bool) == Some(true)
            };
            names.iter().all(is_ready).then_some(())
        };
        match until(self.cluster, contents, query.clone(), deadline, look).await {
            Ok(Waited::For(())) => Ok(()),
            Ok(Waited::TooLong) => {
                Err(format!("its contents are not ready after {} s", self.limit.as_secs()))
            }
            Err(error) => Err(one_line(&error)),
        }
    }

    /// Notes what the volumes are called that claims from CSI snapshots have by now.
    async fn name(&self, resources: &Resources, volumes: &mut [RestoreVolumeInfo]) {
        let Ok(claims) = core(resources, "persistentvolumeclaims") else { return };
        let unnamed = volumes.iter_mut().filter(|volume| {
            volume.restore_method == Some(Method::CsiSnapshot) && volume.pv_name.is_empty()
        });
        let work = unnamed.map(|volume| async {
            let claim = self.get(claims, &volume.pvc_namespace, &volume.pvc_name).await;
            if let Ok(Some(claim)) = claim
                && let Some(name) = bound(&claim)
            {
                name.clone_into(&mut volume.pv_name);
            }
        });
        let work: Vec<_> = work.collect();
        stream::iter(work).buffer_unordered(AT_ONCE).collect::<()>().await;
    }
}

fn core<'a>(resources: &'a Resources, name: &str) -> Result<&'a Arc<Resource>, String> {
    resources.core(name).ok_or_else(|| format!("the cluster serves no {name}"))
}

fn named(namespace: Option<&str>, name: &str) -> Query {
    Query {
        namespace: namespace.map(str::to_owned),
        field_selector: format!("metadata.name={name}"),
        ..Query::default()
    }
}

/// The volume that a claim is bound to.
fn bound(claim: &Value) -> Option<&str> {
    let volume = text(claim, "/spec/volumeName");
    (text(claim, "/status/phase") == "Bound" && !volume.is_empty()).then_some(volume)
}

/// What a volume lacks of what it had. Labels that it has besides stay: they tell where it is now.
fn difference(volume: &Value, info: &PersistentVolumeInfo) -> Option<Value> {
    let labels = volume.pointer("/metadata/labels");
    let lacks = |(key, value): &(&String, &String)| {
        labels.and_then(|labels| labels.get(*key)?.as_str()) != Some(value.as_str())
    };
    let lacking: serde_json::Map<String, Value> = info
        .labels
        .iter()
        .filter(lacks)
        .map(|(key, value)| (key.clone(), value.as_str().into()))
        .collect();
    let mut patch = json!({});
    if !lacking.is_empty() {
        patch["metadata"] = json!({ "labels": lacking });
    }
    let policy = &info.reclaim_policy;
    if !policy.is_empty() && text(volume, "/spec/persistentVolumeReclaimPolicy") != policy {
        patch["spec"] = json!({ "persistentVolumeReclaimPolicy": policy });
    }
    patch.as_object().is_some_and(|patch| !patch.is_empty()).then_some(patch)
}

/// The snapshots that a stub stands for.
fn handles(stub: &Value) -> BTreeSet<String> {
    let handles = stub.pointer("/spec/source/groupSnapshotHandles/volumeSnapshotHandles");
    let handles = handles.and_then(Value::as_array).into_iter().flatten();
    handles.filter_map(|handle| Some(handle.as_str()?.to_owned())).collect()
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests;
