//! Writes an object: one create request, and a lookup of the existing object only if the create is refused.
//!
//! The API server consults quotas, policies and webhooks before it detects that a name is taken. So the object may
//! exist whatever the reason of a refusal is, and then the policy for existing objects applies.

use std::sync::Arc;
use std::time::Duration;

use bowline_api::label;
use bowline_plugin::{InvalidItem, Item, ResourceIdentifier};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::difference;
use super::outcome::AppliedAction;
use super::request::{ExistingResourcePolicy, Request};
use super::{Context, collision, volume};
use crate::cluster::{Error, Subresource};
use crate::item::Object;
use crate::json::text;
use crate::resource::Resource;

/// Interval between checks whether a definition is served.
const DEFINITION_PAUSE: Duration = Duration::from_millis(200);

/// An object that was written or left unchanged.
pub(super) struct AppliedObject {
    /// The action taken.
    pub(super) action: AppliedAction,
    /// The object as returned by the API server, if this restore created it. Its uid distinguishes it from an
    /// object that replaces it later.
    pub(super) created: Option<Object>,
}

/// Why an object was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApplyError {
    #[error("the object cannot be created")]
    Create(#[source] Error),
    #[error(transparent)]
    Get(Error),
    /// The object to write, or the existing one, is invalid.
    #[error(transparent)]
    Object(#[from] InvalidItem),
    /// The target of a claim with data is another claim of the same restore.
    #[error(
        "the data of the claim was not restored: this restore has created {0} under the same \
         name; restore the claim separately into another namespace"
    )]
    ClaimCollision(String),
    #[error("the labels of the existing object could not be updated")]
    PatchLabels(#[source] Error),
    #[error("the CustomResourceDefinition was created, but its kind is not served after {} s", .0.as_secs())]
    NotServed(Duration),
}

/// Creates an object, or applies the policy for existing objects.
pub(super) async fn apply(
    context: &Context,
    resource: &Arc<Resource>,
    namespace: &str,
    id: &ResourceIdentifier,
    object: &Value,
) -> Result<AppliedObject, ApplyError> {
    let item = Item::from_value(object)?;
    let name = text(object, "/metadata/name");
    let create = || context.cluster.create(resource, namespace, &item);
    let applied = match context.rate_limiter.send(create).await {
        Ok(created) => AppliedObject { action: AppliedAction::Created, created: Some(created) },
        Err(error) if may_exist(&error) => {
            let get = || context.cluster.get(resource, namespace, name);
            match context.rate_limiter.send(get).await {
                Ok(Some(found)) => {
                    let existing = ExistingObject { context, resource, namespace, name, id };
                    existing.resolve(object, found).await?
                }
                Err(unknown) if error.is_already_exists() => return Err(ApplyError::Get(unknown)),
                // The refusal had another reason, or the object was deleted in between.
                Ok(None) | Err(_) => return Err(ApplyError::Create(error)),
            }
        }
        Err(error) => return Err(ApplyError::Create(error)),
    };
    // A definition that existed before is served, or its owner knows why not.
    if is_definition(resource) && applied.created.is_some() {
        wait_until_served(context, resource, name).await?;
    }
    Ok(applied)
}

/// Writes back the field ownership of an object that this restore created.
pub(super) async fn write_managed_fields(
    context: &Context,
    created: &Object,
    fields: Value,
) -> Result<(), Error> {
    let Object { resource, namespace, name, .. } = created;
    let mut change = json!({"metadata": {"managedFields": fields}});
    // The uid guards against an object that has replaced the created one.
    if let Some(uid) = uid(created) {
        change["metadata"]["uid"] = uid.into();
    }
    let patch = || context.cluster.patch(resource, namespace, name, Subresource::None, &change);
    match context.rate_limiter.send(patch).await {
        // The object is gone, and so are its fields.
        Err(error) if error.is_not_found() => Ok(()),
        patched => patched.map(drop),
    }
}

fn uid(object: &Object) -> Option<String> {
    #[derive(Deserialize)]
    struct Envelope {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        uid: String,
    }
    Some(object.item.parse::<Envelope>().ok()?.metadata.uid)
}

/// Writes the backed-up status to an object that this restore created, in place of its current status.
pub(super) async fn write_status(
    context: &Context,
    created: &Object,
    mut status: Value,
) -> Result<(), Error> {
    let Object { resource, namespace, name, item, .. } = created;
    if let Some(current) = item.parse::<Value>().ok().as_ref().and_then(|now| now.get("status")) {
        clear_missing_fields(current, &mut status);
    }
    let change = json!({ "status": status });
    let patch = async |subresource| {
        context.cluster.patch(resource, namespace, name, subresource, &change).await
    };
    match context.rate_limiter.send(|| patch(Subresource::Status)).await {
        // A kind without the status subresource keeps its status among its other fields.
        Err(error) if error.is_not_found() => {
            context.rate_limiter.send(|| patch(Subresource::None)).await.map(drop)
        }
        outcome => outcome.map(drop),
    }
}

/// Extends a merge patch of a status so that it removes the current fields that the status lacks.
fn clear_missing_fields(current: &Value, status: &mut Value) {
    let (Some(current), Some(status)) = (current.as_object(), status.as_object_mut()) else {
        return;
    };
    for (field, current) in current {
        match status.get_mut(field) {
            Some(value) => clear_missing_fields(current, value),
            None => drop(status.insert(field.clone(), Value::Null)),
        }
    }
}

fn is_definition(resource: &Resource) -> bool {
    resource.id.group == "apiextensions.k8s.io"
        && resource.id.resource == "customresourcedefinitions"
}

/// True if an object may exist although its creation was refused: the refusal may precede the name check. A
/// Service whose ports are in use may also be their user itself. False if the API server does not know the caller or
/// the path, or has not read the request.
pub(super) fn may_exist(error: &Error) -> bool {
    matches!(error, Error::Refused { code, .. } if !matches!(code, 401 | 404 | 405 | 413 | 415 | 429))
}

/// An object that existed before.
struct ExistingObject<'a> {
    context: &'a Context,
    resource: &'a Arc<Resource>,
    namespace: &'a str,
    name: &'a str,
    id: &'a ResourceIdentifier,
}

/// Treatment of an object that existed before.
#[derive(Debug, PartialEq)]
pub(super) enum Decision {
    /// No action: this restore created the object from the same item, before a restart or in an attempt whose
    /// answer was lost.
    CreatedByThisRestore,
    /// The object matches the backup. It may still need the restore labels.
    Same {
        /// The patch that adds the labels.
        labels: Option<Value>,
    },
    /// The object differs in these fields and stays unchanged.
    Keep(Vec<String>),
    /// A service account that lacks entries. Its own entries stay: pods mount tokens by these names.
    Add(Value),
    /// The object differs and is updated.
    Change {
        /// The fields that differ.
        fields: Vec<String>,
        /// The patch that updates them.
        patch: Value,
        /// The patch that only adds the restore labels.
        labels: Option<Value>,
    },
}

/// Decides on the treatment of an object that existed before.
pub(super) fn decide(
    request: &Request,
    started_at: Timestamp,
    resource: &Resource,
    desired: &Value,
    found: &Value,
) -> Decision {
    let some = |patch: Value| {
        let is_empty = patch.as_object().is_none_or(serde_json::Map::is_empty);
        (!is_empty).then_some(patch)
    };
    if is_of_this_restore(request, started_at, found)
        && collision::origin_item(found) == collision::origin_item(desired)
    {
        return Decision::CreatedByThisRestore;
    }
    if resource.is_core("serviceaccounts") {
        let patch = some(difference::service_account_patch(found, desired));
        return patch.map_or(Decision::Same { labels: None }, Decision::Add);
    }
    let is_update = request.existing_policy == ExistingResourcePolicy::Update;
    let labels = is_update.then(|| difference::label_patch(found, desired)).and_then(some);
    match difference::differs(desired, found) {
        None => Decision::Same { labels },
        Some(fields) if is_update => {
            Decision::Change { fields, patch: difference::merge_patch(found, desired), labels }
        }
        Some(fields) => Decision::Keep(fields),
    }
}

/// True if this restore created an object.
pub(super) fn is_of_this_restore(request: &Request, started_at: Timestamp, found: &Value) -> bool {
    let restore = label::value(request.name.as_str());
    let labelled = found
        .pointer("/metadata/labels")
        .and_then(|labels| labels.get(label::RESTORE_NAME).and_then(Value::as_str));
    let created = found.pointer("/metadata/creationTimestamp").and_then(Value::as_str);
    let created = created.and_then(|text| text.parse::<Timestamp>().ok());
    // Creation timestamps have a resolution of one second.
    labelled == Some(&restore)
        && created.is_some_and(|created| created.as_second() >= started_at.as_second())
}

/// The other item of this restore that an object was created from, if any.
fn conflicting_item<'a>(
    request: &Request,
    started_at: Timestamp,
    desired: &Value,
    found: &'a Value,
) -> Option<&'a str> {
    let is_other = is_of_this_restore(request, started_at, found)
        && collision::origin_item(found) != collision::origin_item(desired);
    is_other.then(|| collision::origin_item(found).unwrap_or("another item"))
}

impl ExistingObject<'_> {
    async fn resolve(&self, desired: &Value, found: Object) -> Result<AppliedObject, ApplyError> {
        let Self { context, resource, id, .. } = self;
        let value: Value = found.item.parse()?;
        let conflicting_item =
            conflicting_item(&context.request, context.started_at, desired, &value);
        if let Some(conflicting_item) = conflicting_item
            && resource.is_core("persistentvolumeclaims")
            && volume::has_data(context, id)
        {
            return Err(ApplyError::ClaimCollision(conflicting_item.to_owned()));
        }
        let mut decision = decide(&context.request, context.started_at, resource, desired, &value);
        if let (Some(_), Decision::Change { patch, .. }) = (conflicting_item, &mut decision) {
            collision::copy_origin_to_patch(patch, desired);
        }
        let created = (decision == Decision::CreatedByThisRestore).then_some(found);
        Ok(AppliedObject {
            action: self.apply_decision(decision, conflicting_item).await?,
            created,
        })
    }

    async fn apply_decision(
        &self,
        decision: Decision,
        conflicting_item: Option<&str>,
    ) -> Result<AppliedAction, ApplyError> {
        let Self { context, resource, id, .. } = self;
        let report = &context.report;
        match decision {
            Decision::CreatedByThisRestore => Ok(AppliedAction::Created),
            Decision::Same { labels } => {
                self.patch_labels(labels).await?;
                Ok(AppliedAction::Skipped)
            }
            Decision::Keep(fields) => {
                let conflict_text =
                    |other| format!("; this restore created that object from {other}");
                let conflict_text = conflicting_item.map(conflict_text).unwrap_or_default();
                let text = format!(
                    "could not restore, {} {:?} already exists. Warning: the in-cluster version is \
                     different than the backed-up version: {}{conflict_text}",
                    resource.kind,
                    self.name,
                    fields.join(", ")
                );
                report.warn(*id, text);
                // As in Velero: an existing object that differs from the backup has not been restored.
                Ok(AppliedAction::Failed)
            }
            Decision::Add(patch) => match self.patch(&patch).await {
                Ok(()) => Ok(AppliedAction::Updated),
                Err(error) => {
                    report.warn(*id, format!("the object exists and could not be merged: {error}"));
                    Ok(AppliedAction::Failed)
                }
            },
            Decision::Change { patch, labels, .. } => match self.patch(&patch).await {
                Ok(()) => {
                    if let Some(other) = conflicting_item {
                        let text = format!(
                            "the item replaces {other}, which this restore had restored under \
                             the same name"
                        );
                        report.warn(*id, text);
                    }
                    Ok(AppliedAction::Updated)
                }
                Err(error) => {
                    report
                        .warn(*id, format!("the object exists and could not be updated: {error}"));
                    self.patch_labels(labels).await?;
                    Ok(AppliedAction::Failed)
                }
            },
        }
    }

    /// Adds the restore labels, and changes nothing else.
    async fn patch_labels(&self, patch: Option<Value>) -> Result<(), ApplyError> {
        let Some(patch) = patch else { return Ok(()) };
        self.patch(&patch).await.map_err(ApplyError::PatchLabels)
    }

    async fn patch(&self, patch: &Value) -> Result<(), Error> {
        let Self { context, resource, namespace, name, .. } = self;
        let send = || context.cluster.patch(resource, namespace, name, Subresource::None, patch);
        context.rate_limiter.send(send).await.map(drop)
    }
}

/// Waits until the API server serves the kind of a definition.
async fn wait_until_served(
    context: &Context,
    resource: &Arc<Resource>,
    name: &str,
) -> Result<(), ApplyError> {
    let limit = context.options.resource_timeout;
    let deadline = Instant::now() + limit;
    loop {
        let get = || context.cluster.get(resource, "", name);
        let found = context.rate_limiter.send(get).await.map_err(ApplyError::Get)?;
        let definition = found.and_then(|found| found.item.parse::<Value>().ok());
        if definition.as_ref().is_some_and(is_served) {
            return Ok(());
        }
        if Instant::now() >= deadline || context.stop.is_cancelled() {
            return Err(ApplyError::NotServed(limit));
        }
        tokio::time::sleep(DEFINITION_PAUSE).await;
    }
}

fn is_served(definition: &Value) -> bool {
    let conditions = definition.pointer("/status/conditions").and_then(Value::as_array);
    let holds = |kind: &str| {
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition["type"] == kind && condition["status"] == "True")
    };
    holds("Established") && holds("NamesAccepted")
}
