//! Blobs as files below a folder, where kopia's storage `filesystem` has them.
//!
//! The file of a blob has the suffix `.f`. Blobs with long names are in folders named after the first letters; the file
//! `.shards` says how many, and is written by whoever comes first.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{BlobMetadata, Blobs, Error, Operation};
use crate::id::BlobId;

const SHARDS_FILE: &str = ".shards";
const SUFFIX: &str = ".f";
/// Largest file with the layout.
const MAX_SHARDS_FILE: u64 = 64 * 1024;
/// Deepest folder.
const MAX_DEPTH: usize = 8;

/// The lengths of the names of folders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Shards {
    default: Vec<usize>,
    #[serde(rename = "maxNonShardedLength")]
    max_unsharded_length: usize,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    overrides: Vec<ShardsOverride>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ShardsOverride {
    prefix: String,
    shards: Vec<usize>,
}

impl Default for Shards {
    fn default() -> Self {
        Self { default: vec![1, 3], max_unsharded_length: 20, overrides: Vec::new() }
    }
}

impl Shards {
    /// The path of a blob below the root.
    fn path(&self, blob: &BlobId) -> PathBuf {
        let mut path = PathBuf::new();
        let mut rest = blob.as_str();
        if rest.len() > self.max_unsharded_length {
            let special = self.overrides.iter().find(|other| rest.starts_with(&other.prefix));
            let lengths = special.map_or(&self.default, |other| &other.shards);
            for &length in lengths.iter().take(MAX_DEPTH) {
                // A name is ASCII.
                let Some((folder, file)) = rest.split_at_checked(length) else { break };
                if folder.is_empty() || file.is_empty() {
                    break;
                }
                path.push(folder);
                rest = file;
            }
        }
        path.join(format!("{rest}{SUFFIX}"))
    }
}

/// Blobs below a folder.
#[derive(Clone, Debug)]
pub struct FilesystemBlobs {
    root: PathBuf,
    shards: Shards,
}

impl FilesystemBlobs {
    /// Blobs below a folder that exists. The file with the layout is written if there is none.
    pub async fn open(root: &Path) -> io::Result<Self> {
        let root = root.to_owned();
        blocking(move || {
            let file = root.join(SHARDS_FILE);
            let shards = match File::open(&file) {
                Ok(opened) => {
                    let mut json = Vec::new();
                    opened.take(MAX_SHARDS_FILE).read_to_end(&mut json)?;
                    serde_json::from_slice(&json)?
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let shards = Shards::default();
                    let mut json = serde_json::to_vec(&shards)?;
                    json.push(b'\n');
                    write_file(&file, &json)?;
                    shards
                }
                Err(error) => return Err(error),
            };
            Ok(Self { root, shards })
        })
        .await
    }

    fn path(&self, blob: &BlobId) -> PathBuf {
        self.root.join(self.shards.path(blob))
    }
}

#[async_trait]
impl Blobs for FilesystemBlobs {
    async fn get(&self, blob: &BlobId, max_length: u64) -> Result<Bytes, Error> {
        let path = self.path(blob);
        let data = blocking(move || {
            let mut data = Vec::new();
            File::open(path)?.take(max_length.saturating_add(1)).read_to_end(&mut data)?;
            Ok(data)
        })
        .await
        .map_err(|error| blob_error(Operation::Get, blob, error))?;
        if u64::try_from(data.len()).is_ok_and(|length| length <= max_length) {
            return Ok(data.into());
        }
        Err(Error::TooLong { blob: blob.clone(), max_length })
    }

    async fn get_range(&self, blob: &BlobId, offset: u64, length: u64) -> Result<Bytes, Error> {
        let path = self.path(blob);
        let data = blocking(move || {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(offset))?;
            let mut data = Vec::new();
            file.take(length).read_to_end(&mut data)?;
            Ok(data)
        })
        .await
        .map_err(|error| blob_error(Operation::Get, blob, error))?;
        if u64::try_from(data.len()).is_ok_and(|read| read == length) {
            return Ok(data.into());
        }
        Err(Error::Truncated { blob: blob.clone(), offset, length })
    }

    async fn put(&self, blob: &BlobId, data: Bytes) -> Result<(), Error> {
        let path = self.path(blob);
        blocking(move || write_file(&path, &data))
            .await
            .map_err(|error| blob_error(Operation::Put, blob, error))
    }

    async fn delete(&self, blob: &BlobId) -> Result<(), Error> {
        let path = self.path(blob);
        match blocking(move || std::fs::remove_file(path)).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(blob_error(Operation::Delete, blob, error))
            }
            _ => Ok(()),
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<BlobMetadata>, Error> {
        let (root, prefix) = (self.root.clone(), prefix.to_owned());
        let listed = blocking(move || {
            let mut found = Vec::new();
            list_folder(&root, "", &prefix, 0, &mut found)?;
            Ok(found)
        });
        listed.await.map_err(Error::List)
    }
}

fn blob_error(operation: Operation, blob: &BlobId, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::NotFound => Error::NotFound(blob.clone()),
        _ => Error::Blob { operation, blob: blob.clone(), source },
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Adds the blobs in a folder whose names begin with `name`, the letters of the folders above.
fn list_folder(
    folder: &Path,
    name: &str,
    prefix: &str,
    depth: usize,
    found: &mut Vec<BlobMetadata>,
) -> io::Result<()> {
    let entries = match std::fs::read_dir(folder) {
        // Deleted since its parent was listed.
        Err(error) if depth > 0 && error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let Ok(part) = entry.file_name().into_string() else { continue };
        if entry.file_type()?.is_dir() {
            let name = format!("{name}{part}");
            let may_match = name.starts_with(prefix) || prefix.starts_with(&name);
            if may_match && depth < MAX_DEPTH {
                list_folder(&entry.path(), &name, prefix, depth + 1, found)?;
            }
            continue;
        }
        let Some(part) = part.strip_suffix(SUFFIX) else { continue };
        let Ok(id) = format!("{name}{part}").parse::<BlobId>() else { continue };
        if !id.as_str().starts_with(prefix) {
            continue;
        }
        match entry.metadata() {
            Ok(metadata) => found.push(BlobMetadata {
                id,
                length: metadata.len(),
                modified: Timestamp::try_from(metadata.modified()?).map_err(io::Error::other)?,
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes a file elsewhere and moves it into place once it is on the disk.
fn write_file(path: &Path, data: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".tmp.{}", hex::encode(random)));
    let temporary = PathBuf::from(temporary);
    let written = write_and_sync(&temporary, data)
        .and_then(|()| std::fs::rename(&temporary, path))
        .and_then(|()| File::open(folder)?.sync_all());
    if written.is_err() {
        // The file is useless, and not a blob by its name.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

fn write_and_sync(path: &Path, data: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    file.write_all(data)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(shards: &Shards, blob: &str) -> String {
        shards.path(&blob.parse().unwrap()).display().to_string()
    }

    #[test]
    fn long_names_are_in_folders() {
        let shards = Shards::default();
        assert_eq!(path(&shards, "kopia.repository"), "kopia.repository.f");
        assert_eq!(path(&shards, "p0123456789abcdef0123"), "p/012/3456789abcdef0123.f");
        let flat = Shards { default: vec![], ..shards.clone() };
        assert_eq!(path(&flat, "p0123456789abcdef0123"), "p0123456789abcdef0123.f");
        let odd = Shards { default: vec![0, 3], ..shards };
        assert_eq!(path(&odd, "p0123456789abcdef0123"), "p0123456789abcdef0123.f");
    }

    #[tokio::test]
    async fn layout_that_exists_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let json = r#"{"default":[2],"maxNonShardedLength":3,
            "overrides":[{"prefix":"xn","shards":[]}]}"#;
        std::fs::write(folder.path().join(SHARDS_FILE), json).unwrap();
        let blobs = FilesystemBlobs::open(folder.path()).await.unwrap();
        assert_eq!(path(&blobs.shards, "p012"), "p0/12.f");
        assert_eq!(path(&blobs.shards, "xn0_1"), "xn0_1.f");
        blobs.put(&"p012".parse().unwrap(), Bytes::from_static(b"data")).await.unwrap();
        assert_eq!(std::fs::read(folder.path().join("p0/12.f")).unwrap(), b"data");
    }

    #[tokio::test]
    async fn files_that_are_no_blobs_are_not_listed() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = FilesystemBlobs::open(folder.path()).await.unwrap();
        blobs.put(&"p1".parse().unwrap(), Bytes::new()).await.unwrap();
        std::fs::write(folder.path().join("p2.f.tmp.0011"), b"x").unwrap();
        std::fs::write(folder.path().join("p 3.f"), b"x").unwrap();
        let listed = blobs.list("").await.unwrap();
        assert_eq!(listed.iter().map(|blob| blob.id.as_str()).collect::<Vec<_>>(), ["p1"]);
    }
}
