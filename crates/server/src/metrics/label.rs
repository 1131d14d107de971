//! Label values. Each comes from a closed set, so that the number of series is bounded.

use std::collections::BTreeSet;
use std::sync::Arc;

use bowline_engine::operation::{Operation, State};
use bowline_plugin::{Class, Error, Name};
use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};

/// Maximum number of plugins with their own label. All others share one.
const MAX_PLUGIN_NAMES: usize = 64;
/// Maximum length of a name, in bytes.
const MAX_NAME_BYTES: usize = 128;
/// Shared label of the other plugins. No plugin has this name, since plugin names contain a slash.
const OTHER: &str = "other";

/// Maximum number of schedules with their own label. All others share one.
const MAX_SCHEDULE_NAMES: usize = 1024;
/// Shared label of the other schedules. No schedule can have this name.
pub(super) const OTHER_SCHEDULES: &str = "(other)";

/// Kind of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RunKind {
    /// A backup.
    Backup,
    /// A restore.
    Restore,
}

impl RunKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Backup => "backup",
            Self::Restore => "restore",
        }
    }
}

/// Declares the methods of plugins, by their names on the wire.
macro_rules! methods {
    ($($method:ident)+) => {
        /// Method of a plugin.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "each is the method of that name")]
        pub enum Method {
            $($method,)+
            /// Any other method.
            Other,
        }

        impl Method {
            /// Method with this name on the wire.
            pub fn named(name: &str) -> Self {
                match name {
                    $(stringify!($method) => Self::$method,)+
                    _ => Self::Other,
                }
            }

            pub(crate) fn as_str(self) -> &'static str {
                match self {
                    $(Self::$method => stringify!($method),)+
                    Self::Other => OTHER,
                }
            }
        }
    };
}

methods! {
    AppliesTo Execute Progress Cancel AreAdditionalItemsReady GetRelatedItems
    Init
    PutObject ObjectExists GetObject ListCommonPrefixes ListObjects DeleteObject CreateSignedURL
    GetVolumeID SetVolumeID GetVolumeInfo CreateSnapshot CreateVolumeFromSnapshot DeleteSnapshot
    UploadSnapshot
}

/// Outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallOutcome {
    /// Success.
    Ok,
    /// Error of this class.
    Failed(Class),
}

impl CallOutcome {
    /// Outcome of a result.
    pub fn of<T>(result: &Result<T, Error>) -> Self {
        match result {
            Ok(_) => Self::Ok,
            Err(error) => Self::Failed(error.class()),
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed(Class::Permanent) => "permanent",
            Self::Failed(Class::Transient) => "transient",
            Self::Failed(Class::Unimplemented) => "unimplemented",
            Self::Failed(Class::Unclear) => "unclear",
        }
    }
}

/// Implements label values for types that have texts.
macro_rules! label_values {
    ($($type:ident)+) => {
        $(impl EncodeLabelValue for $type {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
                EncodeLabelValue::encode(&self.as_str(), encoder)
            }
        })+
    };
}

label_values! { RunKind Method CallOutcome }

/// Kind of operations, and their plugin.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub(super) struct OperationGroup {
    kind: &'static str,
    plugin: Arc<str>,
}

impl OperationGroup {
    pub(super) fn of(operation: &Operation, names: &BoundedNames) -> Self {
        Self { kind: operation.kind.as_str(), plugin: names.plugin_label(&operation.plugin) }
    }

    pub(super) fn with_state(&self, state: &State) -> OperationLabels {
        let Self { kind, plugin } = self.clone();
        OperationLabels { kind, plugin, state: state.as_str() }
    }
}

/// Operations in a state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub(super) struct OperationLabels {
    kind: &'static str,
    plugin: Arc<str>,
    state: &'static str,
}

impl OperationLabels {
    pub(super) fn group(&self) -> OperationGroup {
        OperationGroup { kind: self.kind, plugin: Arc::clone(&self.plugin) }
    }
}

/// Calls of a method of a plugin with an outcome.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CallLabels {
    pub(super) plugin: Arc<str>,
    pub(super) method: Method,
    pub(super) outcome: CallOutcome,
}

/// Backups of a schedule, with Velero's label; empty for no schedule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ScheduleLabels {
    pub(super) schedule: Arc<str>,
}

/// Runs of a kind with an outcome.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RunLabels {
    pub(super) kind: RunKind,
    pub(super) phase: &'static str,
}

/// Plugins or schedules with their own label: the first ones seen.
#[derive(Debug, Default)]
pub(super) struct BoundedNames(Mutex<BTreeSet<Arc<str>>>);

impl BoundedNames {
    /// Label of a plugin. It stays the same for as long as the process runs.
    pub(super) fn plugin_label(&self, plugin: &Name) -> Arc<str> {
        self.bounded(MAX_PLUGIN_NAMES, plugin.as_str(), OTHER)
    }

    /// Label of a schedule, likewise.
    pub(super) fn schedule_label(&self, schedule: &str) -> Arc<str> {
        self.bounded(MAX_SCHEDULE_NAMES, schedule, OTHER_SCHEDULES)
    }

    /// Label of a schedule, unless it is the shared one.
    pub(super) fn own_schedule_label(&self, schedule: &str) -> Option<Arc<str>> {
        Some(self.schedule_label(schedule)).filter(|label| **label == *schedule)
    }

    /// All known names.
    pub(super) fn all(&self) -> Vec<Arc<str>> {
        self.0.lock().iter().cloned().collect()
    }

    /// Removes a name, which makes room for another.
    pub(super) fn remove(&self, name: &str) {
        self.0.lock().remove(name);
    }

    fn bounded(&self, most: usize, name: &str, rest: &str) -> Arc<str> {
        let mut known = self.0.lock();
        if let Some(known) = known.get(name) {
            return Arc::clone(known);
        }
        if known.len() >= most || name.len() > MAX_NAME_BYTES {
            return rest.into();
        }
        let name: Arc<str> = name.into();
        known.insert(Arc::clone(&name));
        name
    }
}

#[cfg(test)]
mod tests {
    use bowline_plugin::Code;

    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    #[test]
    fn plugins_beyond_the_limit_are_labelled_other() {
        let names = BoundedNames::default();
        for number in 0..MAX_PLUGIN_NAMES {
            let plugin = format!("example.io/{number}");
            assert_eq!(&*names.plugin_label(&name(&plugin)), plugin);
        }
        assert_eq!(&*names.plugin_label(&name("example.io/late")), OTHER);
        assert_eq!(&*names.plugin_label(&name("example.io/0")), "example.io/0");
    }

    #[test]
    fn schedules_beyond_the_limit_are_labelled_other() {
        let names = BoundedNames::default();
        assert_eq!(&*names.schedule_label(""), "");
        for number in 1..MAX_SCHEDULE_NAMES {
            let schedule = number.to_string();
            assert_eq!(*names.schedule_label(&schedule), schedule);
        }
        assert_eq!(&*names.schedule_label("late"), OTHER_SCHEDULES);
        assert_eq!(names.own_schedule_label("late"), None);
        names.remove("7");
        assert_eq!(names.own_schedule_label("late").as_deref(), Some("late"));
        assert_eq!(&*names.schedule_label("7"), OTHER_SCHEDULES);
    }

    #[test]
    fn too_long_name_is_labelled_other_and_takes_no_slot() {
        let names = BoundedNames::default();
        let fits = format!("a/{}", "x".repeat(MAX_NAME_BYTES - 2));
        for long in 0..MAX_PLUGIN_NAMES {
            assert_eq!(&*names.plugin_label(&name(&format!("{fits}{long}"))), OTHER);
        }
        assert_eq!(*names.plugin_label(&name(&fits)), fits);
    }

    #[test]
    fn methods_are_labelled_by_wire_name_and_unknown_ones_as_other() {
        for text in ["Execute", "AreAdditionalItemsReady", "CreateSignedURL", "GetVolumeID"] {
            assert_eq!(Method::named(text).as_str(), text);
        }
        assert_eq!(Method::named("Explode\n"), Method::Other);
    }

    #[test]
    fn call_outcome_is_the_error_class() {
        for (result, expected) in [
            (Ok(()), "ok"),
            (Err(Error::new(Code::NotFound, "x")), "permanent"),
            (Err(Error::new(Code::DeadlineExceeded, "x")), "transient"),
            (Err(Error::unimplemented("x")), "unimplemented"),
            (Err(Error::unknown("x")), "unclear"),
        ] {
            assert_eq!(CallOutcome::of(&result).as_str(), expected);
        }
    }
}
