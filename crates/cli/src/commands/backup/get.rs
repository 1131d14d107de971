//! `bowline backup get`

use bowline_api::{Backup, Duration};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::describe::section::selector_text;
use crate::key_value_page::NONE;
use crate::relative_time;
use crate::run::Run as _;
use crate::table::Tabular;

impl Tabular for Backup {
    const HEADER: &'static [&'static str] = &[
        "NAME",
        "STATUS",
        "ERRORS",
        "WARNINGS",
        "CREATED",
        "EXPIRES",
        "STORAGE LOCATION",
        "QUEUE POSITION",
        "SELECTOR",
    ];

    fn row(&self, now: Timestamp) -> Vec<String> {
        let status = self.status.clone().unwrap_or_default();
        let created = status
            .start_timestamp
            .as_ref()
            .map_or_else(|| NONE.to_owned(), relative_time::go_format);
        let expires = expiration(self);
        let expires =
            expires.map_or_else(|| "n/a".to_owned(), |time| relative_time::relative_to(time, now));
        let position = match status.queue_position {
            0 => String::new(),
            position => position.to_string(),
        };
        vec![
            self.name_any(),
            self.state(),
            status.errors.to_string(),
            status.warnings.to_string(),
            created,
            expires,
            self.spec.storage_location.clone(),
            position,
            selector_text(self.spec.label_selector.as_ref()),
        ]
    }
}

/// Time of expiration, if it is known.
fn expiration(backup: &Backup) -> Option<Timestamp> {
    let expiration = backup.status.as_ref().and_then(|status| status.expiration.as_ref());
    if let Some(time) = expiration {
        return Some(time.0);
    }
    let ttl = backup.spec.ttl;
    let created = backup.metadata.creation_timestamp.as_ref().filter(|_| ttl > Duration::ZERO)?;
    created.0.checked_add(ttl.to_std()?).ok()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::{Value, json};

    use super::*;
    use crate::table::{self, LabelColumns, table, table_with_volumes};

    fn backup(name: &str, spec: &Value, status: &Value) -> Backup {
        serde_json::from_value(json!({
            "apiVersion": "velero.io/v1", "kind": "Backup",
            "metadata": {
                "name": name, "creationTimestamp": "2026-01-02T03:04:05Z",
                "labels": {"velero.io/storage-location": "default"},
            },
            "spec": spec, "status": status,
        }))
        .unwrap()
    }

    fn backups() -> Vec<Backup> {
        let done = json!({
            "phase": "Completed", "warnings": 2, "startTimestamp": "2026-01-02T03:04:06Z",
            "expiration": "2026-02-01T03:04:06Z",
        });
        let failed = json!({
            "phase": "PartiallyFailed", "errors": 12, "startTimestamp": "2026-01-01T03:04:06Z",
            "expiration": "2026-01-02T01:04:06Z",
        });
        let selector =
            json!({"storageLocation": "other", "labelSelector": {"matchLabels": {"app": "web"}}});
        vec![
            backup("nightly-20260101030405", &json!({"storageLocation": "default"}), &failed),
            backup("nightly-20260102030405", &json!({"storageLocation": "default"}), &done),
            backup("by-hand", &selector, &json!({"phase": "Queued", "queuePosition": 3})),
            backup("fresh", &json!({"ttl": "48h0m0s"}), &json!(null)),
        ]
    }

    #[test]
    fn the_table_shows_what_velero_shows() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let mut backups = backups();
        table::sort(&mut backups);
        insta::assert_snapshot!(table(&backups, &LabelColumns::default(), now));
    }

    #[test]
    fn watch_table_has_a_volume_progress_column() {
        let volumes = |backup: &Backup| match backup.name_any().as_str() {
            "by-hand" => "1/3 40%".to_owned(),
            _ => String::new(),
        };
        let table = table_with_volumes(
            &backups(),
            &LabelColumns::default(),
            Timestamp::UNIX_EPOCH,
            volumes,
        );
        let ends: Vec<&str> =
            table.lines().map(|line| line.rsplit("   ").next().unwrap().trim()).collect();
        assert_eq!(ends, ["VOLUMES", "<none>", "<none>", "1/3 40%", "<none>"], "{table}");
    }

    #[test]
    fn labels_become_columns() {
        #[derive(clap::Parser)]
        struct TestCommand {
            #[command(flatten)]
            labels: LabelColumns,
        }
        let words = ["get", "-L", "velero.io/storage-location,app", "--show-labels"];
        let line = TestCommand::try_parse_from(words).unwrap();
        let table = table(&backups()[..1], &line.labels, Timestamp::UNIX_EPOCH);
        let [header, row] = table.lines().collect::<Vec<_>>().try_into().unwrap();
        assert!(header.ends_with("SELECTOR   STORAGE-LOCATION   APP      LABELS"), "{header}");
        let end = "<none>     default            <none>   velero.io/storage-location=default";
        assert!(row.ends_with(end), "{row}");
    }
}
