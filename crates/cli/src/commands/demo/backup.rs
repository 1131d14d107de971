//! The act in which the application is backed up: for how long it is frozen, and how its volume is
//! uploaded behind that, even if the server is killed in the middle.

use std::time::Duration;

use anyhow::{Context as _, bail};
use bowline_api::backup::FreezeWindow;
use bowline_api::{Backup, BackupPhase};
use indicatif::BinaryBytes;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::mpsc;

use super::orders::{self, Hold};
use super::sample::{self};
use super::server::{NAME, Server};
use super::volume::{Files, JOURNAL};
use super::{Director, ask};
use crate::installation::Installation;
use crate::listing;
use crate::output;
use crate::transfer::{self, Bytes, Transfer};
use crate::wait;

/// How often uploads are looked at.
const PAUSE: Duration = Duration::from_millis(50);

/// What is known of the backup.
pub(super) struct Taken {
    backup: Backup,
    /// From the thaw to the end of the upload.
    pub(super) upload: Duration,
    pub(super) kills: u32,
}

impl Taken {
    fn windows(&self) -> &[FreezeWindow] {
        self.backup.status.as_ref().map_or(&[], |status| &status.freeze_windows)
    }

    /// The longest time for which a pod was frozen.
    pub(super) fn freeze_window_ms(&self) -> u64 {
        let lengths = self.windows().iter().map(|window| window.milliseconds);
        lengths.max().and_then(|longest| u64::try_from(longest).ok()).unwrap_or_default()
    }
}

/// Takes a backup of the sample application.
pub(super) async fn take(
    director: &Director<'_>,
    server: &mut Server,
    wants_kill: bool,
) -> anyhow::Result<Taken> {
    let namespaces = sample::NAMESPACES.join(",");
    ask(director, &["backup", "create", NAME, "--include-namespaces", &namespaces]).await?;
    let installation = &director.installation;
    let created: Backup = listing::get(installation, NAME).await?;
    let (speaker, mut asides) = mpsc::channel(4);
    let mut upload = Upload { wants_kill, ..Upload::default() };
    let backup = {
        // Boxed, since what it asks for is large.
        let mut over = Box::pin(wait::until_over(installation, &created, &mut asides));
        loop {
            tokio::select! {
                over = &mut over => break over?,
                () = tokio::time::sleep(PAUSE) => {
                    server.check()?;
                    if let Some(aside) = upload.look(installation, server).await? {
                        // If nobody listens, nobody misses it.
                        let _ = speaker.try_send(aside);
                    }
                }
            }
        }
    };
    // The end may have come between two looks.
    upload.look(installation, server).await?;
    let status = backup.status.clone().unwrap_or_default();
    if status.phase != Some(BackupPhase::Completed) {
        bail!("the backup is not complete: {}", serde_json::to_string(&status)?);
    }
    if wants_kill && upload.kills == 0 {
        bail!("the upload ended before the server could be killed");
    }
    let thawed = thawed(&status.freeze_windows).context("no pod was frozen")?;
    let uploaded = upload.ended.context("nothing was uploaded")?;
    let upload_time = uploaded.duration_since(thawed).max(SignedDuration::ZERO).unsigned_abs();
    Ok(Taken { backup, upload: upload_time, kills: upload.kills })
}

/// When the last pod was thawed.
fn thawed(windows: &[FreezeWindow]) -> Option<Timestamp> {
    let ends = windows.iter().filter_map(|window| {
        let length = SignedDuration::from_millis(window.milliseconds);
        window.start_timestamp.as_ref()?.0.checked_add(length).ok()
    });
    ends.max()
}

/// What has been seen of the upload.
#[derive(Default)]
struct Upload {
    wants_kill: bool,
    kills: u32,
    /// When it was first seen to be over.
    ended: Option<Timestamp>,
}

impl Upload {
    /// Looks how far it is. In the middle of it the server is killed, if that is wanted. Returns what
    /// is worth saying.
    async fn look(
        &mut self,
        installation: &Installation,
        server: &mut Server,
    ) -> anyhow::Result<Option<String>> {
        if self.ended.is_some() {
            return Ok(None);
        }
        let transfers = transfer::of::<Backup>(installation, NAME).await?;
        if !transfers.is_empty() && transfers.iter().all(|one| one.outcome().is_some()) {
            self.ended = Some(Timestamp::now());
            return Ok(None);
        }
        let Some(middle) = transfers.iter().find(|one| is_in_the_middle(one)) else {
            return Ok(None);
        };
        if !self.wants_kill || self.kills > 0 {
            return Ok(None);
        }
        server.kill()?;
        self.kills += 1;
        Ok(Some(format!(
            "killed the server with SIGKILL during the upload, at {}, and started another one",
            middle.bytes
        )))
    }
}

fn is_in_the_middle(transfer: &Transfer) -> bool {
    let Bytes { done, total } = transfer.bytes;
    transfer.outcome().is_none() && done > 0 && total.is_some_and(|total| done < total)
}

/// What is there now: the phase, the files, for how long the application was frozen, and for how long
/// its volume was uploaded.
pub(super) fn show(server: &Server, taken: &Taken) -> anyhow::Result<String> {
    let folder = server.files();
    let mut rows = Vec::new();
    for file in std::fs::read_dir(&folder).context("cannot read the backup")? {
        let file = file.context("cannot read the backup")?;
        let size = file.metadata().context("cannot read the backup")?.len();
        rows.push([file.file_name().to_string_lossy().into_owned(), size.to_string()]);
    }
    rows.sort();
    let status = taken.backup.status.clone().unwrap_or_default();
    let items = status.progress.map_or(0, |progress| progress.items_backed_up);
    let windows = taken.windows().iter().map(|window| {
        [window.namespace.clone(), window.pod.clone(), format!("{} ms", window.milliseconds)]
    });
    Ok(format!(
        "\nThe backup is complete, with {items} items. The files are in Velero's bucket layout, in\n{}:\n\n{}\n\
         Freeze time of each pod, from the first pre-hook to the end of the last post-hook:\n\n{}\n\
         The volume was uploaded afterwards, slowed down for this demo, in {:.1} s.\n",
        folder.display(),
        output::table(["FILE", "BYTES"], rows),
        output::table(["NAMESPACE", "POD", "FROZEN"], windows.collect()),
        taken.upload.as_secs_f64(),
    ))
}

/// What the application did meanwhile.
pub(super) fn show_orders(hold: Hold, now: &Files) -> String {
    let orders = orders::orders(now.bytes_of(JOURNAL).unwrap_or_default());
    format!(
        "The database was frozen for {} ms, with {} orders in its journal. Now there are {orders}.\n\
         The volume has {} files, directories and links with {}.\n",
        hold.lasted.as_millis(),
        hold.orders(),
        now.count(),
        BinaryBytes(now.bytes()),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::transfer::tests::backup;

    #[test]
    fn an_upload_is_in_the_middle_when_some_of_it_is_done_and_some_is_not() {
        for (phase, done, total, expected) in [
            ("New", 0, 0, false),
            ("InProgress", 0, 9, false),
            ("InProgress", 1, 0, false),
            ("InProgress", 1, 9, true),
            ("InProgress", 8, 9, true),
            ("InProgress", 9, 9, false),
            ("Completed", 8, 9, false),
            ("Failed", 8, 9, false),
        ] {
            let progress = json!({"bytesDone": done, "totalBytes": total});
            let transfer = backup("pv", &json!({"phase": phase, "progress": progress}));
            assert_eq!(is_in_the_middle(&transfer), expected, "{phase} {done} {total}");
        }
    }

    #[test]
    fn the_thaw_is_the_end_of_the_window_that_ends_last() {
        let window = |start: &str, milliseconds: i64| {
            let window = json!({"startTimestamp": start, "milliseconds": milliseconds});
            serde_json::from_value::<FreezeWindow>(window).unwrap()
        };
        assert_eq!(thawed(&[]), None);
        let windows = [
            window("2026-01-02T03:04:05.000000Z", 1500),
            window("2026-01-02T03:04:06.000000Z", 40),
            FreezeWindow { milliseconds: 99_999, ..FreezeWindow::default() },
        ];
        assert_eq!(thawed(&windows), Some("2026-01-02T03:04:06.5Z".parse().unwrap()));
    }
}
