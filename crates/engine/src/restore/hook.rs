//! Commands that run in pods after they are restored.
//!
//! In: the hooks of the Restore, compiled once by [`Hooks::new`], and a pod as it was created. Out: a
//! [`HookPlan`] of what runs in it, which a [`HookRunner`] carries out while the restore goes on: it waits
//! until containers run, and tells what fails as an error on the pod.
//!
//! A pod says with annotations which hook it wants; that one replaces the hooks of the Restore.
//! Namespaces are compared with the one that the pod is restored to. Entries are for pods, whatever
//! resources they name: so it is in Velero. Init containers are not our business; the action
//! `velero.io/init-restore-hook` adds them.
//!
//! No two hooks of a pod run at a time. All hooks of a container run before those of the next, and
//! the container that is up first goes first. If one hook waits until its container is ready, all
//! hooks in that container do. Every hook of a plan is counted as attempted; one that could not be
//! run has failed.
//!
//! # Where we differ from Velero
//! - Every wait ends. A hook that does not say how long it waits for its container waits for the
//!   resource timeout of the server; in Velero for ever.
//! - Only the time without a running hook counts as waiting, so that a long hook does not use up
//!   the time of the next. What has waited too long is not run, whatever its failure means.
//! - `Fail` stops the hooks that follow in the same pod. In Velero it stops those of all pods.
//! - A hook for a container that the pod does not have has failed, at once. Velero drops it, and
//!   then waits for it.
//! - A command in an annotation that begins with `[` and is no list of texts is an error. Velero runs it as
//!   the name of a program.

mod annotation;
mod pod_state;
#[cfg(test)]
mod tests;
mod watch;

use std::fmt;
use std::time::Duration;

use bowline_api::restore::{ExecRestoreHook, RestoreHooks, RestoreResourceHooks};

use crate::hook::{Annotations, EXEC_TIMEOUT, Pods, timeout};
use crate::item::Object;
use pod_state::Pod;

pub use crate::hook::{Error, OnError};
pub use watch::{HookLimits, HookRunner};

/// What the failure of a hook means that does not say.
const DEFAULT_ON_ERROR: OnError = OnError::Continue;

/// The hooks of a Restore.
#[derive(Clone, Debug, Default)]
pub struct Hooks {
    specs: Vec<Spec>,
}

/// Hooks, and which pods they are for.
#[derive(Clone, Debug)]
struct Spec {
    pods: Pods,
    hooks: Vec<Hook>,
}

/// What runs in a pod, in order. The hooks of a container stand together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HookPlan {
    /// The hooks.
    pub hooks: Vec<Hook>,
    /// What a user should know of them: annotations that cannot be read.
    pub warnings: Vec<String>,
}

/// A command to run in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Who asks for it.
    pub source: HookSource,
    /// In which container. In a plan it is never empty.
    pub container: String,
    /// The program and its arguments. They may hold secrets and are never told.
    pub command: Vec<String>,
    /// What its failure means.
    pub on_error: OnError,
    /// How long its end is waited for.
    pub exec_timeout: Duration,
    /// How long its container is waited for; none for the server's limit.
    pub wait_timeout: Option<Duration>,
    /// Whether its container must be ready, and not just running. In a plan it is the same for all
    /// hooks of a container.
    pub wait_for_ready: bool,
}

/// Who asks for a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookSource {
    /// The pod, by annotations.
    Annotations,
    /// The Restore, under this name.
    Spec(String),
}

impl fmt::Display for HookSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Annotations => f.write_str("of its annotations"),
            Self::Spec(name) => write!(f, "{name:?} of the restore"),
        }
    }
}

/// As in messages, without the command.
impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the hook {} in the container {:?}", self.source, self.container)
    }
}

impl HookPlan {
    /// Whether there is nothing to run.
    pub fn is_empty(&self) -> bool {
        self.hooks.is_empty()
    }

    /// Puts the hooks of each container together. The container that is named first comes first.
    fn new(hooks: Vec<Hook>) -> Self {
        let mut grouped: Vec<Hook> = Vec::with_capacity(hooks.len());
        for hook in hooks {
            let last = grouped.iter().rposition(|other| other.container == hook.container);
            let at = last.map_or(grouped.len(), |last| last + 1);
            grouped.insert(at, hook);
        }
        for group in grouped.chunk_by_mut(|one, other| one.container == other.container) {
            let wait_for_ready = group.iter().any(|hook| hook.wait_for_ready);
            for hook in group {
                hook.wait_for_ready = wait_for_ready;
            }
        }
        Self { hooks: grouped, warnings: Vec::new() }
    }
}

impl Hooks {
    /// Compiles the hooks of a Restore, or says all that is wrong with them.
    pub fn new(hooks: &RestoreHooks) -> Result<Self, Vec<String>> {
        let (mut specs, mut errors) = (Vec::new(), Vec::new());
        for (index, hooks) in hooks.resources.iter().enumerate() {
            let mut entry_errors = Vec::new();
            specs.extend(compile(hooks, &mut entry_errors));
            let with_entry = |error| format!("hooks.resources[{index}] {:?}: {error}", hooks.name);
            errors.extend(entry_errors.into_iter().map(with_entry));
        }
        if errors.is_empty() { Ok(Self { specs }) } else { Err(errors) }
    }

    /// What runs in an object that was created. Only pods have hooks.
    pub fn plan(&self, object: &Object) -> Result<HookPlan, Error> {
        if !object.resource.is_core("pods") {
            return Ok(HookPlan::default());
        }
        let pod = Pod::read(object)?;
        let own = pod.metadata.annotations.as_ref();
        let mut warnings = Vec::new();
        let own = own.map_or(Ok(None), |own| annotation::hook(&Annotations(own), &mut warnings))?;
        let mut hooks = own.map_or_else(
            || {
                let specs = self.specs.iter().filter(|spec| spec.pods.contains(object));
                specs.flat_map(|spec| spec.hooks.clone()).collect()
            },
            |hook| vec![hook],
        );
        for hook in &mut hooks {
            if hook.container.is_empty() {
                pod.first_container().ok_or(Error::NoContainer)?.clone_into(&mut hook.container);
            }
        }
        Ok(HookPlan { warnings, ..HookPlan::new(hooks) })
    }
}

/// Compiles one entry; none if something is wrong with its selection.
fn compile(hooks: &RestoreResourceHooks, errors: &mut Vec<String>) -> Option<Spec> {
    let pods = Pods::new(
        &hooks.included_namespaces,
        &hooks.excluded_namespaces,
        hooks.label_selector.as_ref(),
        errors,
    );
    let mut list = Vec::new();
    for (at, hook) in hooks.post_hooks.iter().enumerate() {
        let Some(exec) = &hook.exec else { continue };
        match compile_exec(exec, &hooks.name) {
            Ok(hook) => list.push(hook),
            Err(error) => errors.push(format!("postHooks[{at}]: {error}")),
        }
    }
    Some(Spec { pods: pods?, hooks: list })
}

fn compile_exec(exec: &ExecRestoreHook, name: &str) -> Result<Hook, String> {
    if exec.command.is_empty() {
        return Err("it has no command".to_owned());
    }
    Ok(Hook {
        source: HookSource::Spec(name.to_owned()),
        container: exec.container.clone(),
        command: exec.command.clone(),
        on_error: OnError::of_spec(exec.on_error.as_ref())?.unwrap_or(DEFAULT_ON_ERROR),
        exec_timeout: timeout("execTimeout", exec.exec_timeout)?.unwrap_or(EXEC_TIMEOUT),
        wait_timeout: timeout("waitTimeout", exec.wait_timeout)?,
        wait_for_ready: exec.wait_for_ready == Some(true),
    })
}
