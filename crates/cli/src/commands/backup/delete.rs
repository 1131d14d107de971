//! `bowline backup delete`

mod forget;

use std::time::Duration;

use anyhow::bail;
use bowline_api::delete_backup_request::{DeleteBackupRequestPhase, DeleteBackupRequestStatus};
use bowline_api::{Backup, DeleteBackupRequest, DeleteBackupRequestSpec, label};
use kube::ResourceExt as _;
use kube::api::PostParams;
use tokio::time::{Instant, sleep, timeout};

use crate::args::InstallationArgs;
use crate::exit::{Exit, until_asked_to_end};
use crate::installation::{ANSWER_LIMIT, Installation, brief, is_not_found, is_transient};
use crate::listing;
use crate::output::{self, harmless};
use crate::selection::Deletion;

/// How often a request is looked at.
const PAUSE: Duration = Duration::from_millis(500);
/// A server that runs has begun by then.
const SERVER_LIMIT: Duration = Duration::from_secs(10);
/// How often it is said that the wait goes on.
const REMINDER: Duration = Duration::from_secs(30);
/// How long the cluster may be away.
const OUTAGE_LIMIT: Duration = Duration::from_mins(2);

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
            format!("Backup(s) {names} will be deleted with their snapshots and restores.")
        })
    };
    let backups: Vec<Backup> = args.deletion.choose(&installation, question).await?;
    if backups.is_empty() {
        return Ok(Exit::Success);
    }
    if args.forget {
        forget::forget(&installation, &backups).await?;
        return Ok(Exit::Success);
    }
    let mut requests = Vec::new();
    for backup in &backups {
        let name = backup.name_any();
        let api = installation.api::<DeleteBackupRequest>();
        let (params, request) = (PostParams::default(), request(backup));
        let creating = api.create(&params, &request);
        let doing = format!("request the deletion of backup `{name}`");
        requests.push(installation.ask(&doing, creating).await?);
        output::say(format_args!("backup `{name}`: deletion requested"));
    }
    if args.wait {
        return wait(&installation, &requests).await;
    }
    let hint = installation.hint("backup get");
    output::say(format_args!("{hint} lists a backup until it is deleted"));
    Ok(Exit::Success)
}

/// What is asked of the server, as Velero's command asks it.
fn request(backup: &Backup) -> DeleteBackupRequest {
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
async fn wait(
    installation: &Installation,
    requests: &[DeleteBackupRequest],
) -> anyhow::Result<Exit> {
    let asked_to_end = until_asked_to_end()?;
    tokio::pin!(asked_to_end);
    let mut exit = Exit::Success;
    output::say("waiting for the server to complete the deletion");
    for request in requests {
        let name = &request.spec.backup_name;
        let errors = tokio::select! {
            errors = errors(installation, request) => errors?,
            ended = &mut asked_to_end => {
                output::say("the server continues without this command");
                return Ok(ended);
            }
        };
        if errors.is_empty() {
            output::say(format_args!("backup `{name}` deleted"));
            continue;
        }
        exit = Exit::Failed;
        output::say(format_args!("backup `{name}` was not deleted, or not completely:"));
        for error in &errors {
            output::say(format_args!("  {}", harmless(error)));
        }
    }
    Ok(exit)
}

/// What kept the server from fulfilling a request; nothing if the backup is gone.
async fn errors(
    installation: &Installation,
    request: &DeleteBackupRequest,
) -> anyhow::Result<Vec<String>> {
    let api = installation.api::<DeleteBackupRequest>();
    let name = &request.spec.backup_name;
    let (mut away_since, mut speak_at) = (None, Instant::now() + SERVER_LIMIT);
    loop {
        let error = match timeout(ANSWER_LIMIT, api.get(&request.name_any())).await {
            Ok(Ok(found)) if found.uid() == request.uid() => {
                away_since = None;
                // One that was answered without errors goes in a moment.
                if let Some(errors) = answer(&found).filter(|errors| !errors.is_empty()) {
                    return Ok(errors);
                }
                if Instant::now() >= speak_at {
                    speak_at = Instant::now() + REMINDER;
                    output::say(waits_for(&found, installation.namespace()));
                }
                None
            }
            Ok(Ok(_)) => return without_request(installation, request).await,
            Ok(Err(error)) if is_not_found(&error) => {
                return without_request(installation, request).await;
            }
            Ok(Err(error)) if !is_transient(&error) => {
                let doing = format!("wait for the deletion of backup `{name}`");
                return Err(installation.explain(&doing, error));
            }
            Ok(Err(error)) => Some(brief(&error)),
            Err(_) => Some("no response".to_owned()),
        };
        if let Some(error) = error {
            let since = *away_since.get_or_insert_with(Instant::now);
            if since.elapsed() > OUTAGE_LIMIT {
                bail!(
                    "the cluster has been unreachable for {} s: {error}; the server may continue \
                     without this command",
                    OUTAGE_LIMIT.as_secs()
                );
            }
        }
        sleep(PAUSE).await;
    }
}

/// A request that is gone was fulfilled, or another took its place.
async fn without_request(
    installation: &Installation,
    request: &DeleteBackupRequest,
) -> anyhow::Result<Vec<String>> {
    let name = &request.spec.backup_name;
    let wanted = request.labels().get(label::BACKUP_UID);
    match listing::get_opt::<Backup>(installation, name).await? {
        Some(backup) if backup.uid().as_ref() == wanted => Ok(vec![
            "the request was removed before it was completed; there may be a newer one".to_owned(),
        ]),
        _ => Ok(Vec::new()),
    }
}

/// What the server says to a request, if it has answered.
fn answer(request: &DeleteBackupRequest) -> Option<Vec<String>> {
    let DeleteBackupRequestStatus { phase, errors, .. } = request.status.clone()?;
    phase.is_some_and(|phase| phase.is_terminal()).then_some(errors)
}

/// What is being waited for.
fn waits_for(request: &DeleteBackupRequest, namespace: &str) -> String {
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
    use super::*;

    #[test]
    fn a_request_is_made_as_veleros_command_makes_it() {
        let long = "b".repeat(100);
        let mut backup = Backup::new(&long, bowline_api::BackupSpec::default());
        backup.metadata.uid = Some("u".to_owned());
        let request = request(&backup);
        assert_eq!(request.spec.backup_name, long);
        assert_eq!((request.metadata.name.as_ref(), request.namespace()), (None, None));
        assert_eq!(request.metadata.generate_name.as_deref(), Some(&*format!("{long}-")));
        let labels: Vec<(&str, &str)> =
            request.labels().iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let value = label::value(&long);
        assert_eq!(labels, [("velero.io/backup-name", &*value), ("velero.io/backup-uid", "u")]);
    }
}
