//! The record of a snapshot: a small file beside its clone. It is written last, so that a snapshot
//! exists if its record does.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use bowline_plugin_sdk::jiff::Timestamp;
use bowline_plugin_sdk::serde_json;
use serde::{Deserialize, Serialize};

use crate::id::Id;
use crate::tree::clone::CloneSummary;

/// Format version of records. A later one may have to be read differently.
const RECORD_VERSION: u32 = 1;
/// Size limit of a record.
const MAX_RECORD_BYTES: u64 = 1024 * 1024;

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    version: u32,
    pub id: Id,
    /// The path of the volume.
    pub volume: String,
    /// The id of the request that created it, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// The point in time.
    pub created: Timestamp,
    pub cloned: CloneSummary,
    /// The boot id of the node at its creation.
    pub boot: String,
    /// True if the clone is known to be on disk. Until then it survives our process, but not the
    /// node.
    pub is_on_disk: bool,
    pub upload: UploadRecord,
}

/// State of the upload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub(crate) enum UploadRecord {
    /// Not requested yet.
    #[default]
    None,
    /// Begun; this does not say whether it is still running.
    #[serde(rename_all = "camelCase")]
    Begun { started: Timestamp },
    /// Failed or canceled. It can be repeated.
    #[serde(rename_all = "camelCase")]
    Failed { started: Timestamp, ended: Timestamp, error: String },
    /// Completely in the repository.
    #[serde(rename_all = "camelCase")]
    Done { started: Timestamp, ended: Timestamp, bytes: u64 },
}

impl Record {
    pub(crate) fn new(
        id: Id,
        volume: &str,
        request: Option<String>,
        created: Timestamp,
        boot: &str,
        cloned: CloneSummary,
    ) -> Self {
        // A btrfs snapshot is on disk when the call that creates it returns.
        let is_on_disk = cloned.method == crate::tree::clone::CloneMethod::Subvolume;
        Self {
            version: RECORD_VERSION,
            id,
            volume: volume.to_owned(),
            request,
            created,
            cloned,
            boot: boot.to_owned(),
            is_on_disk,
            upload: UploadRecord::None,
        }
    }

    pub(crate) fn is_uploaded(&self) -> bool {
        matches!(self.upload, UploadRecord::Done { .. })
    }

    /// True if the clone is intact: a node that crashed may have lost a part of it.
    pub(crate) fn is_clone_intact(&self, boot: &str) -> bool {
        self.is_on_disk || self.boot == boot
    }

    /// Reads a record; `None` if it does not exist.
    pub(crate) fn read(path: &Path) -> io::Result<Option<Self>> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut bytes = Vec::new();
        file.take(MAX_RECORD_BYTES).read_to_end(&mut bytes)?;
        let record: Self = serde_json::from_slice(&bytes)?;
        if record.version != RECORD_VERSION {
            return Err(io::Error::other(format!(
                "the record has version {}, and this plugin supports version {RECORD_VERSION}",
                record.version
            )));
        }
        Ok(Some(record))
    }

    /// Writes a record atomically, also with respect to a crash of the node.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        File::open(folder)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::clone::CloneMethod;

    fn record(method: CloneMethod) -> Record {
        let cloned = CloneSummary { method, files: 2, copied: 0, bytes: 3 };
        let created = "2026-11-01T10:00:00.123456789Z".parse().unwrap();
        let request = Some("r-1".to_owned());
        Record::new(Id::from_request("r-1"), "/data/vol", request, created, "boot-1", cloned)
    }

    #[test]
    fn record_round_trips() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        assert_eq!(Record::read(&path).unwrap(), None);
        let (started, ended) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
        for upload in [
            UploadRecord::None,
            UploadRecord::Begun { started },
            UploadRecord::Failed { started, ended, error: "no\nroom".to_owned() },
            UploadRecord::Done { started, ended, bytes: 7 },
        ] {
            let record = Record { upload, ..record(CloneMethod::Copy) };
            record.write(&path).unwrap();
            assert_eq!(Record::read(&path).unwrap(), Some(record));
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn foreign_record_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        record(CloneMethod::Copy).write(&path).unwrap();
        let good = std::fs::read_to_string(&path).unwrap();
        let id = Id::from_request("r-1");
        for bad in [
            String::new(),
            good[..good.len() / 2].to_owned(),
            good.replace("\"version\": 1", "\"version\": 2"),
            good.replace(id.as_str(), "../../etc"),
        ] {
            assert_ne!(bad, good);
            std::fs::write(&path, &bad).unwrap();
            assert!(Record::read(&path).is_err(), "{bad}");
        }
    }

    #[test]
    fn clone_not_synced_before_a_reboot_is_not_trusted() {
        let copy = record(CloneMethod::Copy);
        assert!(copy.is_clone_intact("boot-1"));
        assert!(!copy.is_clone_intact("boot-2"));
        assert!(Record { is_on_disk: true, ..copy }.is_clone_intact("boot-2"));
        assert!(record(CloneMethod::Subvolume).is_clone_intact("boot-2"));
    }
}
