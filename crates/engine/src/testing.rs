//! What unit tests and integration tests share.
#![allow(
    clippy::unwrap_used,
    reason = "a test may end at once; clippy exempts only functions marked as tests by itself"
)]

mod snapshotter;

use bowline_api::location::LocationPhase;
use bowline_api::{
    Backup, BackupPhase, BackupStorageLocation, BackupStorageLocationStatus, Restore,
};
use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use serde_json::Value;
pub use snapshotter::{CompleteSnapshotter, PartialSnapshotter};

use crate::restore::request::{self, Defaults, Facts, Lookup, Request};

/// Archive of a backup with these objects, each with the folder of its resource, such as `pods` or `deployments.apps`.
pub fn archive(objects: &[(&str, Value)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (resource, object) in objects {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let folder = match text("namespace") {
            "" => "cluster".to_owned(),
            namespace => format!("namespaces/{namespace}"),
        };
        let path = format!("resources/{resource}/{folder}/{}.json", text("name"));
        let content = object.to_string();
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, path, content.as_bytes()).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap()
}

/// The Restore `r` of the completed Backup `b1`, whose location is available.
pub struct ValidRestore {
    /// The Restore.
    pub restore: Restore,
    /// The Backup.
    pub backup: Backup,
    /// Rules in the ConfigMap of resource modifiers, which only a Restore that names it reads.
    pub modifiers: String,
    /// Start of the restore.
    pub started_at: Timestamp,
}

impl ValidRestore {
    /// A Restore with this spec, and with the name of the Backup.
    pub fn new(spec: Value) -> Self {
        let mut restore = Restore::default();
        restore.metadata.name = Some("r".into());
        restore.metadata.namespace = Some("velero".into());
        restore.metadata.uid = Some("3f9f3c1e-0000-4000-8000-000000000001".into());
        restore.spec = serde_json::from_value(spec).unwrap();
        restore.spec.backup_name = "b1".into();
        let mut backup = Backup::default();
        backup.metadata.name = Some("b1".into());
        backup.status.get_or_insert_default().phase = Some(BackupPhase::Completed);
        let (modifiers, started_at) = (String::new(), Timestamp::now());
        Self { restore, backup, modifiers, started_at }
    }

    /// The request, which must be valid.
    pub fn request(self) -> Request {
        let Self { restore, backup, modifiers, started_at } = self;
        let status = BackupStorageLocationStatus {
            phase: Some(LocationPhase::Available),
            ..BackupStorageLocationStatus::default()
        };
        let location =
            BackupStorageLocation { status: Some(status), ..BackupStorageLocation::default() };
        let facts = Facts {
            backups: Ok(vec![backup]),
            location: Lookup::Found(location),
            modifiers: Lookup::Found([("rules.yaml".to_owned(), modifiers)].into()),
        };
        request::prepare(&restore, &facts, &Defaults::default(), started_at).outcome.unwrap()
    }
}
