//! `bowline schedule get`

use bowline_api::{Duration, Schedule};
use jiff::Timestamp;
use kube::ResourceExt as _;

use super::next::NextBackup;
use super::phase;
use crate::describe::section::selector_text;
use crate::key_value_page::NONE;
use crate::listing::ResourceKind as _;
use crate::relative_time;
use crate::table::Tabular;

impl Tabular for Schedule {
    const HEADER: &'static [&'static str] = &[
        "NAME",
        "STATUS",
        "CREATED",
        "SCHEDULE",
        "BACKUP TTL",
        "LAST BACKUP",
        "SELECTOR",
        "PAUSED",
        "NEXT",
    ];

    fn row(&self, now: Timestamp) -> Vec<String> {
        let created = self.metadata.creation_timestamp.as_ref();
        let last = self.status.as_ref().and_then(|status| status.last_backup.as_ref());
        vec![
            self.name_any(),
            phase(self).to_string(),
            created.map_or_else(|| NONE.to_owned(), relative_time::go_format),
            self.spec.schedule.clone(),
            ttl(self.spec.template.ttl),
            last.map_or_else(|| "n/a".to_owned(), |last| relative_time::relative_to(last.0, now)),
            selector_text(self.spec.template.label_selector.as_ref()),
            self.spec.paused.to_string(),
            // Last, so that Velero's columns keep their positions.
            NextBackup::for_schedule(self, now).relative_text(now),
        ]
    }

    /// Reason why it creates no backups.
    fn warning(&self) -> Option<String> {
        let errors = &self.status.as_ref()?.validation_errors;
        (!errors.is_empty())
            .then(|| format!("{} `{}`: {}", Self::NOUN, self.name_any(), errors.join("; ")))
    }
}

/// Retention of backups. Velero shows `0s` for the server's default, which is not what happens.
fn ttl(ttl: Duration) -> String {
    if ttl == Duration::ZERO { "<default>".to_owned() } else { ttl.to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::table::{LabelColumns, table};

    #[test]
    fn the_table_shows_what_velero_shows_and_what_comes_next() {
        let schedule = |name: &str, spec: Value, status: Value| -> Schedule {
            serde_json::from_value(json!({
                "apiVersion": "velero.io/v1", "kind": "Schedule",
                "metadata": {"name": name, "creationTimestamp": "2026-01-02T03:04:05Z"},
                "spec": spec, "status": status,
            }))
            .unwrap()
        };
        let template = json!({"ttl": "48h0m0s", "labelSelector": {"matchLabels": {"app": "web"}}});
        let schedules = [
            schedule(
                "nightly",
                json!({"schedule": "0 3 * * *", "template": template}),
                json!({"phase": "Enabled", "lastBackup": "2026-01-05T03:00:00Z"}),
            ),
            schedule(
                "fresh",
                json!({"schedule": "@every 6h", "paused": true, "template": {}}),
                json!(null),
            ),
            schedule(
                "wrong",
                json!({"schedule": "never", "template": {}}),
                json!({"phase": "FailedValidation", "validationErrors": ["invalid schedule: x"]}),
            ),
        ];
        let now = "2026-01-05T05:00:00Z".parse().unwrap();
        insta::assert_snapshot!(table(&schedules, &LabelColumns::default(), now));
        let warnings: Vec<String> = schedules.iter().filter_map(Tabular::warning).collect();
        assert_eq!(warnings, ["schedule `wrong`: invalid schedule: x"]);
    }
}
