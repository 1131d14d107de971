//! `bowline repo get`

use bowline_api::BackupRepository;
use bowline_api::backup_repository::BackupRepositoryPhase;
use jiff::Timestamp;
use kube::ResourceExt as _;

use super::phase;
use crate::listing::ResourceKind as _;
use crate::relative_time;
use crate::table::Tabular;

impl Tabular for BackupRepository {
    const HEADER: &'static [&'static str] = &["NAME", "STATUS", "LAST MAINTENANCE"];

    fn row(&self, _: Timestamp) -> Vec<String> {
        let last = self.status.as_ref().and_then(|status| status.last_maintenance_time.as_ref());
        vec![
            self.name_any(),
            phase(self).to_string(),
            last.map_or_else(|| "<never>".to_owned(), relative_time::go_format),
        ]
    }

    /// Reason why it cannot be used.
    fn warning(&self) -> Option<String> {
        let message = &self.status.as_ref()?.message;
        let is_unusable = phase(self) == BackupRepositoryPhase::NotReady && !message.is_empty();
        is_unusable.then(|| format!("{} `{}`: {message}", Self::NOUN, self.name_any()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::table::{LabelColumns, table};

    #[test]
    fn the_table_shows_what_velero_shows() {
        let repository = |name: &str, status: Value| -> BackupRepository {
            serde_json::from_value(json!({"metadata": {"name": name}, "status": status})).unwrap()
        };
        let repositories = [
            repository(
                "web-default-kopia",
                json!({"phase": "Ready", "lastMaintenanceTime": "2026-01-02T03:04:05Z"}),
            ),
            repository("db-default-kopia", json!({"phase": "NotReady", "message": "no bucket"})),
            repository("new", json!(null)),
        ];
        let now = Timestamp::UNIX_EPOCH;
        insta::assert_snapshot!(table(&repositories, &LabelColumns::default(), now));
        let warnings: Vec<String> = repositories.iter().filter_map(Tabular::warning).collect();
        assert_eq!(warnings, ["repository `db-default-kopia`: no bucket"]);
    }
}
