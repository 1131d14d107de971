//! Reading of untrusted files: every read has a limit.
//!
//! Accepted is what the gzip and JSON readers of Velero accept: several gzip members in sequence,
//! and `null` in place of a list or a map. Refused, with the reason, are files that are too large,
//! compressed or decompressed, and files whose compression ratio no legitimate file has.

use std::io::{self, Read};

use bowline_api::Backup;
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use serde::de::DeserializeOwned;

use crate::name::BackupName;

/// Limits of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes as stored in the bucket.
    pub packed: u64,
    /// Bytes after decompression.
    pub unpacked: u64,
    /// Decompressed bytes per compressed byte, once there are more than
    /// [`Self::RATIO_EXEMPT_BYTES`] of them.
    pub ratio: u64,
    /// Bytes of memory that the parsed JSON takes, [estimated](weigh) from its structure.
    pub memory: u64,
}

impl Limits {
    /// The commit record: an object that passed through the API server, which accepts at most 3
    /// MiB.
    pub const RECORD: Self =
        Self { packed: 3 << 20, unpacked: 3 << 20, ratio: 1, memory: 32 << 20 };
    /// A compressed JSON file; the names of two million objects fit.
    pub const JSON: Self =
        Self { packed: 128 << 20, unpacked: 256 << 20, ratio: 500, memory: 384 << 20 };
    /// A compressed JSON file about the volumes of a backup; those of ten thousand fit. The server
    /// reads these files without being asked, for backups that it finds in a bucket.
    pub const VOLUMES: Self =
        Self { packed: 16 << 20, unpacked: 64 << 20, ratio: 500, memory: 96 << 20 };
    /// An archive of Kubernetes objects. Limits on its entries are up to the code that unpacks it.
    pub const ARCHIVE: Self =
        Self { packed: 64 << 30, unpacked: 1 << 40, ratio: 500, memory: u64::MAX };

    /// Size below which a compression ratio says nothing.
    pub const RATIO_EXEMPT_BYTES: u64 = 4 << 20;
}

/// Reasons why a file is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Larger than any legitimate file.
    #[error("the file is larger than {0} bytes, the limit for such a file")]
    TooLarge(u64),
    /// Decompresses to more than any legitimate file.
    #[error("the file unpacks to more than {0} bytes, the limit for such a file")]
    UnpacksTooLarge(u64),
    /// Decompresses to a suspiciously large multiple of its size.
    #[error("the file unpacks to more than {0} times its size")]
    SuspiciousRatio(u64),
    /// Would take more memory than any legitimate file.
    #[error("the file needs more than {0} bytes of memory, the limit for such a file")]
    TooMuchMemory(u64),
    /// Not gzip, damaged, or truncated.
    #[error("the file is damaged")]
    Damaged(#[source] io::Error),
    /// Not the expected JSON.
    #[error("the file is not valid JSON, or not the expected type")]
    Json(#[from] serde_json::Error),
    /// About a different backup than its key says.
    #[error("the file belongs to {found}, not to {expected}")]
    Other {
        /// The name in the file.
        found: String,
        /// The name in the key.
        expected: String,
    },
}

impl From<io::Error> for Error {
    /// Exceeded limits pass through readers that know only I/O errors.
    fn from(error: io::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(error) => error,
            Err(error) => Self::Damaged(error),
        }
    }
}

/// Reads a compressed JSON file; `null` is the empty value.
///
/// Limits on bytes are not enough: a list of ten million empty objects is a tiny file and takes
/// gigabytes in memory. So the memory is estimated first, without keeping anything of the content.
pub fn json_gzip<T: DeserializeOwned + Default>(packed: &[u8], limits: Limits) -> Result<T, Error> {
    weigh_gzip(packed, limits)?;
    read_weighed_json_gzip(packed, limits)
}

/// Reads a compressed JSON file that has been weighed.
pub(crate) fn read_weighed_json_gzip<T: DeserializeOwned + Default>(
    packed: &[u8],
    limits: Limits,
) -> Result<T, Error> {
    let text = io::BufReader::with_capacity(64 << 10, gunzip(packed, limits));
    let mut reader = serde_json::Deserializer::from_reader(text);
    // Like Velero, which decodes one value and ignores the rest.
    let read: Result<Option<T>, _> = serde::Deserialize::deserialize(&mut reader);
    match read {
        Ok(value) => Ok(value.unwrap_or_default()),
        Err(error) if error.is_io() => Err(io::Error::from(error).into()),
        Err(error) => Err(error.into()),
    }
}

/// The memory that a compressed JSON file takes when it is parsed; an error if that is too much.
pub fn weigh_gzip(packed: &[u8], limits: Limits) -> Result<u64, Error> {
    let mut reader = gunzip(packed, limits);
    let (mut scale, mut piece) = (MemoryEstimate::default(), vec![0; 64 << 10]);
    loop {
        let read = reader.read(&mut piece)?;
        if read == 0 {
            return Ok(scale.bytes);
        }
        scale.add(&piece[..read]);
        if scale.bytes > limits.memory {
            return Err(Error::TooMuchMemory(limits.memory));
        }
    }
}

/// The memory that JSON takes when it is parsed; an error if that is too much.
pub fn weigh(text: &[u8], limits: Limits) -> Result<u64, Error> {
    let mut scale = MemoryEstimate::default();
    scale.add(text);
    if scale.bytes > limits.memory {
        return Err(Error::TooMuchMemory(limits.memory));
    }
    Ok(scale.bytes)
}

/// Estimate of the memory that JSON takes, without interpreting it. Calibrated with lists of our
/// largest types, and with nested empty lists.
#[derive(Default)]
struct MemoryEstimate {
    bytes: u64,
    depth: u64,
    is_in_string: bool,
    is_escaped: bool,
}

impl MemoryEstimate {
    /// An element of the outermost list: for example a Kubernetes object, of which each field costs
    /// memory, set or not.
    const OUTERMOST_COST: u64 = 1536;
    /// A nested list or map.
    const CONTAINER_COST: u64 = 256;
    /// Any other value. The characters of a string are added.
    const SCALAR_COST: u64 = 64;

    fn add(&mut self, text: &[u8]) {
        for byte in text {
            if self.is_in_string {
                self.bytes += 1;
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.is_in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.is_in_string = true,
                b'{' | b'[' => {
                    let is_outermost = self.depth == 1;
                    self.bytes +=
                        if is_outermost { Self::OUTERMOST_COST } else { Self::CONTAINER_COST };
                    self.depth += 1;
                }
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                b',' | b':' => self.bytes += Self::SCALAR_COST,
                _ => {}
            }
        }
    }
}

/// Reads a commit record. It must belong to the backup in whose folder it is stored.
pub fn read_record(text: &[u8], backup: &BackupName) -> Result<Backup, Error> {
    #[derive(Default, serde::Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct TypeMeta {
        api_version: String,
        kind: String,
    }
    weigh(text, Limits::RECORD)?;
    let TypeMeta { api_version, kind } = serde_json::from_slice(text)?;
    let record: Backup = serde_json::from_slice(text)?;
    let name = record.metadata.name.as_deref().unwrap_or_default();
    let actual = format!("{api_version} {kind} {name:?}");
    let expected = format!("velero.io/v1 Backup {:?}", backup.as_str());
    if actual == expected { Ok(record) } else { Err(Error::Other { found: actual, expected }) }
}

/// Decompresses, within limits. An exceeded limit is reported as an I/O error, which
/// [`Error::from`] unwraps.
pub fn gunzip<R: Read>(packed: R, limits: Limits) -> Gunzip<R> {
    let counted = CountingReader { inner: packed, count: 0, limit: limits.packed };
    Gunzip { decoder: MultiGzDecoder::new(counted), unpacked: 0, limits }
}

/// See [`gunzip`].
pub struct Gunzip<R> {
    decoder: MultiGzDecoder<CountingReader<R>>,
    unpacked: u64,
    limits: Limits,
}

impl<R: Read> Read for Gunzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.decoder.read(buffer)?;
        self.unpacked += read as u64;
        let packed = self.decoder.get_ref().count;
        let Limits { unpacked, ratio, .. } = self.limits;
        if self.unpacked > unpacked {
            return Err(io::Error::other(Error::UnpacksTooLarge(unpacked)));
        }
        if self.unpacked > Limits::RATIO_EXEMPT_BYTES
            && self.unpacked > packed.saturating_mul(ratio)
        {
            return Err(io::Error::other(Error::SuspiciousRatio(ratio)));
        }
        Ok(read)
    }
}

/// Counts the bytes read, up to a limit.
struct CountingReader<R> {
    inner: R,
    count: u64,
    limit: u64,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.count += read as u64;
        if self.count > self.limit {
            return Err(io::Error::other(Error::TooLarge(self.limit)));
        }
        Ok(read)
    }
}

/// Collects a stream, up to a limit.
pub(crate) async fn collect(
    mut stream: bowline_plugin::ByteStream,
    limit: u64,
) -> Result<Bytes, Error> {
    use futures::TryStreamExt as _;
    let mut pieces = Vec::new();
    while let Some(piece) = stream.try_next().await? {
        if (pieces.len() + piece.len()) as u64 > limit {
            return Err(Error::TooLarge(limit));
        }
        pieces.extend_from_slice(&piece);
    }
    Ok(pieces.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode;
    use std::collections::BTreeMap;
    use std::io::Write as _;

    const SMALL: Limits =
        Limits { packed: 1 << 20, unpacked: 8 << 20, ratio: 100, memory: 1 << 30 };

    fn packed(text: &[u8]) -> Vec<u8> {
        let mut gzip = encode::gzip(Vec::new());
        gzip.write_all(text).unwrap();
        gzip.finish().unwrap()
    }

    fn names(packed: &[u8]) -> Result<Vec<String>, Error> {
        json_gzip(packed, SMALL)
    }

    #[test]
    fn null_reads_as_empty_list_or_map() {
        assert_eq!(names(&packed(b"null\n")).unwrap(), Vec::<String>::new());
        let map: BTreeMap<String, u8> = json_gzip(&packed(b"null"), SMALL).unwrap();
        assert!(map.is_empty());
    }

    #[test]
    fn several_gzip_members_are_one_file() {
        let file = [packed(b"[\"a\","), packed(b""), packed(b"\"b\"]\n")].concat();
        assert_eq!(names(&file).unwrap(), ["a", "b"]);
    }

    #[test]
    fn gzip_bomb_is_refused_by_ratio() {
        let bomb = packed(&vec![b' '; 6 << 20]);
        let error = names(&bomb).unwrap_err();
        assert!(matches!(error, Error::SuspiciousRatio(100)), "{error}");
        assert!(error.to_string().contains("100 times"), "{error}");
    }

    #[test]
    fn oversized_file_is_refused_packed_or_unpacked() {
        let noise: Vec<u8> =
            (0_u32..3 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let limits = Limits { packed: 1000, ..SMALL };
        let error = json_gzip::<Vec<String>>(&packed(&noise), limits).unwrap_err();
        assert!(matches!(error, Error::TooLarge(1000)), "{error}");
        let limits = Limits { unpacked: 1000, ..SMALL };
        let error = json_gzip::<Vec<String>>(&packed(&noise), limits).unwrap_err();
        assert!(matches!(error, Error::UnpacksTooLarge(1000)), "{error}");
    }

    /// Decision 032: a file that is within all limits on bytes and takes as much memory as the
    /// whole pod has.
    #[test]
    fn file_that_is_small_but_large_in_memory_is_refused_before_parsing() {
        let many = |element: &str, count: usize| format!("[{}]", vec![element; count].join(","));
        let children = packed(many(r#"{"metadata":{}}"#, 80_000).as_bytes());
        assert!(children.len() < 20_000, "{}", children.len());
        let error =
            json_gzip::<Vec<bowline_api::PodVolumeBackup>>(&children, Limits::VOLUMES).unwrap_err();
        assert!(matches!(error, Error::TooMuchMemory(_)), "{error}");

        let nested = many("[0]", 150_000);
        let record = format!(
            r#"{{"apiVersion":"velero.io/v1","kind":"Backup","metadata":{{"name":"b"}},"spec":{{"x":{nested}}}}}"#
        );
        assert!(record.len() < 3 << 20);
        let error =
            super::read_record(record.as_bytes(), &BackupName::new("b").unwrap()).unwrap_err();
        assert!(matches!(error, Error::TooMuchMemory(_)), "{error}");
    }

    #[test]
    fn realistic_backups_fit_the_limits() {
        let child = r#"{"metadata":{"name":"b-1","namespace":"velero","labels":{"velero.io/backup-name":"b",
            "velero.io/pvc-uid":"0"},"ownerReferences":[{"apiVersion":"velero.io/v1","kind":"Backup","name":"b"}]},
            "spec":{"node":"n","pod":{"kind":"Pod","namespace":"a","name":"p"},"volume":"v","tags":{"a":"b"}},
            "status":{"phase":"Completed","path":"/x","snapshotID":"1","progress":{"totalBytes":1,"bytesDone":1}}}"#;
        let limits = Limits { ratio: u64::MAX, ..Limits::VOLUMES };
        let file = |count: usize| packed(format!("[{}]", vec![child; count].join(",")).as_bytes());
        weigh(format!("[{}]", vec![child; 10_000].join(",")).as_bytes(), limits).unwrap();
        let read: Vec<bowline_api::PodVolumeBackup> = json_gzip(&file(100), limits).unwrap();
        assert_eq!(read.len(), 100);
        // Commas and brackets within strings do not count as structure.
        let text = format!("[\"{}\"]", "[{,\\\"".repeat(1000));
        assert_eq!(weigh(text.as_bytes(), Limits::JSON).unwrap(), 256 + 5 * 1000 + 1);
    }

    #[test]
    fn damage_is_distinguished_from_wrong_content() {
        let intact = packed(b"[\"a\"]\n");
        for broken in [&intact[..intact.len() - 5], b"no gzip", b""] {
            let error = names(broken).unwrap_err();
            assert!(matches!(error, Error::Damaged(_)), "{error:?}");
        }
        let mut flipped = intact.clone();
        let middle = flipped.len() - 6;
        flipped[middle] ^= 1;
        assert!(matches!(names(&flipped).unwrap_err(), Error::Damaged(_)));
        assert!(matches!(names(&packed(b"{\"a\":1}")).unwrap_err(), Error::Json(_)));
    }
}
