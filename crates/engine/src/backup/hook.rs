//! Commands that run in pods before and after they are backed up, to quiesce an application.
//!
//! Input: the hooks of the Backup, compiled once by [`Hooks::new`], and a pod. Output: a [`Plan`] of the hooks to run
//! in it, which [`run_pre`] and [`PodThaw`] carry out.
//!
//! A hook in the annotations of a pod replaces the hooks of the Backup for this pod and phase. Pods that have ended
//! have no hooks.
//!
//! # Where we differ from Velero
//! - A hook without `onError` is treated as `Fail`. Velero documents that, but behaves as if `Continue` were set.
//! - A command in an annotation that starts like a JSON list but is not one is an error, and its pod is not backed
//!   up. Velero runs it as the name of a program. Other annotations that cannot be parsed mean the default, as in
//!   Velero, with a warning.
//! - A negative timeout in the spec is an error, and in an annotation the default. In Velero it means to wait for
//!   ever.

mod annotation;
mod post_hooks;
mod run;
mod tally;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bowline_api::backup::{BackupHooks, BackupResourceHook, BackupResourceHooks, ExecHook};
use serde::Deserialize;

use crate::glob::{Glob, InvalidGlob};
use crate::hook::{Annotations, EXEC_TIMEOUT, InvalidHook, Pods, timeout};
use crate::item::Object;
use crate::report::error_text;
use crate::resource::{GroupResource, Resources};

pub use crate::hook::{Error, OnError};
pub use post_hooks::{
    FrozenPod, HookContext, MAX_CONCURRENT_THAWS, PodThaw, retry_thaw, retry_thaw_all,
};
pub use run::{PreOutcome, run_pre};
pub use tally::{Freeze, Tally};

/// The hooks of a Backup.
#[derive(Clone, Debug, Default)]
pub struct Hooks {
    specs: Vec<Spec>,
}

/// Hooks, and the pods that they apply to.
#[derive(Clone, Debug)]
struct Spec {
    pods: Pods,
    pre: Vec<Hook>,
    post: Vec<Hook>,
}

/// The hooks to run in a pod, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Hooks before the pod is backed up.
    pub pre: Vec<Hook>,
    /// Hooks after the pod is backed up.
    pub post: Vec<Hook>,
}

/// A command to run in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Origin of the hook.
    pub source: Source,
    /// The container to run in. Never empty in a plan.
    pub container: String,
    /// The program and its arguments. They may hold secrets and are never logged or reported.
    pub command: Vec<String>,
    /// Consequence of a failure.
    pub on_error: OnError,
    /// Time the hook may take.
    pub timeout: Duration,
}

/// Origin of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Annotations of the pod.
    Annotations,
    /// The Backup, under this name.
    Spec(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Annotations => f.write_str("of the pod's annotations"),
            Self::Spec(name) => write!(f, "{name:?} of the backup"),
        }
    }
}

impl Plan {
    /// True if there is nothing to run.
    pub fn is_empty(&self) -> bool {
        self.pre.is_empty() && self.post.is_empty()
    }
}

/// Fields read of a pod.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Pod {
    metadata: PodMetadata,
    spec: PodSpec,
    status: PodStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodMetadata {
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodSpec {
    containers: Option<Vec<Container>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Container {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: Option<String>,
}

impl Pod {
    fn has_ended(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }
}

/// All errors in the hooks of a Backup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid hooks: {}", .0.join("; "))]
pub struct InvalidHooks(pub Vec<String>);

impl Hooks {
    /// Compiles the hooks of a Backup, or returns all errors in them.
    pub fn new(hooks: &BackupHooks, resources: &Resources) -> Result<Self, InvalidHooks> {
        let (mut specs, mut errors) = (Vec::new(), Vec::new());
        for (place, hooks) in hooks.resources.iter().enumerate() {
            let mut complaints = Vec::new();
            if let Some(spec) = compile(hooks, resources, &mut complaints) {
                specs.push(spec);
            }
            let complain = |what| format!("hooks.resources[{place}] {:?}: {what}", hooks.name);
            errors.extend(complaints.into_iter().map(complain));
        }
        if errors.is_empty() { Ok(Self { specs }) } else { Err(InvalidHooks(errors)) }
    }

    /// The hooks to run in a pod.
    pub fn plan(&self, object: &Object) -> Result<Plan, Error> {
        self.plan_and_warn(object).map(|(plan, _)| plan)
    }

    /// The hooks to run in a pod, and warnings about annotations that cannot be used.
    pub fn plan_and_warn(&self, object: &Object) -> Result<(Plan, Vec<String>), Error> {
        let pod: Pod = serde_json::from_slice(object.item.json())?;
        if pod.has_ended() {
            return Ok((Plan::default(), Vec::new()));
        }
        let annotations = pod.metadata.annotations.as_ref();
        let mut warnings = Vec::new();
        let mut own = |keys| {
            let Some(own) = annotations else { return Ok(None) };
            annotation::hook(&Annotations(own), keys, &mut warnings)
        };
        let own_pre = match own(&annotation::PRE)? {
            None => own(&annotation::LEGACY_PRE)?,
            found => found,
        };
        let own_post = own(&annotation::POST)?;
        let specs = || self.specs.iter().filter(|spec| spec.pods.contains(object));
        let mut plan = Plan {
            pre: own_pre.map_or_else(
                || specs().flat_map(|spec| spec.pre.clone()).collect(),
                |hook| vec![hook],
            ),
            post: own_post.map_or_else(
                || specs().flat_map(|spec| spec.post.clone()).collect(),
                |hook| vec![hook],
            ),
        };
        let first = pod.spec.containers.iter().flatten().next();
        for hook in plan.pre.iter_mut().chain(&mut plan.post) {
            if hook.container.is_empty() {
                hook.container.clone_from(&first.ok_or(Error::NoContainer)?.name);
            }
        }
        Ok((plan, warnings))
    }
}

/// Compiles one entry; none if it is invalid, or does not apply to pods: only pods have hooks.
fn compile(
    hooks: &BackupResourceHooks,
    resources: &Resources,
    complaints: &mut Vec<String>,
) -> Option<Spec> {
    let mut complain = |what: String| complaints.push(what);
    let included = names_pods(&hooks.included_resources, resources);
    let included = included.map_err(|error| complain(format!("includedResources: {error}"))).ok();
    let excluded = names_pods(&hooks.excluded_resources, resources);
    let excluded = excluded.map_err(|error| complain(format!("excludedResources: {error}"))).ok();
    let pods = Pods::new(
        &hooks.included_namespaces,
        &hooks.excluded_namespaces,
        hooks.label_selector.as_ref(),
    );
    let pods = pods.map_err(|errors| complaints.extend(errors.iter().map(|e| error_text(e)))).ok();
    let mut complain = |what: String| complaints.push(what);
    let mut list = |phase: &str, list: &[BackupResourceHook]| -> Vec<Hook> {
        let execs =
            list.iter().enumerate().filter_map(|(at, hook)| Some((at, hook.exec.as_ref()?)));
        execs
            .filter_map(|(at, exec)| {
                let compiled = compile_exec(exec, &hooks.name);
                compiled.map_err(|error| complain(format!("{phase}[{at}]: {error}"))).ok()
            })
            .collect()
    };
    let (pre, post) = (list("pre", &hooks.pre), list("post", &hooks.post));
    let is_for_pods = (hooks.included_resources.is_empty() || included?) && !excluded?;
    let spec = Spec { pods: pods?, pre, post };
    is_for_pods.then_some(spec)
}

fn compile_exec(exec: &ExecHook, name: &str) -> Result<Hook, InvalidHook> {
    if exec.command.is_empty() {
        return Err(InvalidHook::NoCommand);
    }
    Ok(Hook {
        source: Source::Spec(name.to_owned()),
        container: exec.container.clone(),
        command: exec.command.clone(),
        on_error: OnError::of_spec(exec.on_error.as_ref())?.unwrap_or(OnError::Fail),
        timeout: timeout("timeout", exec.timeout)?.unwrap_or(EXEC_TIMEOUT),
    })
}

/// True if pods are among resources, as users name them.
fn names_pods(names: &[String], resources: &Resources) -> Result<bool, InvalidGlob> {
    let pods = GroupResource::new("", "pods");
    let mut found = false;
    for name in names {
        found |= match resources.resolve(name) {
            Some(resource) => resource.id == pods,
            None => Glob::new(name)?.matches(&pods.resource),
        };
    }
    Ok(found)
}
