//! A backup for people: the sections that Velero prints, in its order and its words.

mod volumes;

use bowline_api::backup::{BackupResourceHook, BackupResourceHooks};
use bowline_api::hook::HookErrorMode;
use bowline_api::{
    Backup, BackupPhase, BackupSpec, BackupStatus, Duration, VolumePluginBackup, annotation,
};
use bowline_store::file::BackupOperation;
use kube::ResourceExt as _;

use super::super::phase;
use super::{Files, deletion, freeze};
use crate::describe::section::{self, choice, excluded, included, item, selector_text, time};
use crate::describe::{self, Transfers};
use crate::run::Run as _;
use crate::sheet::{NONE, Sheet};

pub(super) fn render(
    backup: &Backup,
    files: &Files,
    transfers: &Transfers,
    details: bool,
) -> String {
    let mut sheet = Sheet::default();
    let status = backup.status.clone().unwrap_or_default();
    section::metadata(&mut sheet, backup);
    sheet.gap();
    section::phase(&mut sheet, backup);
    if phase(backup) == BackupPhase::Queued {
        sheet.field(0, "Queue position", status.queue_position);
    }
    let summary = backup.summary();
    section::reasons(&mut sheet, &summary);
    policies(&mut sheet, &backup.spec);
    global_policies(&mut sheet, backup);
    uploader(&mut sheet, &backup.spec);
    section::results(&mut sheet, &summary, files.results.as_ref());
    sheet.gap();
    spec(&mut sheet, &backup.spec);
    sheet.gap();
    times(&mut sheet, &status);
    items(&mut sheet, backup, &status);
    let counts = (
        status.backup_item_operations_attempted,
        status.backup_item_operations_completed,
        status.backup_item_operations_failed,
    );
    let file = files.operations.as_ref();
    section::operations(&mut sheet, "Backup Item Operations", counts, file, operation);
    section::resources(&mut sheet, files.resources.as_ref());
    volumes::render(&mut sheet, backup, files, details);
    describe::volumes::text::<VolumePluginBackup>(&mut sheet, transfers, details);
    section::hooks(&mut sheet, status.hook_status.as_ref());
    freeze::text(&mut sheet, &status.freeze_windows, details);
    deletion::text(&mut sheet, files.deletions.as_ref());
    sheet.finish()
}

/// What to back up and how.
pub(crate) fn spec(sheet: &mut Sheet, spec: &BackupSpec) {
    filters(sheet, spec);
    settings(sheet, spec);
    hooks(sheet, &spec.hooks.resources);
    if !spec.ordered_resources.is_empty() {
        sheet.gap();
        sheet.heading(0, "OrderedResources");
        for (resource, names) in &spec.ordered_resources {
            sheet.field(1, resource, names);
        }
    }
}

/// The policies that are named.
pub(crate) fn policies(sheet: &mut Sheet, spec: &BackupSpec) {
    if let Some(policy) = &spec.resource_policy {
        sheet.gap();
        sheet.heading(0, "Resource policies");
        sheet.field(1, "Type", &policy.kind);
        sheet.field(1, "Name", &policy.name);
    }
}

fn global_policies(sheet: &mut Sheet, backup: &Backup) {
    if let Some(name) = backup.annotations().get(annotation::GLOBAL_VOLUME_POLICY) {
        sheet.gap();
        sheet.heading(0, "Global volume policies");
        sheet.field(1, "Type", "configmap");
        sheet.field(1, "Name", name);
    }
}

/// How files are copied, if that is said.
pub(crate) fn uploader(sheet: &mut Sheet, spec: &BackupSpec) {
    let uploader = spec.uploader_config.as_ref();
    if let Some(uploader) = uploader.filter(|uploader| uploader.parallel_files_upload > 0) {
        sheet.gap();
        sheet.heading(0, "Uploader config");
        sheet.field(1, "Parallel files upload", uploader.parallel_files_upload);
    }
}

fn filters(sheet: &mut Sheet, spec: &BackupSpec) {
    sheet.heading(0, "Namespaces");
    sheet.field(1, "Included", included(&spec.included_namespaces));
    sheet.field(1, "Excluded", excluded(&spec.excluded_namespaces));
    sheet.gap();
    sheet.heading(0, "Resources");
    if has_scoped_filters(spec) {
        let cluster = &spec.included_cluster_scoped_resources;
        sheet.field(1, "Included cluster-scoped", excluded(cluster));
        let cluster = &spec.excluded_cluster_scoped_resources;
        sheet.field(1, "Excluded cluster-scoped", excluded(cluster));
        let namespaced = &spec.included_namespace_scoped_resources;
        sheet.field(1, "Included namespace-scoped", included(namespaced));
        let namespaced = &spec.excluded_namespace_scoped_resources;
        sheet.field(1, "Excluded namespace-scoped", excluded(namespaced));
    } else {
        sheet.field(1, "Included", included(&spec.included_resources));
        sheet.field(1, "Excluded", excluded(&spec.excluded_resources));
        let cluster = choice(spec.include_cluster_resources, "excluded", "included", "auto");
        sheet.field(1, "Cluster-scoped", cluster);
    }
    section::selectors(sheet, spec.label_selector.as_ref(), &spec.or_label_selectors);
}

fn settings(sheet: &mut Sheet, spec: &BackupSpec) {
    sheet.gap();
    sheet.field(0, "Storage Location", &spec.storage_location);
    if !spec.volume_snapshot_locations.is_empty() {
        let locations = spec.volume_snapshot_locations.join(", ");
        sheet.field(0, "Volume Snapshot Locations", locations);
    }
    sheet.gap();
    let snapshots = choice(spec.snapshot_volumes, "false", "true", "auto");
    sheet.field(0, "Velero-Native Snapshot PVs", snapshots);
    if let Some(files) = spec.default_volumes_to_fs_backup {
        sheet.field(0, "File System Backup (Default)", files);
    }
    let moved = choice(spec.snapshot_move_data, "false", "true", "auto");
    sheet.field(0, "Snapshot Move Data", moved);
    let data_mover = if spec.data_mover.is_empty() { "velero" } else { &spec.data_mover };
    sheet.field(0, "Data Mover", data_mover);
    sheet.gap();
    // Velero prints `0s`, which is not what happens.
    let ttl = Some(spec.ttl).filter(|ttl| *ttl != Duration::ZERO);
    sheet.field(0, "TTL", section::or_servers(ttl));
    sheet.gap();
    sheet.field(0, "CSISnapshotTimeout", spec.csi_snapshot_timeout);
    sheet.field(0, "ItemOperationTimeout", spec.item_operation_timeout);
}

fn hooks(sheet: &mut Sheet, hooks: &[BackupResourceHooks]) {
    sheet.gap();
    if hooks.is_empty() {
        sheet.field(0, "Hooks", NONE);
        return;
    }
    sheet.heading(0, "Hooks");
    sheet.heading(1, "Resources");
    for hook in hooks {
        sheet.heading(2, &hook.name);
        sheet.heading(3, "Namespaces");
        sheet.field(4, "Included", included(&hook.included_namespaces));
        sheet.field(4, "Excluded", excluded(&hook.excluded_namespaces));
        sheet.gap();
        sheet.heading(3, "Resources");
        sheet.field(4, "Included", included(&hook.included_resources));
        sheet.field(4, "Excluded", excluded(&hook.excluded_resources));
        sheet.gap();
        sheet.field(3, "Label selector", selector_text(hook.label_selector.as_ref()));
        exec_hooks(sheet, "Pre Exec Hook", &hook.pre);
        exec_hooks(sheet, "Post Exec Hook", &hook.post);
    }
}

fn exec_hooks(sheet: &mut Sheet, key: &str, hooks: &[BackupResourceHook]) {
    for exec in hooks.iter().filter_map(|hook| hook.exec.as_ref()) {
        sheet.gap();
        sheet.heading(3, key);
        sheet.field(4, "Container", &exec.container);
        sheet.field(4, "Command", exec.command.join(" "));
        sheet.field(4, "On Error", exec.on_error.as_ref().map_or("", HookErrorMode::as_str));
        sheet.field(4, "Timeout", exec.timeout);
    }
}

fn times(sheet: &mut Sheet, status: &BackupStatus) {
    sheet.field(0, "Backup Format Version", &status.format_version);
    sheet.gap();
    sheet.field(0, "Started", time(status.start_timestamp.as_ref()));
    sheet.field(0, "Completed", time(status.completion_timestamp.as_ref()));
    sheet.gap();
    sheet.field(0, "Expiration", time(status.expiration.as_ref()));
}

fn items(sheet: &mut Sheet, backup: &Backup, status: &BackupStatus) {
    let Some(progress) = &status.progress else { return };
    sheet.gap();
    let (total, done) = match phase(backup) {
        BackupPhase::InProgress => {
            ("Estimated total items to be backed up", "Items backed up so far")
        }
        _ => ("Total items to be backed up", "Items backed up"),
    };
    sheet.field(0, total, progress.total_items);
    sheet.field(0, done, progress.items_backed_up);
}

fn operation(sheet: &mut Sheet, operation: &BackupOperation) {
    let BackupOperation { spec, status, .. } = operation;
    sheet.heading(1, &format!("Operation for {}", item(&spec.resource_identifier)));
    sheet.field(2, "Backup Item Action Plugin", &spec.backup_item_action);
    sheet.field(2, "Operation ID", &spec.operation_id);
    if !spec.post_operation_items.is_empty() {
        sheet.list(2, "Items to Update", spec.post_operation_items.iter().map(item));
    }
    section::operation_status(sheet, status);
}

/// Whether the newer filters are used, which tell apart what lives in a namespace and what does not.
pub(super) fn has_scoped_filters(spec: &BackupSpec) -> bool {
    !spec.included_cluster_scoped_resources.is_empty()
        || !spec.excluded_cluster_scoped_resources.is_empty()
        || !spec.included_namespace_scoped_resources.is_empty()
        || !spec.excluded_namespace_scoped_resources.is_empty()
}
