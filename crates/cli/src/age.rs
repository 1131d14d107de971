//! Files in the age format, version 1 (C2SP `age.md`), small enough for memory.
//!
//! `age -d` of any implementation opens the files written here, and their files are opened here: with a passphrase
//! (scrypt) or with X25519 keys. The primitives are those of `ring`, `scrypt` and `x25519-dalek`;
//! docs/decisions/041-recovery-files-are-age-files.md has the reasons against the crate `age`.

mod bech32;
mod header;
mod keys;
mod payload;

use ring::rand::{SecureRandom as _, SystemRandom};
use zeroize::Zeroizing;

pub(crate) use keys::{Identity, Recipient};

use header::{Header, Stanza};

/// Length of the key that encrypts a file, and that is itself encrypted to each recipient.
const FILE_KEY_BYTES: usize = 16;
/// Default work factor of a passphrase, as a power of two: that of `age`.
pub(crate) const WORK_FACTOR: u8 = 18;
/// Largest work factor accepted from a file: 1 GiB of memory.
const MAX_WORK_FACTOR: u8 = 20;

/// File key, wiped when it is dropped.
type FileKey = Zeroizing<[u8; FILE_KEY_BYTES]>;

/// Failure to encrypt or open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// The file has no header of this format.
    #[error("not a file in the age format, version 1")]
    NotAge,
    /// The file is in the text form (armor) of the format.
    #[error("an armored age file, which is not supported: decrypt it with `age --decrypt` first")]
    Armored,
    /// The header breaks the rules of the format.
    #[error("the header of the file is damaged")]
    Header,
    /// The content was changed or truncated.
    #[error("the content of the file is damaged or cut off")]
    Payload,
    /// The file needs a passphrase and none is given.
    #[error("the file is encrypted with a passphrase")]
    NeedsPassphrase,
    /// The file needs an identity and none is given.
    #[error("the file is encrypted to age recipients, not with a passphrase")]
    NeedsIdentity,
    /// The passphrase is wrong.
    #[error("the passphrase is wrong")]
    WrongPassphrase,
    /// None of the identities is a recipient of the file.
    #[error("none of the identities can open the file")]
    WrongIdentity,
    /// Trying the passphrase would take too long.
    #[error("the file requires scrypt work factor 2^{0}; the maximum is 2^{MAX_WORK_FACTOR}")]
    TooMuchWork(u8),
    /// A public key is not valid.
    #[error("not an age recipient (`age1…`)")]
    Recipient,
    /// A private key is not valid.
    #[error("not an age identity (`AGE-SECRET-KEY-1…`)")]
    Identity,
    /// A key could not be derived from another.
    #[error("a key could not be derived")]
    Derive,
    /// The system provides no random numbers.
    #[error("cannot get random bytes from the system")]
    Random,
}

/// Recipients of a file.
#[derive(Debug)]
pub(crate) enum EncryptionKey<'a> {
    /// Anyone who knows the passphrase; the work factor is a power of two.
    Passphrase(&'a str, u8),
    /// Owners of these keys, at least one.
    Recipients(&'a [Recipient]),
}

/// Key that opens a file.
#[derive(Debug)]
pub(crate) enum DecryptionKey<'a> {
    Passphrase(&'a str),
    Identities(&'a [Identity]),
}

/// Kind of key that a file requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EncryptionKind {
    Passphrase,
    Recipients,
}

/// True if these bytes begin as an age file does.
pub(crate) fn is_age(bytes: &[u8]) -> bool {
    bytes.starts_with(header::VERSION.as_bytes()) || is_armored(bytes)
}

fn is_armored(bytes: &[u8]) -> bool {
    bytes.starts_with(b"-----BEGIN AGE ENCRYPTED FILE-----")
}

/// Kind of key that a file requires.
pub(crate) fn encryption_kind(file: &[u8]) -> Result<EncryptionKind, Error> {
    let (header, _) = parse(file)?;
    let has_scrypt = header.stanzas.iter().any(Stanza::is_scrypt);
    match header.stanzas.as_slice() {
        [_] if has_scrypt => Ok(EncryptionKind::Passphrase),
        // A second recipient could have been added by anyone, so that the file proves nothing.
        _ if has_scrypt => Err(Error::Header),
        _ => Ok(EncryptionKind::Recipients),
    }
}

pub(crate) fn encrypt(plain: &[u8], encryption_key: &EncryptionKey<'_>) -> Result<Vec<u8>, Error> {
    let file_key: FileKey = Zeroizing::new(random()?);
    let stanzas = match encryption_key {
        EncryptionKey::Passphrase(passphrase, work) => {
            vec![keys::wrap_scrypt(&file_key, passphrase, *work)?]
        }
        EncryptionKey::Recipients(recipients) => {
            let wrapped = recipients.iter().map(|recipient| recipient.wrap(&file_key));
            wrapped.collect::<Result<_, _>>()?
        }
    };
    let mut file = Header { stanzas }.encode(&file_key)?;
    payload::seal(&file_key, plain, &mut file)?;
    Ok(file)
}

/// Opens a file. Returns nothing unless all of it is as it was written.
pub(crate) fn decrypt(
    file: &[u8],
    decryption_key: &DecryptionKey<'_>,
) -> Result<Zeroizing<Vec<u8>>, Error> {
    let (header, payload) = parse(file)?;
    let file_key = match (encryption_kind(file)?, decryption_key) {
        (EncryptionKind::Passphrase, DecryptionKey::Passphrase(passphrase)) => {
            let stanza = header.stanzas.first().ok_or(Error::Header)?;
            keys::unwrap_scrypt(stanza, passphrase)?
        }
        (EncryptionKind::Recipients, DecryptionKey::Identities(identities)) => {
            let pairs = identities
                .iter()
                .flat_map(|identity| header.stanzas.iter().map(move |stanza| (identity, stanza)));
            let mut found = None;
            for (identity, stanza) in pairs {
                if let Some(key) = identity.unwrap(stanza)? {
                    found = Some(key);
                    break;
                }
            }
            found.ok_or(Error::WrongIdentity)?
        }
        (EncryptionKind::Passphrase, DecryptionKey::Identities(_)) => {
            return Err(Error::NeedsPassphrase);
        }
        (EncryptionKind::Recipients, DecryptionKey::Passphrase(_)) => {
            return Err(Error::NeedsIdentity);
        }
    };
    Header::verify(&file_key, file)?;
    payload::open(&file_key, payload)
}

fn parse(file: &[u8]) -> Result<(Header, &[u8]), Error> {
    if is_armored(file) {
        return Err(Error::Armored);
    }
    Header::parse(file)
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| Error::Random)?;
    Ok(bytes)
}

/// HKDF-SHA-256 with an output of 32 bytes.
fn derive(key: &[u8], salt: &[u8], info: &[u8]) -> Result<Zeroizing<[u8; 32]>, Error> {
    let mut out = Zeroizing::new([0; 32]);
    let extracted = ring::hkdf::Salt::new(ring::hkdf::HKDF_SHA256, salt).extract(key);
    let info = [info];
    let expanded = extracted.expand(&info, ring::hkdf::HKDF_SHA256).map_err(|_| Error::Derive)?;
    expanded.fill(out.as_mut_slice()).map_err(|_| Error::Derive)?;
    Ok(out)
}

#[cfg(test)]
mod tests;
