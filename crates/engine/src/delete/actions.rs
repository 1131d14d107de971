//! Runs the DeleteItemActions on the items of a backup.
//!
//! Items and actions are processed sequentially, as in Velero: authors of such actions have never seen concurrent
//! calls. A failure that Velero only logs is an error here: an action that fails has left something behind, and the
//! archive that a retry needs must stay.

use std::sync::Arc;

use bowline_api::Backup;
use bowline_plugin::{DeleteItemAction, Encoded, ResourceIdentifier, error_chain};
use tokio::time::timeout;

use super::{DeletionJob, Stopped, report_error};
use crate::download::{self, DownloadError};
use crate::item::{InvalidObject, Object};
use crate::report::Report;
use crate::resource::{GroupResource, Resource, Resources};
use crate::selection::{self, Action};
use crate::unpack::{Contents, ReadError};

/// Runs the actions on all items that they select.
pub(super) async fn run_actions(job: &DeletionJob<'_>, report: &Report) -> Result<(), Stopped> {
    if job.actions.is_empty() {
        return Ok(());
    }
    let discovery = match job.cluster.discover().await {
        Ok(discovery) => discovery,
        Err(error) => {
            report_error(
                report,
                format!("error getting delete item actions: {}", error_chain(&error)),
            );
            return Ok(());
        }
    };
    let served = discovery.resources.into_iter();
    let resources = Resources::new(served.filter(|served| !served.id.resource.contains('/')));
    let named = job.actions.clone();
    let actions =
        selection::resolve_selectors(named, |plugin| plugin.applies_to(), &resources, report).await;
    if actions.is_empty() {
        return Ok(());
    }
    let contents = tokio::select! {
        contents = download::fetch_contents(job.store, job.name, job.scratch, job.unpack_limits) => contents,
        () = job.stop.cancelled() => return Err(Stopped),
    };
    let contents = match contents {
        Ok(contents) => contents,
        Err(DownloadError::Missing(_)) => {
            tracing::info!("the backup has no archive, so no delete item actions run");
            return Ok(());
        }
        Err(error) => {
            report_error(
                report,
                format!("error downloading backup tarball: {}", error_chain(&error)),
            );
            return Ok(());
        }
    };
    for refusal in &contents.refusals {
        tracing::warn!("not passed to delete item actions: {refusal}");
    }
    if let Some(broken) = &contents.broken {
        report_error(
            report,
            format!("not all items could be passed to delete item actions: {broken}"),
        );
    }
    let backup = Encoded::new(job.backup.clone());
    for (kind, stored) in contents.kinds() {
        let mut scopes = [None, None];
        for (namespace, name) in stored.items() {
            if job.stop.is_cancelled() {
                return Err(Stopped);
            }
            let is_namespaced = !namespace.is_empty();
            let resource = scopes[usize::from(is_namespaced)]
                .get_or_insert_with(|| Arc::new(stored_resource(kind, is_namespaced)));
            let selected = actions.iter().filter(|action| action.may_select(resource));
            let selected: Vec<&Action<dyn DeleteItemAction>> = selected.collect();
            if selected.is_empty() {
                continue;
            }
            match object(&contents, resource, namespace, name) {
                Ok(object) => run_item_actions(job, &selected, &object, &backup, report).await?,
                Err(error) => {
                    let id = ResourceIdentifier {
                        group: kind.group.clone(),
                        resource: kind.resource.clone(),
                        namespace: namespace.to_owned(),
                        name: name.to_owned(),
                    };
                    let error = error_chain(&error);
                    report.error(
                        &id,
                        format!("the item cannot be passed to delete item actions: {error}"),
                    );
                }
            }
        }
    }
    Ok(())
}

/// A resource as known from the archive. The API server need not serve it any more.
fn stored_resource(id: &GroupResource, is_namespaced: bool) -> Resource {
    Resource {
        id: id.clone(),
        version: String::new(),
        kind: String::new(),
        singular: String::new(),
        short_names: Vec::new(),
        is_namespaced,
        verbs: Vec::new(),
    }
}

/// Why an item of the archive cannot be shown to actions.
#[derive(Debug, thiserror::Error)]
enum ItemError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Object(#[from] InvalidObject),
}

fn object(
    contents: &Contents,
    resource: &Arc<Resource>,
    namespace: &str,
    name: &str,
) -> Result<Object, ItemError> {
    let item = contents.read(&resource.id, None, namespace, name)?;
    Ok(Object::new(resource, item)?)
}

async fn run_item_actions(
    job: &DeletionJob<'_>,
    actions: &[&Action<dyn DeleteItemAction>],
    object: &Object,
    backup: &Encoded<Backup>,
    report: &Report,
) -> Result<(), Stopped> {
    for action in actions {
        if !action.selects(object) {
            continue;
        }
        let call = timeout(job.deadlines.execute, action.plugin.execute(&object.item, backup));
        let answer = tokio::select! {
            answer = call => answer,
            () = job.stop.cancelled() => return Err(Stopped),
        };
        let reason = match answer {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", job.deadlines.execute.as_secs()),
        };
        let name = &action.name;
        report.error(&object.id(), format!("the delete item action {name} failed: {reason}"));
    }
    Ok(())
}
