//! From a Restore resource to a [`Request`] that cannot be wrong.
//!
//! Pure: what the server looked up enters as [`Facts`], what it is configured with as [`Defaults`].
//! Out comes the Restore with every default filled in, and either the request or what is wrong with
//! it. Rules, their order and their words are those of Velero's `validateAndComplete`, so that
//! scripts which look for the words find them.
//!
//! Beyond Velero's, what would only fail later, or be ignored without a word, is refused here:
//! selectors and patterns that are none, targets that are no namespaces, backups that have no archive yet
//! or are being deleted, modifiers that are in no ConfigMap, and resource policies, which this version
//! does not know for restores.
//!
//! A restore that has begun can be prepared again, for a server that takes it up after a restart.

mod lists;
mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time;

use bowline_api::restore::{ExistingResourcePolicy, RestoreHooks};
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
use super::unpack::Contents;
pub use crate::backup::request::Lookup;
use crate::glob::Globs;
use crate::operation::record::RunRef;
use crate::selector::Selector;
pub use source::source_backup;

/// `"true"` on a Restore that may create claims whose data it cannot bring back.
pub const ALLOW_EMPTY_VOLUMES: &str = "bowline.io/allow-empty-volumes";

/// `"true"` on a Restore that may restore what can be read of an archive that is damaged.
pub const ALLOW_DAMAGED_ARCHIVE: &str = "bowline.io/allow-damaged-archive";

/// What the server looked up for a Restore.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The backup that the Restore names, if it is there; or all backups of the schedule that it
    /// names. Or why they could not be looked up.
    pub backups: Result<Vec<Backup>, String>,
    /// The storage location of the backup that [`source_backup()`] finds among them.
    pub location: Lookup<BackupStorageLocation>,
    /// The data of the ConfigMap that `spec.resourceModifier` names. Not looked at without it.
    pub modifiers: Lookup<BTreeMap<String, String>>,
}

/// What the server is configured with. The defaults are Velero's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// How long an operation of a plugin may take.
    pub item_operation_timeout: Duration,
    /// How long anything else may take that is waited for.
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

/// A Restore that was looked at.
#[derive(Debug)]
pub struct Prepared {
    /// The Restore with its defaults filled in, to be written back: its spec, and of the status
    /// what is known before the run. Its phase is not touched.
    pub restore: Restore,
    /// What to do, or what is wrong with it.
    pub outcome: Result<Request, Vec<String>>,
}

/// What to restore, and how. Everything in it has been checked.
#[derive(Debug)]
pub struct Request {
    /// The name of the restore.
    pub name: RestoreName,
    /// What tells it from another of that name.
    pub uid: RunUid,
    /// The namespace of the Restore.
    pub namespace: String,
    /// The Restore, as plugins see it.
    pub restore: Encoded<Restore>,
    /// The name of the backup.
    pub backup_name: BackupName,
    /// The backup.
    pub backup: Backup,
    /// Which kinds, namespaces and labels.
    pub filter: filter::Spec,
    /// Namespaces to restore into, by namespace of the backup.
    pub namespace_mapping: BTreeMap<String, String>,
    /// Whether services keep their node ports.
    pub preserve_node_ports: bool,
    /// What happens to volumes.
    pub volumes: VolumeOptions,
    /// Whether what can be read of a damaged archive is restored. Else nothing is.
    pub allow_damaged: bool,
    /// What happens to objects that are there already.
    pub existing: ExistingObjectPolicy,
    /// Changes to make to objects.
    pub modifiers: Option<Modifiers>,
    /// Commands and init containers to run in pods.
    pub hooks: RestoreHooks,
    /// How long things may take.
    pub timeouts: Timeouts,
}

/// What happens to an object that is in the cluster already, and differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingObjectPolicy {
    /// Nobody said. It stays, with a warning.
    Unset,
    /// It stays, with a warning.
    Keep,
    /// It is made like the one in the backup.
    Update,
}

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// An operation of a plugin.
    pub item_operation: time::Duration,
    /// Anything else that is waited for.
    pub resource: time::Duration,
}

/// The namespaces of a backup that are restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelectedNamespaces {
    /// Their names in the backup, in order.
    pub names: Vec<String>,
    /// What a user should know: namespaces that were asked for and are not there.
    pub warnings: Vec<String>,
}

impl Request {
    /// The run, as its operations name it.
    pub fn run_identity(&self) -> RunRef<'_> {
        RunRef { name: self.name.as_str(), uid: self.uid.as_str() }
    }

    /// The namespace that something is restored into.
    pub fn target<'a>(&'a self, namespace: &'a str) -> &'a str {
        self.namespace_mapping.get(namespace).map_or(namespace, String::as_str)
    }

    /// Looks up what the patterns of a user stand for in a backup.
    pub fn namespaces(&self, contents: &Contents) -> SelectedNamespaces {
        let names = contents.namespaces();
        let mut selected = select_namespaces(&self.filter.namespaces, &names);
        let unknown = self.namespace_mapping.keys().filter(|from| !names.contains(&from.as_str()));
        let warning =
            |from: &String| format!("the backup has nothing in namespace {from}, which is mapped");
        selected.warnings.extend(unknown.map(warning));
        selected
    }
}

/// Fills in the defaults of a Restore and checks it.
pub fn prepare(restore: &Restore, facts: &Facts, defaults: &Defaults, now: Timestamp) -> Prepared {
    let mut restore = restore.clone();
    if restore.spec.item_operation_timeout.is_zero() {
        restore.spec.item_operation_timeout = defaults.item_operation_timeout;
    }
    let mut errors = Vec::new();
    let request = request(&mut restore, facts, defaults, &mut errors);
    let status = restore.status.get_or_insert_default();
    status.validation_errors.clone_from(&errors);
    let outcome = match request {
        Some(checked) if errors.is_empty() => {
            status.start_timestamp.get_or_insert(Time(now));
            Ok(checked.finish(&restore))
        }
        _ => Err(errors),
    };
    Prepared { restore, outcome }
}

/// All of a [`Request`] but the Restore, which is not finished yet.
struct CheckedRequest {
    name: RestoreName,
    uid: RunUid,
    backup_name: BackupName,
    backup: Backup,
    filter: filter::Spec,
    existing: ExistingObjectPolicy,
    modifiers: Option<Modifiers>,
    timeouts: Timeouts,
}

/// Checks rule by rule. None if a rule was broken after which nothing can be checked.
fn request(
    restore: &mut Restore,
    facts: &Facts,
    defaults: &Defaults,
    errors: &mut Vec<String>,
) -> Option<CheckedRequest> {
    let filter = filter_spec(&mut restore.spec, errors);
    let spec = &restore.spec;
    let timeouts = timeouts(spec, defaults, errors);
    lists::check_mapping(&spec.namespace_mapping, errors);
    let identity = identity(restore, errors);
    // One that has begun has both: the schedule, and the backup that was chosen.
    if !has_started(restore) && spec.backup_name.is_empty() == spec.schedule_name.is_empty() {
        errors.push(
            "Either a backup or schedule must be specified as a source for the restore, but not \
             both"
                .to_owned(),
        );
        return None;
    }
    check_hooks(&spec.hooks, errors);
    let existing = existing(spec, errors);
    let backup = source::resolve_backup(restore, facts, errors)?;
    collect_error(source::check_location(&backup, &facts.location), errors)?;
    // One that has begun may need its archive no more; if it does, it finds out.
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
    let backup_name = BackupName::new(restore.spec.backup_name.clone())
        .map_err(|error| format!("invalid backup name: {error}"));
    let backup_name = collect_error(backup_name, errors)?;
    Some(CheckedRequest { name, uid, backup_name, backup, filter, existing, modifiers, timeouts })
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
            existing: self.existing,
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

fn filter_spec(spec: &mut RestoreSpec, errors: &mut Vec<String>) -> filter::Spec {
    let kinds = lists::kinds(spec, errors);
    let namespaces = lists::namespaces(spec, errors);
    let status = spec.restore_status.as_ref().map(|status| {
        let lists = (status.included_resources.as_slice(), status.excluded_resources.as_slice());
        lists::compile("Invalid included/excluded resource lists of restoreStatus", lists, errors)
    });
    filter::Spec {
        namespaces,
        kinds,
        cluster_resources: spec.include_cluster_resources,
        selectors: selectors(spec, errors),
        status,
    }
}

fn selectors(spec: &RestoreSpec, errors: &mut Vec<String>) -> Vec<Selector> {
    if spec.label_selector.is_some() && !spec.or_label_selectors.is_empty() {
        errors.push(
            "encountered labelSelector as well as orLabelSelectors in restore spec, only one can be \
             specified"
                .to_owned(),
        );
    }
    let one = spec.label_selector.iter().map(|selector| ("labelSelector", selector));
    let several = spec.or_label_selectors.iter().map(|selector| ("orLabelSelectors", selector));
    let mut compiled = Vec::new();
    for (field, selector) in one.chain(several) {
        match Selector::new(selector) {
            Ok(selector) => compiled.push(selector),
            Err(error) => errors.push(format!("invalid {field}: {error}")),
        }
    }
    compiled
}

fn timeouts(spec: &RestoreSpec, defaults: &Defaults, errors: &mut Vec<String>) -> Timeouts {
    let mut check = |name: &str, duration: Duration| {
        duration.to_std().unwrap_or_else(|| {
            errors.push(format!("invalid {name} {duration}: it must not be negative"));
            time::Duration::ZERO
        })
    };
    Timeouts {
        item_operation: check("itemOperationTimeout", spec.item_operation_timeout),
        resource: check("resource timeout of the server", defaults.resource_timeout),
    }
}

fn identity(restore: &Restore, errors: &mut Vec<String>) -> Option<(RestoreName, RunUid)> {
    let name = RestoreName::new(restore.metadata.name.clone().unwrap_or_default());
    let uid = RunUid::new(restore.metadata.uid.clone().unwrap_or_default());
    let name = name.map_err(|error| errors.push(format!("invalid restore name: {error}")));
    let uid = uid.map_err(|error| errors.push(format!("invalid restore uid: {error}")));
    Some((name.ok()?, uid.ok()?))
}

fn check_hooks(hooks: &RestoreHooks, errors: &mut Vec<String>) {
    for hook in &hooks.resources {
        if let Some(Err(error)) = hook.label_selector.as_ref().map(Selector::new) {
            errors.push(format!("invalid restore hooks: {error}"));
        }
        for list in [&hook.included_namespaces, &hook.excluded_namespaces] {
            if let Err(error) = Globs::new(list) {
                errors.push(format!("invalid restore hooks: {error}"));
            }
        }
        let init = hook.post_hooks.iter().filter_map(|hook| hook.init.as_ref());
        for container in init.flat_map(|init| &init.init_containers) {
            if !is_container(container) {
                errors.push(format!(
                    "invalid init container in restore hook {:?}: invalid InitContainer in restore \
                     hook, it doesn't have Command, Name or Image field",
                    hook.name
                ));
            }
        }
    }
}

/// Whether something has what an init container needs.
fn is_container(container: &Value) -> bool {
    let has_text = |field: &str| {
        container.get(field).and_then(Value::as_str).is_some_and(|text| !text.is_empty())
    };
    let command = container.get("command").and_then(Value::as_array);
    let has_command =
        command.is_some_and(|words| !words.is_empty() && words.iter().all(Value::is_string));
    has_command && has_text("name") && has_text("image")
}

fn existing(spec: &RestoreSpec, errors: &mut Vec<String>) -> ExistingObjectPolicy {
    match &spec.existing_resource_policy {
        Some(ExistingResourcePolicy::None) => ExistingObjectPolicy::Keep,
        Some(ExistingResourcePolicy::Update) => ExistingObjectPolicy::Update,
        Some(ExistingResourcePolicy::Other(policy)) if !policy.is_empty() => {
            errors.push(format!("Invalid ExistingResourcePolicy: {policy}"));
            ExistingObjectPolicy::Unset
        }
        Some(ExistingResourcePolicy::Other(_)) | None => ExistingObjectPolicy::Unset,
    }
}

/// A policy that is not followed would restore more than was asked for.
fn check_resource_policy(spec: &RestoreSpec) -> Result<(), String> {
    match &spec.resource_policy {
        None => Ok(()),
        Some(policy) => Err(format!(
            "invalid restore resource policies: this version does not support resourcePolicy ({}) \
             for restores; use includedResources, includedNamespaces and labelSelector",
            policy.name
        )),
    }
}

fn modifiers(
    restore: &Restore,
    facts: &Lookup<BTreeMap<String, String>>,
) -> Result<Option<Modifiers>, String> {
    let Some(reference) = &restore.spec.resource_modifier else { return Ok(None) };
    if !reference.kind.eq_ignore_ascii_case("configmap") {
        let kind = &reference.kind;
        return Err(format!(
            "invalid resourceModifier kind {kind:?}, only \"configmap\" is supported"
        ));
    }
    let namespace = restore.metadata.namespace.as_deref().unwrap_or_default();
    let configmap = format!("configmap {namespace}/{}", reference.name);
    match facts {
        Lookup::Found(data) => Modifiers::parse(data).map(Some).map_err(|error| {
            let prefix =
                if error.is_decoded() { "Validation error in" } else { "Error in parsing" };
            format!("{prefix} resource modifiers provided in {configmap}: {error}")
        }),
        Lookup::Missing => Err(format!("failed to get resource modifiers {configmap}")),
        Lookup::Failed(error) => {
            Err(format!("failed to get resource modifiers {configmap}: {error}"))
        }
    }
}

/// What a check that ends all others came to.
fn collect_error<T>(outcome: Result<T, String>, errors: &mut Vec<String>) -> Option<T> {
    outcome.map_err(|error| errors.push(error)).ok()
}

/// The namespaces of a backup that lists select.
fn select_namespaces(lists: &filter::Lists, names: &[&str]) -> SelectedNamespaces {
    let included: Globs = lists.included.iter().cloned().collect();
    let excluded: Globs = lists.excluded.iter().cloned().collect();
    let is_selected =
        |name: &&&str| (included.is_empty() || included.matches(name)) && !excluded.matches(name);
    // An empty name is one that Velero lets pass: it stands for no namespace.
    let missing = lists.included.iter().filter(|glob| {
        !glob.as_str().is_empty()
            && !glob.is_everything()
            && !names.iter().any(|name| glob.matches(name))
    });
    SelectedNamespaces {
        names: names.iter().filter(is_selected).map(ToString::to_string).collect(),
        warnings: missing
            .map(|glob| format!("the backup has nothing in namespace {glob}, which is included"))
            .collect(),
    }
}
