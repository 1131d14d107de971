//! One content: encrypted, maybe compressed, named by the hash of its plain bytes.

use std::io;

use crate::compression::{self, Compressor};
use crate::crypto::{self, Crypter, ENCRYPTION_OVERHEAD, NONCE_LENGTH};
use crate::id::ContentId;
use crate::index::IndexEntry;

/// Greatest length of a content, plain or packed: an index cannot store more.
pub const MAX_LENGTH: usize = (1 << 28) + ENCRYPTION_OVERHEAD;

/// Damage of a content.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pack has other bytes there than were written.
    #[error("content {content} cannot be decrypted")]
    Decrypt {
        /// Content.
        content: ContentId,
        /// Reason.
        source: crypto::Error,
    },
    /// The content is not what was compressed.
    #[error("content {content} cannot be decompressed")]
    Decompress {
        /// Content.
        content: ContentId,
        /// Reason.
        source: compression::Error,
    },
    /// The hash of the data is not its name.
    #[error("content {0} has another hash than its name")]
    Hash(ContentId),
    /// The content is too long.
    #[error("content {content} has {length} bytes, which is too much")]
    TooLong {
        /// Content.
        content: ContentId,
        /// Length.
        length: u32,
    },
    /// The content is encrypted with a key that no version of kopia knows.
    #[error("content {content} is encrypted with key {key}, which is not supported")]
    UnsupportedKey {
        /// Content.
        content: ContentId,
        /// Number of the key.
        key: u8,
    },
}

/// Checks the lengths of an entry before its content is read.
pub fn check_entry(entry: &IndexEntry) -> Result<(), Error> {
    let content = entry.content;
    if entry.encryption_key != 0 {
        return Err(Error::UnsupportedKey { content, key: entry.encryption_key });
    }
    let longest = entry.packed_length.max(entry.length.unwrap_or_default());
    match usize::try_from(longest) {
        Ok(length) if length <= MAX_LENGTH => Ok(()),
        _ => Err(Error::TooLong { content, length: longest }),
    }
}

/// The plain bytes of a content, from those in the pack.
pub fn decode(crypter: &Crypter, entry: &IndexEntry, packed: Vec<u8>) -> Result<Vec<u8>, Error> {
    check_entry(entry)?;
    let content = entry.content;
    let decrypted = crypto::initialization_vector(content.hash())
        .and_then(|iv| crypter.decrypt(packed, &iv))
        .map_err(|source| Error::Decrypt { content, source })?;
    let plain = match entry.compressor {
        None => decrypted,
        Some(compressor) => {
            let length = entry.length.and_then(|length| usize::try_from(length).ok());
            let length = length.unwrap_or(MAX_LENGTH);
            compression::decompress_content(compressor, &decrypted, length)
                .map_err(|source| Error::Decompress { content, source })?
        }
    };
    if crypter.hash(&plain) != content.hash() {
        return Err(Error::Hash(content));
    }
    Ok(plain)
}

/// A content as it is packed.
#[derive(Debug)]
pub struct EncodedContent {
    /// Name.
    pub content: ContentId,
    /// Encrypted bytes.
    pub data: Vec<u8>,
    /// Length of the plain bytes.
    pub length: usize,
    /// Compressor, if compression made it smaller.
    pub compressor: Option<Compressor>,
}

/// Failure to encode a content.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// Compression failed.
    #[error("cannot compress content {content}")]
    Compress {
        /// Content.
        content: ContentId,
        /// Reason.
        source: io::Error,
    },
    /// Encryption failed.
    #[error("cannot encrypt content {content}")]
    Encrypt {
        /// Content.
        content: ContentId,
        /// Reason.
        source: crypto::Error,
    },
}

/// Compresses (if asked to, and if that makes it smaller) and encrypts a content.
pub fn encode(
    crypter: &Crypter,
    content: ContentId,
    plain: &[u8],
    compress: bool,
    nonce: [u8; NONCE_LENGTH],
) -> Result<EncodedContent, EncodeError> {
    let compressed = if compress {
        compression::compress(plain).map_err(|source| EncodeError::Compress { content, source })?
    } else {
        None
    };
    let data = crypto::initialization_vector(content.hash())
        .and_then(|iv| crypter.encrypt(compressed.as_deref().unwrap_or(plain), &iv, nonce))
        .map_err(|source| EncodeError::Encrypt { content, source })?;
    let compressor = compressed.map(|_| Compressor::ZSTD_FASTEST);
    Ok(EncodedContent { content, data, length: plain.len(), compressor })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::{EncryptionAlgorithm, HashAlgorithm};

    fn crypter() -> Crypter {
        let encryption = EncryptionAlgorithm::Aes256GcmHmacSha256;
        Crypter::new(HashAlgorithm::Blake2b256_128, encryption, b"secret", b"master").unwrap()
    }

    fn entry(encoded: &EncodedContent) -> IndexEntry {
        IndexEntry {
            content: encoded.content,
            timestamp: 0,
            is_deleted: false,
            pack: "p1".parse().unwrap(),
            offset: 0,
            packed_length: u32::try_from(encoded.data.len()).unwrap(),
            length: Some(u32::try_from(encoded.length).unwrap()),
            compressor: encoded.compressor,
            format_version: 3,
            encryption_key: 0,
        }
    }

    #[test]
    fn content_is_what_was_written() {
        let crypter = crypter();
        let plain = [b'a'; 1000];
        let id = crypter.content_id(None, &plain);
        for compress in [false, true] {
            let encoded = encode(&crypter, id, &plain, compress, [0; 12]).unwrap();
            assert_eq!(encoded.compressor.is_some(), compress);
            assert_eq!(encoded.data.len() < 1000, compress);
            assert_eq!(decode(&crypter, &entry(&encoded), encoded.data).unwrap(), plain);
        }
    }

    #[test]
    fn content_that_is_not_its_name_is_refused() {
        let crypter = crypter();
        let other = crypter.content_id(None, b"other");
        let encoded = encode(&crypter, other, b"plain", false, [0; 12]).unwrap();
        let error = decode(&crypter, &entry(&encoded), encoded.data).unwrap_err();
        assert!(matches!(error, Error::Hash(id) if id == other), "{error}");
    }

    #[test]
    fn damaged_content_is_named() {
        let crypter = crypter();
        let id = crypter.content_id(None, b"plain");
        let encoded = encode(&crypter, id, b"plain", false, [0; 12]).unwrap();
        let mut damaged = encoded.data.clone();
        damaged[20] ^= 1;
        let error = decode(&crypter, &entry(&encoded), damaged).unwrap_err();
        assert_eq!(error.to_string(), format!("content {id} cannot be decrypted"));
        let key = IndexEntry { encryption_key: 1, ..entry(&encoded) };
        let error = decode(&crypter, &key, encoded.data.clone()).unwrap_err();
        assert!(matches!(error, Error::UnsupportedKey { key: 1, .. }), "{error}");
        let long = IndexEntry { packed_length: u32::MAX, ..entry(&encoded) };
        assert!(matches!(check_entry(&long), Err(Error::TooLong { .. })));
    }
}
