//! Keys to which the file key is encrypted: a passphrase, or X25519 keys.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use super::header::Stanza;
use super::{Error, FILE_KEY_BYTES, FileKey, MAX_WORK_FACTOR, bech32, derive, random};

pub(super) const SCRYPT: &str = "scrypt";
const SCRYPT_LABEL: &[u8] = b"age-encryption.org/v1/scrypt";
const SALT_BYTES: usize = 16;
/// Block size and parallelism of scrypt, which the format fixes.
const SCRYPT_BLOCK_PARAMS: (u32, u32) = (8, 1);

const X25519: &str = "X25519";
const X25519_LABEL: &[u8] = b"age-encryption.org/v1/X25519";
const RECIPIENT_PREFIX: &str = "age";
const IDENTITY_PREFIX: &str = "age-secret-key-";

/// Public key: `age1…`.
#[derive(Clone, Debug)]
pub(crate) struct Recipient(PublicKey);

/// Private key: `AGE-SECRET-KEY-1…`. Wiped when it is dropped, and never printed.
pub(crate) struct Identity(StaticSecret);

impl FromStr for Recipient {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        decode_key(text, RECIPIENT_PREFIX)
            .map(|key| Self(PublicKey::from(*key)))
            .ok_or(Error::Recipient)
    }
}

impl FromStr for Identity {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        decode_key(text, IDENTITY_PREFIX)
            .map(|key| Self(StaticSecret::from(*key)))
            .ok_or(Error::Identity)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Identity")
    }
}

fn decode_key(text: &str, prefix: &str) -> Option<Zeroizing<[u8; 32]>> {
    let bytes = Zeroizing::new(bech32::decode(text, prefix)?);
    bytes.as_slice().try_into().ok().map(Zeroizing::new)
}

impl Recipient {
    pub(super) fn wrap(&self, file_key: &FileKey) -> Result<Stanza, Error> {
        let secret = Zeroizing::new(random::<32>()?);
        let secret = StaticSecret::from(*secret);
        let share = PublicKey::from(&secret);
        let shared = secret.diffie_hellman(&self.0);
        if !shared.was_contributory() {
            return Err(Error::Recipient);
        }
        let wrap_key = x25519_key(shared.as_bytes(), &share, &self.0)?;
        let words = vec![X25519.to_owned(), BASE64.encode(share.as_bytes())];
        Ok(Stanza { arguments: words, body: seal(&wrap_key, file_key)? })
    }
}

impl Identity {
    /// File key, if it is encrypted to this identity.
    pub(super) fn unwrap(&self, stanza: &Stanza) -> Result<Option<FileKey>, Error> {
        let [kind, share] = stanza.arguments.as_slice() else { return Ok(None) };
        if kind != X25519 {
            return Ok(None);
        }
        let share = BASE64.decode(share).map_err(|_| Error::Header)?;
        let share: [u8; 32] = share.try_into().map_err(|_| Error::Header)?;
        if stanza.body.len() != FILE_KEY_BYTES + CHACHA20_POLY1305.tag_len() {
            return Err(Error::Header);
        }
        let share = PublicKey::from(share);
        let shared = self.0.diffie_hellman(&share);
        if !shared.was_contributory() {
            return Err(Error::Header);
        }
        let wrap_key = x25519_key(shared.as_bytes(), &share, &PublicKey::from(&self.0))?;
        Ok(open(&wrap_key, &stanza.body))
    }
}

fn x25519_key(
    shared: &[u8],
    share: &PublicKey,
    recipient: &PublicKey,
) -> Result<Zeroizing<[u8; 32]>, Error> {
    let salt = [share.as_bytes().as_slice(), recipient.as_bytes()].concat();
    derive(shared, &salt, X25519_LABEL)
}

pub(super) fn wrap_scrypt(file_key: &FileKey, passphrase: &str, work: u8) -> Result<Stanza, Error> {
    let salt: [u8; SALT_BYTES] = random()?;
    let wrap_key = scrypt_key(passphrase, &salt, work)?;
    let words = vec![SCRYPT.to_owned(), BASE64.encode(salt), work.to_string()];
    Ok(Stanza { arguments: words, body: seal(&wrap_key, file_key)? })
}

pub(super) fn unwrap_scrypt(stanza: &Stanza, passphrase: &str) -> Result<FileKey, Error> {
    let [_, salt, work] = stanza.arguments.as_slice() else { return Err(Error::Header) };
    let salt = BASE64.decode(salt).map_err(|_| Error::Header)?;
    let is_number = work.bytes().all(|c| c.is_ascii_digit()) && !work.starts_with('0');
    let work: u8 = work.parse().ok().filter(|_| is_number).ok_or(Error::Header)?;
    if salt.len() != SALT_BYTES || stanza.body.len() != FILE_KEY_BYTES + CHACHA20_POLY1305.tag_len()
    {
        return Err(Error::Header);
    }
    if work > MAX_WORK_FACTOR {
        return Err(Error::TooMuchWork(work));
    }
    let wrap_key = scrypt_key(passphrase, &salt, work)?;
    open(&wrap_key, &stanza.body).ok_or(Error::WrongPassphrase)
}

fn scrypt_key(passphrase: &str, salt: &[u8], work: u8) -> Result<Zeroizing<[u8; 32]>, Error> {
    let (block_size, parallel) = SCRYPT_BLOCK_PARAMS;
    let params = scrypt::Params::new(work, block_size, parallel).map_err(|_| Error::Header)?;
    let salt = [SCRYPT_LABEL, salt].concat();
    let mut key = Zeroizing::new([0; 32]);
    scrypt::scrypt(passphrase.as_bytes(), &salt, &params, key.as_mut_slice())
        .map_err(|_| Error::Header)?;
    Ok(key)
}

/// Each of these keys encrypts one message, so that the nonce may be zero.
fn cipher(key: &[u8; 32]) -> Option<(LessSafeKey, Nonce)> {
    let key = UnboundKey::new(&CHACHA20_POLY1305, key).ok()?;
    Some((LessSafeKey::new(key), Nonce::assume_unique_for_key([0; NONCE_LEN])))
}

fn seal(key: &[u8; 32], file_key: &FileKey) -> Result<Vec<u8>, Error> {
    let (cipher, nonce) = cipher(key).ok_or(Error::Header)?;
    let mut body = file_key.to_vec();
    cipher.seal_in_place_append_tag(nonce, Aad::empty(), &mut body).map_err(|_| Error::Header)?;
    Ok(body)
}

fn open(key: &[u8; 32], body: &[u8]) -> Option<FileKey> {
    let (cipher, nonce) = cipher(key)?;
    let mut body = Zeroizing::new(body.to_vec());
    let opened = cipher.open_in_place(nonce, Aad::empty(), &mut body).ok()?;
    <[u8; FILE_KEY_BYTES]>::try_from(&*opened).ok().map(Zeroizing::new)
}
