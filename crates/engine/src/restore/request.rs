//! Converts a Restore into a validated [`Request`].
//!
//! Pure: the server's lookups come in as [`Facts`], its configuration as [`Defaults`]. The result is the Restore
//! with all defaults filled in, and either the request or the list of errors. Rules, their order and their
//! messages are those of Velero's `validateAndComplete`, so that scripts which match the messages keep working.
//!
//! Beyond Velero's rules, validation refuses everything that would only fail later or be ignored silently:
//! invalid selectors and patterns, targets that are not valid namespaces, backups that have no archive yet or are
//! being deleted, modifiers without a ConfigMap, and resource policies, which this version does not support for
//! restores.
//!
//! A restore that has started can be prepared again, for a server that resumes it after a restart.

mod invalid;
mod lists;
mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time;

use bowline_api::restore::{self, RestoreHooks};
use bowline_api::{
    Backup, BackupStorageLocation, Duration, Restore, RestorePhase, RestoreSpec, label,
};
use bowline_plugin::Encoded;
use bowline_store::name::{BackupName, RestoreName, RunUid};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::filter;
use super::modifier::Modifiers;
use super::reset::VolumeOptions;
use crate::glob::Globs;
pub use crate::lookup::{ListRefused, Lookup};
use crate::operation::record::RunRef;
use crate::selector::Selector;
use crate::unpack::Contents;
pub use invalid::Invalid;
use invalid::{ConfigMapRef, FilterLists, ValidationError};
pub use source::source_backup;

/// `"true"` on a Restore that may create claims whose data it cannot restore.
pub const ALLOW_EMPTY_VOLUMES: &str = "bowline.io/allow-empty-volumes";

/// `"true"` on a Restore that may restore the readable part of a damaged archive.
pub const ALLOW_DAMAGED_ARCHIVE: &str = "bowline.io/allow-damaged-archive";

/// The server's lookups for a Restore.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The backup that the Restore names, if it exists, or all backups of the schedule that it names. Otherwise
    /// the lookup error.
    pub backups: Result<Vec<Backup>, ListRefused>,
    /// The storage location of the backup that [`source_backup()`] selects among them.
    pub location: Lookup<BackupStorageLocation>,
    /// The data of the ConfigMap that `spec.resourceModifier` names. Ignored if the field is not set.
    pub modifiers: Lookup<BTreeMap<String, String>>,
}

/// Configuration of the server. The defaults are Velero's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// Timeout of a plugin's operation.
    pub item_operation_timeout: Duration,
    /// Timeout of all other waits.
    pub resource_timeout: Duration,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            item_operation_timeout: Duration::from_seconds(4 * 60 * 60),
            resource_timeout: Duration::from_seconds(10 * 60),
        }
    }
}

/// A Restore after validation.
#[derive(Debug)]
pub struct PreparedRestore {
    /// The Restore with its defaults filled in, to be written back: its spec, and the part of the status that is
    /// known before the run. The phase is unchanged.
    pub restore: Restore,
    /// The request, or the validation errors.
    pub outcome: Result<Request, Invalid>,
}

/// Validated parameters of a restore.
#[derive(Debug)]
pub struct Request {
    /// The name of the restore.
    pub name: RestoreName,
    /// Distinguishes the restore from others of the same name.
    pub uid: RunUid,
    /// The namespace of the Restore.
    pub namespace: String,
    /// The Restore, as passed to plugins.
    pub restore: Encoded<Restore>,
    /// The name of the backup.
    pub backup_name: BackupName,
    /// The backup.
    pub backup: Backup,
    /// Filters by kind, namespace and label.
    pub filter: filter::Spec,
    /// Target namespaces, by namespace of the backup.
    pub namespace_mapping: BTreeMap<String, String>,
    /// True if Services keep their node ports.
    pub preserve_node_ports: bool,
    /// Treatment of volumes.
    pub volumes: VolumeOptions,
    /// True if the readable part of a damaged archive is restored. Otherwise nothing is.
    pub allow_damaged: bool,
    /// Treatment of objects that already exist.
    pub existing_policy: ExistingResourcePolicy,
    /// Resource modifiers.
    pub modifiers: Option<Modifiers>,
    /// Exec and init hooks for pods.
    pub hooks: RestoreHooks,
    /// Timeouts.
    pub timeouts: Timeouts,
}

/// Treatment of an object that already exists in the cluster and differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingResourcePolicy {
    /// Not specified. The object stays, with a warning.
    Unset,
    /// The object stays, with a warning.
    Keep,
    /// The object is updated to match the backup.
    Update,
}

/// Timeouts of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Operation of a plugin.
    pub item_operation: time::Duration,
    /// All other waits.
    pub resource: time::Duration,
}

/// Namespaces of a backup that are restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelectedNamespaces {
    /// Their names in the backup, in order.
    pub names: Vec<String>,
    /// Warnings for the user: requested namespaces that the backup does not contain.
    pub warnings: Vec<String>,
}

impl Request {
    /// Identity of the run, as recorded in its operations.
    pub fn run_identity(&self) -> RunRef<'_> {
        RunRef { name: self.name.as_str(), uid: self.uid.as_str() }
    }

    /// Target namespace of a namespace of the backup.
    pub fn target<'a>(&'a self, namespace: &'a str) -> &'a str {
        self.namespace_mapping.get(namespace).map_or(namespace, String::as_str)
    }

    /// Resolves the user's namespace patterns against a backup.
    pub fn namespaces(&self, contents: &Contents) -> SelectedNamespaces {
        let names = contents.namespaces();
        let mut selected = select_namespaces(&self.filter.namespaces, &names);
        let unknown = self.namespace_mapping.keys().filter(|from| !names.contains(&from.as_str()));
        let warning = |from: &String| {
            format!("namespace {from} in namespaceMapping has no items in the backup")
        };
        selected.warnings.extend(unknown.map(warning));
        selected
    }
}

/// Fills in the defaults of a Restore and validates it.
pub fn prepare(
    restore: &Restore,
    facts: &Facts,
    defaults: &Defaults,
    now: Timestamp,
) -> PreparedRestore {
    let mut restore = restore.clone();
    if restore.spec.item_operation_timeout.is_zero() {
        restore.spec.item_operation_timeout = defaults.item_operation_timeout;
    }
    let mut errors = Vec::new();
    let request = request(&mut restore, facts, defaults, &mut errors);
    let status = restore.status.get_or_insert_default();
    let invalid = Invalid(errors);
    status.validation_errors = invalid.messages();
    let outcome = match request {
        Some(checked) if invalid.0.is_empty() => {
            status.start_timestamp.get_or_insert(Time(now));
            Ok(checked.finish(&restore))
        }
        _ => Err(invalid),
    };
    PreparedRestore { restore, outcome }
}

/// A [`Request`] without the Restore, which is not complete yet.
struct CheckedRequest {
    name: RestoreName,
    uid: RunUid,
    backup_name: BackupName,
    backup: Backup,
    filter: filter::Spec,
    existing_policy: ExistingResourcePolicy,
    modifiers: Option<Modifiers>,
    timeouts: Timeouts,
}

/// Checks rule by rule. `None` if a broken rule prevents all further checks.
fn request(
    restore: &mut Restore,
    facts: &Facts,
    defaults: &Defaults,
    errors: &mut Vec<ValidationError>,
) -> Option<CheckedRequest> {
    let filter = filter_spec(&mut restore.spec, errors);
    let spec = &restore.spec;
    let timeouts = timeouts(spec, defaults, errors);
    lists::check_mapping(&spec.namespace_mapping, errors);
    let identity = identity(restore, errors);
    // A restore that has started has both: the schedule, and the backup that was chosen.
    if !has_started(restore) && spec.backup_name.is_empty() == spec.schedule_name.is_empty() {
        errors.push(ValidationError::NotOneSource);
        return None;
    }
    check_hooks(&spec.hooks, errors);
    let existing_policy = existing_policy(spec, errors);
    let backup = source::resolve_backup(restore, facts, errors)?;
    collect_error(source::check_location(&backup, &facts.location), errors)?;
    // A restore that has started may not need its archive any more; if it does, the download reports the problem.
    if !has_started(restore) {
        collect_error(source::check_phase(&backup), errors)?;
    }
    let schedule = backup.metadata.labels.as_ref().and_then(|all| all.get(label::SCHEDULE_NAME));
    if restore.spec.schedule_name.is_empty() {
        restore.spec.schedule_name = schedule.cloned().unwrap_or_default();
    }
    collect_error(check_resource_policy(&restore.spec), errors)?;
    let modifiers = collect_error(modifiers(restore, &facts.modifiers), errors)?;
    let (name, uid) = identity?;
    let backup_name =
        BackupName::new(restore.spec.backup_name.clone()).map_err(ValidationError::BackupName);
    let backup_name = collect_error(backup_name, errors)?;
    Some(CheckedRequest {
        name,
        uid,
        backup_name,
        backup,
        filter,
        existing_policy,
        modifiers,
        timeouts,
    })
}

impl CheckedRequest {
    fn finish(self, restore: &Restore) -> Request {
        let spec = &restore.spec;
        let annotations = restore.metadata.annotations.as_ref();
        let is_allowed = |key: &str| {
            annotations.and_then(|all| all.get(key)).is_some_and(|value| value == "true")
        };
        Request {
            name: self.name,
            uid: self.uid,
            namespace: restore.metadata.namespace.clone().unwrap_or_default(),
            backup_name: self.backup_name,
            backup: self.backup,
            filter: self.filter,
            namespace_mapping: spec.namespace_mapping.clone(),
            preserve_node_ports: spec.preserve_node_ports == Some(true),
            volumes: VolumeOptions {
                restore_pvs: spec.restore_pvs != Some(false),
                allow_empty: is_allowed(ALLOW_EMPTY_VOLUMES),
            },
            allow_damaged: is_allowed(ALLOW_DAMAGED_ARCHIVE),
            existing_policy: self.existing_policy,
            modifiers: self.modifiers,
            hooks: spec.hooks.clone(),
            timeouts: self.timeouts,
            restore: Encoded::new(restore.clone()),
        }
    }
}

fn has_started(restore: &Restore) -> bool {
    let phase = restore.status.as_ref().and_then(|status| status.phase.as_ref());
    phase.is_some_and(|phase| *phase != RestorePhase::New)
}

fn filter_spec(spec: &mut RestoreSpec, errors: &mut Vec<ValidationError>) -> filter::Spec {
    let kinds = lists::kinds(spec, errors);
    let namespaces = lists::namespaces(spec, errors);
    let status = spec.restore_status.as_ref().map(|status| {
        let lists = (status.included_resources.as_slice(), status.excluded_resources.as_slice());
        lists::compile(FilterLists::StatusResources, lists, errors)
    });
    filter::Spec {
        namespaces,
        kinds,
        cluster_resources: spec.include_cluster_resources,
        selectors: selectors(spec, errors),
        status,
    }
}

fn selectors(spec: &RestoreSpec, errors: &mut Vec<ValidationError>) -> Vec<Selector> {
    if spec.label_selector.is_some() && !spec.or_label_selectors.is_empty() {
        errors.push(ValidationError::TwoSelectorFields);
    }
    let one = spec.label_selector.iter().map(|selector| ("labelSelector", selector));
    let several = spec.or_label_selectors.iter().map(|selector| ("orLabelSelectors", selector));
    let mut compiled = Vec::new();
    for (field, selector) in one.chain(several) {
        match Selector::new(selector) {
            Ok(selector) => compiled.push(selector),
            Err(source) => errors.push(ValidationError::Selector { field, source }),
        }
    }
    compiled
}

fn timeouts(
    spec: &RestoreSpec,
    defaults: &Defaults,
    errors: &mut Vec<ValidationError>,
) -> Timeouts {
    let mut check = |name: &'static str, timeout: Duration| {
        timeout.to_std().unwrap_or_else(|| {
            errors.push(ValidationError::NegativeTimeout { name, timeout });
            time::Duration::ZERO
        })
    };
    Timeouts {
        item_operation: check("itemOperationTimeout", spec.item_operation_timeout),
        resource: check("resource timeout of the server", defaults.resource_timeout),
    }
}

fn identity(restore: &Restore, errors: &mut Vec<ValidationError>) -> Option<(RestoreName, RunUid)> {
    let name = RestoreName::new(restore.metadata.name.clone().unwrap_or_default());
    let uid = RunUid::new(restore.metadata.uid.clone().unwrap_or_default());
    let name = collect_error(name.map_err(ValidationError::RestoreName), errors);
    let uid = collect_error(uid.map_err(ValidationError::RestoreUid), errors);
    Some((name?, uid?))
}

fn check_hooks(hooks: &RestoreHooks, errors: &mut Vec<ValidationError>) {
    for hook in &hooks.resources {
        if let Some(Err(error)) = hook.label_selector.as_ref().map(Selector::new) {
            errors.push(ValidationError::HookSelector(error));
        }
        for list in [&hook.included_namespaces, &hook.excluded_namespaces] {
            if let Err(error) = Globs::new(list) {
                errors.push(ValidationError::HookNamespaces(error));
            }
        }
        let init = hook.post_hooks.iter().filter_map(|hook| hook.init.as_ref());
        for container in init.flat_map(|init| &init.init_containers) {
            if !is_container(container) {
                errors.push(ValidationError::InitContainer(hook.name.clone()));
            }
        }
    }
}

/// True if a value has the fields that an init container needs.
fn is_container(container: &Value) -> bool {
    let has_text = |field: &str| {
        container.get(field).and_then(Value::as_str).is_some_and(|text| !text.is_empty())
    };
    let command = container.get("command").and_then(Value::as_array);
    let has_command =
        command.is_some_and(|words| !words.is_empty() && words.iter().all(Value::is_string));
    has_command && has_text("name") && has_text("image")
}

fn existing_policy(
    spec: &RestoreSpec,
    errors: &mut Vec<ValidationError>,
) -> ExistingResourcePolicy {
    match &spec.existing_resource_policy {
        Some(restore::ExistingResourcePolicy::None) => ExistingResourcePolicy::Keep,
        Some(restore::ExistingResourcePolicy::Update) => ExistingResourcePolicy::Update,
        Some(restore::ExistingResourcePolicy::Other(policy)) if !policy.is_empty() => {
            errors.push(ValidationError::ExistingResourcePolicy(policy.clone()));
            ExistingResourcePolicy::Unset
        }
        Some(restore::ExistingResourcePolicy::Other(_)) | None => ExistingResourcePolicy::Unset,
    }
}

/// Refuses resource policies: ignoring a policy would restore more than the user asked for.
fn check_resource_policy(spec: &RestoreSpec) -> Result<(), ValidationError> {
    match &spec.resource_policy {
        None => Ok(()),
        Some(policy) => Err(ValidationError::ResourcePolicy(policy.name.clone())),
    }
}

fn modifiers(
    restore: &Restore,
    facts: &Lookup<BTreeMap<String, String>>,
) -> Result<Option<Modifiers>, ValidationError> {
    let Some(reference) = &restore.spec.resource_modifier else { return Ok(None) };
    if !reference.kind.eq_ignore_ascii_case("configmap") {
        return Err(ValidationError::ModifierKind(reference.kind.clone()));
    }
    let configmap = ConfigMapRef {
        namespace: restore.metadata.namespace.clone().unwrap_or_default(),
        name: reference.name.clone(),
    };
    match facts {
        Lookup::Found(data) => Modifiers::parse(data)
            .map(Some)
            .map_err(|source| ValidationError::Modifiers { configmap, source: Box::new(source) }),
        Lookup::Missing => Err(ValidationError::ModifiersNotFound(configmap)),
        Lookup::Failed(reason) => {
            Err(ValidationError::GetModifiers { configmap, reason: reason.clone() })
        }
    }
}

/// Result of a check that ends all others if it fails.
fn collect_error<T>(
    outcome: Result<T, ValidationError>,
    errors: &mut Vec<ValidationError>,
) -> Option<T> {
    outcome.map_err(|error| errors.push(error)).ok()
}

/// Namespaces of a backup that the lists select.
fn select_namespaces(lists: &filter::Lists, names: &[&str]) -> SelectedNamespaces {
    let included: Globs = lists.included.iter().cloned().collect();
    let excluded: Globs = lists.excluded.iter().cloned().collect();
    let is_selected =
        |name: &&&str| (included.is_empty() || included.matches(name)) && !excluded.matches(name);
    // Velero accepts an empty name: it matches no namespace.
    let missing = lists.included.iter().filter(|glob| {
        !glob.as_str().is_empty()
            && !glob.is_everything()
            && !names.iter().any(|name| glob.matches(name))
    });
    SelectedNamespaces {
        names: names.iter().filter(is_selected).map(ToString::to_string).collect(),
        warnings: missing
            .map(|glob| format!("included namespace {glob} has no items in the backup"))
            .collect(),
    }
}
