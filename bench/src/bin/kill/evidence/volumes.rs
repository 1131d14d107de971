//! Evidence about snapshots and volumes: from the plugin, from files, and from the cluster.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use anyhow::Context as _;
use bowline_api::{Backup, DeleteBackupRequest, VolumePluginBackup};
use bowline_engine::leftover::{LEFT_OVER, V1_CANNOT_SEARCH, VOLUME_SNAPSHOT};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::csi;
use crate::check::{DeletionEvidence, PluginSnapshot, RestoredVolume, SnapshotRecord};
use crate::world::{BASE, World, volumes_of};

/// Prefix of a volume that the plugin created from a snapshot; the snapshot and a number follow.
const RESTORED_VOLUME_PREFIX: &str = "vol-";

/// Claim of a restored application, and its volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimVolume {
    pub(super) claim: String,
    pub(super) volume: String,
}

/// Names in a folder; none if the folder does not exist.
fn file_names(folder: &Path) -> anyhow::Result<BTreeSet<String>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries.with_context(|| format!("cannot read {}", folder.display()))?,
    };
    let name = |entry: io::Result<std::fs::DirEntry>| {
        Ok(entry.context("cannot read a directory")?.file_name().to_string_lossy().into_owned())
    };
    entries.map(name).collect()
}

/// Snapshots that the plugin has of a backup. A snapshot exists once its tags do.
pub(crate) fn plugin_snapshots(disks: &Path, backup: &str) -> anyhow::Result<Vec<PluginSnapshot>> {
    let folder = disks.join("snapshots");
    let mut found = Vec::new();
    for id in file_names(&folder)? {
        let tags = match std::fs::read(folder.join(&id).join("tags.json")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            tags => tags.context("cannot read the tags of a snapshot")?,
        };
        let tags: Value = serde_json::from_slice(&tags).context("a snapshot has strange tags")?;
        let tag = |key: &str| tags[key].as_str().unwrap_or_default().to_owned();
        if tag("velero.io/backup") == backup {
            let is_uploaded = disks.join("uploaded").join(&id).exists();
            let (volume, request) = (tag("velero.io/pv"), tag("bowline.io/request-id"));
            found.push(PluginSnapshot { id, volume, request, is_uploaded });
        }
    }
    Ok(found)
}

/// Volumes that the plugin has created from snapshots.
pub(crate) fn restored_volume_ids(disks: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut names = file_names(&disks.join("volumes"))?;
    // Each has a file with metadata beside it.
    names.retain(|name| name.starts_with(RESTORED_VOLUME_PREFIX) && !name.contains('.'));
    Ok(names)
}

/// Volumes created since these existed, and the number of their uses.
pub(crate) fn restored_volumes(
    disks: &Path,
    before: &BTreeSet<String>,
    claim_volumes: &[ClaimVolume],
) -> anyhow::Result<Vec<RestoredVolume>> {
    let restored_volume = |id: &String| RestoredVolume {
        id: id.clone(),
        snapshot: source_snapshot(id).to_owned(),
        uses: claim_volumes.iter().filter(|one| one.volume == *id).count(),
    };
    Ok(restored_volume_ids(disks)?.difference(before).map(restored_volume).collect())
}

/// Snapshot from which a volume was created, by its name.
fn source_snapshot(id: &str) -> &str {
    let name = id.strip_prefix(RESTORED_VOLUME_PREFIX).unwrap_or(id);
    name.rsplit_once('-').map_or(name, |(snapshot, _)| snapshot)
}

/// Volumes of the claims of a namespace, according to the PersistentVolumes.
pub(crate) async fn claim_volumes(
    world: &World,
    namespace: &str,
) -> anyhow::Result<Vec<ClaimVolume>> {
    let api: Api<PersistentVolume> = Api::all(world.client.clone());
    let mut found = Vec::new();
    for volume in api.list(&ListParams::default()).await?.items {
        let spec = volume.spec.unwrap_or_default();
        if let Some(claim) = spec.claim_ref
            && claim.namespace.as_deref() == Some(namespace)
        {
            let volume = spec.csi.map(|csi| csi.volume_handle).unwrap_or_default();
            found.push(ClaimVolume { claim: claim.name.unwrap_or_default(), volume });
        }
    }
    Ok(found)
}

/// Volumes of the first application whose data no restored claim has.
pub(crate) fn without_data(world: &World, claim_volumes: &[ClaimVolume]) -> Vec<String> {
    let mut volumes = volumes_of(BASE, false);
    volumes.retain(|volume| {
        let is_claim = |one: &&ClaimVolume| Some(&one.claim) == volume.claim.as_ref();
        let mut of_claim = claim_volumes.iter().filter(is_claim);
        !of_claim.any(|one| {
            one.volume.starts_with(RESTORED_VOLUME_PREFIX) && world.has_data_of(&one.volume, volume)
        })
    });
    volumes.into_iter().map(|volume| format!("the data of {}", volume.name)).collect()
}

/// Snapshots that a file of a backup names. A snapshot that was never created has no id.
pub(crate) fn snapshot_records(records: &Value) -> Vec<SnapshotRecord> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let recorded = |record: &Value| SnapshotRecord {
        id: text(&record["status"]["providerSnapshotID"]),
        volume: text(&record["spec"]["persistentVolumeName"]),
        is_completed: record["status"]["phase"] == "Completed",
    };
    records.as_array().into_iter().flatten().map(recorded).collect()
}

/// Warnings that a snapshot or a volume may be left over.
pub(crate) fn volume_leftover_warnings<'a>(warnings: impl Iterator<Item = &'a str>) -> Vec<String> {
    let is_about_volume = |text: &&str| {
        let is_of_volume = text.starts_with("persistentvolumes/");
        let is_of_csi = text.starts_with("persistentvolumeclaims/")
            && text.contains(&format!(": the {VOLUME_SNAPSHOT} "));
        (is_of_volume || is_of_csi) && text.contains(LEFT_OVER)
    };
    warnings.filter(is_about_volume).map(str::to_owned).collect()
}

/// Leftovers of a deleted backup of an application, given the CSI snapshots before it and its warnings.
pub(crate) async fn collect_deletion_evidence(
    world: &World,
    backup: &str,
    app: &str,
    before: &BTreeSet<String>,
    volume_warnings: &[String],
) -> anyhow::Result<DeletionEvidence> {
    let request = world.api::<DeleteBackupRequest>().get_opt(backup).await?;
    let answer = request.map(|request| {
        let status = request.status.unwrap_or_default();
        let phase = status.phase.map(|phase| phase.to_string()).unwrap_or_default();
        format!("{phase:?} {}", status.errors.join(", ")).trim_end().to_owned()
    });
    let reports = world.api::<VolumePluginBackup>().list(&ListParams::default()).await?;
    let of_backup = reports.items.into_iter().filter(|report| report.spec.backup == backup);
    // The plugin names them after their volumes, which are named after their application.
    let mut uploads = file_names(&world.disks.join("uploaded"))?;
    uploads.retain(|id| id.starts_with(&format!("snap-{app}-")));
    let existing = file_names(&world.disks.join("snapshots"))?;
    let log = std::fs::read(world.log()).context("cannot read the log of the server")?;
    let log = String::from_utf8_lossy(&log);
    let mut files = Vec::new();
    list_files(&world.bucket.join("backups").join(backup), &mut files)?;
    Ok(DeletionEvidence {
        backup: backup.to_owned(),
        request_status: answer,
        backup_exists: world.api::<Backup>().get_opt(backup).await?.is_some(),
        snapshots: plugin_snapshots(&world.disks, backup)?,
        uploads: uploads.difference(&existing).cloned().collect(),
        csi: csi::csi_snapshots(world, app, before)?,
        csi_objects: csi::objects_of(world, backup).await?,
        files,
        reports: of_backup.map(|report| report.name_any()).collect(),
        volume_warnings: volume_warnings
            .iter()
            .cloned()
            .chain(log_leftover_warnings(&log))
            .collect(),
    })
}

/// Leftovers at plugins of version 1, which cannot be queried, according to the server's log. A backup that is deleted
/// while it runs has no results file that could name them.
fn log_leftover_warnings(log: &str) -> impl Iterator<Item = String> {
    let is_notice = |line: &&str| line.contains("level=error") && line.contains(V1_CANNOT_SEARCH);
    log.lines().filter(is_notice).map(str::to_owned)
}

/// Files below a folder.
fn list_files(folder: &Path, files: &mut Vec<String>) -> anyhow::Result<()> {
    for name in file_names(folder)? {
        let path = folder.join(&name);
        if path.is_dir() {
            list_files(&path, files)?;
        } else {
            files.push(name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn volumes_are_named_after_their_snapshots() {
        assert_eq!(source_snapshot("vol-snap-app-volume-1-2-13"), "snap-app-volume-1-2");
    }

    #[test]
    fn snapshot_records_are_parsed() {
        let record = |id: &str, phase: &str| {
            json!({
                "spec": {"persistentVolumeName": "v"},
                "status": {"providerSnapshotID": id, "phase": phase},
            })
        };
        let expected = |id: &str, is_completed| SnapshotRecord {
            id: id.into(),
            volume: "v".into(),
            is_completed,
        };
        let file = json!([record("s", "Completed"), record("", "Failed")]);
        assert_eq!(snapshot_records(&file), [expected("s", true), expected("", false)]);
        assert_eq!(snapshot_records(&Value::Null), []);
    }

    #[test]
    fn log_names_possible_leftovers_of_version_1_plugins() {
        let text = "msg=\"snapshot of volume v with the tag t=r may be left over: v1 plugins \
                    cannot search for snapshots\"";
        let log = format!("level=info {text}\nlevel=error {text}\nlevel=error msg=\"no\"");
        assert_eq!(
            log_leftover_warnings(&log).collect::<Vec<_>>(),
            [format!("level=error {text}")]
        );
    }

    #[test]
    fn only_warnings_about_volumes_count() {
        let volume = "persistentvolumes/v: the volume, if it exists, may be left over";
        let item = "pods/p: results of the first call may be left over";
        let csi = "persistentvolumeclaims/c: the VolumeSnapshot n/v may be left over: why";
        let claim = "persistentvolumeclaims/c: results of the first call may be left over";
        let all = [volume, item, "persistentvolumes/v: it is old", csi, claim];
        assert_eq!(volume_leftover_warnings(all.into_iter()), [volume, csi]);
    }
}
