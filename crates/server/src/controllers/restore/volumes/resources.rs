//! What VolumePluginRestores say of volumes, and their lists.

#[cfg(test)]
mod tests;

use bowline_api::volume_plugin::{VolumePluginOutcome, VolumePluginPhase};
use bowline_api::volume_plugin_restore::VolumePluginRestoreSpec;
use bowline_api::{Restore, VolumePluginRestore, label};
use bowline_engine::restore::volume::{VolumeCreation, VolumeCreationResult};
use bowline_plugin::{Name, VolumeId};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::controllers::adoption::has_other_writer;
use crate::error_text::{status_message, truncate_text};
use crate::list::next_page;
use crate::patch;
use crate::server::Context;

/// Page size of a list, and maximum number of pages.
const PAGE: u32 = 250;
const MAX_PAGES: u32 = 40;

/// Ends the open resources of a restore that has ended, where that was not possible before: a server was killed, and
/// the restore is not resumed.
pub(in crate::controllers) async fn end_open_resources(context: &Context, restore: &Restore) {
    if let Err(error) = try_end_open_resources(context, restore).await
        && !patch::is_not_found(&error)
    {
        tracing::warn!("cannot update VolumePluginRestores: {}", status_message(&error));
    }
}

async fn try_end_open_resources(context: &Context, restore: &Restore) -> kube::Result<()> {
    let api: Api<VolumePluginRestore> = context.api();
    let uid = restore.uid().unwrap_or_default();
    let selector = format!("{}={}", label::RESTORE_UID, label::value(&uid));
    let found = list(&api, ListParams::default().labels(&selector)).await?;
    let status = ended_status(
        &VolumePluginPhase::Failed,
        Some("the restore ended before the plugin completed this volume"),
    );
    for open in found.iter().filter(|found| is_left_open(found)) {
        patch::patch_status_of(&api, open, status.clone()).await?;
    }
    Ok(())
}

/// True if a resource reports that its volume was not created.
pub(super) fn has_failed(found: &VolumePluginRestore) -> bool {
    let phase = found.status.as_ref().and_then(|status| status.phase.as_ref());
    let outcome = phase.and_then(VolumePluginPhase::outcome);
    outcome.is_some_and(|outcome| outcome != VolumePluginOutcome::Completed)
}

/// True if no writer will end this resource of a restore that has ended.
fn is_left_open(found: &VolumePluginRestore) -> bool {
    let phase = found.status.as_ref().and_then(|status| status.phase.as_ref());
    if found.labels().contains_key(label::MANAGED) {
        return !phase.is_some_and(VolumePluginPhase::is_terminal) && !has_other_writer(found);
    }
    // A plugin may have its own word for the end.
    is_open(phase)
}

/// True if a phase is one of the API's phases for work in progress.
pub(super) fn is_open(phase: Option<&VolumePluginPhase>) -> bool {
    match phase {
        None | Some(VolumePluginPhase::New | VolumePluginPhase::InProgress) => true,
        Some(VolumePluginPhase::Other(word)) => word.is_empty(),
        Some(
            VolumePluginPhase::Completed | VolumePluginPhase::Failed | VolumePluginPhase::Canceled,
        ) => false,
    }
}

/// Final phase, and its reason.
pub(super) fn phase_and_message(end: &VolumeCreationResult) -> (VolumePluginPhase, Option<String>) {
    match end {
        VolumeCreationResult::Completed(_) => (VolumePluginPhase::Completed, None),
        VolumeCreationResult::Failed(reason) => {
            (VolumePluginPhase::Failed, Some(truncate_text(reason.clone())))
        }
        VolumeCreationResult::Canceled(reason) => {
            (VolumePluginPhase::Canceled, Some(truncate_text(reason.clone())))
        }
    }
}

pub(super) fn ended_status(phase: &VolumePluginPhase, message: Option<&str>) -> Value {
    json!({
        "phase": phase,
        "message": message,
        "completionTimestamp": patch::truncate_to_second(Timestamp::now()),
    })
}

/// Lists all resources, page by page.
pub(super) async fn list(
    api: &Api<VolumePluginRestore>,
    params: ListParams,
) -> kube::Result<Vec<VolumePluginRestore>> {
    let (mut params, mut found) = (params.limit(PAGE), Vec::new());
    for _ in 0..MAX_PAGES {
        let page = api.list(&params).await?;
        found.extend(page.items);
        let Some(next) = next_page(params, &page.metadata) else { break };
        params = next;
    }
    Ok(found)
}

/// The resource that a plugin has written about a volume. If a plugin gives a volume the ID of one that is gone, the
/// resources of both have it; the last one is about the volume that exists.
pub(super) fn latest_about_volume(
    found: Vec<VolumePluginRestore>,
    backup: &str,
    creation: &VolumeCreation,
    volume: &VolumeId,
) -> Option<VolumePluginRestore> {
    let about_volume =
        found.into_iter().filter(|found| is_about_volume(found, backup, creation, volume));
    about_volume.max_by_key(|found| found.creation_timestamp().map(|created| created.0))
}

/// True if a resource that a plugin has written is about a volume. Plugins have their own names for a volume; the
/// documentation of these resources asks for the PersistentVolume.
fn is_about_volume(
    found: &VolumePluginRestore,
    backup: &str,
    creation: &VolumeCreation,
    volume: &VolumeId,
) -> bool {
    let VolumePluginRestoreSpec { snapshot_id, backup: of, plugin, .. } = &found.spec;
    let reported_volume =
        found.status.as_ref().map(|status| status.volume_id.as_str()).unwrap_or_default();
    snapshot_id == creation.snapshot.as_str()
        && of == backup
        && Name::of_provider(plugin).is_ok_and(|plugin| plugin.as_str() == creation.plugin)
        && [volume.as_str(), &creation.target].contains(&reported_volume)
}

/// True if a resource that a plugin has written is about a volume that is being created, whose name only the plugin
/// knows: the resource is for the same snapshot, and not older than the restore.
pub(super) fn is_about_creation(
    found: &VolumePluginRestore,
    backup: &str,
    creation: &VolumeCreation,
    restore_created: Option<&Time>,
) -> bool {
    let VolumePluginRestoreSpec { snapshot_id, backup: of, plugin, .. } = &found.spec;
    let created = found.creation_timestamp();
    let is_new = created.zip(restore_created).is_none_or(|(created, since)| created.0 >= since.0);
    let is_of_plugin =
        Name::of_provider(plugin).is_ok_and(|plugin| plugin.as_str() == creation.plugin);
    // A resource without a status is not about work in progress.
    let has_begun = found.status.is_some();
    is_new && has_begun && is_of_plugin && snapshot_id == creation.snapshot.as_str() && of == backup
}
