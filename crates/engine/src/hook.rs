//! What the hooks of backups and those of restores have in common.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline_api::hook::HookErrorMode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::cluster::ExecOutcome;
use crate::glob::Globs;
use crate::item::Object;
use crate::selector::Selector;

/// How long a command may run that does not say.
pub(crate) const EXEC_TIMEOUT: Duration = Duration::from_secs(30);

/// How much of what a failed command wrote is told, from its end, in bytes.
const MAX_REPORTED_OUTPUT: usize = 500;

/// What the failure of a hook means for its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// It is told, and all goes on as if it had ended well.
    Continue,
    /// What should come after it does not: the hooks that follow, and before a backup the backup of
    /// the pod.
    Fail,
}

/// Why there is no plan for a pod.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An annotation cannot be used.
    #[error("its hooks cannot be run: the annotation {key} {reason}")]
    Annotation {
        /// Which one.
        key: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// There is nothing to run a command in.
    #[error("its hooks cannot be run: it has no containers")]
    NoContainer,
    /// It is no pod.
    #[error("its hooks cannot be run: the pod cannot be read: {0}")]
    Pod(#[from] serde_json::Error),
}

impl OnError {
    /// What a spec says, if it does.
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

/// The pods that an entry of a spec is for.
#[derive(Clone, Debug)]
pub(crate) struct Pods {
    included_namespaces: Globs,
    excluded_namespaces: Globs,
    labels: Option<Selector>,
}

impl Pods {
    /// Compiles the selection of an entry, or adds all that is wrong with it to the complaints.
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

    /// Whether a pod is one of them.
    pub(crate) fn contains(&self, pod: &Object) -> bool {
        let namespace = &pod.namespace;
        (self.included_namespaces.is_empty() || self.included_namespaces.matches(namespace))
            && !self.excluded_namespaces.matches(namespace)
            && self.labels.as_ref().is_none_or(|labels| labels.matches(&pod.labels))
    }
}

/// The annotations of a pod, in which it asks for hooks.
pub(crate) struct Annotations<'a>(pub(crate) &'a BTreeMap<String, String>);

impl<'a> Annotations<'a> {
    /// What one says; none if it is not there or empty.
    pub(crate) fn text(&self, key: &str) -> Option<&'a str> {
        self.0.get(key).map(String::as_str).filter(|text| !text.is_empty())
    }

    /// A command.
    pub(crate) fn command(&self, key: &'static str) -> Result<Option<Vec<String>>, Error> {
        self.read(key, command)
    }

    /// What a failure means.
    pub(crate) fn on_error(&self, key: &'static str) -> Result<Option<OnError>, Error> {
        self.read(key, |text| match text {
            "Fail" => Ok(OnError::Fail),
            "Continue" => Ok(OnError::Continue),
            other => Err(format!("is {other:?}: expected Continue or Fail")),
        })
    }

    /// How long to wait; none if it is zero.
    pub(crate) fn timeout(&self, key: &'static str) -> Result<Option<Duration>, Error> {
        let read = |text: &str| {
            let parsed = text.parse::<bowline_api::Duration>().map_err(|error| error.to_string());
            parsed
                .and_then(|parsed| timeout("timeout", parsed))
                .map_err(|reason| format!("cannot be used: {reason}"))
        };
        Ok(self.read(key, read)?.flatten())
    }

    /// Reads one, if it is there.
    pub(crate) fn read<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Error> {
        let read = self.text(key).map(read).transpose();
        read.map_err(|reason| Error::Annotation { key, reason })
    }
}

/// The program and its arguments as a JSON list, or the program alone.
fn command(text: &str) -> Result<Vec<String>, String> {
    if !text.starts_with('[') {
        return Ok(vec![text.to_owned()]);
    }
    // The text is not told, for it may hold a password.
    let command: Vec<String> = serde_json::from_str(text)
        .map_err(|_| "begins with `[` but is no JSON list of texts".to_owned())?;
    if command.is_empty() { Err("is an empty list".to_owned()) } else { Ok(command) }
}

/// How long to wait, if it is a time at all; none if it is zero.
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

/// Why a command failed, with the end of what it wrote.
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
