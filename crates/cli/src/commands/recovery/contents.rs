//! Contents of a recovery file: a List that `kubectl apply` accepts, with a description of itself.

use anyhow::{Context as _, bail};
use bowline_api::{BackupStorageLocation, VolumeSnapshotLocation};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use zeroize::Zeroizing;

/// Version of the contents that is written, and the newest that is read.
const CONTENTS_VERSION: u32 = 1;
/// More objects than the Secrets and locations of any installation.
const MAX_ITEMS: usize = 10_000;
/// Contains the whole object once more, values of Secrets included.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Objects of a recovery file.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(super) about: ExportInfo,
    pub(super) secrets: Vec<Secret>,
    pub(super) backup_locations: Vec<BackupStorageLocation>,
    pub(super) snapshot_locations: Vec<VolumeSnapshotLocation>,
}

/// Origin of the objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExportInfo {
    version: u32,
    /// Time of the export.
    pub(super) exported: String,
    /// Namespace of the objects.
    pub(super) namespace: String,
}

impl ExportInfo {
    pub(super) fn new(exported: String, namespace: String) -> Self {
        Self { version: CONTENTS_VERSION, exported, namespace }
    }
}

/// File as it is written. `kubectl` ignores the fields that it does not know.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct List {
    api_version: String,
    kind: String,
    bowline_recovery: Option<ExportInfo>,
    items: Vec<Value>,
}

impl Contents {
    pub(crate) fn count(&self) -> usize {
        self.secrets.len() + self.backup_locations.len() + self.snapshot_locations.len()
    }

    /// Text to encrypt.
    pub(super) fn encode(&self) -> anyhow::Result<Zeroizing<Vec<u8>>> {
        let mut items = Vec::with_capacity(self.count());
        for secret in &self.secrets {
            items.push(serde_json::to_value(secret)?);
        }
        for location in &self.backup_locations {
            items.push(serde_json::to_value(location)?);
        }
        for location in &self.snapshot_locations {
            items.push(serde_json::to_value(location)?);
        }
        let list = List {
            api_version: "v1".to_owned(),
            kind: "List".to_owned(),
            bowline_recovery: Some(self.about.clone()),
            items,
        };
        let mut text = Zeroizing::new(serde_json::to_vec_pretty(&list)?);
        text.push(b'\n');
        Ok(text)
    }

    /// Parses decrypted text. Errors never quote it.
    pub(crate) fn decode(text: &[u8]) -> anyhow::Result<Self> {
        let Ok(list) = serde_json::from_slice::<List>(text) else {
            bail!("not a recovery file: it contains no list of objects");
        };
        let Some(about) = list.bowline_recovery.filter(|_| list.kind == "List") else {
            bail!("the contents are not those of a recovery file");
        };
        if about.version > CONTENTS_VERSION {
            bail!(
                "the recovery file has content version {}, and this program supports up to \
                 {CONTENTS_VERSION}; use a newer one",
                about.version
            );
        }
        if list.items.len() > MAX_ITEMS {
            bail!(
                "the recovery file has {} objects, but at most {MAX_ITEMS} are supported",
                list.items.len()
            );
        }
        let mut contents = Self {
            about,
            secrets: Vec::new(),
            backup_locations: Vec::new(),
            snapshot_locations: Vec::new(),
        };
        for item in list.items {
            contents.add(item)?;
        }
        Ok(contents)
    }

    fn add(&mut self, item: Value) -> anyhow::Result<()> {
        let text = |name: &str| item[name].as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text("apiVersion"), text("kind"));
        let name = item["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let unreadable = || format!("{kind} {name:?} in the recovery file cannot be read");
        match (version.as_str(), kind.as_str()) {
            ("v1", "Secret") => {
                // The parser's message could quote a value.
                let Ok(mut secret) = serde_json::from_value::<Secret>(item) else {
                    bail!(unreadable());
                };
                if let Some(texts) = secret.string_data.take() {
                    let bytes = texts
                        .into_iter()
                        .map(|(key, text)| (key, k8s_openapi::ByteString(text.into_bytes())));
                    secret.data.get_or_insert_default().extend(bytes);
                }
                secret.metadata = portable(&secret.metadata);
                self.secrets.push(secret);
            }
            ("velero.io/v1", "BackupStorageLocation") => {
                let location = serde_json::from_value(item).with_context(unreadable)?;
                self.backup_locations.push(portable_backup_location(&location));
            }
            ("velero.io/v1", "VolumeSnapshotLocation") => {
                let location = serde_json::from_value(item).with_context(unreadable)?;
                self.snapshot_locations.push(portable_snapshot_location(&location));
            }
            _ => bail!(
                "the recovery file contains an object of {version} {kind}, but only Secrets and \
                 locations are allowed"
            ),
        }
        Ok(())
    }
}

/// Metadata of an object that has the same meaning in another cluster.
pub(super) fn portable(metadata: &ObjectMeta) -> ObjectMeta {
    let mut annotations = metadata.annotations.clone();
    if let Some(annotations) = &mut annotations {
        annotations.remove(LAST_APPLIED);
    }
    ObjectMeta {
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        labels: metadata.labels.clone().filter(|labels| !labels.is_empty()),
        annotations: annotations.filter(|annotations| !annotations.is_empty()),
        ..ObjectMeta::default()
    }
}

/// Secret as stored in a file.
pub(super) fn portable_secret(secret: &Secret) -> Secret {
    Secret { metadata: portable(&secret.metadata), string_data: None, ..secret.clone() }
}

/// Location as stored in a file.
pub(super) fn portable_backup_location(location: &BackupStorageLocation) -> BackupStorageLocation {
    let mut copy = BackupStorageLocation::new(&location.name_any(), location.spec.clone());
    copy.metadata = portable(&location.metadata);
    copy
}

/// Location as stored in a file.
pub(super) fn portable_snapshot_location(
    location: &VolumeSnapshotLocation,
) -> VolumeSnapshotLocation {
    let mut copy = VolumeSnapshotLocation::new(&location.name_any(), location.spec.clone());
    copy.metadata = portable(&location.metadata);
    copy
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn list(items: &Value) -> Vec<u8> {
        let about =
            json!({"version": 1, "exported": "2026-11-16T14:00:00Z", "namespace": "velero"});
        let list =
            json!({"apiVersion": "v1", "kind": "List", "bowlineRecovery": about, "items": items});
        list.to_string().into_bytes()
    }

    #[test]
    fn contents_round_trip_without_cluster_specific_metadata() {
        let text = list(&json!([
            {
                "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": {"cloud": "a2V5"},
                "metadata": {
                    "name": "c", "namespace": "velero", "uid": "u", "resourceVersion": "7",
                    "labels": {"a": "b"}, "annotations": {LAST_APPLIED: "{\"data\":…}"},
                    "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "y"}],
                },
            },
            {
                "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
                "metadata": {"name": "main", "finalizers": ["x"]},
                "spec": {"provider": "aws", "objectStorage": {"bucket": "b"}, "future": 1},
                "status": {"phase": "Available"},
            },
            {
                "apiVersion": "velero.io/v1", "kind": "VolumeSnapshotLocation",
                "metadata": {"name": "local"}, "spec": {"provider": "bowline.io/local-volume"},
            },
        ]));
        let contents = Contents::decode(&text).unwrap();
        let decoded = Contents::decode(&contents.encode().unwrap()).unwrap();
        assert_eq!(decoded.about, contents.about);
        assert_eq!(contents.count(), 3);
        let encoded: Value = serde_json::from_slice(&contents.encode().unwrap()).unwrap();
        assert_eq!(
            encoded["items"],
            json!([
                {
                    "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": {"cloud": "a2V5"},
                    "metadata": {"name": "c", "namespace": "velero", "labels": {"a": "b"}},
                },
                {
                    "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
                    "metadata": {"name": "main"},
                    "spec": {"provider": "aws", "objectStorage": {"bucket": "b"}, "future": 1},
                },
                {
                    "apiVersion": "velero.io/v1", "kind": "VolumeSnapshotLocation",
                    "metadata": {"name": "local"}, "spec": {"provider": "bowline.io/local-volume"},
                },
            ])
        );
    }

    #[test]
    fn foreign_contents_are_refused_without_quoting_them() {
        let pod = json!([{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hunter2"}}]);
        let broken =
            json!([{"apiVersion": "v1", "kind": "Secret", "data": {"a": "hunter2 is no base64"}}]);
        let newer = String::from_utf8(list(&json!([]))).unwrap().replace(":1,", ":2,");
        for (text, expected) in [
            (b"hunter2".to_vec(), "no list of objects"),
            (b"{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[]}".to_vec(), "recovery file"),
            (list(&pod), "only Secrets and locations"),
            (list(&broken), "cannot be read"),
            (newer.replace("\"version\":1", "\"version\":2").into_bytes(), "use a newer one"),
        ] {
            let error = format!("{:#}", Contents::decode(&text).unwrap_err());
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
    }
}
