//! `bowline restore get`

use bowline_api::Restore;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use crate::describe::section::selector_text;
use crate::key_value_page::NONE;
use crate::relative_time;
use crate::run::Run as _;
use crate::table::Tabular;

impl Tabular for Restore {
    const HEADER: &'static [&'static str] = &[
        "NAME",
        "BACKUP",
        "STATUS",
        "STARTED",
        "COMPLETED",
        "ERRORS",
        "WARNINGS",
        "CREATED",
        "SELECTOR",
    ];

    fn row(&self, _: Timestamp) -> Vec<String> {
        let none = || NONE.to_owned();
        let time = |time: Option<&Time>| time.map_or_else(none, relative_time::go_format);
        let status = self.status.clone().unwrap_or_default();
        // The server sets it when a schedule was named.
        let backup = Some(self.spec.backup_name.clone()).filter(|name| !name.is_empty());
        vec![
            self.name_any(),
            backup.unwrap_or_else(none),
            self.state(),
            time(status.start_timestamp.as_ref()),
            time(status.completion_timestamp.as_ref()),
            status.errors.to_string(),
            status.warnings.to_string(),
            time(self.metadata.creation_timestamp.as_ref()),
            selector_text(self.spec.label_selector.as_ref()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::table::{self, LabelColumns, table};

    fn restore(name: &str, spec: &Value, status: &Value) -> Restore {
        serde_json::from_value(json!({
            "apiVersion": "velero.io/v1", "kind": "Restore",
            "metadata": {"name": name, "creationTimestamp": "2026-01-02T03:04:05Z"},
            "spec": spec, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn the_table_shows_what_velero_shows() {
        let done = json!({
            "phase": "Completed", "warnings": 2, "startTimestamp": "2026-01-02T03:04:06Z",
            "completionTimestamp": "2026-01-02T03:05:06Z",
        });
        let failed = json!({"phase": "PartiallyFailed", "errors": 12});
        let selector = json!({"backupName": "b", "labelSelector": {"matchLabels": {"app": "web"}}});
        let mut restores = vec![
            restore("b-20260101030405", &json!({"backupName": "b"}), &failed),
            restore("b-20260102030405", &json!({"backupName": "b"}), &done),
            restore("by-hand", &selector, &json!({"phase": "InProgress"})),
            restore("fresh", &json!({"scheduleName": "nightly"}), &json!(null)),
        ];
        table::sort(&mut restores);
        insta::assert_snapshot!(table(&restores, &LabelColumns::default(), Timestamp::UNIX_EPOCH));
    }
}
