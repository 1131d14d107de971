//! Common parts of backup hooks and restore hooks.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline_api::hook::HookErrorMode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::cluster::ExecOutcome;
use crate::glob::Globs;
use crate::item::Object;
use crate::selector::Selector;

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
    #[error("its hooks cannot be run: the annotation {key} {reason}")]
    Annotation {
        /// Key of the annotation.
        key: &'static str,
        /// Defect of the annotation.
        reason: String,
    },
    /// Pod without containers to run a command in.
    #[error("its hooks cannot be run: it has no containers")]
    NoContainer,
    /// Invalid pod.
    #[error("its hooks cannot be run: the pod cannot be read: {0}")]
    Pod(#[from] serde_json::Error),
}

impl OnError {
    /// Value from a spec, if it has one.
    pub(crate) fn of_spec(mode: Option<&HookErrorMode>) -> Result<Option<Self>, String> {
        match mode {
            None => Ok(None),
            Some(HookErrorMode::Fail) => Ok(Some(Self::Fail)),
            Some(HookErrorMode::Continue) => Ok(Some(Self::Continue)),
            Some(HookErrorMode::Other(other)) => {
                Err(format!("onError is {other:?}: expected Continue or Fail"))
            }
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
    /// Compiles the selection of an entry, or adds all its defects to the complaints.
    pub(crate) fn new(
        included_namespaces: &[String],
        excluded_namespaces: &[String],
        labels: Option<&LabelSelector>,
        complaints: &mut Vec<String>,
    ) -> Option<Self> {
        let mut complain = |what: String| complaints.push(what);
        let included_namespaces = Globs::new(included_namespaces)
            .map_err(|error| complain(format!("includedNamespaces: {error}")))
            .ok();
        let excluded_namespaces = Globs::new(excluded_namespaces)
            .map_err(|error| complain(format!("excludedNamespaces: {error}")))
            .ok();
        let labels = labels.map(Selector::new).transpose();
        let labels = labels.map_err(|error| complain(format!("labelSelector: {error}"))).ok();
        Some(Self {
            included_namespaces: included_namespaces?,
            excluded_namespaces: excluded_namespaces?,
            labels: labels?,
        })
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
            other => Err(format!("is {other:?}: expected Continue or Fail")),
        })
    }

    /// Timeout; `None` if it is zero.
    pub(crate) fn timeout(&self, key: &'static str) -> Result<Option<Duration>, Error> {
        let read = |text: &str| {
            let parsed = text.parse::<bowline_api::Duration>().map_err(|error| error.to_string());
            parsed
                .and_then(|parsed| timeout("timeout", parsed))
                .map_err(|reason| format!("cannot be used: {reason}"))
        };
        Ok(self.read(key, read)?.flatten())
    }

    /// Parses an annotation, if it exists.
    pub(crate) fn read<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Error> {
        let read = self.text(key).map(read).transpose();
        read.map_err(|reason| Error::Annotation { key, reason })
    }
}

/// Parses a command: the program and its arguments as a JSON list, or the program alone.
fn command(text: &str) -> Result<Vec<String>, String> {
    if !text.starts_with('[') {
        return Ok(vec![text.to_owned()]);
    }
    // The text is not reported, since it may contain a password.
    let command: Vec<String> = serde_json::from_str(text)
        .map_err(|_| "begins with `[` but is no JSON list of texts".to_owned())?;
    if command.is_empty() { Err("is an empty list".to_owned()) } else { Ok(command) }
}

/// Parses a timeout; `None` if it is zero.
pub(crate) fn timeout(
    field: &str,
    timeout: bowline_api::Duration,
) -> Result<Option<Duration>, String> {
    match timeout.to_std() {
        None => Err(format!("{field} is {timeout}: expected none, or one that is not negative")),
        Some(Duration::ZERO) => Ok(None),
        Some(timeout) => Ok(Some(timeout)),
    }
}

/// Reason of a command's failure, with the end of its output.
pub(crate) fn failure(executed: ExecOutcome) -> Option<String> {
    let ExecOutcome { failure, output } = executed;
    let Some(failure) = failure else {
        tracing::debug!(bytes = output.len(), "the hook ended well");
        return None;
    };
    let output = output.trim();
    let from = output.ceil_char_boundary(output.len().saturating_sub(MAX_REPORTED_OUTPUT));
    Some(match &output[from..] {
        "" => failure,
        end => format!("{failure}: {end}"),
    })
}
