//! Keys of a recovery file: a passphrase, or age keys.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use console::Term;
use zeroize::Zeroizing;

use super::contents::Contents;
use crate::age::{self, DecryptionKey, EncryptionKind, Identity};

/// Longer than any passphrase.
const MAX_PASSPHRASE_BYTES: u64 = 4096;
/// Shortest new passphrase.
const MIN_PASSPHRASE_CHARS: usize = 8;
/// Larger than any file with identities.
const MAX_IDENTITY_FILE_BYTES: u64 = 1 << 20;
/// Larger than any recovery file: a Secret has 1 MiB at most.
const MAX_RECOVERY_FILE_BYTES: u64 = 64 << 20;

/// A file to open, and what opens it.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct OpenArgs {
    /// Recovery file to read; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// File with the passphrase in its first line [default: prompt for it]
    #[arg(long, value_name = "FILE", conflicts_with = "identity")]
    passphrase_file: Option<PathBuf>,

    /// File with age identities (`AGE-SECRET-KEY-1…`), for a recovery file exported with
    /// --recipient
    #[arg(long, short, value_name = "FILE")]
    identity: Vec<PathBuf>,
}

impl OpenArgs {
    /// Opens the file. A file already decrypted with `age --decrypt` is accepted, too.
    pub(super) async fn open(&self) -> anyhow::Result<Contents> {
        let args = self.clone();
        // A passphrase takes a second to try, and the terminal takes as long as the user.
        let opened = tokio::task::spawn_blocking(move || args.open_blocking()).await;
        opened.context("the recovery file was not opened")?
    }

    fn open_blocking(&self) -> anyhow::Result<Contents> {
        let name = if self.file.as_os_str() == "-" {
            "standard input".to_owned()
        } else {
            self.file.display().to_string()
        };
        let bytes = self.read().with_context(|| format!("cannot read {name}"))?;
        let text = if age::is_age(&bytes) {
            self.decrypt(&bytes).with_context(|| format!("cannot open {name}"))?
        } else {
            bytes
        };
        Contents::decode(&text).with_context(|| format!("cannot use {name}"))
    }

    fn read(&self) -> anyhow::Result<Zeroizing<Vec<u8>>> {
        if self.file.as_os_str() == "-" {
            return read_limited(io::stdin().lock(), MAX_RECOVERY_FILE_BYTES);
        }
        read_limited(File::open(&self.file)?, MAX_RECOVERY_FILE_BYTES)
    }

    fn decrypt(&self, file: &[u8]) -> anyhow::Result<Zeroizing<Vec<u8>>> {
        let kind = age::encryption_kind(file)?;
        if kind == EncryptionKind::Recipients || !self.identity.is_empty() {
            if kind == EncryptionKind::Recipients && self.identity.is_empty() {
                bail!("{}; name yours with --identity FILE", age::Error::NeedsIdentity);
            }
            let identities = identities(&self.identity)?;
            return Ok(age::decrypt(file, &DecryptionKey::Identities(&identities))?);
        }
        let passphrase = match &self.passphrase_file {
            Some(path) => read_passphrase(path)?,
            None => prompt_passphrase("Passphrase: ")?,
        };
        Ok(age::decrypt(file, &DecryptionKey::Passphrase(&passphrase))?)
    }
}

/// Passphrase in the first line of a file.
pub(super) fn read_passphrase(path: &Path) -> anyhow::Result<Zeroizing<String>> {
    let cannot = || format!("cannot read the passphrase in {}", path.display());
    let bytes = read_limited(File::open(path).with_context(cannot)?, MAX_PASSPHRASE_BYTES);
    let bytes = bytes.with_context(cannot)?;
    let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text =
        std::str::from_utf8(line).map_err(|_| anyhow!("not valid UTF-8")).with_context(cannot)?;
    if text.is_empty() {
        bail!("{}: the first line is empty", cannot());
    }
    Ok(Zeroizing::new(text.to_owned()))
}

/// New passphrase, typed twice or from a file.
pub(super) fn new_passphrase(file: Option<&Path>) -> anyhow::Result<Zeroizing<String>> {
    let passphrase = if let Some(path) = file {
        read_passphrase(path)?
    } else {
        let passphrase = prompt_passphrase("Passphrase for the recovery file: ")?;
        if *passphrase != *prompt_passphrase("Repeat the passphrase: ")? {
            bail!("the passphrases do not match; nothing was written");
        }
        passphrase
    };
    if passphrase.chars().count() < MIN_PASSPHRASE_CHARS {
        bail!("the passphrase is too short: use at least {MIN_PASSPHRASE_CHARS} characters");
    }
    Ok(passphrase)
}

fn prompt_passphrase(prompt: &str) -> anyhow::Result<Zeroizing<String>> {
    let terminal = Term::stderr();
    if !io::stdin().is_terminal() || !terminal.is_term() {
        bail!("cannot prompt for the passphrase without a terminal; add --passphrase-file FILE");
    }
    let cannot = "cannot read the passphrase from the terminal";
    terminal.write_str(prompt).context(cannot)?;
    Ok(Zeroizing::new(terminal.read_secure_line().context(cannot)?))
}

/// Identities in files as `age-keygen` writes them.
fn identities(paths: &[PathBuf]) -> anyhow::Result<Vec<Identity>> {
    let mut read_identities = Vec::new();
    for path in paths {
        let cannot = || format!("cannot use the identities in {}", path.display());
        let bytes = File::open(path).with_context(cannot)?;
        let bytes = read_limited(bytes, MAX_IDENTITY_FILE_BYTES).with_context(cannot)?;
        if age::is_age(&bytes) {
            bail!("{}: the file is encrypted; decrypt it with `age --decrypt` first", cannot());
        }
        let text = String::from_utf8_lossy(&bytes);
        let lines = text.lines().map(str::trim).enumerate();
        for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let identity = line.parse().with_context(|| format!("line {}", number + 1));
            read_identities.push(identity.with_context(cannot)?);
        }
    }
    if read_identities.is_empty() {
        bail!("no identity found in the files of --identity");
    }
    Ok(read_identities)
}

/// Reads everything, up to a limit.
fn read_limited(source: impl io::Read, limit: u64) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::new());
    source.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        bail!("larger than {limit} bytes");
    }
    Ok(bytes)
}
