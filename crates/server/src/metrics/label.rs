//! The values of labels. Each comes from a closed set, so that nobody can make series without end.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use bowline_engine::operation::{Operation, State};
use bowline_plugin::{Class, Error, Name};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};

/// How many plugins are told by their names. The rest is one.
const NAMES_MAX: usize = 64;
/// How long a name may be, in bytes.
const NAME_MAX: usize = 128;
/// What the rest is called. It is no name of a plugin, which would have a slash.
const OTHER: &str = "other";

/// How many schedules are told by their names. The rest is one.
const SCHEDULES_MAX: usize = 1024;
/// What the rest of the schedules is called. No schedule can be called so.
pub(super) const OTHER_SCHEDULES: &str = "(other)";

/// What kind of run it is.
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

/// Declares the methods of plugins, under the names that they have on the wire.
macro_rules! methods {
    ($($method:ident)+) => {
        /// What a plugin was asked.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "each is the method of that name")]
        pub enum Method {
            $($method,)+
            /// One that is not named here.
            Other,
        }

        impl Method {
            /// The method with a name on the wire.
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

/// What came of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// An answer.
    Ok,
    /// An error of this class.
    Failed(Class),
}

impl Outcome {
    /// What a result means.
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

/// Lets types be labels that have their texts.
macro_rules! label_values {
    ($($type:ident)+) => {
        $(impl EncodeLabelValue for $type {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
                EncodeLabelValue::encode(&self.as_str(), encoder)
            }
        })+
    };
}

label_values! { RunKind Method Outcome }

/// A kind of operations and the plugin that does them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub(super) struct Row {
    kind: &'static str,
    plugin: Arc<str>,
}

impl Row {
    pub(super) fn of(operation: &Operation, names: &Names) -> Self {
        Self { kind: operation.kind.as_str(), plugin: names.label(&operation.plugin) }
    }

    pub(super) fn with(&self, state: &State) -> OperationLabels {
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
    pub(super) fn row(&self) -> Row {
        Row { kind: self.kind, plugin: Arc::clone(&self.plugin) }
    }
}

/// Calls of a method of a plugin with an outcome.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CallLabels {
    pub(super) plugin: Arc<str>,
    pub(super) method: Method,
    pub(super) outcome: Outcome,
}

/// Backups of a schedule, as Velero labels them; of none if it is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ScheduleLabels {
    pub(super) schedule: Arc<str>,
}

/// Runs of a kind with an end.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RunLabels {
    pub(super) kind: RunKind,
    pub(super) phase: &'static str,
}

/// The plugins or schedules that are told by their names: the first ones that were met.
#[derive(Debug, Default)]
pub(super) struct Names(Mutex<BTreeSet<Arc<str>>>);

impl Names {
    /// What a plugin is called. It is called so for as long as the process runs.
    pub(super) fn label(&self, plugin: &Name) -> Arc<str> {
        self.one_of(NAMES_MAX, plugin.as_str(), OTHER)
    }

    /// What a schedule is called, likewise.
    pub(super) fn schedule(&self, schedule: &str) -> Arc<str> {
        self.one_of(SCHEDULES_MAX, schedule, OTHER_SCHEDULES)
    }

    /// The same, unless it is one of the rest.
    pub(super) fn schedule_of_its_own(&self, schedule: &str) -> Option<Arc<str>> {
        Some(self.schedule(schedule)).filter(|label| **label == *schedule)
    }

    /// All that are known.
    pub(super) fn all(&self) -> Vec<Arc<str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Makes room for another in place of this one.
    pub(super) fn forget(&self, name: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    fn one_of(&self, most: usize, name: &str, rest: &str) -> Arc<str> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(name) {
            return Arc::clone(known);
        }
        if known.len() >= most || name.len() > NAME_MAX {
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
    fn so_many_plugins_have_names_and_keep_them_and_the_rest_is_one() {
        let names = Names::default();
        for number in 0..NAMES_MAX {
            let plugin = format!("example.io/{number}");
            assert_eq!(&*names.label(&name(&plugin)), plugin);
        }
        assert_eq!(&*names.label(&name("example.io/late")), OTHER);
        assert_eq!(&*names.label(&name("example.io/0")), "example.io/0");
    }

    #[test]
    fn so_many_schedules_have_names_and_the_rest_is_one() {
        let names = Names::default();
        assert_eq!(&*names.schedule(""), "");
        for number in 1..SCHEDULES_MAX {
            let schedule = number.to_string();
            assert_eq!(*names.schedule(&schedule), schedule);
        }
        assert_eq!(&*names.schedule("late"), OTHER_SCHEDULES);
        assert_eq!(names.schedule_of_its_own("late"), None);
        names.forget("7");
        assert_eq!(names.schedule_of_its_own("late").as_deref(), Some("late"));
        assert_eq!(&*names.schedule("7"), OTHER_SCHEDULES);
    }

    #[test]
    fn a_name_that_is_too_long_is_one_of_the_rest_and_takes_no_place() {
        let names = Names::default();
        let fits = format!("a/{}", "x".repeat(NAME_MAX - 2));
        for long in 0..NAMES_MAX {
            assert_eq!(&*names.label(&name(&format!("{fits}{long}"))), OTHER);
        }
        assert_eq!(*names.label(&name(&fits)), fits);
    }

    #[test]
    fn methods_are_called_as_on_the_wire_and_others_are_one() {
        for text in ["Execute", "AreAdditionalItemsReady", "CreateSignedURL", "GetVolumeID"] {
            assert_eq!(Method::named(text).as_str(), text);
        }
        assert_eq!(Method::named("Explode\n"), Method::Other);
    }

    #[test]
    fn the_outcome_of_a_call_is_the_class_of_its_error() {
        for (result, expected) in [
            (Ok(()), "ok"),
            (Err(Error::new(Code::NotFound, "x")), "permanent"),
            (Err(Error::new(Code::DeadlineExceeded, "x")), "transient"),
            (Err(Error::unimplemented("x")), "unimplemented"),
            (Err(Error::unknown("x")), "unclear"),
        ] {
            assert_eq!(Outcome::of(&result).as_str(), expected);
        }
    }
}
