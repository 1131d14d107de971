//! `bowline schedule describe`: the sections that Velero prints, in its order and its words.

use bowline_api::Schedule;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::next::NextBackup;
use super::phase;
use crate::commands::backup::describe::{json as backup_json, text as backup_text};
use crate::describe::section::{self, time};
use crate::describe::{Describable, document};
use crate::key_value_page::KeyValuePage;
use crate::relative_time;

impl Describable for Schedule {
    fn text(&self) -> String {
        text(self, Timestamp::now())
    }

    fn json(&self) -> Value {
        json(self, Timestamp::now())
    }
}

fn text(schedule: &Schedule, now: Timestamp) -> String {
    let status = schedule.status.clone().unwrap_or_default();
    let template = &schedule.spec.template;
    let mut page = KeyValuePage::default();
    section::metadata(&mut page, schedule);
    page.blank_line();
    page.field(0, "Phase", phase(schedule));
    backup_text::policies(&mut page, template);
    backup_text::uploader(&mut page, template);
    if !status.validation_errors.is_empty() {
        page.blank_line();
        page.list(0, "Validation errors", &status.validation_errors);
    }
    page.blank_line();
    page.field(0, "Paused", schedule.spec.paused);
    page.blank_line();
    page.field(0, "Schedule", &schedule.spec.schedule);
    page.blank_line();
    page.heading(0, "Backup Template");
    page.indented(1, |page| backup_text::spec(page, template));
    page.blank_line();
    page.field(0, "Last Backup", or_never(status.last_backup.as_ref()));
    if status.last_skipped.is_some() {
        page.field(0, "Last Skipped", or_never(status.last_skipped.as_ref()));
    }
    page.field(0, "Next Backup", NextBackup::for_schedule(schedule, now));
    page.finish()
}

fn json(schedule: &Schedule, now: Timestamp) -> Value {
    let status = schedule.status.clone().unwrap_or_default();
    let spec = &schedule.spec;
    let mut document = document::object_document(schedule);
    document["phase"] = phase(schedule).to_string().into();
    if !status.validation_errors.is_empty() {
        document["validationErrors"] = status.validation_errors.into();
    }
    document["spec"] = json!({
        "schedule": spec.schedule,
        "paused": spec.paused,
        "skipImmediately": spec.skip_immediately,
        "useOwnerReferencesInBackup": spec.use_owner_references_in_backup,
        "template": backup_json::spec(&spec.template),
    });
    document["status"] = json!({
        "lastBackup": time(status.last_backup.as_ref()),
        "lastSkipped": time(status.last_skipped.as_ref()),
        "nextBackup": time(NextBackup::for_schedule(schedule, now).time().as_ref()),
    });
    document
}

fn or_never(time: Option<&Time>) -> String {
    time.map_or_else(|| "<never>".to_owned(), relative_time::go_format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_described_with_its_template() {
        let schedule: Schedule = serde_json::from_value(json!({
            "apiVersion": "velero.io/v1", "kind": "Schedule",
            "metadata": {"name": "nightly", "namespace": "velero", "labels": {"a": "b"}},
            "spec": {
                "schedule": "0 3 * * *", "paused": true, "useOwnerReferencesInBackup": false,
                "template": {
                    "includedNamespaces": ["web", "db"], "ttl": "48h0m0s",
                    "storageLocation": "default",
                    "labelSelector": {"matchLabels": {"app": "web"}},
                    "resourcePolicy": {"kind": "configmap", "name": "policies"},
                    "hooks": {"resources": [{
                        "name": "freeze", "includedNamespaces": ["db"],
                        "pre": [{"exec": {"container": "c", "command": ["sync"]}}],
                    }]},
                    "orderedResources": {"pods": "web/a,web/b"},
                },
            },
            "status": {
                "phase": "FailedValidation", "lastBackup": "2026-01-02T03:04:05Z",
                "validationErrors": ["invalid schedule: x"],
            },
        }))
        .unwrap();
        let now = Timestamp::UNIX_EPOCH;
        insta::assert_snapshot!(text(&schedule, now));
        insta::assert_snapshot!(format!("{:#}", json(&schedule, now)));
    }

    #[test]
    fn a_schedule_that_has_done_nothing_yet() {
        let schedule: Schedule = serde_json::from_value(json!({
            "metadata": {"name": "s"}, "spec": {"schedule": "@daily", "template": {}},
        }))
        .unwrap();
        insta::assert_snapshot!(text(&schedule, Timestamp::UNIX_EPOCH));
    }
}
