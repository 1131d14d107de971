//! PersistentVolumeClaims: adds the volume of a bound claim, and removes fields of its old binding.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bowline_api::{Backup, annotation, label};
use bowline_plugin::{
    BackupItemAction, BackupOutput, Code, Encoded, Error, Item, ResourceIdentifier,
    ResourceSelector, Result,
};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::{id, unreadable_item_error};

/// Adds the volume of a bound claim, and removes the fields that would prevent its restore: its
/// data source, the selector of its volume, and labels of earlier backups and restores.
///
/// Velero calls it `velero.io/pv`.
pub(super) struct ClaimAction;

/// Prefix of selector labels that a restore has added.
const VELERO_LABEL_PREFIX: &str = "velero.io/";

/// Parsed fields of a claim.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Claim {
    pub(super) metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Metadata {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) labels: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    volume_name: Option<String>,
    storage_class_name: Option<String>,
    data_source: Option<IgnoredAny>,
    data_source_ref: Option<IgnoredAny>,
    selector: Option<Selector>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Selector {
    match_labels: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: Option<String>,
}

impl Claim {
    pub(super) fn read(item: &Item) -> Result<Self> {
        serde_json::from_slice(item.json()).map_err(|error| unreadable_item_error(&error))
    }

    /// Volume of a bound claim.
    pub(super) fn volume(&self) -> Option<ResourceIdentifier> {
        let name = self.spec.volume_name.as_deref().filter(|name| !name.is_empty())?;
        let is_bound = self.status.phase.as_deref() == Some("Bound");
        is_bound.then(|| id("", "persistentvolumes", "", name))
    }

    /// True if the selector is kept: a claim with an empty storage class is bound by its selector.
    fn keeps_selector(&self) -> bool {
        self.spec.storage_class_name.as_deref() == Some("")
    }

    fn needs_cleaning(&self, backup: &str) -> bool {
        let spec = &self.spec;
        let is_chosen = spec.selector.as_ref().is_some_and(|selector| {
            let mut labels = selector.match_labels.iter().flat_map(BTreeMap::keys);
            !self.keeps_selector() || labels.any(|key| key.starts_with(VELERO_LABEL_PREFIX))
        });
        let mut labels = self.metadata.labels.iter().flatten();
        spec.data_source.is_some()
            || spec.data_source_ref.is_some()
            || is_chosen
            || labels.any(|(key, value)| is_stale(key, value, backup))
    }
}

/// True for a label left over from another backup or restore.
fn is_stale(key: &str, value: &str, backup: &str) -> bool {
    match key {
        label::RESTORE_NAME | label::VOLUME_SNAPSHOT_NAME | annotation::MUST_INCLUDE_ON_BACKUP => {
            true
        }
        label::BACKUP_NAME => value != label::value(backup),
        _ => false,
    }
}

/// Claim without the fields of its old binding.
fn strip_stale_fields(item: &Item, claim: &Claim, backup: &str) -> Result<Item> {
    let broken = |error| Error::new(Code::Internal, format!("cannot change the claim: {error}"));
    let mut object: Value = item.parse().map_err(broken)?;
    if let Some(metadata) = object["metadata"].as_object_mut() {
        retain(metadata, "labels", |key, value| {
            !is_stale(key, value.as_str().unwrap_or_default(), backup)
        });
    }
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("dataSource");
        spec.remove("dataSourceRef");
        if !claim.keeps_selector() {
            spec.remove("selector");
        } else if let Some(selector) = spec.get_mut("selector").and_then(Value::as_object_mut) {
            retain(selector, "matchLabels", |key, _| !key.starts_with(VELERO_LABEL_PREFIX));
        }
    }
    Item::from_object(&object).map_err(broken)
}

/// Keeps some entries of a nested map, and the map itself only if it is not empty.
fn retain(parent: &mut Map<String, Value>, key: &str, keep: impl Fn(&str, &Value) -> bool) {
    if let Some(map) = parent.get_mut(key).and_then(Value::as_object_mut) {
        map.retain(|key, value| keep(key, value));
        if map.is_empty() {
            parent.remove(key);
        }
    }
}

#[async_trait]
impl BackupItemAction for ClaimAction {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["persistentvolumeclaims"]))
    }

    async fn execute(&self, item: &Item, backup: &Encoded<Backup>) -> Result<BackupOutput> {
        let claim = Claim::read(item)?;
        let mut output = BackupOutput::unchanged(item);
        let Some(volume) = claim.volume() else { return Ok(output) };
        output.additional_items.push(volume);
        let backup = backup.metadata.name.as_deref().unwrap_or_default();
        if claim.needs_cleaning(backup) {
            output.item = strip_stale_fields(item, &claim, backup)?;
        }
        Ok(output)
    }
}
