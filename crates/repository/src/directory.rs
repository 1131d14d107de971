//! Directories: objects that list files, symbolic links and other directories.

mod permissions;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use self::permissions::Permissions;

use crate::id::ObjectId;
use crate::json::{is_default, list_or_null, null_if_empty, to_go_json};

/// The field `stream` of a directory.
const STREAM: &str = "kopia:directory";

/// Longest name of a file that file systems take.
const MAX_FILE_NAME: usize = 255;

/// Damage of a directory.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory is not the JSON that it should be.
    #[error("the directory is invalid")]
    Parse(#[source] serde_json::Error),
    /// The object is another document.
    #[error("the directory is a stream {0:?}")]
    OtherStream(String),
}

/// A directory of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directory {
    stream: String,
    /// What is in it. Kopia sorts directories to the front, then by name.
    #[serde(deserialize_with = "list_or_null", serialize_with = "null_if_empty")]
    pub entries: Vec<DirectoryEntry>,
    /// What is in it and below.
    #[serde(default)]
    pub summary: Option<DirectorySummary>,
}

impl Directory {
    /// Reads a directory. Names are not checked: see [`DirectoryEntry::file_name`].
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        let directory: Self = serde_json::from_slice(json).map_err(Error::Parse)?;
        if directory.stream != STREAM {
            return Err(Error::OtherStream(directory.stream));
        }
        Ok(directory)
    }

    /// A directory with these entries, in kopia's order and with the summary that kopia would write.
    pub fn new(mut entries: Vec<DirectoryEntry>, modified: Timestamp) -> Self {
        let mut summary = DirectorySummary { directories: 1, ..DirectorySummary::default() };
        summary.max_time = entries.iter().fold(None, |max, entry| {
            let inner = entry.summary.as_ref().and_then(|summary| summary.max_time);
            max.max(entry.modified).max(inner)
        });
        if entries.is_empty() {
            summary.max_time = Some(modified);
        }
        for entry in &entries {
            summary.add(entry);
        }
        entries.sort_by(|a, b| {
            let is_file = |entry: &DirectoryEntry| entry.kind != EntryKind::Directory;
            (is_file(a), &a.name).cmp(&(is_file(b), &b.name))
        });
        Self { stream: STREAM.to_owned(), entries, summary: Some(summary) }
    }

    /// The directory as kopia writes it.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        let mut json = to_go_json(self).map_err(Error::Parse)?;
        json.push('\n');
        Ok(json.into_bytes())
    }
}

/// What an entry is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A file.
    #[default]
    #[serde(rename = "f")]
    File,
    /// A directory.
    #[serde(rename = "d")]
    Directory,
    /// A symbolic link, whose object is its target.
    #[serde(rename = "s")]
    Symlink,
    /// Something that this version does not know.
    #[serde(untagged)]
    Unknown(String),
}

/// A file, directory or symbolic link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryEntry {
    /// Name: anything, in a repository that is not trusted. The file of a block device is named by the path of the
    /// device.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// What it is.
    #[serde(rename = "type", default)]
    pub kind: EntryKind,
    /// Permissions.
    #[serde(rename = "mode", default, skip_serializing_if = "is_default")]
    pub permissions: Permissions,
    /// Length of a file.
    #[serde(default, skip_serializing_if = "is_default")]
    pub size: i64,
    /// Time of the last change.
    #[serde(rename = "mtime", default, skip_serializing_if = "Option::is_none")]
    pub modified: Option<Timestamp>,
    /// Owner.
    #[serde(default, skip_serializing_if = "is_default")]
    pub uid: u32,
    /// Group.
    #[serde(default, skip_serializing_if = "is_default")]
    pub gid: u32,
    /// The data. `None` where kopia wrote an empty ID.
    #[serde(rename = "obj", with = "optional_object", default)]
    pub object: Option<ObjectId>,
    /// What is in a directory and below.
    #[serde(rename = "summ", default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<DirectorySummary>,
}

impl DirectoryEntry {
    /// The name, if it is one that a file can have in a directory. Everything else must not be used as a path: `..`, an
    /// absolute path, a name with a separator.
    pub fn file_name(&self) -> Option<&str> {
        let name = self.name.as_str();
        let is_element = !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']);
        (is_element && name.len() <= MAX_FILE_NAME).then_some(name)
    }
}

/// What is in a directory and below.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectorySummary {
    /// Length of all files.
    #[serde(rename = "size", default)]
    pub total_size: i64,
    /// Number of files.
    #[serde(default)]
    pub files: i64,
    /// Number of symbolic links.
    #[serde(default)]
    pub symlinks: i64,
    /// Number of directories, with this one.
    #[serde(rename = "dirs", default)]
    pub directories: i64,
    /// Time of the last change of any entry.
    #[serde(rename = "maxTime", default, skip_serializing_if = "Option::is_none")]
    pub max_time: Option<Timestamp>,
    /// Reason for which the directory is not complete.
    #[serde(rename = "incomplete", default, skip_serializing_if = "String::is_empty")]
    pub incomplete_reason: String,
    /// Entries that could not be read.
    #[serde(rename = "numFailed", default)]
    pub failed: i64,
    /// Entries that could not be read, which was ignored.
    #[serde(rename = "numIgnoredErrors", default, skip_serializing_if = "is_default")]
    pub ignored_errors: i64,
}

impl DirectorySummary {
    fn add(&mut self, entry: &DirectoryEntry) {
        match &entry.kind {
            EntryKind::File => {
                self.files = self.files.saturating_add(1);
                self.total_size = self.total_size.saturating_add(entry.size);
            }
            EntryKind::Symlink => self.symlinks = self.symlinks.saturating_add(1),
            EntryKind::Directory => {
                let Some(inner) = &entry.summary else { return };
                self.files = self.files.saturating_add(inner.files);
                self.total_size = self.total_size.saturating_add(inner.total_size);
                self.symlinks = self.symlinks.saturating_add(inner.symlinks);
                self.directories = self.directories.saturating_add(inner.directories);
                self.failed = self.failed.saturating_add(inner.failed);
                self.ignored_errors = self.ignored_errors.saturating_add(inner.ignored_errors);
            }
            EntryKind::Unknown(_) => {}
        }
    }
}

/// An object whose ID may be empty.
mod optional_object {
    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::id::ObjectId;

    #[expect(clippy::ref_option, reason = "the signature that serde calls")]
    pub(super) fn serialize<S: Serializer>(
        object: &Option<ObjectId>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match object {
            Some(object) => serializer.collect_str(object),
            None => serializer.serialize_str(""),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<ObjectId>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, kind: EntryKind) -> DirectoryEntry {
        DirectoryEntry {
            name: name.to_owned(),
            kind,
            permissions: Permissions::from_unix(0o644),
            modified: Some("2026-11-19T20:00:00.5Z".parse().unwrap()),
            object: Some("00ff".parse().unwrap()),
            ..DirectoryEntry::default()
        }
    }

    #[test]
    fn directory_is_written_as_kopia_does() {
        let file = DirectoryEntry { size: 7, uid: 1000, ..entry("a<b", EntryKind::File) };
        let inner = Directory::new(vec![file.clone()], Timestamp::UNIX_EPOCH);
        let folder =
            DirectoryEntry { summary: inner.summary.clone(), ..entry("z", EntryKind::Directory) };
        let directory = Directory::new(
            vec![entry("link", EntryKind::Symlink), file, folder],
            Timestamp::UNIX_EPOCH,
        );
        let json = String::from_utf8(directory.encode().unwrap()).unwrap();
        let summary = |dirs, files, size, symlinks| {
            format!(
                r#"{{"size":{size},"files":{files},"symlinks":{symlinks},"dirs":{dirs},"maxTime":"2026-11-19T20:00:00.5Z","numFailed":0}}"#
            )
        };
        let expected = format!(
            concat!(
                r#"{{"stream":"kopia:directory","entries":["#,
                r#"{{"name":"z","type":"d","mode":"0644","mtime":"2026-11-19T20:00:00.5Z","obj":"00ff","summ":{}}},"#,
                r#"{{"name":"a\u003cb","type":"f","mode":"0644","size":7,"mtime":"2026-11-19T20:00:00.5Z","uid":1000,"obj":"00ff"}},"#,
                r#"{{"name":"link","type":"s","mode":"0644","mtime":"2026-11-19T20:00:00.5Z","obj":"00ff"}}"#,
                r#"],"summary":{}}}"#,
                "\n"
            ),
            summary(1, 1, 7, 0),
            summary(2, 2, 14, 1)
        );
        assert_eq!(json, expected);
        assert_eq!(Directory::parse(json.as_bytes()).unwrap(), directory);
    }

    #[test]
    fn empty_directory_has_its_own_time_and_no_list() {
        let directory = Directory::new(vec![], Timestamp::UNIX_EPOCH);
        let json = String::from_utf8(directory.encode().unwrap()).unwrap();
        assert!(json.contains(r#""entries":null,"#), "{json}");
        assert_eq!(directory.summary.unwrap().max_time, Some(Timestamp::UNIX_EPOCH));
    }

    #[test]
    fn names_that_leave_the_directory_are_no_file_names() {
        let long = "x".repeat(256);
        for name in ["", ".", "..", "/", "/etc/passwd", "a/b", "a/../b", "a\0", &long] {
            assert_eq!(entry(name, EntryKind::File).file_name(), None, "{name:?}");
        }
        for name in ["...", "a b", "ä", "-rf", "a\\b", "\n"] {
            assert_eq!(entry(name, EntryKind::File).file_name(), Some(name));
        }
    }

    #[test]
    fn unknown_fields_and_types_do_not_stop_the_reader() {
        let json = br#"{"stream":"kopia:directory","new":1,"entries":[
            {"name":"p","type":"x","xattrs":{"a":"b"},"obj":""},{"name":"n"}]}"#;
        let directory = Directory::parse(json).unwrap();
        assert_eq!(directory.entries[0].kind, EntryKind::Unknown("x".to_owned()));
        assert_eq!(directory.entries[0].object, None);
        assert_eq!(directory.entries[1].modified, None);
        let null = Directory::parse(br#"{"stream":"kopia:directory","entries":null}"#).unwrap();
        assert!(null.entries.is_empty());
    }

    #[test]
    fn damaged_directory_is_refused() {
        assert!(matches!(Directory::parse(b"{"), Err(Error::Parse(_))));
        let list = Directory::parse(br#"{"stream":"kopia:indirect","entries":[]}"#);
        assert!(matches!(list, Err(Error::OtherStream(_))));
    }
}
