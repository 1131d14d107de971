//! A restore for people: the sections that Velero prints, in its order and its words.

use bowline_api::restore::{ExistingResourcePolicy, RestoreStatusSpec, RestoreUploaderConfig};
use bowline_api::{Restore, RestorePhase, RestoreSpec, VolumePluginRestore};
use bowline_store::file::RestoreOperation;

use super::super::phase;
use super::{Files, volumes};
use crate::describe::section::{self, choice_text, excluded, included, item, pairs, time};
use crate::describe::{self, FetchedVolumeProgress};
use crate::key_value_page::{KeyValuePage, NONE};
use crate::run::{Run as _, Summary};

pub(super) fn render(
    restore: &Restore,
    files: &Files,
    transfers: &FetchedVolumeProgress,
    details: bool,
) -> String {
    let mut page = KeyValuePage::default();
    let status = restore.status.clone().unwrap_or_default();
    let summary = restore.summary();
    section::metadata(&mut page, restore);
    page.blank_line();
    section::phase(&mut page, restore);
    items(&mut page, restore);
    page.blank_line();
    times(&mut page, &summary);
    section::reasons(&mut page, &summary);
    section::results(&mut page, &summary, files.results.as_ref());
    page.blank_line();
    source(&mut page, &restore.spec);
    filters(&mut page, &restore.spec);
    page.blank_line();
    let volumes = choice_text(restore.spec.restore_pvs, "false", "true", "auto");
    page.field(0, "Restore PVs", volumes);
    volumes::render(&mut page, restore, files, details);
    describe::volumes::text::<VolumePluginRestore>(&mut page, transfers, details);
    settings(&mut page, &restore.spec);
    let counts = (
        status.restore_item_operations_attempted,
        status.restore_item_operations_completed,
        status.restore_item_operations_failed,
    );
    let file = files.operations.as_ref();
    section::operations(&mut page, "Restore Item Operations", counts, file, operation);
    section::hooks(&mut page, status.hook_status.as_ref());
    section::resources(&mut page, files.resources.as_ref());
    page.finish()
}

fn items(page: &mut KeyValuePage, restore: &Restore) {
    let status = restore.status.as_ref();
    let Some(progress) = status.and_then(|status| status.progress.as_ref()) else { return };
    let (total, done) = match phase(restore) {
        RestorePhase::InProgress => {
            ("Estimated total items to be restored", "Items restored so far")
        }
        _ => ("Total items to be restored", "Items restored"),
    };
    page.field(0, total, progress.total_items);
    page.field(0, done, progress.items_restored);
}

fn times(page: &mut KeyValuePage, summary: &Summary) {
    page.field(0, "Started", time(summary.started.as_ref()));
    page.field(0, "Completed", time(summary.ended.as_ref()));
}

fn source(page: &mut KeyValuePage, spec: &RestoreSpec) {
    // The server chooses the backup of a schedule.
    if spec.backup_name.is_empty() {
        page.field(0, "Schedule", &spec.schedule_name);
    } else {
        page.field(0, "Backup", &spec.backup_name);
    }
}

fn filters(page: &mut KeyValuePage, spec: &RestoreSpec) {
    page.blank_line();
    page.heading(0, "Namespaces");
    let all = ["*".to_owned()];
    let namespaces = match spec.included_namespaces.as_slice() {
        list if list.is_empty() || list == all => "all namespaces found in the backup".to_owned(),
        list => list.join(", "),
    };
    page.field(1, "Included", namespaces);
    page.field(1, "Excluded", excluded(&spec.excluded_namespaces));
    page.blank_line();
    page.heading(0, "Resources");
    page.field(1, "Included", included(&spec.included_resources));
    page.field(1, "Excluded", excluded(&spec.excluded_resources));
    let cluster = choice_text(spec.include_cluster_resources, "excluded", "included", "auto");
    page.field(1, "Cluster-scoped", cluster);
    page.blank_line();
    page.list(0, "Namespace mappings", pairs(&spec.namespace_mapping));
    section::selectors(page, spec.label_selector.as_ref(), &spec.or_label_selectors);
}

fn settings(page: &mut KeyValuePage, spec: &RestoreSpec) {
    page.blank_line();
    let policy = spec.existing_resource_policy.as_ref().map(ExistingResourcePolicy::as_str);
    let policy = policy.filter(|policy| !policy.is_empty()).unwrap_or(NONE);
    page.field(0, "Existing Resource Policy", policy);
    let operation_timeout = section::server_default_if_zero(spec.item_operation_timeout);
    page.field(0, "ItemOperationTimeout", operation_timeout);
    page.blank_line();
    let ports = choice_text(spec.preserve_node_ports, "false", "true", "auto");
    page.field(0, "Preserve Service NodePorts", ports);
    for (key, reference) in [
        ("Resource modifier", &spec.resource_modifier),
        ("Resource policies", &spec.resource_policy),
    ] {
        if let Some(reference) = reference {
            page.blank_line();
            page.heading(0, key);
            page.field(1, "Type", &reference.kind);
            page.field(1, "Name", &reference.name);
        }
    }
    if let Some(RestoreStatusSpec { included_resources, excluded_resources, .. }) =
        &spec.restore_status
    {
        page.blank_line();
        page.heading(0, "Restore status of");
        page.field(1, "Included", included(included_resources));
        page.field(1, "Excluded", excluded(excluded_resources));
    }
    if let Some(uploader) = &spec.uploader_config {
        self::uploader(page, uploader);
    }
}

fn uploader(page: &mut KeyValuePage, uploader: &RestoreUploaderConfig) {
    page.blank_line();
    page.heading(0, "Uploader config");
    if uploader.write_sparse_files == Some(true) {
        page.field(1, "Write Sparse Files", true);
    }
    if uploader.parallel_files_download > 0 {
        page.field(1, "Parallel Restore", uploader.parallel_files_download);
    }
}

fn operation(page: &mut KeyValuePage, operation: &RestoreOperation) {
    let RestoreOperation { spec, status, .. } = operation;
    page.heading(1, &format!("Operation for {}", item(&spec.resource_identifier)));
    page.field(2, "Restore Item Action Plugin", &spec.restore_item_action);
    page.field(2, "Operation ID", &spec.operation_id);
    section::operation_status(page, status);
}
