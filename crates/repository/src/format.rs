//! The blob `kopia.repository`: readable JSON with the salt of the password, and an encrypted part with the keys and
//! parameters of everything else.
//!
//! Opening it takes three steps, each with its own errors: [`FormatBlob::parse`], [`FormatBlob::derive_key`] (slow on
//! purpose), [`FormatBlob::open`]. Then [`Format::supported`] checks the parameters: an unknown version, algorithm or
//! required feature and an upgrade that locks the repository are refused, since kopia would do the same.

mod config;
mod error;
mod key;
mod upgrade;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

pub use self::config::{EpochParameters, Format, NewFormat, RequiredFeature, SupportedFormat};
pub use self::error::Error;
pub use self::key::{FormatKey, KeyAlgorithm, Password};
pub use self::upgrade::UpgradeLock;

use crate::crypto::{self, NONCE_LENGTH};
use crate::json::base64_bytes;

/// Name of the blob.
pub const FORMAT_BLOB: &str = "kopia.repository";

/// Name of the blob with the retention of blobs.
pub const BLOB_CONFIG_BLOB: &str = "kopia.blobcfg";

/// Largest format blob: kopia's own limit is about the same.
pub const MAX_FORMAT_BLOB: u64 = 64 * 1024;

/// The only encryption of the format blob.
const ENCRYPTION: &str = "AES256_GCM";

/// The readable part of the format blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FormatBlob {
    tool: String,
    build_version: String,
    build_info: String,
    #[serde(rename = "uniqueID", with = "base64_bytes")]
    unique_id: Vec<u8>,
    key_algo: String,
    encryption: String,
    #[serde(rename = "encryptedBlockFormat", with = "base64_bytes", default)]
    encrypted: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct EncryptedPart<T> {
    format: T,
}

impl FormatBlob {
    /// Reads the blob.
    pub fn parse(blob: &[u8]) -> Result<Self, Error> {
        if u64::try_from(blob.len()).is_ok_and(|length| length > MAX_FORMAT_BLOB) {
            return Err(Error::TooLong(blob.len()));
        }
        let parsed: Self = serde_json::from_slice(blob).map_err(Error::Parse)?;
        if parsed.encryption != ENCRYPTION {
            return Err(Error::UnsupportedFormatEncryption(parsed.encryption));
        }
        Ok(parsed)
    }

    /// The blob's bytes.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        let mut blob = serde_json::to_vec_pretty(self).map_err(Error::Parse)?;
        blob.push(b'\n');
        Ok(blob)
    }

    /// Random name of the repository, which is the salt of its password too.
    pub fn unique_id(&self) -> &[u8] {
        &self.unique_id
    }

    /// Derives the key of the encrypted part from the password. Takes about a tenth of a second and 64 MiB of memory.
    pub fn derive_key(&self, password: &Password) -> Result<FormatKey, Error> {
        KeyAlgorithm::from_name(&self.key_algo)?.derive(password, &self.unique_id)
    }

    /// Decrypts the encrypted part. The wrong password and damage of these bytes cannot be told apart.
    pub fn open(&self, key: &FormatKey) -> Result<Format, Error> {
        let decrypted = self.decrypt(key, &self.encrypted).map_err(|error| match error {
            crypto::Error::TooShort(length) => Error::Truncated(length),
            _ => Error::WrongPassword,
        });
        let plain = Zeroizing::new(decrypted?);
        let part: EncryptedPart<Format> =
            serde_json::from_slice(&plain).map_err(Error::ParseEncrypted)?;
        Ok(part.format)
    }

    /// Decrypts the blob `kopia.blobcfg`.
    pub fn open_blob_config(&self, key: &FormatKey, blob: &[u8]) -> Result<BlobConfig, Error> {
        let plain = self.decrypt(key, blob).map_err(|_| Error::DamagedBlobConfig)?;
        serde_json::from_slice(&plain).map_err(|_| Error::DamagedBlobConfig)
    }

    /// Encrypts a document of this repository with the key of the format blob.
    fn encrypt(
        &self,
        key: &FormatKey,
        plain: &[u8],
        nonce: [u8; NONCE_LENGTH],
    ) -> Result<Vec<u8>, Error> {
        let (aead, aad) = key.aead(&self.unique_id).map_err(Error::Encrypt)?;
        crypto::seal(&aead, &aad[..], plain, nonce).map_err(Error::Encrypt)
    }

    fn decrypt(&self, key: &FormatKey, sealed: &[u8]) -> Result<Vec<u8>, crypto::Error> {
        let (aead, aad) = key.aead(&self.unique_id)?;
        let mut plain = sealed.to_vec();
        let length = crypto::open_in_place(&aead, &aad[..], &mut plain)?;
        plain.truncate(length);
        Ok(plain)
    }
}

/// The retention of blobs by the store, if there is any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlobConfig {
    /// Mode of the object lock.
    #[serde(default, skip_serializing_if = "crate::json::is_default")]
    pub retention_mode: String,
    /// Duration in nanoseconds.
    #[serde(default, skip_serializing_if = "crate::json::is_default")]
    pub retention_period: i64,
}

/// The two blobs of a new repository's format.
#[derive(Clone, Debug)]
pub struct NewFormatBlobs {
    /// `kopia.repository`.
    pub format: Vec<u8>,
    /// `kopia.blobcfg`.
    pub blob_config: Vec<u8>,
    /// The key of both.
    pub key: FormatKey,
}

/// Encodes the format of a new repository, encrypted with a password.
pub fn encode_new(
    new: &NewFormat,
    password: &Password,
    nonces: [[u8; NONCE_LENGTH]; 2],
) -> Result<NewFormatBlobs, Error> {
    let mut blob = FormatBlob {
        tool: "https://github.com/kopia/kopia".to_owned(),
        build_version: env!("CARGO_PKG_VERSION").to_owned(),
        build_info: "bowline".to_owned(),
        unique_id: new.unique_id.to_vec(),
        key_algo: KeyAlgorithm::Scrypt.name().to_owned(),
        encryption: ENCRYPTION.to_owned(),
        encrypted: Vec::new(),
    };
    let key = blob.derive_key(password)?;
    let part = EncryptedPart { format: new.format() };
    let part = Zeroizing::new(serde_json::to_vec(&part).map_err(Error::Parse)?);
    blob.encrypted = blob.encrypt(&key, &part, nonces[0])?;
    let config = serde_json::to_vec(&BlobConfig::default()).map_err(Error::Parse)?;
    let blob_config = blob.encrypt(&key, &config, nonces[1])?;
    Ok(NewFormatBlobs { format: blob.encode()?, blob_config, key })
}

#[cfg(test)]
mod tests;
