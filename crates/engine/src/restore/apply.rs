//! Writes an object: one create, and only where that is refused a look at what is there.
//!
//! The API server asks quotas, policies and webhooks before it finds out that a name is taken. So whatever the
//! reason of a refusal is, the object may be there, and then it is the policy for existing objects that counts.

use std::sync::Arc;
use std::time::Duration;

use bowline_api::label;
use bowline_plugin::{Item, ResourceIdentifier};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::difference;
use super::outcome::Action;
use super::request::{Existing as Policy, Request};
use super::{Context, origin, volume};
use crate::cluster::{Door, Error};
use crate::item::Object;
use crate::resource::Resource;

/// How often a definition is looked at until it is served.
const DEFINITION_PAUSE: Duration = Duration::from_millis(200);

/// An object that was written, or left as it is.
pub(super) struct Applied {
    /// What was done.
    pub(super) action: Action,
    /// The object as the API server has it, if this restore has created it. By its uid it is told
    /// from another that takes its place.
    pub(super) created: Option<Object>,
}

/// Creates an object, or does with the one that is there what the policy says.
pub(super) async fn apply(
    context: &Context,
    resource: &Arc<Resource>,
    namespace: &str,
    id: &ResourceIdentifier,
    object: &Value,
) -> Result<Applied, String> {
    let item = Item::from_object(object).map_err(|error| error.to_string())?;
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let create = || context.cluster.create(resource, namespace, &item);
    let applied = match context.pace.ask(create).await {
        Ok(created) => Applied { action: Action::Created, created: Some(created) },
        Err(error) if may_be_there(&error) => {
            let refused = || format!("it cannot be created: {error}");
            let get = || context.cluster.get(resource, namespace, name);
            match context.pace.ask(get).await {
                Ok(Some(found)) => {
                    let existing = Existing { context, resource, namespace, name, id };
                    existing.settle(object, found).await?
                }
                Err(unknown) if error.is_already_there() => return Err(unknown.to_string()),
                // It was refused for another reason, or it went away in between.
                Ok(None) | Err(_) => return Err(refused()),
            }
        }
        Err(error) => return Err(format!("it cannot be created: {error}")),
    };
    // One that was there before is served, or its owner knows why not.
    if is_definition(resource) && applied.created.is_some() {
        until_served(context, resource, name).await?;
    }
    Ok(applied)
}

/// Writes back who owned which fields of an object that this restore has created.
pub(super) async fn managed_fields(
    context: &Context,
    created: &Object,
    fields: Value,
) -> Result<(), Error> {
    let Object { resource, namespace, name, .. } = created;
    let mut change = json!({"metadata": {"managedFields": fields}});
    // Not of another one that has taken its place.
    if let Some(uid) = uid(created) {
        change["metadata"]["uid"] = uid.into();
    }
    let patch = || context.cluster.patch(resource, namespace, name, Door::Whole, &change);
    match context.pace.ask(patch).await {
        // It went away, and so did its fields.
        Err(error) if error.is_not_found() => Ok(()),
        patched => patched.map(drop),
    }
}

fn uid(object: &Object) -> Option<String> {
    let value: Value = object.item.parse().ok()?;
    Some(value.pointer("/metadata/uid")?.as_str()?.to_owned())
}

/// Gives an object that this restore has created the status that it had, instead of what it has by
/// now.
pub(super) async fn status(
    context: &Context,
    created: &Object,
    mut status: Value,
) -> Result<(), Error> {
    let Object { resource, namespace, name, item, .. } = created;
    if let Some(now) = item.parse::<Value>().ok().as_ref().and_then(|now| now.get("status")) {
        clear_others(now, &mut status);
    }
    let change = json!({ "status": status });
    let patch = async |door| context.cluster.patch(resource, namespace, name, door, &change).await;
    match context.pace.ask(|| patch(Door::Status)).await {
        // A kind without that door has its status among its other fields.
        Err(error) if error.is_not_found() => {
            context.pace.ask(|| patch(Door::Whole)).await.map(drop)
        }
        outcome => outcome.map(drop),
    }
}

/// Makes a merge patch of a status take away the fields that an object has now and that are not in it.
fn clear_others(now: &Value, status: &mut Value) {
    let (Some(now), Some(status)) = (now.as_object(), status.as_object_mut()) else { return };
    for (field, now) in now {
        match status.get_mut(field) {
            Some(value) => clear_others(now, value),
            None => drop(status.insert(field.clone(), Value::Null)),
        }
    }
}

fn is_definition(resource: &Resource) -> bool {
    resource.id.group == "apiextensions.k8s.io"
        && resource.id.resource == "customresourcedefinitions"
}

/// Whether an object that was not created may be there all the same: whoever refused it may not have looked. A
/// Service whose ports are in use may be the one that uses them, too. What is not there is neither if the API
/// server does not know who asks, where to, or has not read it.
pub(super) fn may_be_there(error: &Error) -> bool {
    matches!(error, Error::Refused { code, .. } if !matches!(code, 401 | 404 | 405 | 413 | 415 | 429))
}

/// An object that was there before.
struct Existing<'a> {
    context: &'a Context,
    resource: &'a Arc<Resource>,
    namespace: &'a str,
    name: &'a str,
    id: &'a ResourceIdentifier,
}

/// What is to be done about an object that was there before.
#[derive(Debug, PartialEq)]
pub(super) enum Decision {
    /// Nothing: this very restore has created it from the same item, before a restart or in an attempt
    /// whose answer was lost.
    Ours,
    /// It is as it should be. It may have to be marked as restored.
    Same {
        /// The patch that does so.
        labels: Option<Value>,
    },
    /// It differs in these fields and stays as it is.
    Keep(Vec<String>),
    /// A service account that lacks something. What it has stays: tokens are mounted by these names.
    Add(Value),
    /// It differs in these fields and is changed.
    Change {
        /// The fields.
        fields: Vec<String>,
        /// The patch that does so.
        patch: Value,
        /// The patch that only marks it as restored.
        labels: Option<Value>,
    },
}

/// Decides what is to be done about an object that was there before.
pub(super) fn decide(
    request: &Request,
    began: Timestamp,
    resource: &Resource,
    ours: &Value,
    found: &Value,
) -> Decision {
    let some = |patch: Value| {
        let is_empty = patch.as_object().is_none_or(serde_json::Map::is_empty);
        (!is_empty).then_some(patch)
    };
    if is_of_this_restore(request, began, found) && origin::of(found) == origin::of(ours) {
        return Decision::Ours;
    }
    if resource.is_core("serviceaccounts") {
        let patch = some(difference::service_account_patch(found, ours));
        return patch.map_or(Decision::Same { labels: None }, Decision::Add);
    }
    let is_update = request.existing == Policy::Update;
    let labels = is_update.then(|| difference::label_patch(found, ours)).and_then(some);
    match difference::differs(ours, found) {
        None => Decision::Same { labels },
        Some(fields) if is_update => {
            Decision::Change { fields, patch: difference::merge_patch(found, ours), labels }
        }
        Some(fields) => Decision::Keep(fields),
    }
}

/// Whether this very restore has created an object.
pub(super) fn is_of_this_restore(request: &Request, began: Timestamp, found: &Value) -> bool {
    let restore = label::value(request.name.as_str());
    let labelled = found
        .pointer("/metadata/labels")
        .and_then(|labels| labels.get(label::RESTORE_NAME).and_then(Value::as_str));
    let created = found.pointer("/metadata/creationTimestamp").and_then(Value::as_str);
    let created = created.and_then(|text| text.parse::<Timestamp>().ok());
    // The API server counts whole seconds.
    labelled == Some(&restore)
        && created.is_some_and(|created| created.as_second() >= began.as_second())
}

/// The other item of this very restore that an object was created from, if it was.
fn rival<'a>(
    request: &Request,
    began: Timestamp,
    ours: &Value,
    found: &'a Value,
) -> Option<&'a str> {
    let is_other =
        is_of_this_restore(request, began, found) && origin::of(found) != origin::of(ours);
    is_other.then(|| origin::of(found).unwrap_or("another item"))
}

impl Existing<'_> {
    async fn settle(&self, ours: &Value, found: Object) -> Result<Applied, String> {
        let Self { context, resource, id, .. } = self;
        let value: Value = found.item.parse().map_err(|error| error.to_string())?;
        let rival = rival(&context.request, context.began, ours, &value);
        if let Some(rival) = rival
            && resource.is_core("persistentvolumeclaims")
            && volume::has_data(context, id)
        {
            return Err(without_data(rival));
        }
        let mut decision = decide(&context.request, context.began, resource, ours, &value);
        if let (Some(_), Decision::Change { patch, .. }) = (rival, &mut decision) {
            origin::carry_over(patch, ours);
        }
        let created = (decision == Decision::Ours).then_some(found);
        Ok(Applied { action: self.carry_out(decision, rival).await?, created })
    }

    async fn carry_out(&self, decision: Decision, rival: Option<&str>) -> Result<Action, String> {
        let Self { context, resource, id, .. } = self;
        let report = &context.report;
        match decision {
            Decision::Ours => Ok(Action::Created),
            Decision::Same { labels } => {
                self.label(labels).await?;
                Ok(Action::Skipped)
            }
            Decision::Keep(fields) => {
                let whose = |rival| format!("; it is {rival}, which this restore has put there");
                let whose = rival.map(whose).unwrap_or_default();
                let text = format!(
                    "could not restore, {} {:?} already exists. Warning: the in-cluster version is \
                     different than the backed-up version: {}{whose}",
                    resource.kind,
                    self.name,
                    fields.join(", ")
                );
                report.warning(*id, text);
                // As in Velero: whatever is there but is not what was stored has not been restored.
                Ok(Action::Failed)
            }
            Decision::Add(patch) => match self.patch(&patch).await {
                Ok(()) => Ok(Action::Updated),
                Err(error) => {
                    report.warning(*id, format!("it exists and could not be merged: {error}"));
                    Ok(Action::Failed)
                }
            },
            Decision::Change { patch, labels, .. } => match self.patch(&patch).await {
                Ok(()) => {
                    if let Some(rival) = rival {
                        let text = format!("it replaces {rival}, which this restore had put there");
                        report.warning(*id, text);
                    }
                    Ok(Action::Updated)
                }
                Err(error) => {
                    report.warning(*id, format!("it exists and could not be updated: {error}"));
                    self.label(labels).await?;
                    Ok(Action::Failed)
                }
            },
        }
    }

    /// Marks it as restored, and changes nothing else.
    async fn label(&self, patch: Option<Value>) -> Result<(), String> {
        let Some(patch) = patch else { return Ok(()) };
        let patched = self.patch(&patch).await;
        patched.map_err(|error| format!("its labels could not be updated: {error}"))
    }

    async fn patch(&self, patch: &Value) -> Result<(), Error> {
        let Self { context, resource, namespace, name, .. } = self;
        let send = || context.cluster.patch(resource, namespace, name, Door::Whole, patch);
        context.pace.ask(send).await.map(drop)
    }
}

/// Why a claim is not restored whose place another claim of the same restore has taken.
pub(super) fn without_data(rival: &str) -> String {
    format!(
        "its data was not restored: its place is taken by {rival}, which this restore has put there; \
         restore it by itself into another namespace"
    )
}

/// Waits until the API server serves what a definition defines.
async fn until_served(
    context: &Context,
    resource: &Arc<Resource>,
    name: &str,
) -> Result<(), String> {
    let limit = context.options.resource_timeout;
    let deadline = Instant::now() + limit;
    loop {
        let get = || context.cluster.get(resource, "", name);
        let found = context.pace.ask(get).await.map_err(|error| error.to_string())?;
        let definition = found.and_then(|found| found.item.parse::<Value>().ok());
        if definition.as_ref().is_some_and(is_served) {
            return Ok(());
        }
        if Instant::now() >= deadline || context.stop.is_cancelled() {
            return Err(format!("it was created but is not served after {} s", limit.as_secs()));
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
