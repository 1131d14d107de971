//! Prints the log of a backup or restore, while it is downloaded.

use std::io::{self, IsTerminal as _, Read, Write};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bowline_api::download_request::DownloadTargetKind;
use bowline_store::decode::{self, Limits};
use tokio::sync::oneshot;

use crate::args::TrustArgs;
use crate::download::{Body, Downloads};
use crate::exit::{Exit, until_asked_to_end};
use crate::installation::Installation;
use crate::output::Harmless;

/// Far more than a log has. Lines that repeat compress without end, so that the ratio says nothing.
const LIMITS: Limits = Limits { packed: 4 << 30, unpacked: 256 << 30, ratio: u64::MAX };
const BUFFER: usize = 64 << 10;

/// Which log, and where from.
pub(crate) struct Log<'a> {
    /// What users call what it is of.
    pub(crate) noun: &'static str,
    /// Of which one it is.
    pub(crate) name: &'a str,
    pub(crate) kind: DownloadTargetKind,
    /// The storage location.
    pub(crate) location: &'a str,
    /// How long the server may take to hand it out.
    pub(crate) timeout: Duration,
    pub(crate) trust: &'a TrustArgs,
}

pub(crate) async fn print(installation: &Installation, log: Log<'_>) -> anyhow::Result<Exit> {
    let Log { noun, name, kind, location, timeout, trust } = log;
    let downloads = Downloads::new(installation, location, trust, timeout).await?;
    let asked_to_end = until_asked_to_end()?;
    let printed = async { print_body(downloads.open(kind, name, LIMITS.packed).await?).await };
    tokio::select! {
        printed = printed => {
            printed.with_context(|| format!("cannot print the log of {noun} `{name}`"))?;
            Ok(Exit::Success)
        }
        exit = asked_to_end => {
            downloads.abandon().await;
            Ok(exit)
        }
    }
}

/// Unpacks and prints while the rest is on its way.
async fn print_body(body: Body) -> anyhow::Result<()> {
    let (reader, download) = body.into_reader();
    let (done, printed) = oneshot::channel();
    // A thread of its own, not one of the runtime's: whoever reads may pause for hours and then leave
    // with Ctrl-C, and nobody waits for this one.
    std::thread::Builder::new()
        .name("print the log".to_owned())
        .spawn(move || {
            let stdout = io::stdout();
            let unpacked = if stdout.is_terminal() {
                unpack(reader, &mut Harmless::new(stdout))
            } else {
                unpack(reader, &mut { stdout })
            };
            let _ = done.send(unpacked);
        })
        .context("cannot start a thread")?;
    let downloaded = download.await;
    let printed = printed.await;
    // A download that broke off looks like damage to the one who unpacks.
    downloaded?;
    printed.unwrap_or_else(|_| Err(anyhow!("it was not printed to its end")))
}

/// Prints what is read when it is unpacked. Somebody who does not want to see more is no error.
fn unpack(packed: impl Read, to: &mut impl Write) -> anyhow::Result<()> {
    let mut unpacked = decode::gunzip(packed, LIMITS);
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = match unpacked.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(decode::Error::from(error).into()),
        };
        match to.write_all(&buffer[..read]) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.context("cannot write to standard output")?,
        }
    }
    match to.flush() {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("cannot write to standard output"))
        }
        _ => Ok(()),
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
            unpack(Reader::of(pieces), &mut printed).unwrap();
            assert_eq!(String::from_utf8(printed).unwrap(), log);
        }
    }

    #[test]
    fn a_log_that_ends_early_is_damaged() {
        let cut = Bytes::from(packed("line\n")).slice(..12);
        let error = unpack(Reader::of([cut]), &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "it is damaged");
    }
}
