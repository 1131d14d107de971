//! From a Backup resource to a validated [`Request`].
//!
//! Pure: the objects that the server looked up enter as [`Facts`], its configuration as [`Defaults`]. The result is
//! the Backup with every default filled in, and either the request or all validation errors at once. Rules and
//! messages are those of Velero's `prepareBackupRequest`, so that scripts that search for the messages find them.

mod credentials;
mod facts;
mod lists;
mod location;
mod order;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Deref;

use bowline_api::backup::BackupHooks;
use bowline_api::snapshot_type::SnapshotType;
use bowline_api::{Backup, BackupSpec, BackupStatus, Duration, annotation};
use bowline_plugin::Encoded;
use bowline_store::name::{BackupName, RunUid};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::archive::FORMAT_VERSION;
use super::filter::{self, Kinds, namespaces};
use super::hook::{Hooks, InvalidHooks};
use super::policy::Policies;
pub use crate::lookup::{ListRefused, Lookup};
use crate::operation::record::RunRef;
use crate::resource::Resources;
use crate::selector::Selector;
pub use facts::{ClusterVersion, Defaults, Facts};
pub use location::storage_location_name;

/// Major version of the backup format.
const VERSION: i64 = 1;

/// A validated Backup.
#[derive(Debug)]
pub struct PreparedBackup {
    /// The Backup with its defaults filled in, to be written back: spec, labels, annotations, and the part of the
    /// status that is known before the run. Its phase is unchanged.
    pub backup: Backup,
    /// The request, or all validation errors.
    pub outcome: Result<Request, ValidationErrors>,
}

/// Everything that is wrong with a Backup, each as it goes into `status.validationErrors`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct ValidationErrors(pub Vec<String>);

impl Deref for ValidationErrors {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.0
    }
}

/// Validated request for a backup.
#[derive(Debug)]
pub struct Request {
    /// The name of the backup.
    pub name: BackupName,
    /// The uid, which distinguishes it from another backup of that name.
    pub uid: RunUid,
    /// The namespace of the Backup.
    pub namespace: String,
    /// The Backup, as plugins see it.
    pub backup: Encoded<Backup>,
    /// Filters on kinds and namespaces.
    pub filter: filter::Spec,
    /// Label selectors. A match of one is enough; an empty list selects everything.
    pub selectors: Vec<Selector>,
    /// Items to back up first: names, as `namespace/name` or `name`, by the plural of a resource.
    pub ordered: BTreeMap<String, Vec<String>>,
    /// Commands to run in pods.
    pub hooks: BackupHooks,
    /// Volume policies.
    pub policies: Option<Policies>,
    /// True if volumes are snapshotted by default.
    pub snapshot_volumes: bool,
    /// True if volumes of pods are backed up with `fs-backup` by default.
    pub default_volumes_to_fs_backup: bool,
    /// The VolumeSnapshotLocations, one for each provider.
    pub snapshot_locations: Vec<String>,
    /// Upload of snapshots, if the Backup sets it.
    pub own_snapshot_type: Option<SnapshotType>,
    /// Upload of snapshots, where neither the Backup nor the location sets it.
    pub default_snapshot_type: SnapshotType,
    /// The label whose value groups volumes that must be snapshotted together.
    pub volume_group_label_key: String,
    /// Errors known before the run, to be reported when it starts.
    pub errors: Vec<String>,
    /// Warnings known before the run, to be reported when it starts.
    pub warnings: Vec<String>,
}

impl Request {
    /// Time its operations may take.
    pub fn item_operation_timeout(&self) -> std::time::Duration {
        // Validation refuses negative values.
        self.backup.spec.item_operation_timeout.to_std().unwrap_or_default()
    }

    /// Upload of the snapshots of a location: the Backup takes precedence, then the location, then the server.
    pub fn snapshot_type(&self, of_location: Option<SnapshotType>) -> SnapshotType {
        self.own_snapshot_type.or(of_location).unwrap_or(self.default_snapshot_type)
    }

    /// The run, as its operations refer to it.
    pub fn run_ref(&self) -> RunRef<'_> {
        RunRef { name: self.name.as_str(), uid: self.uid.as_str() }
    }
}

/// Fills in the defaults of a Backup and checks it.
pub fn prepare(
    backup: &Backup,
    facts: &Facts,
    defaults: &Defaults,
    now: Timestamp,
) -> PreparedBackup {
    let mut backup = backup.clone();
    let mut errors = Vec::new();

    fill_in_defaults(&mut backup.spec, defaults);
    let expiration = expiration(&backup.spec, now);
    check_durations(&backup.spec, defaults, &mut errors);
    location::choose_storage(&mut backup, facts, defaults, &mut errors);
    let snapshot_locations =
        location::choose_snapshots(&mut backup.spec, facts, defaults, &mut errors);
    annotate(&mut backup, defaults);

    let spec = &mut backup.spec;
    let live = facts.namespaces.as_deref().unwrap_or_else(|error| {
        errors.push(format!("error getting namespace list: {error}"));
        &[]
    });
    exclude_labelled(spec, live);
    let kinds = lists::kinds(spec, &mut errors);
    let (included, excluded) = lists::namespaces(spec, &mut errors);
    let selectors = selectors(spec, &mut errors);
    let policies = policies(&backup, facts, &mut errors);
    let kinds = with_policy(kinds, policies.as_ref(), &mut errors);
    let spec = &backup.spec;
    let ordered = order::read(&spec.ordered_resources, &mut errors);
    check_hooks(&spec.hooks, &mut errors);
    check_data_mover(spec, &mut errors);
    let own_snapshot_type = snapshot_type(&backup, &mut errors);
    let credentials = credentials::excluded_secrets(&backup, facts, &mut errors);
    let identity = identity(&backup, &mut errors);

    let status = backup.status.get_or_insert_default();
    fill_in_status(status, expiration, &errors);
    let outcome = match identity {
        Some((name, uid)) if errors.is_empty() => {
            let expanded = namespaces::expand(&included, &excluded, live);
            let mut warnings = expanded.warnings;
            warnings.extend(policies.iter().flat_map(|policies| policies.warnings().to_vec()));
            let spec = &backup.spec;
            let namespace = backup.metadata.namespace.clone().unwrap_or_default();
            Ok(Request {
                name,
                uid,
                filter: filter::Spec {
                    namespaces: expanded.scope,
                    is_of_all_namespaces: expanded.is_of_all,
                    excluded_namespaces: expanded.excluded,
                    kinds,
                    credentials: filter::Credentials {
                        namespace: namespace.clone(),
                        secrets: credentials,
                    },
                },
                namespace,
                selectors,
                ordered,
                hooks: spec.hooks.clone(),
                policies,
                snapshot_volumes: spec.snapshot_volumes != Some(false),
                default_volumes_to_fs_backup: spec.default_volumes_to_fs_backup == Some(true),
                snapshot_locations,
                own_snapshot_type,
                default_snapshot_type: defaults.snapshot_type,
                volume_group_label_key: spec.volume_group_snapshot_label_key.clone(),
                errors: expanded.errors,
                warnings,
                backup: Encoded::new(backup.clone()),
            })
        }
        _ => Err(ValidationErrors(errors)),
    };
    PreparedBackup { backup, outcome }
}

fn fill_in_defaults(spec: &mut BackupSpec, defaults: &Defaults) {
    let set_if_zero = |duration: &mut Duration, default: Duration| {
        if duration.is_zero() {
            *duration = default;
        }
    };
    set_if_zero(&mut spec.ttl, defaults.ttl);
    set_if_zero(&mut spec.csi_snapshot_timeout, defaults.csi_snapshot_timeout);
    set_if_zero(&mut spec.item_operation_timeout, defaults.item_operation_timeout);
    if spec.volume_group_snapshot_label_key.is_empty() {
        spec.volume_group_snapshot_label_key.clone_from(&defaults.volume_group_label_key);
    }
    // The old name of the field. Only `true` has an effect.
    if spec.default_volumes_to_restic == Some(true) {
        spec.default_volumes_to_fs_backup = Some(true);
    }
    spec.default_volumes_to_fs_backup.get_or_insert(defaults.volumes_to_fs_backup);
    spec.snapshot_move_data.get_or_insert(defaults.snapshot_move_data);
    if spec.included_namespaces.is_empty() {
        spec.included_namespaces.push("*".to_owned());
    }
}

fn expiration(spec: &BackupSpec, now: Timestamp) -> Timestamp {
    let ttl = jiff::SignedDuration::from_nanos(spec.ttl.nanoseconds());
    now.saturating_add(ttl).unwrap_or(Timestamp::MAX)
}

fn check_durations(spec: &BackupSpec, defaults: &Defaults, errors: &mut Vec<String>) {
    for (name, duration) in [
        ("ttl", spec.ttl),
        ("itemOperationTimeout", spec.item_operation_timeout),
        ("csiSnapshotTimeout", spec.csi_snapshot_timeout),
        ("resource timeout of the server", defaults.resource_timeout),
    ] {
        if duration.to_std().is_none() {
            errors.push(format!("invalid {name} {duration}: it must not be negative"));
        }
    }
}

/// Reports errors in hooks that do not depend on the cluster's resources. The hooks are compiled again when those are
/// known.
fn check_hooks(hooks: &BackupHooks, errors: &mut Vec<String>) {
    if let Err(InvalidHooks(hook_errors)) = Hooks::new(hooks, &Resources::default()) {
        errors.extend(hook_errors.into_iter().map(|what| format!("invalid hooks: {what}")));
    }
}

/// Annotates the backup with its source cluster, for restores elsewhere.
fn annotate(backup: &mut Backup, defaults: &Defaults) {
    let ClusterVersion { git_version, major, minor } = &defaults.cluster_version;
    let annotations = backup.metadata.annotations.get_or_insert_default();
    for (key, value) in [
        (annotation::SOURCE_CLUSTER_GIT_VERSION, git_version.clone()),
        (annotation::SOURCE_CLUSTER_MAJOR_VERSION, major.clone()),
        (annotation::SOURCE_CLUSTER_MINOR_VERSION, minor.clone()),
        (annotation::RESOURCE_TIMEOUT, defaults.resource_timeout.to_string()),
    ] {
        annotations.insert(key.to_owned(), value);
    }
}

/// Writes the namespaces that carry the exclude label into the spec, where users can see them.
fn exclude_labelled(spec: &mut BackupSpec, live: &[namespaces::Namespace]) {
    for name in namespaces::excluded_by_label(live) {
        if !spec.excluded_namespaces.iter().any(|excluded| excluded == name) {
            spec.excluded_namespaces.push(name.to_owned());
        }
    }
}

fn selectors(spec: &BackupSpec, errors: &mut Vec<String>) -> Vec<Selector> {
    if spec.label_selector.is_some() && !spec.or_label_selectors.is_empty() {
        errors.push(
            "encountered labelSelector as well as orLabelSelectors in backup spec, only one can \
             be specified"
                .to_owned(),
        );
    }
    let mut compiled = Vec::new();
    let all = spec.label_selector.iter().map(|selector| ("labelSelector", selector));
    let or = spec.or_label_selectors.iter().map(|selector| ("orLabelSelectors", selector));
    for (field, selector) in all.chain(or) {
        match Selector::new(selector) {
            Ok(selector) => compiled.push(selector),
            Err(error) => errors.push(format!("invalid {field}: {error}")),
        }
    }
    compiled
}

fn policies(backup: &Backup, facts: &Facts, errors: &mut Vec<String>) -> Option<Policies> {
    let reference = backup.spec.resource_policy.as_ref()?;
    let namespace = backup.metadata.namespace.as_deref().unwrap_or_default();
    let name = format!("{namespace}/{}", reference.name);
    let reason = if reference.kind.eq_ignore_ascii_case("configmap") {
        let read_error = |error: &dyn std::fmt::Display| {
            format!("fail to get ResourcePolicies {name} ConfigMap: {error}")
        };
        match &facts.policy {
            Lookup::Found(data) => match Policies::parse(data) {
                Ok(policies) => return Some(policies),
                Err(error) if error.is_readable() => {
                    format!("fail to validate ResourcePolicies in ConfigMap {name}: {error}")
                }
                Err(error) => {
                    format!("fail to read the ResourcePolicies from ConfigMap {name}: {error}")
                }
            },
            Lookup::Missing => {
                read_error(&format_args!("configmaps {:?} not found", reference.name))
            }
            Lookup::Failed(error) => read_error(error),
        }
    } else {
        format!("invalid ResourcePolicy kind {:?}, only \"configmap\" is supported", reference.kind)
    };
    errors.push(format!("invalid resource policies: {reason}"));
    None
}

fn with_policy(kinds: Kinds, policies: Option<&Policies>, errors: &mut Vec<String>) -> Kinds {
    match (kinds, policies.and_then(Policies::kinds)) {
        (Kinds::New { spec, .. }, Some(lists)) => Kinds::New { spec, policy: lists.clone() },
        (kinds @ Kinds::Old { .. }, Some(_)) => {
            errors.push(
                "include-resources, exclude-resources and include-cluster-resources are old \
                 filter parameters.\nThey cannot be used with include-exclude policies."
                    .to_owned(),
            );
            kinds
        }
        (kinds, None) => kinds,
    }
}

/// A backup that leaves its data behind is not a backup, so such a run does not even start.
fn check_data_mover(spec: &BackupSpec, errors: &mut Vec<String>) {
    if spec.snapshot_move_data == Some(true) {
        errors.push(
            "snapshotMoveData is not supported (no data mover); hint: set it to false to keep the \
             data in snapshots"
                .to_owned(),
        );
    }
}

/// Upload of snapshots, if the Backup sets it.
fn snapshot_type(backup: &Backup, errors: &mut Vec<String>) -> Option<SnapshotType> {
    let key = annotation::SNAPSHOT_TYPE;
    let text = backup.metadata.annotations.as_ref().and_then(|all| all.get(key))?;
    let parsed = text.parse::<SnapshotType>();
    parsed.map_err(|error| errors.push(format!("the annotation {key}: {error}"))).ok()
}

fn identity(backup: &Backup, errors: &mut Vec<String>) -> Option<(BackupName, RunUid)> {
    let name = BackupName::new(backup.metadata.name.clone().unwrap_or_default());
    let uid = RunUid::new(backup.metadata.uid.clone().unwrap_or_default());
    let name = name.map_err(|error| errors.push(format!("invalid backup name: {error}")));
    let uid = uid.map_err(|error| errors.push(format!("invalid backup uid: {error}")));
    Some((name.ok()?, uid.ok()?))
}

fn fill_in_status(status: &mut BackupStatus, expiration: Timestamp, errors: &[String]) {
    status.version = VERSION;
    FORMAT_VERSION.clone_into(&mut status.format_version);
    status.expiration = Some(Time(expiration));
    status.validation_errors = errors.to_vec();
}
