//! Common parts of backup hooks and restore hooks.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline_api::duration;
use bowline_api::hook::HookErrorMode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::cluster::ExecOutcome;
use crate::glob::{Globs, InvalidGlob};
use crate::item::Object;
use crate::selector::{InvalidSelector, Selector};

/// Default timeout of a command.
pub(crate) const EXEC_TIMEOUT: Duration = Duration::from_secs(30);

/// Number of bytes of a failed command's output to report, from its end.
const MAX_REPORTED_OUTPUT: usize = 500;

/// Consequence of a failed hook for its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// The failure is reported, and the run continues as if the hook had succeeded.
    Continue,
    /// The rest is skipped: the following hooks, and for a pre-hook of a backup the backup of the
    /// pod.
    Fail,
}

/// Reason why the hooks of a pod cannot be planned.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Invalid annotation.
    #[error("the hooks of the pod cannot be run: the annotation {key} {reason}")]
    Annotation {
        /// Key of the annotation.
        key: &'static str,
        /// Defect of the annotation.
        reason: InvalidAnnotation,
    },
    /// Pod without containers to run a command in.
    #[error("the hooks of the pod cannot be run: the pod has no containers")]
    NoContainer,
    /// Invalid pod.
    #[error("the hooks of the pod cannot be run: the pod cannot be read: {0}")]
    Pod(#[from] serde_json::Error),
}

/// Defect of an annotation that defines a hook, as the rest of a sentence about it. Its value is not quoted where it
/// is a command, which may contain a password.
#[derive(Debug, thiserror::Error)]
pub enum InvalidAnnotation {
    /// A command that looks like a list and is none.
    #[error("begins with `[` but is not a JSON list of strings")]
    NotAList,
    /// A command without a program.
    #[error("is an empty list")]
    EmptyList,
    /// Not a consequence of a failure.
    #[error("is {0:?}: expected Continue or Fail")]
    OnError(String),
    /// Not a boolean.
    #[error("is {0:?}: expected true or false")]
    Boolean(String),
    /// Not a duration.
    #[error("cannot be used: {0}")]
    Duration(duration::Error),
    /// A negative timeout.
    #[error("cannot be used: {0}")]
    Timeout(NegativeTimeout),
}

/// Timeout below zero.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {timeout}: must not be negative")]
pub struct NegativeTimeout {
    field: &'static str,
    timeout: bowline_api::Duration,
}

/// Defect of a hook in a spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidHook {
    /// No command.
    #[error("no command is set")]
    NoCommand,
    /// Unknown consequence of a failure.
    #[error("onError is {0:?}: expected Continue or Fail")]
    OnError(String),
    /// Negative timeout.
    #[error(transparent)]
    Timeout(#[from] NegativeTimeout),
}

/// Defect of the pod selection of an entry in a spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidPods {
    /// Invalid pattern of an included namespace.
    #[error("includedNamespaces")]
    IncludedNamespaces(#[source] InvalidGlob),
    /// Invalid pattern of an excluded namespace.
    #[error("excludedNamespaces")]
    ExcludedNamespaces(#[source] InvalidGlob),
    /// Invalid selector.
    #[error("labelSelector")]
    LabelSelector(#[source] InvalidSelector),
}

impl OnError {
    /// Value from a spec, if it has one.
    pub(crate) fn of_spec(mode: Option<&HookErrorMode>) -> Result<Option<Self>, InvalidHook> {
        match mode {
            None => Ok(None),
            Some(HookErrorMode::Fail) => Ok(Some(Self::Fail)),
            Some(HookErrorMode::Continue) => Ok(Some(Self::Continue)),
            Some(HookErrorMode::Other(other)) => Err(InvalidHook::OnError(other.clone())),
        }
    }
}

/// Pods that an entry of a spec selects.
#[derive(Clone, Debug)]
pub(crate) struct Pods {
    included_namespaces: Globs,
    excluded_namespaces: Globs,
    labels: Option<Selector>,
}

impl Pods {
    /// Compiles the selection of an entry, or returns all its defects.
    pub(crate) fn new(
        included_namespaces: &[String],
        excluded_namespaces: &[String],
        labels: Option<&LabelSelector>,
    ) -> Result<Self, Vec<InvalidPods>> {
        let included = Globs::new(included_namespaces).map_err(InvalidPods::IncludedNamespaces);
        let excluded = Globs::new(excluded_namespaces).map_err(InvalidPods::ExcludedNamespaces);
        let labels = labels.map(Selector::new).transpose().map_err(InvalidPods::LabelSelector);
        match (included, excluded, labels) {
            (Ok(included_namespaces), Ok(excluded_namespaces), Ok(labels)) => {
                Ok(Self { included_namespaces, excluded_namespaces, labels })
            }
            (included, excluded, labels) => {
                Err([included.err(), excluded.err(), labels.err()].into_iter().flatten().collect())
            }
        }
    }

    /// True if the entry selects the pod.
    pub(crate) fn contains(&self, pod: &Object) -> bool {
        let namespace = &pod.namespace;
        (self.included_namespaces.is_empty() || self.included_namespaces.matches(namespace))
            && !self.excluded_namespaces.matches(namespace)
            && self.labels.as_ref().is_none_or(|labels| labels.matches(&pod.labels))
    }
}

/// Annotations of a pod, which may define hooks.
pub(crate) struct Annotations<'a>(pub(crate) &'a BTreeMap<String, String>);

impl<'a> Annotations<'a> {
    /// Value of an annotation; `None` if it is missing or empty.
    pub(crate) fn text(&self, key: &str) -> Option<&'a str> {
        self.0.get(key).map(String::as_str).filter(|text| !text.is_empty())
    }

    /// Command of a hook.
    pub(crate) fn command(&self, key: &'static str) -> Result<Option<Vec<String>>, Error> {
        self.read(key, command)
    }

    /// Consequence of a failure.
    pub(crate) fn on_error(&self, key: &'static str) -> Result<Option<OnError>, Error> {
        self.read(key, |text| match text {
            "Fail" => Ok(OnError::Fail),
            "Continue" => Ok(OnError::Continue),
            other => Err(InvalidAnnotation::OnError(other.to_owned())),
        })
    }

    /// Timeout; `None` if it is zero.
    pub(crate) fn timeout(&self, key: &'static str) -> Result<Option<Duration>, Error> {
        let read = |text: &str| {
            let parsed = text.parse().map_err(InvalidAnnotation::Duration)?;
            timeout("timeout", parsed).map_err(InvalidAnnotation::Timeout)
        };
        Ok(self.read(key, read)?.flatten())
    }

    /// Parses an annotation, if it exists.
    pub(crate) fn read<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(&str) -> Result<T, InvalidAnnotation>,
    ) -> Result<Option<T>, Error> {
        let read = self.text(key).map(read).transpose();
        read.map_err(|reason| Error::Annotation { key, reason })
    }
}

/// Parses a command: the program and its arguments as a JSON list, or the program alone.
fn command(text: &str) -> Result<Vec<String>, InvalidAnnotation> {
    if !text.starts_with('[') {
        return Ok(vec![text.to_owned()]);
    }
    // The cause is dropped, since it may quote a password.
    let command: Vec<String> =
        serde_json::from_str(text).map_err(|_| InvalidAnnotation::NotAList)?;
    if command.is_empty() { Err(InvalidAnnotation::EmptyList) } else { Ok(command) }
}

/// Parses a timeout; `None` if it is zero.
pub(crate) fn timeout(
    field: &'static str,
    timeout: bowline_api::Duration,
) -> Result<Option<Duration>, NegativeTimeout> {
    match timeout.to_std() {
        None => Err(NegativeTimeout { field, timeout }),
        Some(Duration::ZERO) => Ok(None),
        Some(timeout) => Ok(Some(timeout)),
    }
}

/// Reason of a command's failure, with the end of its output.
pub(crate) fn failure(executed: ExecOutcome) -> Option<String> {
    let ExecOutcome { failure, output } = executed;
    let Some(failure) = failure else {
        tracing::debug!(bytes = output.len(), "the hook succeeded");
        return None;
    };
    let output = output.trim();
    let from = output.ceil_char_boundary(output.len().saturating_sub(MAX_REPORTED_OUTPUT));
    Some(match &output[from..] {
        "" => failure,
        end => format!("{failure}: {end}"),
    })
}
