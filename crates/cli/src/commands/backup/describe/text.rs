//! A backup for people: the sections that Velero prints, in its order and its words.

mod volumes;

use bowline_api::backup::{BackupResourceHook, BackupResourceHooks};
use bowline_api::hook::HookErrorMode;
use bowline_api::{Backup, BackupPhase, BackupSpec, BackupStatus, VolumePluginBackup, annotation};
use bowline_store::file::BackupOperation;
use kube::ResourceExt as _;

use super::super::phase;
use super::{Files, deletion, freeze};
use crate::describe::section::{self, choice_text, excluded, included, item, selector_text, time};
use crate::describe::{self, FetchedVolumeProgress};
use crate::key_value_page::{KeyValuePage, NONE};
use crate::run::Run as _;

pub(super) fn render(
    backup: &Backup,
    files: &Files,
    transfers: &FetchedVolumeProgress,
    details: bool,
) -> String {
    let mut page = KeyValuePage::default();
    let status = backup.status.clone().unwrap_or_default();
    section::metadata(&mut page, backup);
    page.blank_line();
    section::phase(&mut page, backup);
    if phase(backup) == BackupPhase::Queued {
        page.field(0, "Queue position", status.queue_position);
    }
    let summary = backup.summary();
    section::reasons(&mut page, &summary);
    policies(&mut page, &backup.spec);
    global_policies(&mut page, backup);
    uploader(&mut page, &backup.spec);
    section::results(&mut page, &summary, files.results.as_ref());
    page.blank_line();
    spec(&mut page, &backup.spec);
    page.blank_line();
    times(&mut page, &status);
    items(&mut page, backup, &status);
    let counts = (
        status.backup_item_operations_attempted,
        status.backup_item_operations_completed,
        status.backup_item_operations_failed,
    );
    let file = files.operations.as_ref();
    section::operations(&mut page, "Backup Item Operations", counts, file, operation);
    section::resources(&mut page, files.resources.as_ref());
    volumes::render(&mut page, backup, files, details);
    describe::volumes::text::<VolumePluginBackup>(&mut page, transfers, details);
    section::hooks(&mut page, status.hook_status.as_ref());
    freeze::text(&mut page, &status.freeze_windows, details);
    deletion::text(&mut page, files.deletions.as_ref());
    page.finish()
}

pub(crate) fn spec(page: &mut KeyValuePage, spec: &BackupSpec) {
    filters(page, spec);
    settings(page, spec);
    hooks(page, &spec.hooks.resources);
    if !spec.ordered_resources.is_empty() {
        page.blank_line();
        page.heading(0, "OrderedResources");
        for (resource, names) in &spec.ordered_resources {
            page.field(1, resource, names);
        }
    }
}

pub(crate) fn policies(page: &mut KeyValuePage, spec: &BackupSpec) {
    if let Some(policy) = &spec.resource_policy {
        page.blank_line();
        page.heading(0, "Resource policies");
        page.field(1, "Type", &policy.kind);
        page.field(1, "Name", &policy.name);
    }
}

fn global_policies(page: &mut KeyValuePage, backup: &Backup) {
    if let Some(name) = backup.annotations().get(annotation::GLOBAL_VOLUME_POLICY) {
        page.blank_line();
        page.heading(0, "Global volume policies");
        page.field(1, "Type", "configmap");
        page.field(1, "Name", name);
    }
}

/// Uploader of files, if one is set.
pub(crate) fn uploader(page: &mut KeyValuePage, spec: &BackupSpec) {
    let uploader = spec.uploader_config.as_ref();
    if let Some(uploader) = uploader.filter(|uploader| uploader.parallel_files_upload > 0) {
        page.blank_line();
        page.heading(0, "Uploader config");
        page.field(1, "Parallel files upload", uploader.parallel_files_upload);
    }
}

fn filters(page: &mut KeyValuePage, spec: &BackupSpec) {
    page.heading(0, "Namespaces");
    page.field(1, "Included", included(&spec.included_namespaces));
    page.field(1, "Excluded", excluded(&spec.excluded_namespaces));
    page.blank_line();
    page.heading(0, "Resources");
    if has_scoped_filters(spec) {
        let cluster = &spec.included_cluster_scoped_resources;
        page.field(1, "Included cluster-scoped", excluded(cluster));
        let cluster = &spec.excluded_cluster_scoped_resources;
        page.field(1, "Excluded cluster-scoped", excluded(cluster));
        let namespaced = &spec.included_namespace_scoped_resources;
        page.field(1, "Included namespace-scoped", included(namespaced));
        let namespaced = &spec.excluded_namespace_scoped_resources;
        page.field(1, "Excluded namespace-scoped", excluded(namespaced));
    } else {
        page.field(1, "Included", included(&spec.included_resources));
        page.field(1, "Excluded", excluded(&spec.excluded_resources));
        let cluster = choice_text(spec.include_cluster_resources, "excluded", "included", "auto");
        page.field(1, "Cluster-scoped", cluster);
    }
    section::selectors(page, spec.label_selector.as_ref(), &spec.or_label_selectors);
}

fn settings(page: &mut KeyValuePage, spec: &BackupSpec) {
    page.blank_line();
    page.field(0, "Storage Location", &spec.storage_location);
    if !spec.volume_snapshot_locations.is_empty() {
        let locations = spec.volume_snapshot_locations.join(", ");
        page.field(0, "Volume Snapshot Locations", locations);
    }
    page.blank_line();
    let snapshots = choice_text(spec.snapshot_volumes, "false", "true", "auto");
    page.field(0, "Velero-Native Snapshot PVs", snapshots);
    if let Some(files) = spec.default_volumes_to_fs_backup {
        page.field(0, "File System Backup (Default)", files);
    }
    let moved = choice_text(spec.snapshot_move_data, "false", "true", "auto");
    page.field(0, "Snapshot Move Data", moved);
    let data_mover = if spec.data_mover.is_empty() { "velero" } else { &spec.data_mover };
    page.field(0, "Data Mover", data_mover);
    page.blank_line();
    page.field(0, "TTL", section::server_default_if_zero(spec.ttl));
    page.blank_line();
    let csi_timeout = section::server_default_if_zero(spec.csi_snapshot_timeout);
    page.field(0, "CSISnapshotTimeout", csi_timeout);
    let operation_timeout = section::server_default_if_zero(spec.item_operation_timeout);
    page.field(0, "ItemOperationTimeout", operation_timeout);
}

fn hooks(page: &mut KeyValuePage, hooks: &[BackupResourceHooks]) {
    page.blank_line();
    if hooks.is_empty() {
        page.field(0, "Hooks", NONE);
        return;
    }
    page.heading(0, "Hooks");
    page.heading(1, "Resources");
    for hook in hooks {
        page.heading(2, &hook.name);
        page.heading(3, "Namespaces");
        page.field(4, "Included", included(&hook.included_namespaces));
        page.field(4, "Excluded", excluded(&hook.excluded_namespaces));
        page.blank_line();
        page.heading(3, "Resources");
        page.field(4, "Included", included(&hook.included_resources));
        page.field(4, "Excluded", excluded(&hook.excluded_resources));
        page.blank_line();
        page.field(3, "Label selector", selector_text(hook.label_selector.as_ref()));
        exec_hooks(page, "Pre Exec Hook", &hook.pre);
        exec_hooks(page, "Post Exec Hook", &hook.post);
    }
}

fn exec_hooks(page: &mut KeyValuePage, key: &str, hooks: &[BackupResourceHook]) {
    for exec in hooks.iter().filter_map(|hook| hook.exec.as_ref()) {
        page.blank_line();
        page.heading(3, key);
        page.field(4, "Container", &exec.container);
        page.field(4, "Command", exec.command.join(" "));
        page.field(4, "On Error", exec.on_error.as_ref().map_or("", HookErrorMode::as_str));
        page.field(4, "Timeout", exec.timeout);
    }
}

fn times(page: &mut KeyValuePage, status: &BackupStatus) {
    page.field(0, "Backup Format Version", &status.format_version);
    page.blank_line();
    page.field(0, "Started", time(status.start_timestamp.as_ref()));
    page.field(0, "Completed", time(status.completion_timestamp.as_ref()));
    page.blank_line();
    page.field(0, "Expiration", time(status.expiration.as_ref()));
}

fn items(page: &mut KeyValuePage, backup: &Backup, status: &BackupStatus) {
    let Some(progress) = &status.progress else { return };
    page.blank_line();
    let (total, done) = match phase(backup) {
        BackupPhase::InProgress => {
            ("Estimated total items to be backed up", "Items backed up so far")
        }
        _ => ("Total items to be backed up", "Items backed up"),
    };
    page.field(0, total, progress.total_items);
    page.field(0, done, progress.items_backed_up);
}

fn operation(page: &mut KeyValuePage, operation: &BackupOperation) {
    let BackupOperation { spec, status, .. } = operation;
    page.heading(1, &format!("Operation for {}", item(&spec.resource_identifier)));
    page.field(2, "Backup Item Action Plugin", &spec.backup_item_action);
    page.field(2, "Operation ID", &spec.operation_id);
    if !spec.post_operation_items.is_empty() {
        page.list(2, "Items to Update", spec.post_operation_items.iter().map(item));
    }
    section::operation_status(page, status);
}

/// True if the newer filters are used, which separate namespaced and cluster-scoped resources.
pub(super) fn has_scoped_filters(spec: &BackupSpec) -> bool {
    !spec.included_cluster_scoped_resources.is_empty()
        || !spec.excluded_cluster_scoped_resources.is_empty()
        || !spec.included_namespace_scoped_resources.is_empty()
        || !spec.excluded_namespace_scoped_resources.is_empty()
}
