//! `bowline backup-location describe`

use bowline_api::backup_storage_location::ObjectStorageLocation;
use bowline_api::{BackupStorageLocation, BackupStorageLocationStatus};
use serde_json::{Value, json};

use super::get::{access_mode, bucket, failing_conditions, phase};
use crate::describe::section::{self, pairs, time};
use crate::describe::{Describable, document};
use crate::key_value_page::KeyValuePage;
use crate::redact;

impl Describable for BackupStorageLocation {
    fn text(&self) -> String {
        let shown = without_secrets(self);
        let Self { spec, .. } = &shown;
        let status = self.status.clone().unwrap_or_default();
        let mut page = KeyValuePage::default();
        section::metadata(&mut page, &shown);
        page.blank_line();
        page.field(0, "Phase", phase(self));
        if !status.message.is_empty() {
            page.field(0, "Message", &status.message);
        }
        for condition in failing_conditions(self) {
            let text = format!("{}: {}", condition.status, condition.message);
            page.field(0, &condition.type_, text);
        }
        page.blank_line();
        page.field(0, "Provider", &spec.provider);
        page.field(0, "Bucket", bucket(self));
        page.list(0, "Config", pairs(&spec.config));
        page.field(0, "Credential", section::credential(spec.credential.as_ref()));
        page.field(0, "Certificates", certificates(spec.object_storage.as_ref()));
        page.blank_line();
        page.field(0, "Default", spec.default);
        page.field(0, "Access Mode", access_mode(self));
        let (sync, check) = (spec.backup_sync_period, spec.validation_frequency);
        page.field(0, "Backup Sync Period", section::or_server_default(sync));
        page.field(0, "Validation Frequency", section::or_server_default(check));
        page.blank_line();
        page.field(0, "Last Validated", time(status.last_validation_time.as_ref()));
        page.field(0, "Last Synced", time(status.last_synced_time.as_ref()));
        page.finish()
    }

    fn json(&self) -> Value {
        let shown = without_secrets(self);
        let Self { spec, .. } = &shown;
        let BackupStorageLocationStatus {
            message,
            last_validation_time,
            last_synced_time,
            conditions,
            ..
        } = self.status.clone().unwrap_or_default();
        let mut document = document::object_document(&shown);
        document["phase"] = phase(self).into();
        if !message.is_empty() {
            document["message"] = message.into();
        }
        document["spec"] = json!({
            "provider": spec.provider,
            "bucket": bucket(self),
            "config": spec.config,
            "credential": spec.credential,
            "default": spec.default,
            "accessMode": access_mode(self),
            "backupSyncPeriod": spec.backup_sync_period,
            "validationFrequency": spec.validation_frequency,
        });
        document["status"] = json!({
            "lastValidationTime": time(last_validation_time.as_ref()),
            "lastSyncedTime": time(last_synced_time.as_ref()),
        });
        if !conditions.is_empty() {
            document["status"]["conditions"] = json!(conditions);
        }
        document
    }
}

/// Location without secrets that some users wrongly keep in its settings. `get -o yaml` has all of it.
fn without_secrets(location: &BackupStorageLocation) -> BackupStorageLocation {
    let mut shown = location.clone();
    shown.spec.config = redact::settings(&location.spec.config);
    shown.metadata.annotations = location.metadata.annotations.as_ref().map(redact::settings);
    shown
}

/// Source of the certificates that are trusted besides the system's.
fn certificates(bucket: Option<&ObjectStorageLocation>) -> String {
    let Some(ObjectStorageLocation { ca_cert, ca_cert_ref, .. }) = bucket else {
        return section::credential(None);
    };
    match ca_cert {
        Some(pem) if !pem.0.is_empty() && ca_cert_ref.is_none() => "in the location".to_owned(),
        _ => section::credential(ca_cert_ref.as_ref()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_that_cannot_be_used_says_why() {
        let location: BackupStorageLocation = serde_json::from_value(json!({
            "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
            "metadata": {"name": "default", "namespace": "velero", "labels": {"a": "b"}},
            "spec": {
                "provider": "aws", "default": true, "config": {"region": "x", "profile": "y"},
                "objectStorage": {"bucket": "b", "prefix": "p", "caCert": "UEVN"},
                "credential": {"name": "cloud", "key": "key"}, "backupSyncPeriod": "0s",
            },
            "status": {
                "phase": "Unavailable", "message": "access denied",
                "lastValidationTime": "2026-01-02T03:04:05Z",
            },
        }))
        .unwrap();
        insta::assert_snapshot!(location.text());
        insta::assert_snapshot!(format!("{:#}", location.json()));
    }

    #[test]
    fn secrets_in_the_settings_are_not_shown() {
        let applied = "kubectl.kubernetes.io/last-applied-configuration";
        let location: BackupStorageLocation = serde_json::from_value(json!({
            "metadata": {"name": "l", "annotations": {applied: "{\"secretKey\":\"s3cr3t\"}"}},
            "spec": {
                "provider": "x", "config": {"region": "y", "storageAccountKey": "s3cr3t"},
                "objectStorage": {"bucket": "b"},
            },
        }))
        .unwrap();
        for shown in [location.text(), location.json().to_string()] {
            assert!(!shown.contains("s3cr3t"), "{shown}");
            assert!(shown.contains("storageAccountKey") && shown.contains("region"), "{shown}");
        }
    }
}
