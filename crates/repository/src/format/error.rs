//! Reasons for which a repository cannot be opened.

use jiff::Timestamp;

use crate::crypto;

/// Reason for which the format of a repository cannot be read, or is not supported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The blob is too long.
    #[error("kopia.repository is {0} bytes long, which is too much")]
    TooLong(usize),
    /// The blob is not the JSON that it should be.
    #[error("kopia.repository is damaged")]
    Parse(#[source] serde_json::Error),
    /// The blob is encrypted in an unknown way.
    #[error("kopia.repository is encrypted with {0:?}, which is not supported")]
    UnsupportedFormatEncryption(String),
    /// The key is derived in an unknown way.
    #[error("the password's key is derived with {0:?}, which is not supported")]
    UnsupportedKeyAlgorithm(String),
    /// The salt is too short.
    #[error("kopia.repository is damaged: its unique ID has only {0} bytes")]
    ShortUniqueId(usize),
    /// The encrypted part is too short to be decrypted.
    #[error("kopia.repository is damaged: its encrypted part has only {0} bytes")]
    Truncated(usize),
    /// The password does not decrypt the blob.
    #[error("wrong password for the repository (or kopia.repository is damaged)")]
    WrongPassword,
    /// The decrypted part is not the JSON that it should be.
    #[error("the encrypted part of kopia.repository is invalid")]
    ParseEncrypted(#[source] serde_json::Error),
    /// The blob with the retention is damaged.
    #[error("kopia.blobcfg is damaged")]
    DamagedBlobConfig,
    /// The format is too old or too new.
    #[error("format version {0} of the repository is not supported (2 and 3 are)")]
    UnsupportedVersion(u32),
    /// The version of indexes is unknown.
    #[error("index version {0} of the repository is not supported (1 and 2 are)")]
    UnsupportedIndexVersion(u32),
    /// The hash is not supported.
    #[error("hash algorithm {0:?} of the repository is not supported")]
    UnsupportedHash(String),
    /// The encryption is not supported.
    #[error("encryption algorithm {0:?} of the repository is not supported")]
    UnsupportedEncryption(String),
    /// Blobs have an error correction, which is not supported.
    #[error("error correction {0:?} of the repository is not supported")]
    UnsupportedErrorCorrection(String),
    /// The repository has no epochs.
    #[error("the repository does not use epochs for its indexes, which is not supported")]
    NoEpochs,
    /// The repository requires a feature that this version lacks.
    #[error(
        "the repository requires the feature {feature:?}, which is not supported{}",
        hint(message)
    )]
    RequiredFeature {
        /// Name of the feature.
        feature: String,
        /// Advice that the repository gives.
        message: String,
    },
    /// Somebody upgrades the repository.
    #[error("the repository is locked for an upgrade since {since} by {owner:?}: {message}")]
    UpgradeLock {
        /// Who upgrades it.
        owner: String,
        /// Message for those who wait.
        message: String,
        /// Time from which nobody may work in the repository.
        since: Timestamp,
    },
    /// The keys cannot be used.
    #[error("the keys of the repository are invalid")]
    InvalidKeys(#[source] crypto::Error),
    /// The format cannot be encrypted.
    #[error("cannot encrypt the format of the repository")]
    Encrypt(#[source] crypto::Error),
}

fn hint(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}
