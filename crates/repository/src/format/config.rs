//! The encrypted part of the format blob: keys and parameters.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{Error, UpgradeLock};
use crate::crypto::{Crypter, EncryptionAlgorithm, HashAlgorithm};
use crate::json::{base64_bytes, is_default, list_or_null, nanoseconds};
use crate::splitter::SplitterAlgorithm;

/// Size of a pack in repositories whose format does not name one.
const DEFAULT_PACK_SIZE: usize = 20 << 20;

/// Largest pack size that kopia accepts.
const MAX_PACK_SIZE: usize = 120 << 20;

/// How files are split in new repositories.
const DEFAULT_SPLITTER: &str = "DYNAMIC-4M-BUZHASH";

/// Features that kopia's repositories may require and that are supported.
const FEATURES: [&str; 2] = ["index-v1", "index-v2"];

/// Keys and parameters as they are stored. [`Format::supported`] checks them.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Format {
    hash: String,
    encryption: String,
    #[serde(skip_serializing_if = "is_default")]
    ecc: String,
    #[serde(skip_serializing_if = "is_default")]
    ecc_overhead_percent: i64,
    #[serde(with = "base64_bytes")]
    secret: Zeroizing<Vec<u8>>,
    #[serde(with = "base64_bytes")]
    master_key: Zeroizing<Vec<u8>>,
    version: u32,
    max_pack_size: usize,
    index_version: u32,
    epoch_parameters: EpochParameters,
    enable_password_change: bool,
    splitter: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    upgrade_lock: Option<UpgradeLock>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "list_or_null")]
    required_features: Vec<RequiredFeature>,
}

impl fmt::Debug for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Format")
            .field("hash", &self.hash)
            .field("encryption", &self.encryption)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// A feature that a client must know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequiredFeature {
    /// Name of the feature.
    pub feature: String,
    /// What a client does that does not know it.
    pub if_not_understood: IfNotUnderstood,
}

/// What a client does that does not know a feature.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IfNotUnderstood {
    /// Warn, and go on.
    pub warn: bool,
    /// Message for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Parameters of the epochs of indexes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EpochParameters {
    /// False in repositories of format 1.
    pub enabled: bool,
    /// Duration for which a listing of the epochs is valid.
    #[serde(with = "nanoseconds")]
    pub epoch_refresh_frequency: Duration,
    /// Epochs between compactions of all indexes.
    pub full_checkpoint_frequency: u64,
    /// Age at which superseded indexes may be deleted.
    #[serde(with = "nanoseconds")]
    pub cleanup_safety_margin: Duration,
    /// Shortest epoch.
    #[serde(with = "nanoseconds")]
    pub min_epoch_duration: Duration,
    /// Index blobs after which an epoch ends.
    pub epoch_advance_on_count_threshold: u64,
    /// Bytes of index blobs after which an epoch ends.
    pub epoch_advance_on_total_size_bytes_threshold: u64,
    /// Deletions in parallel.
    pub delete_parallelism: u64,
}

impl Default for EpochParameters {
    /// Kopia's defaults for new repositories, disabled.
    fn default() -> Self {
        Self {
            enabled: false,
            epoch_refresh_frequency: Duration::from_mins(20),
            full_checkpoint_frequency: 7,
            cleanup_safety_margin: Duration::from_hours(4),
            min_epoch_duration: Duration::from_hours(24),
            epoch_advance_on_count_threshold: 20,
            epoch_advance_on_total_size_bytes_threshold: 10 << 20,
            delete_parallelism: 4,
        }
    }
}

/// Keys and parameters of a repository with which this crate can work.
#[derive(Debug)]
pub struct SupportedFormat {
    /// Keys of contents.
    pub crypter: Crypter,
    /// Version 2 or 3, which contents record.
    pub version: u8,
    /// Version of new indexes. Both are read.
    pub index_version: u32,
    /// Size at which a pack is written.
    pub max_pack_size: usize,
    /// How files are split. `None` if this crate cannot split so; then it can read, and not write.
    pub splitter: Option<SplitterAlgorithm>,
    /// Epochs.
    pub epochs: EpochParameters,
    /// Features that are not known and that the repository only warns about.
    pub unknown_features: Vec<RequiredFeature>,
}

impl Format {
    /// Checks that this crate can work with the repository at this time.
    pub fn supported(&self, now: Timestamp) -> Result<SupportedFormat, Error> {
        let unknown_features = self.check_features()?;
        if let Some(lock) = &self.upgrade_lock
            && now >= lock.locked_from()
        {
            return Err(Error::UpgradeLock {
                owner: lock.owner_id.clone(),
                message: lock.message.clone(),
                since: lock.locked_from(),
            });
        }
        let version = match self.version {
            2 => 2,
            3 => 3,
            other => return Err(Error::UnsupportedVersion(other)),
        };
        let index_version = match self.index_version {
            0 => 1,
            version @ (1 | 2) => version,
            other => return Err(Error::UnsupportedIndexVersion(other)),
        };
        if !self.ecc.is_empty() && self.ecc_overhead_percent > 0 {
            return Err(Error::UnsupportedErrorCorrection(self.ecc.clone()));
        }
        if !self.epoch_parameters.enabled {
            return Err(Error::NoEpochs);
        }
        let hash = HashAlgorithm::from_name(&self.hash)
            .ok_or_else(|| Error::UnsupportedHash(self.hash.clone()))?;
        let encryption = EncryptionAlgorithm::from_name(&self.encryption)
            .ok_or_else(|| Error::UnsupportedEncryption(self.encryption.clone()))?;
        let crypter = Crypter::new(hash, encryption, &self.secret, &self.master_key)
            .map_err(Error::InvalidKeys)?;
        let max_pack_size = match self.max_pack_size {
            0 => DEFAULT_PACK_SIZE,
            size => size.min(MAX_PACK_SIZE),
        };
        Ok(SupportedFormat {
            crypter,
            version,
            index_version,
            max_pack_size,
            splitter: SplitterAlgorithm::from_name(&self.splitter),
            epochs: self.epoch_parameters.clone(),
            unknown_features,
        })
    }

    /// Returns the unknown features that do not stop a client.
    fn check_features(&self) -> Result<Vec<RequiredFeature>, Error> {
        let mut unknown = Vec::new();
        for required in &self.required_features {
            if FEATURES.contains(&&*required.feature) {
                continue;
            }
            if !required.if_not_understood.warn {
                return Err(Error::RequiredFeature {
                    feature: required.feature.clone(),
                    message: required.if_not_understood.message.clone(),
                });
            }
            unknown.push(required.clone());
        }
        Ok(unknown)
    }
}

/// Random parts of a new repository's format. The parameters are those that Velero uses.
pub struct NewFormat {
    /// Random name.
    pub unique_id: [u8; 32],
    /// Random secret of hashes.
    pub secret: Zeroizing<[u8; 32]>,
    /// Random master key.
    pub master_key: Zeroizing<[u8; 32]>,
}

impl NewFormat {
    pub(super) fn format(&self) -> Format {
        Format {
            hash: HashAlgorithm::Blake2b256_128.name().to_owned(),
            encryption: EncryptionAlgorithm::Aes256GcmHmacSha256.name().to_owned(),
            secret: Zeroizing::new(self.secret.to_vec()),
            master_key: Zeroizing::new(self.master_key.to_vec()),
            version: 3,
            max_pack_size: DEFAULT_PACK_SIZE,
            index_version: 2,
            epoch_parameters: EpochParameters { enabled: true, ..EpochParameters::default() },
            enable_password_change: true,
            splitter: DEFAULT_SPLITTER.to_owned(),
            ..Format::default()
        }
    }
}
