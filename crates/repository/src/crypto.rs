//! Hashing and encryption of contents and of blobs that are encrypted as a whole.
//!
//! The hash of the plain bytes, keyed with a secret of the repository, is the name of a content and the initialization
//! vector of its encryption: from it and the master key follows a key for this content alone. A random nonce of 12 bytes
//! stands before the encrypted bytes, a tag of 16 after them.

use std::fmt;

use ring::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{self, HKDF_SHA256, Salt};
use ring::hmac;
use zeroize::Zeroizing;

use crate::id::{ContentId, ContentPrefix};

/// Length of a nonce.
pub const NONCE_LENGTH: usize = 12;

/// Bytes that encryption adds: the nonce and the tag.
pub const ENCRYPTION_OVERHEAD: usize = NONCE_LENGTH + 16;

/// Purpose of the secret from which the keys of contents follow.
const PURPOSE_ENCRYPTION: &[u8] = b"encryption";

/// The hashes that are supported. Velero uses the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashAlgorithm {
    /// Half of BLAKE2b with 256 bits.
    Blake2b256_128,
    /// BLAKE2b with 256 bits.
    Blake2b256,
    /// HMAC with SHA-256.
    HmacSha256,
    /// Half of HMAC with SHA-256.
    HmacSha256_128,
}

impl HashAlgorithm {
    /// Reads kopia's name.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "BLAKE2B-256-128" => Self::Blake2b256_128,
            "BLAKE2B-256" => Self::Blake2b256,
            "HMAC-SHA256" => Self::HmacSha256,
            "HMAC-SHA256-128" => Self::HmacSha256_128,
            _ => return None,
        })
    }

    /// Kopia's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Blake2b256_128 => "BLAKE2B-256-128",
            Self::Blake2b256 => "BLAKE2B-256",
            Self::HmacSha256 => "HMAC-SHA256",
            Self::HmacSha256_128 => "HMAC-SHA256-128",
        }
    }

    fn length(self) -> usize {
        match self {
            Self::Blake2b256_128 | Self::HmacSha256_128 => 16,
            Self::Blake2b256 | Self::HmacSha256 => 32,
        }
    }
}

/// The ciphers that are supported. Velero uses the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncryptionAlgorithm {
    /// AES-256-GCM with a key for each content.
    Aes256GcmHmacSha256,
    /// ChaCha20-Poly1305 with a key for each content.
    Chacha20Poly1305HmacSha256,
}

impl EncryptionAlgorithm {
    /// Reads kopia's name.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "AES256-GCM-HMAC-SHA256" => Self::Aes256GcmHmacSha256,
            "CHACHA20-POLY1305-HMAC-SHA256" => Self::Chacha20Poly1305HmacSha256,
            _ => return None,
        })
    }

    /// Kopia's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes256GcmHmacSha256 => "AES256-GCM-HMAC-SHA256",
            Self::Chacha20Poly1305HmacSha256 => "CHACHA20-POLY1305-HMAC-SHA256",
        }
    }

    fn cipher(self) -> &'static aead::Algorithm {
        match self {
            Self::Aes256GcmHmacSha256 => &aead::AES_256_GCM,
            Self::Chacha20Poly1305HmacSha256 => &aead::CHACHA20_POLY1305,
        }
    }
}

/// Failure of encryption or decryption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are shorter than a nonce and a tag.
    #[error("{0} bytes are too short for encrypted data")]
    TooShort(usize),
    /// The tag is not that of these bytes, with this key.
    #[error("the authentication tag does not match: the data is damaged, or the key is another")]
    Authentication,
    /// The algorithm refuses a key, or more bytes than it can encrypt.
    #[error("the cipher refuses the key or the amount of data")]
    Refused,
    /// The hash in a name is too short to derive a key from.
    #[error("the hash is shorter than 16 bytes")]
    HashTooShort,
}

/// Hashes, encrypts and decrypts with the keys of one repository.
pub struct Crypter {
    hash: HashAlgorithm,
    encryption: EncryptionAlgorithm,
    secret: Zeroizing<Vec<u8>>,
    content_keys: hmac::Key,
}

impl fmt::Debug for Crypter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crypter")
            .field("hash", &self.hash)
            .field("encryption", &self.encryption)
            .finish_non_exhaustive()
    }
}

impl Crypter {
    /// Keys of a repository: the secret of its hashes, and the master key of its encryption.
    pub fn new(
        hash: HashAlgorithm,
        encryption: EncryptionAlgorithm,
        secret: &[u8],
        master_key: &[u8],
    ) -> Result<Self, Error> {
        // BLAKE2b takes no longer key.
        if secret.len() > blake2b_simd::KEYBYTES || master_key.is_empty() {
            return Err(Error::Refused);
        }
        let derived = derive_key(master_key, PURPOSE_ENCRYPTION, b"")?;
        Ok(Self {
            hash,
            encryption,
            secret: Zeroizing::new(secret.to_vec()),
            content_keys: hmac::Key::new(hmac::HMAC_SHA256, &derived[..]),
        })
    }

    /// The hash of plain bytes.
    pub fn hash(&self, plain: &[u8]) -> Vec<u8> {
        let mut hash = match self.hash {
            HashAlgorithm::Blake2b256_128 | HashAlgorithm::Blake2b256 => {
                let mut params = blake2b_simd::Params::new();
                params.hash_length(32).key(&self.secret);
                params.hash(plain).as_bytes().to_vec()
            }
            HashAlgorithm::HmacSha256 | HashAlgorithm::HmacSha256_128 => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, &self.secret);
                hmac::sign(&key, plain).as_ref().to_vec()
            }
        };
        hash.truncate(self.hash.length());
        hash
    }

    /// The name of a content with these plain bytes.
    pub fn content_id(&self, prefix: Option<ContentPrefix>, plain: &[u8]) -> ContentId {
        let hash = self.hash(plain);
        #[expect(clippy::expect_used, reason = "a hash has 16 or 32 bytes")]
        ContentId::from_hash(prefix, &hash).expect("length of a hash")
    }

    /// Decrypts bytes that were encrypted for this initialization vector.
    pub fn decrypt(&self, mut sealed: Vec<u8>, iv: &[u8]) -> Result<Vec<u8>, Error> {
        let key = self.key(iv)?;
        let length = open_in_place(&key, iv, &mut sealed)?;
        sealed.truncate(length);
        Ok(sealed)
    }

    /// Encrypts bytes for an initialization vector. A nonce is used once.
    pub fn encrypt(
        &self,
        plain: &[u8],
        iv: &[u8],
        nonce: [u8; NONCE_LENGTH],
    ) -> Result<Vec<u8>, Error> {
        seal(&self.key(iv)?, iv, plain, nonce)
    }

    fn key(&self, iv: &[u8]) -> Result<LessSafeKey, Error> {
        let key = hmac::sign(&self.content_keys, iv);
        new_key(self.encryption.cipher(), key.as_ref())
    }
}

/// The initialization vector of a hash: its last 16 bytes.
pub fn initialization_vector(hash: &[u8]) -> Result<[u8; 16], Error> {
    hash.last_chunk().copied().ok_or(Error::HashTooShort)
}

/// A key of 32 bytes by HKDF with SHA-256.
pub(crate) fn derive_key(
    secret: &[u8],
    salt: &[u8],
    info: &[u8],
) -> Result<Zeroizing<[u8; 32]>, Error> {
    struct KeyLength;
    impl hkdf::KeyType for KeyLength {
        fn len(&self) -> usize {
            32
        }
    }
    let mut key = Zeroizing::new([0; 32]);
    let info = [info];
    let extracted = Salt::new(HKDF_SHA256, salt).extract(secret);
    let expanded = extracted.expand(&info, KeyLength).map_err(|_| Error::Refused)?;
    expanded.fill(&mut key[..]).map_err(|_| Error::Refused)?;
    Ok(key)
}

pub(crate) fn new_key(
    algorithm: &'static aead::Algorithm,
    key: &[u8],
) -> Result<LessSafeKey, Error> {
    UnboundKey::new(algorithm, key).map(LessSafeKey::new).map_err(|_| Error::Refused)
}

/// Decrypts `nonce ‖ encrypted ‖ tag`, and moves the plain bytes to the front. Returns their length.
pub(crate) fn open_in_place(
    key: &LessSafeKey,
    aad: &[u8],
    sealed: &mut [u8],
) -> Result<usize, Error> {
    if sealed.len() < ENCRYPTION_OVERHEAD {
        return Err(Error::TooShort(sealed.len()));
    }
    let nonce = sealed.first_chunk().copied().unwrap_or_default();
    let nonce = Nonce::assume_unique_for_key(nonce);
    let plain = key.open_within(nonce, Aad::from(aad), sealed, NONCE_LENGTH..);
    plain.map(|plain| plain.len()).map_err(|_| Error::Authentication)
}

/// Encrypts as `nonce ‖ encrypted ‖ tag`.
pub(crate) fn seal(
    key: &LessSafeKey,
    aad: &[u8],
    plain: &[u8],
    nonce: [u8; NONCE_LENGTH],
) -> Result<Vec<u8>, Error> {
    let mut sealed = Vec::with_capacity(plain.len() + ENCRYPTION_OVERHEAD);
    sealed.extend_from_slice(&nonce);
    sealed.extend_from_slice(plain);
    let nonce = Nonce::assume_unique_for_key(nonce);
    let (_, body) = sealed.split_at_mut(NONCE_LENGTH);
    let tag = key.seal_in_place_separate_tag(nonce, Aad::from(aad), body);
    sealed.extend_from_slice(tag.map_err(|_| Error::Refused)?.as_ref());
    Ok(sealed)
}

#[cfg(test)]
mod tests;
