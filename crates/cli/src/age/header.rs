//! The header: the file key, encrypted to each recipient, and a MAC against changes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use ring::hmac;

use super::{Error, FileKey, derive};

pub(super) const VERSION: &str = "age-encryption.org/v1\n";
/// Beginning of a stanza.
const STANZA_PREFIX: &[u8] = b"-> ";
/// Beginning of the last line.
const FOOTER_PREFIX: &[u8] = b"---";
/// Length of a full line of a stanza's body.
const COLUMNS: usize = 64;
/// Largest number of stanzas that is read, above any real number of recipients.
const MAX_STANZAS: usize = 256;
/// Largest header that is read.
const MAX_HEADER_BYTES: usize = 1 << 20;

/// File key, encrypted to one recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stanza {
    /// Type of the stanza, and the further words of its first line.
    pub(super) arguments: Vec<String>,
    pub(super) body: Vec<u8>,
}

impl Stanza {
    pub(super) fn is_scrypt(&self) -> bool {
        self.arguments.first().is_some_and(|word| word == super::keys::SCRYPT)
    }
}

#[derive(Debug)]
pub(super) struct Header {
    pub(super) stanzas: Vec<Stanza>,
}

impl Header {
    /// Encoded header with its MAC.
    pub(super) fn encode(&self, key: &FileKey) -> Result<Vec<u8>, Error> {
        let mut text = VERSION.to_owned();
        for Stanza { arguments: words, body } in &self.stanzas {
            text.push_str("->");
            for word in words {
                text.push(' ');
                text.push_str(word);
            }
            text.push('\n');
            let body = BASE64.encode(body);
            let mut rest = body.as_str();
            // The last line is shorter than the others, and empty if necessary.
            while rest.len() >= COLUMNS {
                let (line, more) = rest.split_at(COLUMNS);
                text.push_str(line);
                text.push('\n');
                rest = more;
            }
            text.push_str(rest);
            text.push('\n');
        }
        text.push_str("---");
        let proof = hmac::sign(&mac_key(key)?, text.as_bytes());
        text.push(' ');
        text.push_str(&BASE64.encode(proof));
        text.push('\n');
        Ok(text.into_bytes())
    }

    /// Header at the beginning of a file, and the bytes after it.
    pub(super) fn parse(file: &[u8]) -> Result<(Self, &[u8]), Error> {
        let mut rest = file.strip_prefix(VERSION.as_bytes()).ok_or(Error::NotAge)?;
        let mut stanzas = Vec::new();
        loop {
            let line = next_line(&mut rest)?;
            if line.starts_with(FOOTER_PREFIX) {
                if stanzas.is_empty() {
                    return Err(Error::Header);
                }
                return Ok((Self { stanzas }, rest));
            }
            if stanzas.len() >= MAX_STANZAS || file.len() - rest.len() > MAX_HEADER_BYTES {
                return Err(Error::Header);
            }
            let words = line.strip_prefix(STANZA_PREFIX).ok_or(Error::Header)?;
            let words = std::str::from_utf8(words).map_err(|_| Error::Header)?;
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            if words
                .iter()
                .any(|word| word.is_empty() || !word.bytes().all(|c| c.is_ascii_graphic()))
            {
                return Err(Error::Header);
            }
            let mut body = Vec::new();
            loop {
                let line = next_line(&mut rest)?;
                if line.len() > COLUMNS || body.len() + line.len() > MAX_HEADER_BYTES {
                    return Err(Error::Header);
                }
                body.extend_from_slice(line);
                if line.len() < COLUMNS {
                    break;
                }
            }
            let body = BASE64.decode(body).map_err(|_| Error::Header)?;
            stanzas.push(Stanza { arguments: words, body });
        }
    }

    /// Checks that the header of a file is the one that was written with this key.
    pub(super) fn verify(key: &FileKey, file: &[u8]) -> Result<(), Error> {
        // The parsed header gives the position of its end: the last line that begins so.
        let (_, rest) = Self::parse(file)?;
        let header = &file[..file.len() - rest.len()];
        let line = header.strip_suffix(b"\n").ok_or(Error::Header)?;
        let start = line.iter().rposition(|&byte| byte == b'\n').ok_or(Error::Header)? + 1;
        let proof = line[start..].strip_prefix(b"--- ").ok_or(Error::Header)?;
        let proof = BASE64.decode(proof).map_err(|_| Error::Header)?;
        hmac::verify(&mac_key(key)?, &header[..start + FOOTER_PREFIX.len()], &proof)
            .map_err(|_| Error::Header)
    }
}

fn mac_key(key: &FileKey) -> Result<hmac::Key, Error> {
    let key = derive(key.as_slice(), b"", b"header")?;
    Ok(hmac::Key::new(hmac::HMAC_SHA256, key.as_slice()))
}

/// Next line, which must have a line end.
fn next_line<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Error> {
    let end =
        rest.iter().take(MAX_HEADER_BYTES).position(|&byte| byte == b'\n').ok_or(Error::Header)?;
    let line = &rest[..end];
    *rest = &rest[end + 1..];
    Ok(line)
}
