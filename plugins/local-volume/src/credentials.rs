//! Credentials of a repository: a password, and for S3 a key. They never reach a log or an error.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Size limit of password and key files.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    /// `None` for an empty text.
    pub(crate) fn new(text: impl Into<String>) -> Option<Self> {
        Some(text.into()).filter(|text| !text.is_empty()).map(Self)
    }

    /// The text.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Content of a credentials file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// `RUSTIC_PASSWORD`
    pub password: Option<Secret>,
    /// `AWS_ACCESS_KEY_ID`
    pub access_key: Option<Secret>,
    /// `AWS_SECRET_ACCESS_KEY`
    pub secret_key: Option<Secret>,
    /// `AWS_SESSION_TOKEN`
    pub session_token: Option<Secret>,
}

impl Credentials {
    /// Parses lines of the form `KEY=value`. The names may be in lower case and follow a
    /// `[profile]`, as in the files of the AWS tools; there is one profile. Other keys are ignored.
    pub(crate) fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines() {
            let Some((key, value)) = line.split_once('=') else { continue };
            let slot = match key.trim().to_ascii_uppercase().as_str() {
                "RUSTIC_PASSWORD" => &mut found.password,
                "AWS_ACCESS_KEY_ID" => &mut found.access_key,
                "AWS_SECRET_ACCESS_KEY" => &mut found.secret_key,
                "AWS_SESSION_TOKEN" => &mut found.session_token,
                _ => continue,
            };
            *slot = Secret::new(value.trim());
        }
        found
    }

    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        Ok(Self::parse(&read_limited(path)?))
    }
}

/// The password in a file: its first line.
pub(crate) fn read_password(path: &Path) -> io::Result<Option<Secret>> {
    Ok(read_limited(path)?.lines().next().and_then(Secret::new))
}

fn read_limited(path: &Path) -> io::Result<String> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("larger than {MAX_FILE_BYTES} bytes")));
    }
    // The error of the conversion would contain the bytes.
    String::from_utf8(bytes).map_err(|_| io::Error::other("not valid UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_both_spellings() {
        let text = "# RUSTIC=1\n[default]\naws_access_key_id = id\nAWS_SECRET_ACCESS_KEY=se=cret\n\
                    region=x\n\nRUSTIC_PASSWORD=pass word \nAWS_SESSION_TOKEN=";
        let found = Credentials::parse(text);
        let reveal = |secret: &Option<Secret>| secret.as_ref().map(|s| s.reveal().to_owned());
        assert_eq!(reveal(&found.access_key).as_deref(), Some("id"));
        assert_eq!(reveal(&found.secret_key).as_deref(), Some("se=cret"));
        assert_eq!(reveal(&found.password).as_deref(), Some("pass word"));
        assert_eq!(found.session_token, None);
        assert_eq!(Credentials::parse(""), Credentials::default());
    }

    #[test]
    fn secrets_are_not_shown() {
        let shown = format!("{:?}", Credentials::parse("RUSTIC_PASSWORD=hunter2"));
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn password_is_the_first_line_of_a_small_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let write = |bytes: &[u8]| std::fs::write(&path, bytes).unwrap();
        write(b"hunter2\r\nmore\n");
        assert_eq!(read_password(&path).unwrap(), Secret::new("hunter2"));
        write(b"\n");
        assert_eq!(read_password(&path).unwrap(), None);
        write(&vec![b'x'; 65 * 1024]);
        assert!(read_password(&path).unwrap_err().to_string().contains("larger than 65536 bytes"));
        write(b"hunter\xff");
        let error = read_password(&path).unwrap_err().to_string();
        assert!(error.contains("not valid UTF-8") && !error.contains("hunter"), "{error}");
        assert!(read_password(folder.path()).is_err());
    }
}
