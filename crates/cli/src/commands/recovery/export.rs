//! `bowline recovery export`

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::{key, record, source};
use crate::age::{self, EncryptionKey, Recipient};
use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::output;

/// Export the credentials and locations of an installation to an encrypted file
///
/// The file contains the Secrets that backup and snapshot locations reference, the Secrets
/// `cloud-credentials`, `velero-repo-credentials` and `local-volume` if they exist, and the
/// locations. The file is encrypted with a passphrase or to age recipients. Repeat the export when
/// a credential changes: `bowline install` reminds you. Exits with 1 if a referenced Secret or file
/// is missing from the recovery file.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// File to write, readable only by you
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// File with the passphrase in its first line [default: prompt for it twice]
    #[arg(long, value_name = "FILE", conflicts_with = "recipient")]
    passphrase_file: Option<PathBuf>,

    /// Age public key to encrypt to, instead of a passphrase; can be repeated
    #[arg(long, short, value_name = "age1…", value_parser = str::parse::<Recipient>)]
    recipient: Vec<Recipient>,

    /// Overwrite the file if it exists
    #[arg(long)]
    force: bool,
}

pub(crate) async fn run(args: Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    // Before the user types a passphrase.
    if !args.force && args.file.symlink_metadata().is_ok() {
        bail!("{} already exists; overwrite it with --force", args.file.display());
    }
    let installation = Installation::connect(installation).await?;
    let found = source::gather(&installation).await?;
    let contents = &found.contents;
    if contents.count() == 0 {
        bail!(
            "nothing to export: namespace `{}` has no locations and no credentials; name the \
             server's namespace with --namespace",
            installation.namespace()
        );
    }
    let text = contents.encode()?;
    let file = args.file.clone();
    let written = tokio::task::spawn_blocking(move || {
        let sealed = if args.recipient.is_empty() {
            let passphrase = key::new_passphrase(args.passphrase_file.as_deref())?;
            age::encrypt(&text, &EncryptionKey::Passphrase(&passphrase, age::WORK_FACTOR))
        } else {
            age::encrypt(&text, &EncryptionKey::Recipients(&args.recipient))
        };
        let sealed = sealed.context("cannot encrypt the recovery file")?;
        write(&args.file, &sealed, args.force)
            .with_context(|| format!("cannot write {}", args.file.display()))
    });
    written.await.context("the recovery file was not written")??;
    for secret in &contents.secrets {
        output::print_message(format_args!(
            "Secret {}: exported",
            secret.metadata.name.as_deref().unwrap_or_default()
        ));
    }
    let locations = contents.backup_locations.len() + contents.snapshot_locations.len();
    output::print_message(format_args!(
        "{}: {}, {}; keep the file, and the passphrase or identity for it, outside of the cluster \
         and the bucket",
        file.display(),
        counted(contents.secrets.len(), "Secret"),
        counted(locations, "location"),
    ));
    if let Err(error) = record::write_record(&installation, &found).await {
        let error = output::error_chain(&error);
        output::print_message(format_args!(
            "hint: the export could not be recorded, so `bowline install` will remind you again: \
             {error}"
        ));
    }
    for gap in &found.missing {
        output::print_message(format_args!("warning: {}", output::strip_control_chars(gap)));
    }
    Ok(if found.missing.is_empty() { Exit::Success } else { Exit::Failed })
}

/// Number with its noun.
fn counted(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

/// Writes a file for its owner alone, atomically.
fn write(path: &Path, bytes: &[u8], replaces: bool) -> anyhow::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // Mode 0600 from the start.
    let mut file = tempfile::Builder::new().prefix(".bowline-recovery-").tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    if replaces {
        file.persist(path)?;
    } else {
        file.persist_noclobber(path).map_err(|refused| match refused.error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                anyhow::anyhow!("the file already exists; overwrite it with --force")
            }
            _ => refused.error.into(),
        })?;
    }
    File::open(folder)?.sync_all()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn count_of_one_is_singular() {
        let texts = [0, 1, 2].map(|count| counted(count, "Secret"));
        assert_eq!(texts, ["0 Secrets", "1 Secret", "2 Secrets"]);
    }

    #[test]
    fn file_is_private_and_replaced_only_with_force() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recovery.age");
        write(&path, b"one", false).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let error = format!("{:#}", write(&path, b"two", false).unwrap_err());
        assert!(error.contains("--force"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        write(&path, b"two", true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }
}
