//! Files of the sample application: content of its volume, and comparison with the original.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};

/// File to which the application writes all the time.
pub(super) const JOURNAL: &str = "orders.log";

/// Number of product photos, and number per folder.
const PHOTOS: u64 = 240;
const PHOTOS_IN_FOLDER: u64 = 24;
const PHOTO_BYTES: usize = 64 * 1024;
const CATALOGUE_BYTES: usize = 16 * 1024 * 1024;
/// Sparse file.
const INDEX_BYTES: u64 = 8 * 1024 * 1024;
/// Bytes read at once.
const BUFFER_BYTES: usize = 256 * 1024;

/// Creates the volume and its files.
pub(super) fn create_files(volume: &Path) -> io::Result<()> {
    let path = |name: &str| volume.join(name);
    fs::create_dir_all(path("config/empty"))?;
    for photo in 0..PHOTOS {
        let folder = path(&format!("photos/{:02}", photo / PHOTOS_IN_FOLDER));
        fs::create_dir_all(&folder)?;
        fs::write(
            folder.join(format!("{photo:03}.jpg")),
            incompressible_bytes(PHOTO_BYTES, photo + 1),
        )?;
    }
    fs::write(path("catalogue.db"), incompressible_bytes(CATALOGUE_BYTES, PHOTOS + 1))?;
    let index = File::create(path("search.idx"))?;
    index.write_all_at(b"first word", 0)?;
    index.write_all_at(b"last word", INDEX_BYTES / 2)?;
    index.set_len(INDEX_BYTES)?;
    fs::write(path("config/currency"), "EUR\n")?;
    fs::write(path("config/nothing"), "")?;
    fs::write(path("config/größe und farbe.txt"), "M, blue\n")?;
    fs::hard_link(path("config/currency"), path("config/second name"))?;
    symlink("photos/00", path("newest"))?;
    symlink("../not/there", path("config/dangling"))?;
    fs::write(path(JOURNAL), "")?;
    for (name, mode) in [
        ("config/nothing", 0o444),
        ("config/currency", 0o640),
        ("catalogue.db", 0o600),
        ("search.idx", 0o755),
        ("config/empty", 0o1777),
        ("photos", 0o2750),
    ] {
        fs::set_permissions(path(name), Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// Bytes that cannot be compressed, always the same.
fn incompressible_bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// State of one entry of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileState {
    mode: u32,
    /// Modification time. Not of the journal, which is written during the comparison.
    modified: Option<(i64, i64)>,
    content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Folder,
    File { bytes: u64, checksum: Vec<u8> },
    Link(PathBuf),
}

/// Entries of a volume by path. The volume itself has an empty one.
#[derive(Clone, Debug, Default)]
pub(super) struct Files(BTreeMap<PathBuf, FileState>);

impl Files {
    /// Reads a volume. Only so many bytes of its journal count, if a number is given.
    pub(super) fn read(volume: &Path, journal: Option<u64>) -> anyhow::Result<Self> {
        let mut files = BTreeMap::new();
        let mut queue = vec![PathBuf::new()];
        while let Some(path) = queue.pop() {
            let full = volume.join(&path);
            let context = || format!("cannot read {}", full.display());
            let found = fs::symlink_metadata(&full).with_context(context)?;
            let is_journal = path == Path::new(JOURNAL);
            let content = if found.is_dir() {
                for entry in fs::read_dir(&full).with_context(context)? {
                    queue.push(path.join(entry.with_context(context)?.file_name()));
                }
                Content::Folder
            } else if found.is_symlink() {
                Content::Link(fs::read_link(&full).with_context(context)?)
            } else if found.is_file() {
                let limit = journal.filter(|_| is_journal);
                let (bytes, checksum) = checksum(&full, limit).with_context(context)?;
                if limit.is_some_and(|limit| bytes < limit) {
                    bail!("{} has become shorter", full.display());
                }
                Content::File { bytes, checksum }
            } else {
                bail!("{} is not a file, directory or link", full.display());
            };
            let modified = (!is_journal).then_some((found.mtime(), found.mtime_nsec()));
            files.insert(path, FileState { mode: found.mode(), modified, content });
        }
        Ok(Self(files))
    }

    /// Number of files, folders and links.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = |state: &FileState| match state.content {
            Content::File { bytes, .. } => bytes,
            Content::Folder | Content::Link(_) => 0,
        };
        self.0.values().map(bytes).sum()
    }

    /// Bytes of one file; none if it does not exist.
    pub(super) fn bytes_of(&self, path: &str) -> Option<u64> {
        match self.0.get(Path::new(path))?.content {
            Content::File { bytes, .. } => Some(bytes),
            Content::Folder | Content::Link(_) => None,
        }
    }

    /// Differences between another volume and this one, by path.
    pub(super) fn differences(&self, other: &Self) -> Vec<String> {
        let mut differences = Vec::new();
        for (path, original) in &self.0 {
            let difference = match other.0.get(path) {
                None => "is missing",
                Some(after) if after.content != original.content => "has different content",
                Some(after) if after.mode != original.mode => "has a different mode",
                Some(after) if after.modified != original.modified => {
                    "has a different modification \
                                                                     time"
                }
                Some(_) => continue,
            };
            differences.push(format!("{} {difference}", display_path(path)));
        }
        let more = other.0.keys().filter(|path| !self.0.contains_key(*path));
        differences.extend(more.map(|path| format!("{} did not exist before", display_path(path))));
        differences
    }
}

fn display_path(path: &Path) -> String {
    if path.as_os_str().is_empty() { "the volume".to_owned() } else { path.display().to_string() }
}

/// Length and checksum of a file, up to a limit.
fn checksum(path: &Path, limit: Option<u64>) -> io::Result<(u64, Vec<u8>)> {
    let mut file = File::open(path)?.take(limit.unwrap_or(u64::MAX));
    let (mut bytes, mut hash) = (0, Sha256::new());
    let mut part = vec![0; BUFFER_BYTES];
    loop {
        let length = file.read(&mut part)?;
        let Some(read) = part.get(..length).filter(|read| !read.is_empty()) else {
            return Ok((bytes, hash.finalize().to_vec()));
        };
        hash.update(read);
        bytes += length as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("folder")).unwrap();
        fs::write(folder.path().join("folder/file"), "content").unwrap();
        fs::write(folder.path().join(JOURNAL), "one two").unwrap();
        symlink("folder", folder.path().join("link")).unwrap();
        folder
    }

    fn differences_after(change: impl FnOnce(&Path)) -> Vec<String> {
        let folder = volume();
        let before = Files::read(folder.path(), None).unwrap();
        change(folder.path());
        before.differences(&Files::read(folder.path(), None).unwrap())
    }

    #[test]
    fn every_kind_of_change_is_reported() {
        assert_eq!(differences_after(|_| {}), [""; 0]);
        // The modification time of the journal is ignored.
        assert_eq!(
            differences_after(|at| fs::write(at.join(JOURNAL), "one two").unwrap()),
            [""; 0]
        );
        let first =
            |change: fn(&Path)| differences_after(change).into_iter().next().unwrap_or_default();
        for (change, expected) in [
            (
                (|at| fs::write(at.join("folder/file"), "Content").unwrap()) as fn(&Path),
                "folder/file has different content",
            ),
            (|at| fs::write(at.join(JOURNAL), "one").unwrap(), "orders.log has different content"),
            (
                |at| {
                    let mode = Permissions::from_mode(0o600);
                    fs::set_permissions(at.join(JOURNAL), mode).unwrap();
                },
                "orders.log has a different mode",
            ),
            (
                |at| {
                    let file = File::options().write(true).open(at.join("folder/file")).unwrap();
                    file.set_modified(std::time::UNIX_EPOCH).unwrap();
                },
                "folder/file has a different modification time",
            ),
        ] {
            assert_eq!(first(change), expected);
        }
        let moved = differences_after(|at| {
            fs::remove_file(at.join("link")).unwrap();
            symlink("other", at.join("link")).unwrap();
        });
        assert!(moved.contains(&"link has different content".to_owned()), "{moved:?}");
        let gone = differences_after(|at| fs::rename(at.join("link"), at.join("knot")).unwrap());
        for expected in ["link is missing", "knot did not exist before"] {
            assert!(gone.contains(&expected.to_owned()), "{gone:?}");
        }
    }

    #[test]
    fn journal_is_compared_up_to_its_length_at_the_backup() {
        let folder = volume();
        let early = Files::read(folder.path(), None).unwrap();
        fs::write(folder.path().join(JOURNAL), "one two three").unwrap();
        let cut = Files::read(folder.path(), Some(7)).unwrap();
        assert_eq!(cut.differences(&early), [""; 0]);
        assert_eq!(cut.bytes_of(JOURNAL), Some(7));
        assert_ne!(Files::read(folder.path(), Some(6)).unwrap().differences(&early), [""; 0]);
        Files::read(folder.path(), Some(14)).unwrap_err();
    }

    #[test]
    fn sample_has_hundreds_of_files_and_tens_of_megabytes() {
        let folder = tempfile::tempdir().unwrap();
        let volume = folder.path().join("volume");
        create_files(&volume).unwrap();
        let files = Files::read(&volume, None).unwrap();
        assert!(files.count() > 250, "{}", files.count());
        assert!((40_000_000..50_000_000).contains(&files.bytes()), "{}", files.bytes());
        let index = fs::metadata(volume.join("search.idx")).unwrap();
        assert!(index.blocks() * 512 < INDEX_BYTES, "it has no hole");
        // Contents do not match by chance.
        assert_ne!(incompressible_bytes(100, 1), incompressible_bytes(100, 2));
    }
}
