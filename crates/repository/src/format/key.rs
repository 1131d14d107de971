//! The key of the format blob, derived from the password.

use std::fmt;

use ring::aead::{self, LessSafeKey};
use ring::pbkdf2;
use zeroize::Zeroizing;

use super::Error;
use crate::crypto;

/// Shortest salt that kopia accepts.
const MIN_SALT: usize = 16;

const PBKDF2_ITERATIONS: u32 = 600_000;

/// The password of a repository.
#[derive(Clone)]
pub struct Password(Zeroizing<String>);

impl Password {
    /// A password. Velero removes white space around the one in its Secret; callers do the same.
    pub fn new(password: String) -> Self {
        Self(Zeroizing::new(password))
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

/// How the key follows from the password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAlgorithm {
    /// scrypt with N = 65536, r = 8, p = 1: the default.
    Scrypt,
    /// PBKDF2 with SHA-256.
    Pbkdf2,
}

impl KeyAlgorithm {
    pub(super) fn from_name(name: &str) -> Result<Self, Error> {
        match name {
            "scrypt-65536-8-1" => Ok(Self::Scrypt),
            "pbkdf2-sha256-600000" => Ok(Self::Pbkdf2),
            _ => Err(Error::UnsupportedKeyAlgorithm(name.to_owned())),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Scrypt => "scrypt-65536-8-1",
            Self::Pbkdf2 => "pbkdf2-sha256-600000",
        }
    }

    pub(super) fn derive(self, password: &Password, salt: &[u8]) -> Result<FormatKey, Error> {
        if salt.len() < MIN_SALT {
            return Err(Error::ShortUniqueId(salt.len()));
        }
        let mut key = Zeroizing::new([0; 32]);
        let refused = || Error::InvalidKeys(crypto::Error::Refused);
        match self {
            Self::Scrypt => {
                let params = scrypt::Params::new(16, 8, 1).map_err(|_| refused())?;
                scrypt::scrypt(password.0.as_bytes(), salt, &params, &mut key[..])
                    .map_err(|_| refused())?;
            }
            Self::Pbkdf2 => {
                let iterations = PBKDF2_ITERATIONS.try_into().map_err(|_| refused())?;
                let algorithm = pbkdf2::PBKDF2_HMAC_SHA256;
                pbkdf2::derive(algorithm, iterations, salt, password.0.as_bytes(), &mut key[..]);
            }
        }
        Ok(FormatKey(key))
    }
}

/// The key that decrypts the format blob.
#[derive(Clone)]
pub struct FormatKey(Zeroizing<[u8; 32]>);

impl FormatKey {
    /// The cipher for the format blob of one repository, and the data that it authenticates.
    pub(super) fn aead(
        &self,
        unique_id: &[u8],
    ) -> Result<(LessSafeKey, Zeroizing<[u8; 32]>), crypto::Error> {
        let key = crypto::derive_key(&self.0[..], unique_id, b"AES")?;
        let aad = crypto::derive_key(&self.0[..], unique_id, b"CHECKSUM")?;
        Ok((crypto::new_key(&aead::AES_256_GCM, &key[..])?, aad))
    }
}

impl fmt::Debug for FormatKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FormatKey(…)")
    }
}
