//! `bowline backup delete`

mod remove_resource;

use std::time::Duration;

use anyhow::bail;
use bowline_api::delete_backup_request::{DeleteBackupRequestPhase, DeleteBackupRequestStatus};
use bowline_api::location::LocationPhase;
use bowline_api::{
    Backup, BackupStorageLocation, DeleteBackupRequest, DeleteBackupRequestSpec, label,
};
use kube::ResourceExt as _;
use kube::api::PostParams;
use tokio::time::{Instant, sleep, timeout};

use crate::args::InstallationArgs;
use crate::exit::{Exit, shutdown_signal};
use crate::installation::{API_TIMEOUT, Installation, is_not_found, is_transient, short_message};
use crate::listing;
use crate::output::{self, strip_control_chars};
use crate::selection::Deletion;

/// Interval of checks of a request.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// An active server has started by then.
const NO_SERVER_HINT_DELAY: Duration = Duration::from_secs(10);
/// Interval of messages during the wait.
const REMINDER_INTERVAL: Duration = Duration::from_secs(30);
/// Longest outage of the cluster.
const MAX_OUTAGE: Duration = Duration::from_mins(2);

/// Delete backups
///
/// The server deletes each backup with its files, snapshots and restores, and cancels it first if
/// it is running. Restored objects are not touched. A backup with data that the server cannot
/// delete is kept in full, and --wait prints the reason.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    deletion: Deletion,

    /// Wait until the backups are deleted; fail if one is not
    #[arg(short, long)]
    wait: bool,

    /// Remove only the Backup resource, and list the files and snapshots left behind
    ///
    /// For a storage location that is permanently lost: neither the location nor the server is
    /// contacted. While the files exist, the server syncs the backup into the cluster again as soon
    /// as it can read them.
    #[arg(long, conflicts_with = "wait")]
    forget: bool,
}

pub(crate) async fn run(args: Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let question = async |names: &[String]| {
        let names = names.join(", ");
        Ok(if args.forget {
            format!(
                "Backup(s) {names} will be removed from the cluster; their files and snapshots are \
                 left behind."
            )
        } else {
            format!(
                "Backup(s) {names} will be deleted with their files in the bucket, snapshots and \
                 restores."
            )
        })
    };
    let backups: Vec<Backup> = args.deletion.choose(&installation, question).await?;
    if backups.is_empty() {
        return Ok(Exit::Success);
    }
    if args.forget {
        remove_resource::remove_backup_resources(&installation, &backups).await?;
        return Ok(Exit::Success);
    }
    let mut requests = Vec::new();
    for backup in &backups {
        let name = backup.name_any();
        let api = installation.api::<DeleteBackupRequest>();
        let (params, request) = (PostParams::default(), deletion_request(backup));
        let creating = api.create(&params, &request);
        let doing = format!("request the deletion of backup `{name}`");
        requests.push(installation.call_api(&doing, creating).await?);
        output::print_message(format_args!("backup `{name}`: deletion requested"));
    }
    if args.wait {
        return wait_for_requests(&installation, &backups, &requests).await;
    }
    let hint = installation.hint("backup get");
    output::print_message(format_args!("{hint} lists a backup until it is deleted"));
    Ok(Exit::Success)
}

/// Request to the server, as Velero's command creates it.
fn deletion_request(backup: &Backup) -> DeleteBackupRequest {
    let name = backup.name_any();
    let spec =
        DeleteBackupRequestSpec { backup_name: name.clone(), ..DeleteBackupRequestSpec::default() };
    let mut request = DeleteBackupRequest::new("", spec);
    request.metadata.name = None;
    request.metadata.generate_name = Some(format!("{name}-"));
    let labels = request.labels_mut();
    labels.insert(label::BACKUP_NAME.to_owned(), label::value(&name).into_owned());
    labels.insert(label::BACKUP_UID.to_owned(), backup.uid().unwrap_or_default());
    request
}

/// Waits until the server has answered all requests. Success only if all backups are gone.
async fn wait_for_requests(
    installation: &Installation,
    backups: &[Backup],
    requests: &[DeleteBackupRequest],
) -> anyhow::Result<Exit> {
    let asked_to_end = shutdown_signal()?;
    tokio::pin!(asked_to_end);
    let mut exit = Exit::Success;
    output::print_message("waiting for the server to complete the deletion");
    for (backup, request) in backups.iter().zip(requests) {
        let name = &request.spec.backup_name;
        let errors = tokio::select! {
            errors = wait_for_errors(installation, request) => errors?,
            ended = &mut asked_to_end => {
                output::print_message("the server continues without this command");
                return Ok(ended);
            }
        };
        if errors.is_empty() {
            output::print_message(format_args!("backup `{name}` deleted"));
            continue;
        }
        exit = Exit::Failed;
        output::print_message(format_args!("backup `{name}` was not completely deleted:"));
        for error in &errors {
            output::print_message(format_args!("  {}", strip_control_chars(error)));
        }
        // A user without the right to read the location gets no hint.
        if let Ok(location) = storage_location(installation, backup).await {
            let command = installation.hint(&format!("backup delete {name} --forget"));
            let hint = location_hint(backup, location.as_ref(), &command);
            hint.iter().for_each(output::print_message);
        }
    }
    Ok(exit)
}

/// Storage location of a backup, if the backup names one that exists.
async fn storage_location(
    installation: &Installation,
    backup: &Backup,
) -> anyhow::Result<Option<BackupStorageLocation>> {
    match backup.spec.storage_location.as_str() {
        "" => Ok(None),
        name => listing::get_opt(installation, name).await,
    }
}

/// True if the last validation of a location succeeded.
fn is_available(location: &BackupStorageLocation) -> bool {
    let phase = location.status.as_ref().and_then(|status| status.phase.as_ref());
    phase == Some(&LocationPhase::Available)
}

/// Hint for a failed deletion, if the location of the backup is not available.
fn location_hint(
    backup: &Backup,
    location: Option<&BackupStorageLocation>,
    forget_command: &str,
) -> Option<String> {
    let name = &backup.spec.storage_location;
    if name.is_empty() || location.is_some_and(is_available) {
        return None;
    }
    Some(format!(
        "hint: fix storage location `{name}`, or, if its bucket is gone for good, run \
         {forget_command}"
    ))
}

/// Errors with which the server answered a request; none if the backup is gone.
async fn wait_for_errors(
    installation: &Installation,
    request: &DeleteBackupRequest,
) -> anyhow::Result<Vec<String>> {
    let api = installation.api::<DeleteBackupRequest>();
    let name = &request.spec.backup_name;
    let (mut unreachable_since, mut next_message_at) =
        (None, Instant::now() + NO_SERVER_HINT_DELAY);
    loop {
        let error = match timeout(API_TIMEOUT, api.get(&request.name_any())).await {
            Ok(Ok(found)) if found.uid() == request.uid() => {
                unreachable_since = None;
                // A request that was answered without errors is deleted in a moment.
                if let Some(errors) = answered_errors(&found).filter(|errors| !errors.is_empty()) {
                    return Ok(errors);
                }
                if Instant::now() >= next_message_at {
                    next_message_at = Instant::now() + REMINDER_INTERVAL;
                    output::print_message(wait_message(&found, installation.namespace()));
                }
                None
            }
            Ok(Ok(_)) => return errors_without_request(installation, request).await,
            Ok(Err(error)) if is_not_found(&error) => {
                return errors_without_request(installation, request).await;
            }
            Ok(Err(error)) if !is_transient(&error) => {
                let doing = format!("wait for the deletion of backup `{name}`");
                return Err(installation.explain_error(&doing, error));
            }
            Ok(Err(error)) => Some(short_message(&error)),
            Err(_) => Some("no response".to_owned()),
        };
        if let Some(error) = error {
            let since = *unreachable_since.get_or_insert_with(Instant::now);
            if since.elapsed() > MAX_OUTAGE {
                bail!(
                    "the cluster has been unreachable for {} s: {error}; the server may continue \
                     without this command",
                    MAX_OUTAGE.as_secs()
                );
            }
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// A request that is gone was fulfilled, or another took its place.
async fn errors_without_request(
    installation: &Installation,
    request: &DeleteBackupRequest,
) -> anyhow::Result<Vec<String>> {
    let name = &request.spec.backup_name;
    let requested_uid = request.labels().get(label::BACKUP_UID);
    match listing::get_opt::<Backup>(installation, name).await? {
        Some(backup) if backup.uid().as_ref() == requested_uid => Ok(vec![
            "the DeleteBackupRequest was removed before it completed; a newer request may exist"
                .to_owned(),
        ]),
        _ => Ok(Vec::new()),
    }
}

/// Errors in the server's answer to a request, if it has answered.
fn answered_errors(request: &DeleteBackupRequest) -> Option<Vec<String>> {
    let DeleteBackupRequestStatus { phase, errors, .. } = request.status.clone()?;
    phase.is_some_and(|phase| phase.is_terminal()).then_some(errors)
}

/// Message during the wait.
fn wait_message(request: &DeleteBackupRequest, namespace: &str) -> String {
    let name = &request.spec.backup_name;
    if is_new(request) {
        format!(
            "hint: the request to delete backup `{name}` is still New: the backup is being \
             canceled, or no server runs in namespace `{namespace}`; still waiting, Ctrl-C leaves \
             the request to the server"
        )
    } else {
        format!("the server is still deleting backup `{name}`")
    }
}

fn is_new(request: &DeleteBackupRequest) -> bool {
    let phase = request.status.as_ref().and_then(|status| status.phase.as_ref());
    phase.is_none_or(|phase| *phase == DeleteBackupRequestPhase::New)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn forget_is_named_only_if_the_location_cannot_be_used() {
        let backup = |location: &str| -> Backup {
            let spec = json!({"storageLocation": location});
            serde_json::from_value(json!({"metadata": {"name": "b"}, "spec": spec})).unwrap()
        };
        let location = |phase: &str| -> BackupStorageLocation {
            serde_json::from_value(json!({
                "metadata": {"name": "l"}, "spec": {"provider": "aws"}, "status": {"phase": phase},
            }))
            .unwrap()
        };
        let hint = |location: Option<&BackupStorageLocation>| {
            location_hint(&backup("l"), location, "`bowline backup delete b --forget`")
        };
        assert_eq!(hint(Some(&location("Available"))), None);
        let expected = "hint: fix storage location `l`, or, if its bucket is gone for good, run \
                        `bowline backup delete b --forget`";
        assert_eq!(hint(Some(&location("Unavailable"))).as_deref(), Some(expected));
        assert_eq!(hint(None).as_deref(), Some(expected), "the location is deleted");
        assert_eq!(location_hint(&backup(""), None, "x"), None);
    }

    #[test]
    fn deletion_request_equals_that_of_velero() {
        let long = "b".repeat(100);
        let mut backup = Backup::new(&long, bowline_api::BackupSpec::default());
        backup.metadata.uid = Some("u".to_owned());
        let request = deletion_request(&backup);
        assert_eq!(request.spec.backup_name, long);
        assert_eq!((request.metadata.name.as_ref(), request.namespace()), (None, None));
        assert_eq!(request.metadata.generate_name.as_deref(), Some(&*format!("{long}-")));
        let labels: Vec<(&str, &str)> =
            request.labels().iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let value = label::value(&long);
        assert_eq!(labels, [("velero.io/backup-name", &*value), ("velero.io/backup-uid", "u")]);
    }
}
