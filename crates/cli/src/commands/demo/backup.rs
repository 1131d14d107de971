//! Backup of the application: the duration of the freeze, and the upload of its volume afterwards, even if the server
//! is killed during it.

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
use super::{DemoContext, run_command};
use crate::installation::Installation;
use crate::listing;
use crate::output;
use crate::volume_progress::{self, ByteProgress, VolumeProgress};
use crate::wait;

/// Interval of checks of the upload.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Results of the backup.
pub(super) struct DemoBackup {
    backup: Backup,
    /// From the thaw to the end of the upload.
    pub(super) upload: Duration,
    pub(super) kills: u32,
}

impl DemoBackup {
    fn freeze_windows(&self) -> &[FreezeWindow] {
        self.backup.status.as_ref().map_or(&[], |status| &status.freeze_windows)
    }

    /// Longest freeze of a pod.
    pub(super) fn freeze_window_ms(&self) -> u64 {
        let lengths = self.freeze_windows().iter().map(|window| window.milliseconds);
        lengths.max().and_then(|longest| u64::try_from(longest).ok()).unwrap_or_default()
    }
}

/// Takes a backup of the sample application.
pub(super) async fn run_backup(
    context: &DemoContext<'_>,
    server: &mut Server,
    wants_kill: bool,
) -> anyhow::Result<DemoBackup> {
    let namespaces = sample::NAMESPACES.join(",");
    run_command(context, &["backup", "create", NAME, "--include-namespaces", &namespaces]).await?;
    let installation = &context.installation;
    let created: Backup = listing::get(installation, NAME).await?;
    let (sender, mut extra_lines) = mpsc::channel(4);
    let mut upload = UploadObserver { wants_kill, ..UploadObserver::default() };
    let backup = {
        // Boxed, since the future is large.
        let mut over = Box::pin(wait::until_ended(installation, &created, &mut extra_lines));
        loop {
            tokio::select! {
                over = &mut over => break over?,
                () = tokio::time::sleep(POLL_INTERVAL) => {
                    server.check()?;
                    if let Some(line) = upload.poll(installation, server).await? {
                        // Without a receiver the line is not needed.
                        let _ = sender.try_send(line);
                    }
                }
            }
        }
    };
    // The end may have come between two checks.
    upload.poll(installation, server).await?;
    let status = backup.status.clone().unwrap_or_default();
    if status.phase != Some(BackupPhase::Completed) {
        bail!("the backup is not complete: {}", serde_json::to_string(&status)?);
    }
    if wants_kill && upload.kills == 0 {
        bail!("the upload ended before the server could be killed");
    }
    let thawed_at = last_thaw(&status.freeze_windows).context("no pod was frozen")?;
    let uploaded = upload.ended.context("nothing was uploaded")?;
    let upload_time = uploaded.duration_since(thawed_at).max(SignedDuration::ZERO).unsigned_abs();
    Ok(DemoBackup { backup, upload: upload_time, kills: upload.kills })
}

/// Time at which the last pod was thawed.
fn last_thaw(windows: &[FreezeWindow]) -> Option<Timestamp> {
    let ends = windows.iter().filter_map(|window| {
        let length = SignedDuration::from_millis(window.milliseconds);
        window.start_timestamp.as_ref()?.0.checked_add(length).ok()
    });
    ends.max()
}

/// Observed state of the upload.
#[derive(Default)]
struct UploadObserver {
    wants_kill: bool,
    kills: u32,
    /// Time at which its end was first seen.
    ended: Option<Timestamp>,
}

impl UploadObserver {
    /// Checks the progress. Kills the server during the upload, if requested. Returns a line to print.
    async fn poll(
        &mut self,
        installation: &Installation,
        server: &mut Server,
    ) -> anyhow::Result<Option<String>> {
        if self.ended.is_some() {
            return Ok(None);
        }
        let transfers = volume_progress::list_for_run::<Backup>(installation, NAME).await?;
        if !transfers.is_empty() && transfers.iter().all(|one| one.outcome().is_some()) {
            self.ended = Some(Timestamp::now());
            return Ok(None);
        }
        let Some(partial) = transfers.iter().find(|one| is_partly_uploaded(one)) else {
            return Ok(None);
        };
        if !self.wants_kill || self.kills > 0 {
            return Ok(None);
        }
        server.kill_and_restart()?;
        self.kills += 1;
        Ok(Some(format!(
            "killed the server with SIGKILL during the upload, at {}, and started another one",
            partial.bytes
        )))
    }
}

fn is_partly_uploaded(transfer: &VolumeProgress) -> bool {
    let ByteProgress { done, total } = transfer.bytes;
    transfer.outcome().is_none() && done > 0 && total.is_some_and(|total| done < total)
}

/// Result: phase, files, duration of the freeze, and duration of the upload.
pub(super) fn summary(server: &Server, backup: &DemoBackup) -> anyhow::Result<String> {
    let folder = server.backup_dir();
    let mut rows = Vec::new();
    for file in std::fs::read_dir(&folder).context("cannot read the backup")? {
        let file = file.context("cannot read the backup")?;
        let size = file.metadata().context("cannot read the backup")?.len();
        rows.push([file.file_name().to_string_lossy().into_owned(), size.to_string()]);
    }
    rows.sort();
    let status = backup.backup.status.clone().unwrap_or_default();
    let items = status.progress.map_or(0, |progress| progress.items_backed_up);
    let windows = backup.freeze_windows().iter().map(|window| {
        [window.namespace.clone(), window.pod.clone(), format!("{} ms", window.milliseconds)]
    });
    Ok(format!(
        "\nThe backup is complete, with {items} items. The files are in Velero's bucket layout, in\n{}:\n\n{}\n\
         Freeze time of each pod, from the first pre-hook to the end of the last post-hook:\n\n{}\n\
         The volume was uploaded afterwards, slowed down for this demo, in {:.1} s.\n",
        folder.display(),
        output::table(["FILE", "BYTES"], rows),
        output::table(["NAMESPACE", "POD", "FROZEN"], windows.collect()),
        backup.upload.as_secs_f64(),
    ))
}

/// Activity of the application during the backup.
pub(super) fn orders_summary(hold: Hold, now: &Files) -> String {
    let orders = orders::order_count(now.bytes_of(JOURNAL).unwrap_or_default());
    format!(
        "The database was frozen for {} ms, with {} orders in its order log. Now there are {orders}.\n\
         The volume has {} files, directories and links with {}.\n",
        hold.duration.as_millis(),
        hold.order_count(),
        now.count(),
        BinaryBytes(now.bytes()),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::volume_progress::tests::backup;

    #[test]
    fn upload_is_partial_when_some_bytes_are_done_and_some_are_not() {
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
            assert_eq!(is_partly_uploaded(&transfer), expected, "{phase} {done} {total}");
        }
    }

    #[test]
    fn last_thaw_is_the_latest_end_of_a_freeze_window() {
        let window = |start: &str, milliseconds: i64| {
            let window = json!({"startTimestamp": start, "milliseconds": milliseconds});
            serde_json::from_value::<FreezeWindow>(window).unwrap()
        };
        assert_eq!(last_thaw(&[]), None);
        let windows = [
            window("2026-01-02T03:04:05.000000Z", 1500),
            window("2026-01-02T03:04:06.000000Z", 40),
            FreezeWindow { milliseconds: 99_999, ..FreezeWindow::default() },
        ];
        assert_eq!(last_thaw(&windows), Some("2026-01-02T03:04:06.5Z".parse().unwrap()));
    }
}
