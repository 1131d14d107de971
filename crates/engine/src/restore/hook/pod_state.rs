//! Observed state of a pod, and the next step for its hooks.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::Hook;
use crate::cluster;
use crate::item::Object;
use crate::report::error_text;

/// Interval between two checks of a pod.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The required fields of a pod.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pod {
    pub(super) metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Metadata {
    pub(super) uid: String,
    pub(super) annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    name: String,
    restart_policy: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: Option<String>,
    container_statuses: Option<Vec<ContainerStatus>>,
    init_container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerStatus {
    name: String,
    ready: bool,
    state: Option<State>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct State {
    running: Option<IgnoredAny>,
    waiting: Option<StateReason>,
    terminated: Option<StateReason>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StateReason {
    reason: Option<String>,
}

/// Observed state of a pod.
#[derive(Debug)]
pub(super) enum PodState {
    /// No command can run in the pod any more, for this reason.
    Ended(PodEnd),
    /// The pod could not be read, for this reason.
    Unknown(PodReadError),
    /// The pod exists.
    Present(Box<Pod>),
}

/// Next step for the hooks that have not run yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HookStep {
    /// This hook can run.
    Run(usize),
    /// This hook cannot run, for this reason.
    GiveUp(usize, GiveUpReason),
    /// No hook can run, for this reason.
    GiveUpAll(PodEnd),
    /// Check again after this time.
    Wait(Duration),
}

/// Why no command can run in a pod any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PodEnd {
    #[error("the restore was stopped")]
    Stopped,
    #[error("the pod has been deleted")]
    Deleted,
    #[error("the pod was deleted and replaced by another")]
    Replaced,
    #[error("the pod is being deleted")]
    Terminating,
    #[error("the pod ended in phase {0}")]
    Phase(String),
}

/// Why the state of a pod is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum PodReadError {
    #[error(transparent)]
    Get(cluster::Error),
    #[error("the pod cannot be read")]
    Parse(#[source] serde_json::Error),
}

/// Why a hook cannot run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GiveUpReason {
    /// The pod does not have the container.
    NoContainer,
    /// The container was not up in time.
    Timeout {
        /// True if it had to be ready, and not just running.
        wait_for_ready: bool,
        /// The time that the hook has waited.
        limit: Duration,
        /// What it lacked.
        missing: MissingCondition,
    },
}

impl fmt::Display for GiveUpReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoContainer => f.write_str("the pod has no such container"),
            Self::Timeout { wait_for_ready, limit, missing } => {
                let condition = if *wait_for_ready { "ready" } else { "running" };
                let limit = limit.as_secs_f64();
                write!(f, "the container was not {condition} within {limit} s: {missing}")
            }
        }
    }
}

/// What a container lacks for a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MissingCondition {
    NotStarted,
    NotReady,
    /// It has ended, with the reason in its status.
    Ended(Option<String>),
    /// It waits, with the reason in its status.
    Waiting(Option<String>),
    /// Its pod cannot be read, with the text of the last error.
    Unknown(String),
}

impl fmt::Display for MissingCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, reason) = match self {
            Self::NotStarted => ("not started", None),
            Self::NotReady => ("running, but not ready", None),
            Self::Ended(reason) => ("terminated", reason.as_deref()),
            Self::Waiting(reason) => ("waiting", reason.as_deref()),
            Self::Unknown(error) => return f.write_str(error),
        };
        match reason {
            None | Some("") => f.write_str(text),
            Some(reason) => write!(f, "{text}: {reason}"),
        }
    }
}

impl Pod {
    pub(super) fn read(object: &Object) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(object.item.json())
    }

    pub(super) fn first_container(&self) -> Option<&str> {
        self.spec.containers.iter().flatten().next().map(|container| container.name.as_str())
    }

    /// True if a command can run in a container. Sidecars are init containers that keep running.
    fn has_container(&self, container: &str) -> bool {
        let sidecars = self.spec.init_containers.iter().flatten();
        let sidecars = sidecars.filter(|init| init.restart_policy.as_deref() == Some("Always"));
        let mut all = self.spec.containers.iter().flatten().chain(sidecars);
        all.any(|other| other.name == container)
    }

    /// The condition that a container lacks for a hook; `None` if the hook can run.
    fn missing_condition(&self, hook: &Hook) -> Option<MissingCondition> {
        let Status { container_statuses, init_container_statuses, .. } = &self.status;
        let mut all =
            container_statuses.iter().flatten().chain(init_container_statuses.iter().flatten());
        let container = all.find(|status| status.name == hook.container);
        let state = container.and_then(|container| container.state.as_ref());
        let (Some(container), Some(state)) = (container, state) else {
            return Some(MissingCondition::NotStarted);
        };
        match state {
            State { running: Some(_), .. } if hook.wait_for_ready && !container.ready => {
                Some(MissingCondition::NotReady)
            }
            State { running: Some(_), .. } => None,
            State { terminated: Some(detail), .. } => {
                Some(MissingCondition::Ended(detail.reason.clone()))
            }
            State { waiting: Some(detail), .. } => {
                Some(MissingCondition::Waiting(detail.reason.clone()))
            }
            _ => Some(MissingCondition::NotStarted),
        }
    }
}

impl PodState {
    /// State of the pod with a name in the cluster. The uid, if known, distinguishes the restored pod from one that has
    /// replaced it.
    pub(super) fn new(found: Option<&Object>, uid: Option<&str>) -> Self {
        let Some(object) = found else { return Self::Ended(PodEnd::Deleted) };
        let pod = match Pod::read(object) {
            Ok(pod) => pod,
            Err(error) => return Self::Unknown(PodReadError::Parse(error)),
        };
        if uid.is_some_and(|uid| uid != pod.metadata.uid) {
            return Self::Ended(PodEnd::Replaced);
        }
        if object.is_being_deleted {
            return Self::Ended(PodEnd::Terminating);
        }
        match pod.status.phase.as_deref() {
            Some(phase @ ("Succeeded" | "Failed")) => Self::Ended(PodEnd::Phase(phase.to_owned())),
            _ => Self::Present(Box::new(pod)),
        }
    }

    /// The next step for hooks that have not run yet, after a time of waiting. The hooks of a container are adjacent,
    /// and only the first of them can be next.
    pub(super) fn step(
        &self,
        hooks: &[Hook],
        waited: Duration,
        default_wait: Duration,
    ) -> HookStep {
        if let Self::Ended(end) = self {
            return HookStep::GiveUpAll(end.clone());
        }
        if let Self::Present(pod) = self {
            if let Some(at) = hooks.iter().position(|hook| !pod.has_container(&hook.container)) {
                return HookStep::GiveUp(at, GiveUpReason::NoContainer);
            }
            if let Some(at) = hooks.iter().position(|hook| pod.missing_condition(hook).is_none()) {
                return HookStep::Run(at);
            }
        }
        let mut pause = POLL_INTERVAL;
        for (at, hook) in hooks.iter().enumerate() {
            let limit = hook.wait_timeout.unwrap_or(default_wait);
            let remaining = limit.saturating_sub(waited);
            if remaining.is_zero() {
                let wait_for_ready = hook.wait_for_ready;
                let missing = self.missing_condition(hook);
                let reason = GiveUpReason::Timeout { wait_for_ready, limit, missing };
                return HookStep::GiveUp(at, reason);
            }
            pause = pause.min(remaining);
        }
        HookStep::Wait(pause)
    }

    /// What the container of a hook that cannot run yet lacks.
    fn missing_condition(&self, hook: &Hook) -> MissingCondition {
        match self {
            Self::Present(pod) => {
                pod.missing_condition(hook).unwrap_or(MissingCondition::NotStarted)
            }
            Self::Ended(end) => MissingCondition::Unknown(end.to_string()),
            Self::Unknown(error) => MissingCondition::Unknown(error_text(error)),
        }
    }
}
