//! The content, in chunks that are encrypted one by one and numbered, with the last one marked.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use zeroize::Zeroizing;

use super::{Error, FileKey, derive, random};

/// Length of a chunk before encryption; the last one may be shorter.
const CHUNK_BYTES: usize = 64 << 10;
/// Length that encryption adds to a chunk.
const TAG_BYTES: usize = 16;
const NONCE_BYTES: usize = 16;

pub(super) fn seal(file_key: &FileKey, plain: &[u8], file: &mut Vec<u8>) -> Result<(), Error> {
    let nonce: [u8; NONCE_BYTES] = random()?;
    file.extend_from_slice(&nonce);
    let cipher = cipher(file_key, &nonce)?;
    let pieces = plain.chunks(CHUNK_BYTES).count().max(1);
    for number in 0..pieces {
        let start = number * CHUNK_BYTES;
        let mut piece = plain[start..plain.len().min(start + CHUNK_BYTES)].to_vec();
        let nonce = chunk_nonce(number, number + 1 == pieces);
        cipher
            .seal_in_place_append_tag(nonce, Aad::empty(), &mut piece)
            .map_err(|_| Error::Payload)?;
        file.append(&mut piece);
    }
    Ok(())
}

pub(super) fn open(file_key: &FileKey, payload: &[u8]) -> Result<Zeroizing<Vec<u8>>, Error> {
    let (nonce, sealed) = payload.split_at_checked(NONCE_BYTES).ok_or(Error::Payload)?;
    let cipher = cipher(file_key, nonce)?;
    let mut plain = Zeroizing::new(Vec::with_capacity(sealed.len()));
    let pieces = sealed.chunks(CHUNK_BYTES + TAG_BYTES).count();
    for (number, piece) in sealed.chunks(CHUNK_BYTES + TAG_BYTES).enumerate() {
        let is_last = number + 1 == pieces;
        let mut piece = Zeroizing::new(piece.to_vec());
        let opened = cipher
            .open_in_place(chunk_nonce(number, is_last), Aad::empty(), &mut piece)
            .map_err(|_| Error::Payload)?;
        // The last chunk may be empty only in an empty file.
        if opened.is_empty() && number > 0 {
            return Err(Error::Payload);
        }
        plain.extend_from_slice(opened);
    }
    if pieces == 0 { Err(Error::Payload) } else { Ok(plain) }
}

fn cipher(file_key: &FileKey, nonce: &[u8]) -> Result<LessSafeKey, Error> {
    let key = derive(file_key.as_slice(), nonce, b"payload")?;
    let key = UnboundKey::new(&CHACHA20_POLY1305, key.as_slice()).map_err(|_| Error::Payload)?;
    Ok(LessSafeKey::new(key))
}

/// Nonce made of the number of the chunk and the mark of the last one.
fn chunk_nonce(number: usize, is_last: bool) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[3..NONCE_LEN - 1].copy_from_slice(&(number as u64).to_be_bytes());
    bytes[NONCE_LEN - 1] = u8::from(is_last);
    Nonce::assume_unique_for_key(bytes)
}
