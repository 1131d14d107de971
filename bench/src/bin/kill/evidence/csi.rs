//! Evidence about CSI: snapshots of the driver, records in files, and objects in the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use bowline_api::{annotation, label};
use bowline_testbed::csi;
use flate2::read::MultiGzDecoder;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt as _};
use serde_json::Value;
use tokio::time::Instant;

use super::volumes::ClaimVolume;
use crate::check::{CsiMade, CsiRecord, CsiSnapshot};
use crate::world::{BASE, POLL_INTERVAL, World, csi_claims_of};

/// Longest wait for the controllers to finish their work.
const QUIET_TIMEOUT: Duration = Duration::from_secs(30);
const SNAPSHOT: &str = "VolumeSnapshot";
const CONTENT: &str = "VolumeSnapshotContent";

/// Snapshots and volumes of the driver before a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct CsiInventory {
    pub(crate) snapshots: BTreeSet<String>,
    pub(crate) volumes: BTreeSet<String>,
}

impl CsiInventory {
    pub(crate) fn read(world: &World) -> anyhow::Result<Self> {
        Ok(Self {
            snapshots: world.csi.snapshots()?.into_iter().collect(),
            volumes: world.csi.volumes()?.into_iter().collect(),
        })
    }
}

async fn list(world: &World, kind: &str) -> anyhow::Result<Vec<DynamicObject>> {
    let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", kind);
    let api = Api::all_with(world.client.clone(), &ApiResource::from_gvk(&kind));
    Ok(api.list(&ListParams::default()).await?.items)
}

/// Waits until the controllers have finished their deletions, for a limited time: anything left then counts.
pub(crate) async fn wait_until_quiet(world: &World) -> anyhow::Result<()> {
    let deadline = Instant::now() + QUIET_TIMEOUT;
    while Instant::now() < deadline {
        let mut all = list(world, SNAPSHOT).await?;
        all.extend(list(world, CONTENT).await?);
        if !all.iter().any(|one| one.metadata.deletion_timestamp.is_some()) {
            return Ok(());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Snapshots that the driver has of the claims of an application, except for earlier ones.
pub(crate) fn csi_snapshots(
    world: &World,
    app: &str,
    before: &BTreeSet<String>,
) -> anyhow::Result<Vec<CsiSnapshot>> {
    // In this order: the driver records a call before it acts.
    let handles = world.csi.snapshots()?;
    let calls = world.csi.calls()?;
    let mut snapshots = Vec::new();
    for handle in handles {
        let created_it = |call: &&csi::Call| call.method == "CreateSnapshot" && call.id == handle;
        let call = calls.iter().find(created_it);
        let call = call.with_context(|| format!("nobody has asked for the snapshot {handle}"))?;
        let of_app = call
            .names
            .iter()
            .filter(|name| is_in_namespace(name, app) && !before.contains(&handle));
        for object in of_app.cloned() {
            let claim = csi_claims_of(app).into_iter().find(|claim| is_of_claim(&object, claim));
            let claim = claim.with_context(|| format!("{object} is of no claim"))?;
            let has_data = World::has_data_of_claim(&world.csi.snapshot(&handle), &claim);
            snapshots.push(CsiSnapshot { handle: handle.clone(), claim, object, has_data });
        }
    }
    Ok(snapshots)
}

fn is_in_namespace(object: &str, namespace: &str) -> bool {
    object.split_once('/').is_some_and(|(of, _)| of == namespace)
}

/// True if a VolumeSnapshot belongs to a claim, by its name.
fn is_of_claim(object: &str, claim: &str) -> bool {
    let name = object.split_once('/').map_or(object, |(_, name)| name);
    name.strip_prefix("velero-")
        .and_then(|name| name.rsplit_once('-'))
        .is_some_and(|(of, _)| of == claim)
}

/// Handles of the VolumeSnapshots in the archive of a backup, by claim.
pub(super) fn archived_handles(path: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let mut archive = tar::Archive::new(MultiGzDecoder::new(File::open(path)?));
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().into_owned();
        if path.starts_with("resources/volumesnapshots.snapshot.storage.k8s.io/namespaces/") {
            found.extend(handle_in(&serde_json::from_reader(&mut entry).context(path)?));
        }
    }
    Ok(found)
}

/// Claim of a VolumeSnapshot, and the handle that a restore reads.
fn handle_in(snapshot: &Value) -> Option<(String, String)> {
    let claim = snapshot.pointer("/spec/source/persistentVolumeClaimName")?.as_str()?;
    let annotations = snapshot.pointer("/metadata/annotations")?;
    let handle = annotations.get(annotation::VOLUME_SNAPSHOT_HANDLE)?.as_str()?;
    Some((claim.to_owned(), handle.to_owned()))
}

/// Snapshots that the files of a backup name.
pub(super) fn csi_records(infos: &Value, archived: &BTreeMap<String, String>) -> Vec<CsiRecord> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of_csi =
        infos.as_array().into_iter().flatten().filter(|info| info["backupMethod"] == "CSISnapshot");
    let record = |info: &Value| {
        let claim = text(&info["pvcName"]);
        CsiRecord {
            handle: text(&info["csiSnapshotInfo"]["snapshotHandle"]),
            is_succeeded: info["result"] == "succeeded",
            archived: archived.get(&claim).cloned().unwrap_or_default(),
            claim,
        }
    };
    of_csi.map(record).collect()
}

/// Objects in the cluster for the snapshots of a backup.
pub(super) async fn objects_of(world: &World, backup: &str) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for kind in [SNAPSHOT, CONTENT] {
        for object in list(world, kind).await? {
            if object.labels().get(label::BACKUP_NAME).is_some_and(|name| name == backup) {
                let namespace = object.namespace().unwrap_or_default();
                found.push(format!("{kind} {namespace}/{}", object.name_any()));
            }
        }
    }
    Ok(found)
}

/// Claims of the first application whose data no restored claim has.
pub(super) fn without_data(world: &World, claim_volumes: &[ClaimVolume]) -> Vec<String> {
    let mut claims = csi_claims_of(BASE);
    claims.retain(|claim| {
        let mut of_claim = claim_volumes.iter().filter(|one| one.claim == *claim);
        !of_claim.any(|one| World::has_data_of_claim(&world.csi.volume(&one.volume), claim))
    });
    claims.into_iter().map(|claim| format!("the data of {claim}")).collect()
}

/// Resources created for a restore into a namespace since the driver had these volumes: each volume belongs to one
/// PersistentVolume, and each snapshot has one content.
pub(super) async fn restored_resources(
    world: &World,
    before: &BTreeSet<String>,
    namespace: &str,
) -> anyhow::Result<Vec<CsiMade>> {
    let api: Api<PersistentVolume> = Api::all(world.client.clone());
    let volumes = api.list(&ListParams::default()).await?.items.into_iter();
    let used: Vec<String> =
        volumes.filter_map(|volume| Some(volume.spec?.csi?.volume_handle)).collect();
    let mut restored = Vec::new();
    for handle in world.csi.volumes()?.into_iter().filter(|handle| !before.contains(handle)) {
        let count = used.iter().filter(|one| **one == handle).count();
        restored.push(CsiMade { description: format!("the CSI volume {handle}"), count });
    }
    let mut contents: BTreeMap<String, usize> = BTreeMap::new();
    for content in list(world, CONTENT).await? {
        let spec = &content.data["spec"];
        if spec["volumeSnapshotRef"]["namespace"] == namespace {
            let handle = spec["source"]["snapshotHandle"].as_str().unwrap_or_default();
            *contents.entry(handle.to_owned()).or_default() += 1;
        }
    }
    for (handle, count) in contents {
        restored.push(CsiMade {
            description: format!("a content of the CSI snapshot {handle}"),
            count,
        });
    }
    Ok(restored)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn snapshot_records_are_read_from_files() {
        let info = |claim: &str, method: &str, result: &str| {
            json!({
                "pvcName": claim, "backupMethod": method, "result": result,
                "csiSnapshotInfo": {"snapshotHandle": format!("s-{claim}")},
            })
        };
        let infos = json!([
            info("a", "CSISnapshot", "succeeded"),
            info("b", "NativeSnapshot", "succeeded"),
            info("c", "CSISnapshot", "failed"),
        ]);
        let archived = BTreeMap::from([("a".to_owned(), "s-a".to_owned())]);
        let record = |claim: &str, is_succeeded, archived: &str| CsiRecord {
            claim: claim.into(),
            handle: format!("s-{claim}"),
            is_succeeded,
            archived: archived.into(),
        };
        assert_eq!(
            csi_records(&infos, &archived),
            [record("a", true, "s-a"), record("c", false, "")]
        );
        assert_eq!(csi_records(&Value::Null, &archived), []);
    }

    #[test]
    fn snapshots_are_named_after_their_claims() {
        assert!(is_of_claim("app/velero-app-claim-3-7c28e8de11", "app-claim-3"));
        assert!(!is_of_claim("app/velero-app-claim-31-7c28e8de11", "app-claim-3"));
        assert!(
            is_in_namespace("app/velero-x", "app") && !is_in_namespace("app-2/velero-x", "app")
        );
    }

    #[test]
    fn handle_is_read_from_the_annotation_a_restore_uses() {
        let snapshot = json!({
            "metadata": {"annotations": {"velero.io/csi-volumesnapshot-handle": "s"}},
            "spec": {"source": {"persistentVolumeClaimName": "c"}},
        });
        assert_eq!(handle_in(&snapshot), Some(("c".into(), "s".into())));
        assert_eq!(handle_in(&json!({"metadata": {}, "spec": {}})), None);
    }
}
