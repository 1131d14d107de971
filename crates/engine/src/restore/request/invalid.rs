//! What makes a Restore invalid. Texts are Velero's where it has one.

use std::fmt;

use bowline_api::{BackupPhase, Duration, GROUP};
use bowline_store::name::InvalidName;

use crate::glob::{InvalidGlob, InvalidNamespacePattern};
use crate::report::error_text;
use crate::restore::modifier::InvalidModifiers;
use crate::selector::InvalidSelector;

/// All validation errors of a Restore.
#[derive(Debug)]
pub struct Invalid(pub(super) Vec<ValidationError>);

impl Invalid {
    /// Text of each error, for the status of the Restore.
    pub fn messages(&self) -> Vec<String> {
        self.0.iter().map(|error| error_text(error)).collect()
    }
}

/// A broken rule.
#[derive(Debug, thiserror::Error)]
pub(super) enum ValidationError {
    #[error("{0} are non-restorable resources")]
    NotRestorable(&'static str),
    #[error("Invalid included/excluded {lists}")]
    Lists { lists: FilterLists, source: InvalidLists },
    #[error("invalid namespaceMapping of {from:?}: {to:?} is not the name of a namespace")]
    NamespaceMapping { from: String, to: String },
    #[error(
        "Either a backup or schedule must be specified as a source for the restore, but not both"
    )]
    NotOneSource,
    #[error(
        "encountered labelSelector as well as orLabelSelectors in restore spec, only one can be specified"
    )]
    TwoSelectorFields,
    #[error("invalid {field}")]
    Selector { field: &'static str, source: InvalidSelector },
    #[error("invalid {name} {timeout}: it must not be negative")]
    NegativeTimeout { name: &'static str, timeout: Duration },
    #[error("invalid restore name")]
    RestoreName(#[source] InvalidName),
    #[error("invalid restore uid")]
    RestoreUid(#[source] InvalidName),
    #[error("invalid backup name")]
    BackupName(#[source] InvalidName),
    #[error("invalid restore hooks")]
    HookSelector(#[source] InvalidSelector),
    #[error("invalid restore hooks")]
    HookNamespaces(#[source] InvalidGlob),
    #[error(
        "invalid init container in restore hook {0:?}: invalid InitContainer in restore hook, it doesn't have \
         Command, Name or Image field"
    )]
    InitContainer(String),
    #[error("Invalid ExistingResourcePolicy: {0}")]
    ExistingResourcePolicy(String),
    #[error("Unable to list backups for schedule")]
    ListBackups,
    #[error("No backups found for schedule")]
    NoBackup,
    #[error("No completed backups found for schedule")]
    NoCompletedBackup,
    /// With the answer of the API server.
    #[error("Error retrieving backup: can't find backup {namespace}/{name}: {reason}")]
    GetBackup { namespace: String, name: String, reason: String },
    #[error(
        "Error retrieving backup: can't find backup {namespace}/{name}: backups.{GROUP} {name:?} not found"
    )]
    BackupNotFound { namespace: String, name: String },
    #[error("The backup {0} is being deleted, cannot restore from it")]
    BackupDeleting(String),
    #[error(
        "The backup {name} is still {}, cannot restore from it before all its objects are in the storage location",
        phase.as_str()
    )]
    BackupUnfinished { name: String, phase: BackupPhase },
    #[error("The BSL {0} is unavailable, cannot retrieve the backup")]
    LocationUnavailable(String),
    #[error("Error retrieving backup: backupstoragelocations.{GROUP} {0:?} not found")]
    LocationNotFound(String),
    /// With the answer of the API server.
    #[error("Error retrieving backup: {0}")]
    GetLocation(String),
    #[error(
        "invalid restore resource policies: this version does not support resourcePolicy ({0}) for restores; use \
         includedResources, includedNamespaces and labelSelector"
    )]
    ResourcePolicy(String),
    #[error("invalid resourceModifier kind {0:?}, only \"configmap\" is supported")]
    ModifierKind(String),
    #[error("failed to get resource modifiers {0}")]
    ModifiersNotFound(ConfigMapRef),
    /// With the answer of the API server.
    #[error("failed to get resource modifiers {configmap}: {reason}")]
    GetModifiers { configmap: ConfigMapRef, reason: String },
    #[error(
        "{} resource modifiers provided in {configmap}",
        if source.is_decoded() { "Validation error in" } else { "Error in parsing" }
    )]
    Modifiers { configmap: ConfigMapRef, source: Box<InvalidModifiers> },
}

/// A pair of lists of a spec.
#[derive(Clone, Copy, Debug)]
pub(super) enum FilterLists {
    Resources,
    Namespaces,
    StatusResources,
}

impl fmt::Display for FilterLists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resources => "resource lists",
            Self::Namespaces => "namespace lists",
            Self::StatusResources => "resource lists of restoreStatus",
        })
    }
}

/// Defect of a pair of lists.
#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidLists {
    #[error("includes list must either contain '*' only, or a non-empty list of items")]
    EverythingAmongOthers,
    #[error("excludes list cannot contain '*'")]
    ExcludesEverything,
    #[error("excludes list cannot contain an item in the includes list: {0}")]
    Contradiction(String),
    #[error(transparent)]
    Glob(#[from] InvalidGlob),
    #[error(transparent)]
    Namespace(#[from] InvalidNamespacePattern),
}

/// The ConfigMap of the resource modifiers.
#[derive(Debug)]
pub(super) struct ConfigMapRef {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl fmt::Display for ConfigMapRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "configmap {}/{}", self.namespace, self.name)
    }
}
