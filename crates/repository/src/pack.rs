//! Packs: blobs of about 20 MiB that contain many contents.
//!
//! Random bytes come first, then the encrypted contents, then random bytes up to a multiple of 4 KiB, then an encrypted
//! index of this pack alone and where it is. With the latter the indexes of a repository can be made anew.

use bytes::Bytes;

use crate::content::EncodedContent;
use crate::crypto::{self, Crypter, NONCE_LENGTH};
use crate::id::{BlobId, ContentId};
use crate::index::{self, BuildError, Index, IndexEntry};

/// First letter of packs with data of files.
pub const DATA_PREFIX: &str = "p";
/// First letter of packs with directories, lists and manifests.
pub const METADATA_PREFIX: &str = "q";

/// Length of the random bytes at the start.
pub const PREAMBLE_LENGTH: usize = 32;
/// The local index begins at a multiple of this.
pub const PADDING_UNIT: usize = 4096;
/// Random bytes at the end of a local index, so that no two are alike.
pub const INDEX_SUFFIX_LENGTH: usize = 32;
/// Bytes at the end of a pack that contain the postamble whole.
pub const MAX_POSTAMBLE_LENGTH: usize = 256;

/// Length of the checksum in a postamble.
const CHECKSUM_LENGTH: usize = 4;

/// First letter of the pack that a content belongs to.
pub fn prefix_for(content: &ContentId) -> &'static str {
    if content.prefix().is_some() { METADATA_PREFIX } else { DATA_PREFIX }
}

/// Failure to complete a pack.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The entries of the pack do not fit into an index.
    #[error("cannot build the index of a pack")]
    Index(#[source] BuildError),
    /// The index cannot be encrypted.
    #[error("cannot encrypt the index of a pack")]
    Encrypt(#[source] crypto::Error),
    /// The pack is too long.
    #[error("a pack is too long")]
    TooLong,
}

/// A pack to which contents are added.
#[derive(Debug)]
pub struct PackBuilder {
    id: BlobId,
    data: Vec<u8>,
    entries: Vec<IndexEntry>,
    format_version: u8,
}

/// Random bytes that complete a pack.
pub struct PackRandomness {
    /// Fills the space before the local index.
    pub padding: [u8; PADDING_UNIT],
    /// Ends the local index.
    pub index_suffix: [u8; INDEX_SUFFIX_LENGTH],
    /// For the encryption of the local index.
    pub nonce: [u8; NONCE_LENGTH],
}

/// A pack that is ready to be written.
#[derive(Debug)]
pub struct Pack {
    /// Name.
    pub id: BlobId,
    /// The blob.
    pub data: Bytes,
    /// What is in it.
    pub entries: Vec<IndexEntry>,
}

impl PackBuilder {
    /// An empty pack.
    pub fn new(id: BlobId, preamble: [u8; PREAMBLE_LENGTH], format_version: u8) -> Self {
        Self { id, data: preamble.to_vec(), entries: Vec::new(), format_version }
    }

    /// Adds a content. `timestamp` is the second since 1970.
    pub fn add(&mut self, encoded: &EncodedContent, timestamp: i64) -> Result<(), Error> {
        let number = |length: usize| u32::try_from(length).map_err(|_| Error::TooLong);
        self.entries.push(IndexEntry {
            content: encoded.content,
            timestamp,
            is_deleted: false,
            pack: self.id.clone(),
            offset: number(self.data.len())?,
            packed_length: number(encoded.data.len())?,
            length: Some(number(encoded.length)?),
            compressor: encoded.compressor,
            format_version: self.format_version,
            encryption_key: 0,
        });
        self.data.extend_from_slice(&encoded.data);
        Ok(())
    }

    /// Number of bytes so far.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// True if there are no contents yet.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds the local index.
    pub fn finish(mut self, crypter: &Crypter, random: &PackRandomness) -> Result<Pack, Error> {
        // A full unit where no padding is needed, as kopia does.
        let padding = PADDING_UNIT - self.data.len() % PADDING_UNIT;
        self.data.extend_from_slice(random.padding.get(..padding).unwrap_or_default());
        let mut index = index::build(self.entries.iter().cloned()).map_err(Error::Index)?;
        index.extend_from_slice(&random.index_suffix);
        let hash = crypter.hash(&index);
        let encrypted = crypto::initialization_vector(&hash)
            .and_then(|iv| crypter.encrypt(&index, &iv, random.nonce))
            .map_err(Error::Encrypt)?;
        let postamble = Postamble {
            hash,
            offset: u64::try_from(self.data.len()).map_err(|_| Error::TooLong)?,
            length: u64::try_from(encrypted.len()).map_err(|_| Error::TooLong)?,
        };
        self.data.extend_from_slice(&encrypted);
        self.data.extend_from_slice(&postamble.encode()?);
        Ok(Pack { id: self.id, data: self.data.into(), entries: self.entries })
    }
}

/// Where the local index of a pack is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Postamble {
    /// Hash of the index, whose last 16 bytes are the initialization vector.
    pub hash: Vec<u8>,
    /// Offset in the pack.
    pub offset: u64,
    /// Length of the encrypted index.
    pub length: u64,
}

impl Postamble {
    /// Finds the postamble in the last bytes of a pack. `None` if they are damaged, or something else.
    pub fn find(tail: &[u8]) -> Option<Self> {
        let (&length, rest) = tail.split_last()?;
        let start = rest.len().checked_sub(usize::from(length))?;
        let (fields, checksum) = rest.get(start..)?.split_last_chunk::<CHECKSUM_LENGTH>()?;
        if crc32(fields) != u32::from_be_bytes(*checksum) {
            return None;
        }
        let mut fields = fields;
        if read_varint(&mut fields)? != 1 {
            return None;
        }
        let hash_length = usize::try_from(read_varint(&mut fields)?).ok()?;
        let (hash, rest) = fields.split_at_checked(hash_length)?;
        fields = rest;
        let offset = read_varint(&mut fields)?;
        Some(Self { hash: hash.to_vec(), offset, length: read_varint(&mut fields)? })
    }

    /// Decrypts and checks the local index.
    pub fn open_index(&self, crypter: &Crypter, encrypted: &[u8]) -> Option<Index> {
        let iv = crypto::initialization_vector(&self.hash).ok()?;
        let index = crypter.decrypt(encrypted.to_vec(), &iv).ok()?;
        (crypter.hash(&index) == self.hash).then(|| Index::parse(index.into()).ok())?
    }

    fn encode(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        write_varint(&mut bytes, 1);
        write_varint(&mut bytes, u64::try_from(self.hash.len()).map_err(|_| Error::TooLong)?);
        bytes.extend_from_slice(&self.hash);
        write_varint(&mut bytes, self.offset);
        write_varint(&mut bytes, self.length);
        bytes.extend_from_slice(&crc32(&bytes).to_be_bytes());
        bytes.push(u8::try_from(bytes.len()).map_err(|_| Error::TooLong)?);
        Ok(bytes)
    }
}

/// The checksum of ZIP and Ethernet.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// Seven bits in each byte, the lowest first.
fn write_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7f).unwrap_or_default() | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap_or_default());
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content;
    use crate::crypto::{EncryptionAlgorithm, HashAlgorithm};

    fn crypter() -> Crypter {
        let encryption = EncryptionAlgorithm::Aes256GcmHmacSha256;
        Crypter::new(HashAlgorithm::Blake2b256_128, encryption, b"secret", b"master").unwrap()
    }

    fn pack(crypter: &Crypter, plains: &[&[u8]]) -> Pack {
        let mut builder = PackBuilder::new("p1".parse().unwrap(), [9; PREAMBLE_LENGTH], 3);
        for plain in plains {
            let id = crypter.content_id(None, plain);
            let encoded = content::encode(crypter, id, plain, false, [1; 12]).unwrap();
            builder.add(&encoded, 1_700_000_000).unwrap();
        }
        let random = PackRandomness {
            padding: [7; PADDING_UNIT],
            index_suffix: [8; INDEX_SUFFIX_LENGTH],
            nonce: [2; 12],
        };
        builder.finish(crypter, &random).unwrap()
    }

    #[test]
    fn local_index_of_a_pack_describes_its_contents() {
        let crypter = crypter();
        let pack = pack(&crypter, &[b"first", b"second"]);
        let postamble = Postamble::find(&pack.data[pack.data.len() - 100..]).unwrap();
        assert_eq!(postamble.offset, 4096);
        let start = usize::try_from(postamble.offset).unwrap();
        let length = usize::try_from(postamble.length).unwrap();
        let index = postamble.open_index(&crypter, &pack.data[start..start + length]).unwrap();
        let mut expected = pack.entries.clone();
        expected.sort_by_key(|entry| entry.content);
        assert_eq!(index.entries().collect::<Vec<_>>(), expected);
        let mut damaged = pack.data[start..start + length].to_vec();
        damaged[30] ^= 1;
        assert!(postamble.open_index(&crypter, &damaged).is_none());
    }

    #[test]
    fn full_unit_of_padding_follows_contents_that_end_at_a_unit() {
        let plain = [0; PADDING_UNIT - PREAMBLE_LENGTH - crypto::ENCRYPTION_OVERHEAD];
        let pack = pack(&crypter(), &[&plain]);
        assert_eq!(Postamble::find(&pack.data).unwrap().offset, 8192);
    }

    #[test]
    fn damaged_postamble_is_not_found() {
        let data = pack(&crypter(), &[b"first"]).data;
        let length = usize::from(*data.last().unwrap());
        let postamble = &data[data.len() - length - 1..];
        assert!(Postamble::find(postamble).is_some());
        for position in 0..postamble.len() {
            let mut damaged = postamble.to_vec();
            damaged[position] ^= 1;
            assert_eq!(Postamble::find(&damaged), None, "byte {position}");
        }
        assert_eq!(Postamble::find(&[]), None);
        assert_eq!(Postamble::find(&[0; 10]), None);
    }

    #[test]
    fn varint_of_kopia_is_that_of_protobuf() {
        for number in [0, 1, 127, 128, 300, u64::MAX] {
            let mut bytes = Vec::new();
            write_varint(&mut bytes, number);
            assert_eq!(read_varint(&mut bytes.as_slice()), Some(number));
        }
        assert_eq!(read_varint(&mut [0x80; 20].as_slice()), None);
        assert_eq!(read_varint(&mut [0x80].as_slice()), None);
    }
}
