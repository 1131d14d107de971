//! Observed state of a pod, and the next step for its hooks.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::Hook;
use crate::item::Object;

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
    Ended(String),
    /// The pod could not be read, for this reason.
    Unknown(String),
    /// The pod exists.
    Present(Box<Pod>),
}

/// Next step for the hooks that have not run yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HookStep {
    /// This hook can run.
    Run(usize),
    /// This hook cannot run, for this reason.
    GiveUp(usize, String),
    /// No hook can run, for this reason.
    GiveUpAll(String),
    /// Check again after this time.
    Wait(Duration),
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
    fn missing_condition(&self, hook: &Hook) -> Option<String> {
        let Status { container_statuses, init_container_statuses, .. } = &self.status;
        let mut all =
            container_statuses.iter().flatten().chain(init_container_statuses.iter().flatten());
        let container = all.find(|status| status.name == hook.container);
        let state = container.and_then(|container| container.state.as_ref());
        let (Some(container), Some(state)) = (container, state) else {
            return Some("it has not been started".to_owned());
        };
        let with_reason = |text: &str, detail: &StateReason| match detail.reason.as_deref() {
            None | Some("") => text.to_owned(),
            Some(reason) => format!("{text}: {reason}"),
        };
        match state {
            State { running: Some(_), .. } if hook.wait_for_ready && !container.ready => {
                Some("it runs, but is not ready".to_owned())
            }
            State { running: Some(_), .. } => None,
            State { terminated: Some(detail), .. } => Some(with_reason("it has ended", detail)),
            State { waiting: Some(detail), .. } => Some(with_reason("it waits", detail)),
            _ => Some("it has not been started".to_owned()),
        }
    }
}

impl PodState {
    /// State of the pod with a name in the cluster. The uid, if known, distinguishes the restored pod from one that has
    /// replaced it.
    pub(super) fn new(found: Option<&Object>, uid: Option<&str>) -> Self {
        let Some(object) = found else {
            return Self::Ended("the pod has been deleted".to_owned());
        };
        let pod = match Pod::read(object) {
            Ok(pod) => pod,
            Err(error) => return Self::Unknown(format!("the pod cannot be read: {error}")),
        };
        if uid.is_some_and(|uid| uid != pod.metadata.uid) {
            return Self::Ended("the pod has been deleted, and another has taken its place".into());
        }
        if object.is_being_deleted {
            return Self::Ended("the pod is being deleted".to_owned());
        }
        match pod.status.phase.as_deref() {
            Some(phase @ ("Succeeded" | "Failed")) => {
                Self::Ended(format!("the pod has ended with the phase {phase}"))
            }
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
        let pod = match self {
            Self::Ended(reason) => return HookStep::GiveUpAll(reason.clone()),
            Self::Unknown(_) => None,
            Self::Present(pod) => Some(pod),
        };
        if let Some(pod) = pod {
            if let Some(at) = hooks.iter().position(|hook| !pod.has_container(&hook.container)) {
                return HookStep::GiveUp(at, "the pod has no such container".to_owned());
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
                return HookStep::GiveUp(at, self.timeout_message(hook, limit));
            }
            pause = pause.min(remaining);
        }
        HookStep::Wait(pause)
    }

    fn timeout_message(&self, hook: &Hook, limit: Duration) -> String {
        let condition = if hook.wait_for_ready { "ready" } else { "running" };
        let reason = match self {
            Self::Present(pod) => pod.missing_condition(hook).unwrap_or_default(),
            Self::Ended(reason) | Self::Unknown(reason) => reason.clone(),
        };
        format!("its container was not {condition} within {} s: {reason}", limit.as_secs_f64())
    }
}
