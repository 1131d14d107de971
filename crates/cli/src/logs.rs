//! `logs` of backups and restores: prints a log while it is downloaded.
//!
//! The server writes a log to the storage location when all items are processed, and writes it again, longer, at the
//! end. `--follow` shows both.

use std::io::{self, IsTerminal as _, Read, Write};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bowline_store::decode::{self, Limits};
use kube::ResourceExt as _;
use tokio::sync::mpsc;

use crate::args::{InstallationArgs, TrustArgs};
use crate::download::{Body, Downloads};
use crate::exit::{Exit, shutdown_signal};
use crate::installation::Installation;
use crate::output::{self, ControlCharFilter};
use crate::run::{Run, Stage};
use crate::{flags, listing, wait};

/// Far more than a log has. Repeated lines compress without limit, so the ratio means nothing.
const LIMITS: Limits =
    Limits { packed: 4 << 30, unpacked: 256 << 30, ratio: u64::MAX, memory: u64::MAX };
const BUFFER: usize = 64 << 10;

/// Flags of a command that prints a log.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    // The commands replace the text by one with their noun.
    /// Name of the backup or restore
    name: String,

    /// Wait for the log, which exists once all items are processed, and print the rest when the run
    /// has ended; until then, show progress
    #[arg(short, long)]
    follow: bool,

    /// Time limit for the server to provide the log
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = flags::timeout)]
    timeout: Duration,

    #[command(flatten)]
    trust: TrustArgs,
}

pub(crate) async fn run<R: Run>(
    args: Args,
    installation: &InstallationArgs,
) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let found: R = listing::get(&installation, &args.name).await?;
    let asked_to_end = shutdown_signal()?;
    tokio::pin!(asked_to_end);
    let run = if args.follow && found.has_files().is_err() {
        tokio::select! {
            // Boxed, since the future is large.
            run = Box::pin(wait_for_log(&installation, &found)) => run?,
            exit = &mut asked_to_end => return Ok(exit),
        }
    } else {
        found
    };
    if let Err(reason) = run.has_files() {
        let is_over = run.summary().stage.is_terminal();
        let (yet, hint) = if is_over { ("", "") } else { (" yet", "; --follow waits for it") };
        bail!("{} `{}` has no log{yet}: {reason}{hint}", R::NOUN, args.name);
    }
    let location = run.location(&installation).await?;
    let downloads = Downloads::new(&installation, &location, &args.trust, args.timeout).await?;
    let printed = async {
        let printed = print::<R>(&downloads, &args.name, 0).await?;
        if args.follow && !run.summary().stage.is_terminal() {
            let extra_lines = &mut mpsc::channel(1).1;
            wait::until_ended(&installation, &run, extra_lines).await?;
            print::<R>(&downloads, &args.name, printed).await?;
        }
        Ok(Exit::Success)
    };
    tokio::select! {
        exit = Box::pin(printed) => exit,
        exit = &mut asked_to_end => {
            downloads.delete_open_requests().await;
            Ok(exit)
        }
    }
}

async fn wait_for_log<R: Run>(installation: &Installation, run: &R) -> anyhow::Result<R> {
    if run.summary().stage != Stage::FailedValidation {
        output::print_message(format_args!(
            "waiting for the log of {} `{}`, which is available once all items are {}",
            R::NOUN,
            run.name_any(),
            R::PARTICIPLE,
        ));
    }
    let is_reached = |run: &R| run.has_files().is_ok() || run.summary().stage.is_terminal();
    let extra_lines = &mut mpsc::channel(1).1;
    wait::until(installation, run, extra_lines, wait::WaitReason::Result, is_reached).await
}

/// Prints a log after the first `skip` bytes, which were printed before. Returns its length.
async fn print<R: Run>(downloads: &Downloads, name: &str, skip: u64) -> anyhow::Result<u64> {
    let printed =
        async { print_body(downloads.open(R::LOG, name, LIMITS.packed).await?, skip).await };
    printed.await.with_context(|| format!("cannot print the log of {} `{name}`", R::NOUN))
}

/// Log of a run, up to this length.
pub(crate) async fn read_log<R: Run>(
    downloads: &Downloads,
    name: &str,
    limit: u64,
) -> anyhow::Result<Vec<u8>> {
    let mut body = downloads.open(R::LOG, name, LIMITS.packed.min(limit)).await?;
    let mut packed = Vec::new();
    while let Some(piece) = body.next().await? {
        packed.extend_from_slice(&piece);
    }
    let unpacked = tokio::task::spawn_blocking(move || {
        let mut text = Vec::new();
        decode::gunzip(&packed[..], LIMITS).take(limit).read_to_end(&mut text)?;
        Ok::<_, io::Error>(text)
    });
    unpacked
        .await
        .context("the log could not be read")?
        .map_err(|error| decode::Error::from(error).into())
}

/// Unpacks and prints during the download.
async fn print_body(body: Body, skip: u64) -> anyhow::Result<u64> {
    let printed = body.read_in_thread("print the log", move |reader| {
        let stdout = io::stdout();
        if stdout.is_terminal() {
            unpack(reader, &mut ControlCharFilter::new(stdout), skip)
        } else {
            unpack(reader, &mut { stdout }, skip)
        }
    });
    printed.await
}

/// Prints the unpacked text after the first `skip` bytes, and returns the length with them. A reader that has gone away
/// is not an error.
fn unpack(packed: impl Read, to: &mut impl Write, skip: u64) -> anyhow::Result<u64> {
    let cannot = "cannot write to standard output";
    let mut unpacked = decode::gunzip(packed, LIMITS);
    let mut buffer = vec![0; BUFFER];
    let mut length = 0;
    loop {
        let read = match unpacked.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(decode::Error::from(error).into()),
        };
        let skipped = usize::try_from(skip.saturating_sub(length)).unwrap_or(read).min(read);
        length += read as u64;
        match to.write_all(&buffer[skipped..read]) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(length),
            written => written.context(cannot)?,
        }
    }
    match to.flush() {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context(cannot))
        }
        _ => Ok(length),
    }
}

#[cfg(test)]
mod tests {
    use bowline_store::encode;
    use bytes::Bytes;

    use super::*;
    use crate::download::Reader;

    fn packed(text: &str) -> Vec<u8> {
        let mut gzip = encode::gzip(Vec::new());
        gzip.write_all(text.as_bytes()).unwrap();
        gzip.finish().unwrap()
    }

    #[test]
    fn a_log_is_unpacked_from_pieces_of_any_size() {
        let log = "line\n".repeat(10_000);
        let packed = packed(&log);
        for size in [1, 7, 1 << 20] {
            let pieces = packed.chunks(size).map(Bytes::copy_from_slice);
            let mut printed = Vec::new();
            assert_eq!(
                unpack(Reader::from_chunks(pieces), &mut printed, 0).unwrap(),
                log.len() as u64
            );
            assert_eq!(String::from_utf8(printed).unwrap(), log);
        }
    }

    #[test]
    fn bytes_printed_before_are_skipped() {
        let packed = packed("one\ntwo\n");
        for (skip, expected) in [(0, "one\ntwo\n"), (4, "two\n"), (8, ""), (100, "")] {
            let mut printed = Vec::new();
            let pieces = [Bytes::from(packed.clone())];
            assert_eq!(unpack(Reader::from_chunks(pieces), &mut printed, skip).unwrap(), 8);
            assert_eq!(String::from_utf8(printed).unwrap(), expected);
        }
    }

    #[test]
    fn truncated_log_is_an_error() {
        let cut = Bytes::from(packed("line\n")).slice(..12);
        let error = unpack(Reader::from_chunks([cut]), &mut Vec::new(), 0).unwrap_err();
        assert_eq!(error.to_string(), "the file is damaged");
    }
}
