//! State of the requests to delete a backup, as far as they still exist.

use bowline_api::delete_backup_request::DeleteBackupRequestPhase;
use bowline_api::{Backup, DeleteBackupRequest, label};
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::describe::Fetched;
use crate::describe::section::time;
use crate::installation::Installation;
use crate::key_value_page::KeyValuePage;
use crate::output::error_chain;

/// More than any backup has.
const MAX_REQUESTS: u32 = 500;

/// Finds the requests, the oldest first.
pub(super) async fn find(
    installation: &Installation,
    backup: &Backup,
) -> Fetched<Vec<DeleteBackupRequest>> {
    let name = backup.name_any();
    let selector = format!("{}={}", label::BACKUP_NAME, label::value(&name));
    let params = ListParams::default().labels(&selector).limit(MAX_REQUESTS);
    let api = installation.api::<DeleteBackupRequest>();
    let listed =
        installation.call_api("list the requests to delete the backup", api.list(&params)).await;
    let mut found = listed?.items;
    // The label is a hash where the name is long; and another backup may have had the name before.
    found.retain(|request| {
        let uid = request.labels().get(label::BACKUP_UID).filter(|uid| !uid.is_empty());
        request.spec.backup_name == name && uid.is_none_or(|uid| Some(uid) == backup.uid().as_ref())
    });
    found.sort_by_key(kube::ResourceExt::creation_timestamp);
    Ok(found)
}

/// Text for people; empty without a request to delete the backup.
pub(super) fn text(page: &mut KeyValuePage, requests: Option<&Fetched<Vec<DeleteBackupRequest>>>) {
    let requests = match requests {
        None => return,
        Some(Ok(requests)) if requests.is_empty() => return,
        Some(Ok(requests)) => requests,
        Some(Err(error)) => {
            page.blank_line();
            page.field(0, "Deletion Attempts", format_args!("<{}>", error_chain(error)));
            return;
        }
    };
    page.blank_line();
    match failed_count(requests) {
        0 => page.heading(0, "Deletion Attempts"),
        failed => page.heading(0, &format!("Deletion Attempts ({failed} failed)")),
    }
    for request in requests {
        page.field(1, &time(request.creation_timestamp().as_ref()), phase(request));
        for error in errors(request) {
            page.line(2, format_args!("{error}"));
        }
    }
}

/// Document for programs, as Velero has it.
pub(super) fn json(document: &mut Value, requests: Option<&Fetched<Vec<DeleteBackupRequest>>>) {
    let requests = match requests {
        None => return,
        Some(Ok(requests)) if requests.is_empty() => return,
        Some(Ok(requests)) => requests,
        Some(Err(error)) => {
            let reason = error_chain(error);
            document["deletionAttempts"] = json!({"errorGettingDeleteBackupRequests": reason});
            return;
        }
    };
    let attempt = |request: &DeleteBackupRequest| {
        let created = time(request.creation_timestamp().as_ref());
        let mut fields = json!({"creationTimestamp": created, "phase": phase(request)});
        let errors = errors(request);
        if !errors.is_empty() {
            fields["errors"] = json!(errors);
        }
        fields
    };
    let all: Vec<Value> = requests.iter().map(attempt).collect();
    let mut attempts = json!({"deleteBackupRequests": all});
    if failed_count(requests) > 0 {
        attempts["failed"] = json!(failed_count(requests));
    }
    document["deletionAttempts"] = attempts;
}

/// Number of requests answered with errors.
fn failed_count(requests: &[DeleteBackupRequest]) -> usize {
    let is_failed = |request: &&DeleteBackupRequest| {
        let phase = request.status.as_ref().and_then(|status| status.phase.as_ref());
        phase == Some(&DeleteBackupRequestPhase::Processed) && !errors(request).is_empty()
    };
    requests.iter().filter(is_failed).count()
}

fn phase(request: &DeleteBackupRequest) -> String {
    let phase = request.status.as_ref().and_then(|status| status.phase.clone());
    phase.unwrap_or(DeleteBackupRequestPhase::New).to_string()
}

fn errors(request: &DeleteBackupRequest) -> Vec<String> {
    request.status.as_ref().map(|status| status.errors.clone()).unwrap_or_default()
}
