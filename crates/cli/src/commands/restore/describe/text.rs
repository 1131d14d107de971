//! A restore for people: the sections that Velero prints, in its order and its words.

use bowline_api::restore::{ExistingResourcePolicy, RestoreStatusSpec, RestoreUploaderConfig};
use bowline_api::{Restore, RestorePhase, RestoreSpec, VolumePluginRestore};
use bowline_store::file::RestoreOperation;

use super::super::phase;
use super::{Files, volumes};
use crate::describe::section::{self, choice, excluded, included, item, pairs, time};
use crate::describe::{self, Transfers};
use crate::run::{Run as _, Summary};
use crate::sheet::{NONE, Sheet};

pub(super) fn render(
    restore: &Restore,
    files: &Files,
    transfers: &Transfers,
    details: bool,
) -> String {
    let mut sheet = Sheet::default();
    let status = restore.status.clone().unwrap_or_default();
    let summary = restore.summary();
    section::metadata(&mut sheet, restore);
    sheet.gap();
    section::phase(&mut sheet, restore);
    items(&mut sheet, restore);
    sheet.gap();
    times(&mut sheet, &summary);
    section::reasons(&mut sheet, &summary);
    section::results(&mut sheet, &summary, files.results.as_ref());
    sheet.gap();
    source(&mut sheet, &restore.spec);
    filters(&mut sheet, &restore.spec);
    sheet.gap();
    let volumes = choice(restore.spec.restore_pvs, "false", "true", "auto");
    sheet.field(0, "Restore PVs", volumes);
    volumes::render(&mut sheet, restore, files, details);
    describe::volumes::text::<VolumePluginRestore>(&mut sheet, transfers, details);
    settings(&mut sheet, &restore.spec);
    let counts = (
        status.restore_item_operations_attempted,
        status.restore_item_operations_completed,
        status.restore_item_operations_failed,
    );
    let file = files.operations.as_ref();
    section::operations(&mut sheet, "Restore Item Operations", counts, file, operation);
    section::hooks(&mut sheet, status.hook_status.as_ref());
    section::resources(&mut sheet, files.resources.as_ref());
    sheet.finish()
}

fn items(sheet: &mut Sheet, restore: &Restore) {
    let status = restore.status.as_ref();
    let Some(progress) = status.and_then(|status| status.progress.as_ref()) else { return };
    let (total, done) = match phase(restore) {
        RestorePhase::InProgress => {
            ("Estimated total items to be restored", "Items restored so far")
        }
        _ => ("Total items to be restored", "Items restored"),
    };
    sheet.field(0, total, progress.total_items);
    sheet.field(0, done, progress.items_restored);
}

fn times(sheet: &mut Sheet, summary: &Summary) {
    sheet.field(0, "Started", time(summary.started.as_ref()));
    sheet.field(0, "Completed", time(summary.ended.as_ref()));
}

fn source(sheet: &mut Sheet, spec: &RestoreSpec) {
    // Of a schedule, the server chooses the backup.
    if spec.backup_name.is_empty() {
        sheet.field(0, "Schedule", &spec.schedule_name);
    } else {
        sheet.field(0, "Backup", &spec.backup_name);
    }
}

fn filters(sheet: &mut Sheet, spec: &RestoreSpec) {
    sheet.gap();
    sheet.heading(0, "Namespaces");
    let all = ["*".to_owned()];
    let namespaces = match spec.included_namespaces.as_slice() {
        list if list.is_empty() || list == all => "all namespaces found in the backup".to_owned(),
        list => list.join(", "),
    };
    sheet.field(1, "Included", namespaces);
    sheet.field(1, "Excluded", excluded(&spec.excluded_namespaces));
    sheet.gap();
    sheet.heading(0, "Resources");
    sheet.field(1, "Included", included(&spec.included_resources));
    sheet.field(1, "Excluded", excluded(&spec.excluded_resources));
    let cluster = choice(spec.include_cluster_resources, "excluded", "included", "auto");
    sheet.field(1, "Cluster-scoped", cluster);
    sheet.gap();
    sheet.list(0, "Namespace mappings", pairs(&spec.namespace_mapping));
    section::selectors(sheet, spec.label_selector.as_ref(), &spec.or_label_selectors);
}

fn settings(sheet: &mut Sheet, spec: &RestoreSpec) {
    sheet.gap();
    let policy = spec.existing_resource_policy.as_ref().map(ExistingResourcePolicy::as_str);
    let policy = policy.filter(|policy| !policy.is_empty()).unwrap_or(NONE);
    sheet.field(0, "Existing Resource Policy", policy);
    sheet.field(0, "ItemOperationTimeout", spec.item_operation_timeout);
    sheet.gap();
    let ports = choice(spec.preserve_node_ports, "false", "true", "auto");
    sheet.field(0, "Preserve Service NodePorts", ports);
    for (key, reference) in [
        ("Resource modifier", &spec.resource_modifier),
        ("Resource policies", &spec.resource_policy),
    ] {
        if let Some(reference) = reference {
            sheet.gap();
            sheet.heading(0, key);
            sheet.field(1, "Type", &reference.kind);
            sheet.field(1, "Name", &reference.name);
        }
    }
    if let Some(RestoreStatusSpec { included_resources, excluded_resources, .. }) =
        &spec.restore_status
    {
        sheet.gap();
        sheet.heading(0, "Restore status of");
        sheet.field(1, "Included", included(included_resources));
        sheet.field(1, "Excluded", excluded(excluded_resources));
    }
    if let Some(uploader) = &spec.uploader_config {
        self::uploader(sheet, uploader);
    }
}

fn uploader(sheet: &mut Sheet, uploader: &RestoreUploaderConfig) {
    sheet.gap();
    sheet.heading(0, "Uploader config");
    if uploader.write_sparse_files == Some(true) {
        sheet.field(1, "Write Sparse Files", true);
    }
    if uploader.parallel_files_download > 0 {
        sheet.field(1, "Parallel Restore", uploader.parallel_files_download);
    }
}

fn operation(sheet: &mut Sheet, operation: &RestoreOperation) {
    let RestoreOperation { spec, status, .. } = operation;
    sheet.heading(1, &format!("Operation for {}", item(&spec.resource_identifier)));
    sheet.field(2, "Restore Item Action Plugin", &spec.restore_item_action);
    sheet.field(2, "Operation ID", &spec.operation_id);
    section::operation_status(sheet, status);
}
