//! `bowline repo describe`

use bowline_api::BackupRepository;
use bowline_api::backup_repository::Maintenance;
use serde_json::{Value, json};

use super::phase;
use crate::describe::section::{self, pairs, time};
use crate::describe::{Describable, document};
use crate::key_value_page::{KeyValuePage, NONE};

impl Describable for BackupRepository {
    fn text(&self) -> String {
        let Self { spec, .. } = self;
        let status = self.status.clone().unwrap_or_default();
        let mut page = KeyValuePage::default();
        section::metadata(&mut page, self);
        page.blank_line();
        page.field(0, "Phase", phase(self));
        if !status.message.is_empty() {
            page.field(0, "Message", &status.message);
        }
        page.blank_line();
        page.field(0, "Volume Namespace", &spec.volume_namespace);
        page.field(0, "Backup Storage Location", &spec.backup_storage_location);
        page.field(0, "Repository Type", &spec.repository_type);
        page.list(0, "Config", pairs(&spec.repository_config));
        page.blank_line();
        page.field(0, "Maintenance Frequency", spec.maintenance_frequency);
        page.field(0, "Last Maintenance", time(status.last_maintenance_time.as_ref()));
        if !status.recent_maintenance.is_empty() {
            page.list(0, "Recent Maintenance", status.recent_maintenance.iter().map(maintenance));
        }
        page.finish()
    }

    fn json(&self) -> Value {
        let Self { spec, .. } = self;
        let status = self.status.clone().unwrap_or_default();
        let mut document = document::object_document(self);
        document["phase"] = phase(self).to_string().into();
        if !status.message.is_empty() {
            document["message"] = status.message.into();
        }
        document["spec"] = json!({
            "volumeNamespace": spec.volume_namespace,
            "backupStorageLocation": spec.backup_storage_location,
            "repositoryType": spec.repository_type,
            "config": spec.repository_config,
            "maintenanceFrequency": spec.maintenance_frequency,
        });
        document["status"] = json!({
            "lastMaintenanceTime": time(status.last_maintenance_time.as_ref()),
            "recentMaintenance": status.recent_maintenance,
        });
        document
    }
}

/// One maintenance run in a line.
fn maintenance(one: &Maintenance) -> String {
    let result = one.result.as_ref().map_or_else(|| NONE.to_owned(), ToString::to_string);
    let message = if one.message.is_empty() { "" } else { ": " };
    format!("{} {result}{message}{}", time(one.start_timestamp.as_ref()), one.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_says_how_its_maintenance_went() {
        let repository: BackupRepository = serde_json::from_value(json!({
            "metadata": {"name": "web-default-kopia", "namespace": "velero"},
            "spec": {
                "volumeNamespace": "web", "backupStorageLocation": "default",
                "repositoryType": "kopia", "maintenanceFrequency": "1h0m0s",
            },
            "status": {
                "phase": "NotReady", "message": "no bucket",
                "lastMaintenanceTime": "2026-01-02T03:04:05Z",
                "recentMaintenance": [
                    {"result": "Succeeded", "startTimestamp": "2026-01-02T02:04:05Z"},
                    {"result": "Failed", "startTimestamp": "2026-01-02T03:04:05Z", "message": "oh"},
                ],
            },
        }))
        .unwrap();
        insta::assert_snapshot!(repository.text());
        insta::assert_snapshot!(format!("{:#}", repository.json()));
    }
}
