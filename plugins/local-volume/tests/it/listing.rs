//! Everything that a tree shows, for comparison with another.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// What an entry looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryInfo {
    kind: String,
    mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    /// The content of a file, the target of a link.
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first name of the same file.
    same_as: PathBuf,
}

/// Paths with what they look like; the tree itself has an empty one.
pub(crate) type Listing = BTreeMap<PathBuf, EntryInfo>;

pub(crate) fn of(tree: &Path) -> Listing {
    let mut listing = Listing::new();
    let mut first_names = BTreeMap::new();
    let mut waiting = vec![PathBuf::new()];
    let mut paths = Vec::new();
    while let Some(path) = waiting.pop() {
        let full = tree.join(&path);
        if fs::symlink_metadata(&full).unwrap().is_dir() {
            let names = fs::read_dir(&full).unwrap().map(|entry| entry.unwrap().file_name());
            waiting.extend(names.map(|name| path.join(name)));
        }
        paths.push(path);
    }
    paths.sort();
    for path in paths {
        let full = tree.join(&path);
        let found = fs::symlink_metadata(&full).unwrap();
        let kind = found.file_type();
        let content = if kind.is_file() {
            fs::read(&full).unwrap()
        } else if kind.is_symlink() {
            fs::read_link(&full).unwrap().into_os_string().into_vec()
        } else {
            Vec::new()
        };
        let name = match kind {
            kind if kind.is_dir() => "folder".to_owned(),
            kind if kind.is_file() => "file".to_owned(),
            kind if kind.is_symlink() => "link".to_owned(),
            kind if kind.is_fifo() => "pipe".to_owned(),
            kind if kind.is_socket() => "socket".to_owned(),
            kind if kind.is_char_device() => format!("char {:x}", found.rdev()),
            kind if kind.is_block_device() => format!("block {:x}", found.rdev()),
            kind => format!("{kind:?}"),
        };
        let same_as = if kind.is_dir() {
            path.clone()
        } else {
            first_names.entry(found.ino()).or_insert_with(|| path.clone()).clone()
        };
        let info = EntryInfo {
            kind: name,
            mode: found.mode() & 0o7777,
            owner: (found.uid(), found.gid()),
            modified: (found.mtime(), found.mtime_nsec()),
            content,
            xattrs: xattrs(&full),
            same_as,
        };
        listing.insert(path, info);
    }
    listing
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65536];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let names = names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 65536];
            let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
            value.truncate(length);
            (name.to_vec(), value)
        })
        .collect()
}

/// Fails with the first entry that differs, not with pages of both.
#[track_caller]
pub(crate) fn assert_same(found: &Listing, expected: &Listing) {
    for (path, entry) in expected {
        let shown = |info: Option<&EntryInfo>| {
            info.map(|entry| EntryInfo {
                content: entry.content.iter().take(100).copied().collect(),
                ..entry.clone()
            })
        };
        let actual = found.get(path);
        assert!(
            actual == Some(entry),
            "{} is\n{:?}\nand should be\n{:?}",
            path.display(),
            shown(actual),
            shown(Some(entry))
        );
    }
    let more: Vec<&PathBuf> = found.keys().filter(|path| !expected.contains_key(*path)).collect();
    assert!(more.is_empty(), "there is more: {more:?}");
}

/// The names in a folder, without those of locks; none if it is not there.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        entries => entries.unwrap(),
    };
    let names = entries.map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name: OsString| lossy(&name)).collect();
    names.retain(|name| !name.starts_with(".lock"));
    names.sort();
    names
}

fn lossy(name: &OsString) -> String {
    String::from_utf8_lossy(name.as_bytes()).into_owned()
}
