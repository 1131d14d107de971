//! Backups in the cluster, as far as a synchronization needs to know them.
//!
//! All Backups are listed every minute. Thousands of whole ones would take tens of megabytes, most of it managed fields,
//! and several times the CPU time.

use bowline_api::{Backup, BackupPhase};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{ListParams, Preconditions};
use kube::core::{ListMeta, Request};
use kube::{Client, Resource as _};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::list::{PAGE_SIZE, next_page};

/// A Backup in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "ListedBackup")]
pub(super) struct BackupSummary {
    pub(super) name: String,
    pub(super) uid: Option<String>,
    pub(super) resource_version: Option<String>,
    pub(super) created: Option<Timestamp>,
    /// True if the Backup waits for its finalizers only.
    pub(super) is_being_deleted: bool,
    pub(super) location: String,
    /// Value of the label with the location.
    pub(super) location_label: Option<String>,
    pub(super) phase: Option<BackupPhase>,
    /// True if the Backup was imported only in part.
    pub(super) is_incomplete: bool,
}

impl BackupSummary {
    /// Conditions under which the Backup is the one that was listed, unchanged.
    pub(super) fn preconditions(&self) -> Preconditions {
        Preconditions { uid: self.uid.clone(), resource_version: self.resource_version.clone() }
    }
}

/// All Backups of a namespace.
pub(super) async fn list(client: &Client, namespace: &str) -> kube::Result<Vec<BackupSummary>> {
    let request = Request::new(Backup::url_path(&(), Some(namespace)));
    let (mut next, mut all) = (Some(ListParams::default().limit(PAGE_SIZE)), Vec::new());
    while let Some(params) = next {
        let page = request.list(&params).map_err(kube::Error::BuildRequest)?;
        let page: Page = client.request(page).await?;
        all.extend(page.items);
        next = next_page(params, &page.metadata);
    }
    Ok(all)
}

#[derive(Deserialize)]
struct Page {
    metadata: ListMeta,
    items: Vec<BackupSummary>,
}

/// The fields of a Backup that are read.
#[derive(Deserialize)]
struct ListedBackup {
    metadata: Metadata,
    spec: Option<Spec>,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<IgnoredAny>,
    labels: Option<Labels>,
    annotations: Option<Annotations>,
}

#[derive(Deserialize)]
struct Labels {
    #[serde(rename = "velero.io/storage-location")]
    location: Option<String>,
}

#[derive(Deserialize)]
struct Annotations {
    #[serde(rename = "bowline.io/sync-incomplete")]
    incomplete: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    storage_location: Option<String>,
}

#[derive(Deserialize)]
struct Status {
    phase: Option<BackupPhase>,
}

impl From<ListedBackup> for BackupSummary {
    fn from(ListedBackup { metadata, spec, status }: ListedBackup) -> Self {
        Self {
            name: metadata.name,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            created: metadata.creation_timestamp.map(|time| time.0),
            is_being_deleted: metadata.deletion_timestamp.is_some(),
            location: spec.and_then(|spec| spec.storage_location).unwrap_or_default(),
            location_label: metadata.labels.and_then(|labels| labels.location),
            phase: status.and_then(|status| status.phase),
            is_incomplete: metadata.annotations.is_some_and(|all| all.incomplete.is_some()),
        }
    }
}

#[cfg(test)]
mod tests {
    use bowline_api::label;
    use serde_json::{Value, json};

    use super::super::INCOMPLETE;
    use super::*;

    fn read(value: Value) -> BackupSummary {
        serde_json::from_value(value).unwrap()
    }

    /// What is read by other names than a Backup is written with would silently be missing.
    #[test]
    fn summary_has_what_a_backup_says() {
        let mut backup = Backup::default();
        let metadata = &mut backup.metadata;
        metadata.name = Some("b".to_owned());
        metadata.uid = Some("u".to_owned());
        metadata.resource_version = Some("7".to_owned());
        let time = Time(Timestamp::from_second(100).unwrap());
        metadata.creation_timestamp = Some(time.clone());
        metadata.deletion_timestamp = Some(time);
        let label = (label::STORAGE_LOCATION.to_owned(), "l".to_owned());
        metadata.labels = Some([label].into());
        metadata.annotations = Some([(INCOMPLETE.to_owned(), "true".to_owned())].into());
        backup.spec.storage_location = "default".to_owned();
        backup.status.get_or_insert_default().phase = Some(BackupPhase::Completed);
        let expected = BackupSummary {
            name: "b".to_owned(),
            uid: Some("u".to_owned()),
            resource_version: Some("7".to_owned()),
            created: Some(Timestamp::from_second(100).unwrap()),
            is_being_deleted: true,
            location: "default".to_owned(),
            location_label: Some("l".to_owned()),
            phase: Some(BackupPhase::Completed),
            is_incomplete: true,
        };
        assert_eq!(read(serde_json::to_value(backup).unwrap()), expected);
    }

    #[test]
    fn fields_may_be_missing_or_null() {
        let bare = BackupSummary { name: "b".to_owned(), ..BackupSummary::default() };
        assert_eq!(read(json!({"metadata": {"name": "b"}})), bare);
        let nulls = json!({"name": "b", "labels": null, "annotations": null});
        assert_eq!(read(json!({"metadata": nulls, "spec": {}, "status": null})), bare);
    }

    /// Thousands are in memory at a time.
    #[test]
    fn summary_is_small() {
        assert!(std::mem::size_of::<BackupSummary>() <= 192);
        assert!(std::mem::size_of::<Backup>() > 4 * std::mem::size_of::<BackupSummary>());
    }
}
