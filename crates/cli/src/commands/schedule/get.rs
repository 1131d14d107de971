//! `bowline schedule get`

use bowline_api::{Duration, Schedule};
use jiff::Timestamp;
use kube::ResourceExt as _;

use super::next::Next;
use super::phase;
use crate::describe::section::selector_text;
use crate::listing::Kind as _;
use crate::moment;
use crate::sheet::NONE;
use crate::table::Listed;

impl Listed for Schedule {
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
            created.map_or_else(|| NONE.to_owned(), moment::text),
            self.spec.schedule.clone(),
            ttl(self.spec.template.ttl),
            last.map_or_else(|| "n/a".to_owned(), |last| moment::distance(last.0, now)),
            selector_text(self.spec.template.label_selector.as_ref()),
            self.spec.paused.to_string(),
            // Last, so that those that Velero has stay where they are.
            Next::of(self, now).distance(now),
        ]
    }

    /// Why it makes no backups.
    fn remark(&self) -> Option<String> {
        let errors = &self.status.as_ref()?.validation_errors;
        (!errors.is_empty())
            .then(|| format!("{} `{}`: {}", Self::NOUN, self.name_any(), errors.join("; ")))
    }
}

/// How long backups are kept. Velero shows `0s` where the server decides, which is not what happens.
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
        let remarks: Vec<String> = schedules.iter().filter_map(Listed::remark).collect();
        assert_eq!(remarks, ["schedule `wrong`: invalid schedule: x"]);
    }
}
