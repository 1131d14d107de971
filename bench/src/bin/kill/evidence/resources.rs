//! VolumePluginBackups and VolumePluginRestores of a run, including those that do not name it.

use std::collections::BTreeSet;

use bowline_api::volume_plugin::VolumePluginPhase;
use bowline_api::{VolumePluginBackup, VolumePluginRestore, label};
use kube::api::ListParams;
use kube::{Resource, ResourceExt};

use super::RunUnderTest;
use crate::check::VolumeResource;
use crate::world::World;

/// Names of all VolumePluginRestores.
pub(crate) async fn restore_resource_names(world: &World) -> anyhow::Result<BTreeSet<String>> {
    let found = world.api::<VolumePluginRestore>().list(&ListParams::default()).await?;
    Ok(found.items.iter().map(ResourceExt::name_any).collect())
}

/// Resources of a backup, by its name.
pub(super) async fn resources_of_backup(
    world: &World,
    subject: &RunUnderTest,
) -> anyhow::Result<Vec<VolumeResource>> {
    let found = world.api::<VolumePluginBackup>().list(&ListParams::default()).await?.items;
    let of_backup = found.into_iter().filter(|one| one.spec.backup == subject.name);
    let labels = [label::BACKUP_NAME, label::BACKUP_UID];
    Ok(of_backup
        .map(|one| {
            let status = one.status.clone().unwrap_or_default();
            to_volume_resource(subject, &one, labels, status.snapshot_id, status.phase)
        })
        .collect())
}

/// Resources of a restore: a round has one restore, so these are the new ones.
pub(super) async fn resources_of_restore(
    world: &World,
    subject: &RunUnderTest,
) -> anyhow::Result<Vec<VolumeResource>> {
    let found = world.api::<VolumePluginRestore>().list(&ListParams::default()).await?.items;
    let new = found.into_iter().filter(|one| !subject.resources_before.contains(&one.name_any()));
    let labels = [label::RESTORE_NAME, label::RESTORE_UID];
    Ok(new
        .map(|one| {
            let phase = one.status.clone().unwrap_or_default().phase;
            to_volume_resource(subject, &one, labels, one.spec.snapshot_id.clone(), phase)
        })
        .collect())
}

fn to_volume_resource<K: Resource<DynamicType = ()>>(
    subject: &RunUnderTest,
    object: &K,
    [name, uid]: [&str; 2],
    snapshot: String,
    phase: Option<VolumePluginPhase>,
) -> VolumeResource {
    let label = |key: &str| object.labels().get(key).map(String::as_str);
    let is_labelled = label(name) == Some(&subject.name) && label(uid) == Some(&subject.uid);
    let has_owner = object.owner_references().iter().any(|owner| owner.uid == subject.uid);
    VolumeResource {
        kind: K::kind(&()).into_owned(),
        name: object.name_any(),
        snapshot,
        phase: phase.unwrap_or(VolumePluginPhase::New),
        is_owned: is_labelled && has_owner,
        is_managed: label(label::MANAGED).is_some(),
    }
}
