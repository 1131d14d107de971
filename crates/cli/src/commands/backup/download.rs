//! `bowline backup download`

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use bowline_api::Backup;
use bowline_api::download_request::DownloadTargetKind;
use bowline_store::decode::Limits;
use indicatif::{BinaryBytes, ProgressBar, ProgressStyle};
use tempfile::NamedTempFile;
use tokio::io::AsyncWriteExt as _;

use crate::args::{InstallationArgs, TrustArgs};
use crate::download::{Body, Downloads};
use crate::exit::{Exit, shutdown_signal};
use crate::installation::Installation;
use crate::run::Run as _;
use crate::{flags, listing, output};

/// Stands for standard output.
const STDOUT: &str = "-";
/// Interval of progress lines, where there is no bar.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Download the object archive of a backup
///
/// Volume data is not included.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the backup
    name: String,

    /// File to write; - for standard output [default: NAME-data.tar.gz in the current directory]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Overwrite the file if it exists
    #[arg(long)]
    force: bool,

    /// Time limit for the server to provide the file; the download itself is not limited
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = flags::timeout)]
    timeout: Duration,

    #[command(flatten)]
    trust: TrustArgs,
}

pub(crate) async fn run(args: Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let name = &args.name;
    let backup: Backup = listing::get(&installation, name).await?;
    if let Err(reason) = backup.has_files() {
        bail!("backup `{name}` has no archive: {reason}");
    }
    let target = match &args.output {
        Some(path) => path.clone(),
        None => PathBuf::from(format!("{name}-data.tar.gz")),
    };
    let to_stdout = target == Path::new(STDOUT);
    if to_stdout && io::stdout().is_terminal() {
        bail!("refusing to write an archive to a terminal; redirect it to a file or a program");
    }
    if !to_stdout {
        check_target(&target, args.force)?;
    }
    let location = &backup.spec.storage_location;
    let downloads = Downloads::new(&installation, location, &args.trust, args.timeout).await?;
    let asked_to_end = shutdown_signal()?;
    let downloaded = async {
        let limit = Limits::ARCHIVE.packed;
        let body = downloads.open(DownloadTargetKind::BackupContents, name, limit).await?;
        if to_stdout { print(body).await } else { save(body, &target, args.force).await }
    };
    tokio::select! {
        downloaded = downloaded => {
            let size = downloaded.with_context(|| format!("cannot download backup `{name}`"))?;
            if !to_stdout {
                let path = target.display();
                output::print_message(format_args!("backup `{name}` saved to {path}, {}", BinaryBytes(size)));
            }
            Ok(Exit::Success)
        }
        exit = asked_to_end => {
            downloads.delete_open_requests().await;
            Ok(exit)
        }
    }
}

/// Checks that the file may be written, before anything is downloaded.
fn check_target(target: &Path, force: bool) -> anyhow::Result<()> {
    let path = target.display();
    let Ok(metadata) = target.symlink_metadata() else { return Ok(()) };
    if !force {
        bail!("{path} already exists; overwrite it with --force, or choose another file with -o");
    }
    if !metadata.is_file() {
        bail!("{path} is not a regular file; choose another with -o");
    }
    Ok(())
}

/// Writes to standard output, and returns the length. A reader that has gone away is not an error.
async fn print(body: Body) -> anyhow::Result<u64> {
    let printed = body.read_in_thread("print the archive", |mut reader| {
        let mut stdout = io::stdout().lock();
        match io::copy(&mut reader, &mut stdout).and_then(|size| stdout.flush().map(|()| size)) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(0),
            printed => printed.context("cannot write to standard output"),
        }
    });
    printed.await
}

/// Writes beside the target and renames at the end, so that the target is never incomplete. Returns its size.
async fn save(mut body: Body, target: &Path, force: bool) -> anyhow::Result<u64> {
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // Readable by the user only, as temporary files are created.
    let file = NamedTempFile::with_prefix_in(".bowline-download-", folder)
        .with_context(|| format!("cannot write in {}", folder.display()))?;
    let cannot = || format!("cannot write {}", target.display());
    let mut writer = tokio::fs::File::from_std(file.as_file().try_clone().with_context(cannot)?);
    let mut progress = Progress::start(body.length());
    let mut size = 0;
    while let Some(piece) = body.next().await? {
        writer.write_all(&piece).await.with_context(cannot)?;
        size += piece.len() as u64;
        progress.set_position(size);
    }
    writer.sync_all().await.with_context(cannot)?;
    let renamed = if force { file.persist(target) } else { file.persist_noclobber(target) };
    renamed.map_err(|error| error.error).with_context(cannot)?;
    Ok(size)
}

/// Progress of the download: a bar on a terminal, else a line at intervals.
struct Progress {
    length: Option<u64>,
    bar: Option<ProgressBar>,
    last_message: Instant,
}

impl Progress {
    fn start(length: Option<u64>) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let (bar, template) = match length {
                Some(length) => (
                    ProgressBar::new(length),
                    "[{bar:30}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}",
                ),
                None => (ProgressBar::new_spinner(), "{spinner} {binary_bytes} {elapsed}"),
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar
        });
        Self { length, bar, last_message: Instant::now() }
    }

    fn set_position(&mut self, size: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(size);
        } else if self.last_message.elapsed() >= PROGRESS_INTERVAL {
            self.last_message = Instant::now();
            let total = self.length.map(|length| format!(" of {}", BinaryBytes(length)));
            output::print_message(format_args!(
                "{}{}",
                BinaryBytes(size),
                total.unwrap_or_default()
            ));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_is_replaced_and_only_with_force() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        assert!(check_target(&file, false).is_ok());
        std::fs::write(&file, "mine").unwrap();
        assert!(check_target(&file, false).unwrap_err().to_string().contains("--force"));
        assert!(check_target(&file, true).is_ok());
        assert!(
            check_target(folder.path(), true)
                .unwrap_err()
                .to_string()
                .contains("not a regular file")
        );
        assert!(check_target(Path::new("/dev/null"), true).is_err());
    }
}
