//! Commands that run in restored pods (exec hooks).
//!
//! [`Hooks::new`] compiles the hooks of the Restore once. For each created pod they yield a [`HookPlan`], which a
//! [`HookRunner`] executes while the restore continues: the runner waits until containers run, and reports
//! failures as errors of the pod.
//!
//! Annotations of a pod can define a hook; that hook replaces the hooks of the Restore. Namespace filters apply to
//! the target namespace of the pod. Hook specs always apply to pods, whatever resources they name, as in
//! Velero. Init containers are not handled here; the action `velero.io/init-restore-hook` adds them.
//!
//! The hooks of a pod never run concurrently. All hooks of a container run before those of the next, and the
//! container that is up first comes first. If one hook waits until its container is ready, all hooks of that
//! container do. Every hook of a plan counts as attempted; one that could not run counts as failed.
//!
//! # Differences from Velero
//! - Every wait ends. A hook without a wait timeout waits for the resource timeout of the server; in Velero it
//!   waits forever.
//! - Only the time without a running hook counts as waiting, so that a long hook does not use up the time of the
//!   next. A hook that has waited too long does not run, whatever its `onError` says.
//! - `Fail` stops the remaining hooks of the same pod. In Velero it stops those of all pods.
//! - A hook for a container that the pod does not have fails at once. Velero drops the hook, and then waits for it.
//! - A command in an annotation that begins with `[` and is not a list of strings is an error. Velero runs it as
//!   the name of a program.

mod annotation;
mod pod_state;
#[cfg(test)]
mod tests;
mod watch;

use std::fmt;
use std::time::Duration;

use bowline_api::restore::{ExecRestoreHook, RestoreHooks, RestoreResourceHooks};

use crate::hook::{Annotations, EXEC_TIMEOUT, InvalidHook, InvalidPods, Pods, timeout};
use crate::item::Object;
use crate::report::error_text;
use pod_state::Pod;

pub use crate::hook::{Error, OnError};
pub use watch::{HookLimits, HookRunner};

/// `onError` of a hook that does not specify it.
const DEFAULT_ON_ERROR: OnError = OnError::Continue;

/// Compiled hooks of a Restore.
#[derive(Clone, Debug, Default)]
pub struct Hooks {
    specs: Vec<Spec>,
}

/// Hooks with their pod selection.
#[derive(Clone, Debug)]
struct Spec {
    pods: Pods,
    hooks: Vec<Hook>,
}

/// Hooks to run in a pod, in order. The hooks of a container are adjacent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HookPlan {
    /// The hooks.
    pub hooks: Vec<Hook>,
    /// Warnings for the user: annotations that cannot be parsed.
    pub warnings: Vec<String>,
}

/// A command to run in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Origin of the hook.
    pub source: HookSource,
    /// Name of the container. Never empty in a plan.
    pub container: String,
    /// The program and its arguments. They may contain secrets and are never logged or reported.
    pub command: Vec<String>,
    /// Effect of a failure.
    pub on_error: OnError,
    /// Maximum run time of the command.
    pub exec_timeout: Duration,
    /// Maximum wait for the container; `None` for the server's limit.
    pub wait_timeout: Option<Duration>,
    /// True if the container must be ready, and not just running. In a plan the value is the same for all hooks of
    /// a container.
    pub wait_for_ready: bool,
}

/// Origin of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookSource {
    /// Annotations of the pod.
    Annotations,
    /// The hook of this name in the Restore.
    Spec(String),
}

impl fmt::Display for HookSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Annotations => f.write_str("(pod annotations)"),
            Self::Spec(name) => write!(f, "{name:?} (spec.hooks)"),
        }
    }
}

/// For messages, without the command.
impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the hook {} in the container {:?}", self.source, self.container)
    }
}

/// All defects of the hooks of a Restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidHooks(Vec<InvalidEntry>);

impl InvalidHooks {
    /// Text of each defect.
    pub fn messages(&self) -> Vec<String> {
        self.0.iter().map(|entry| error_text(entry)).collect()
    }
}

impl fmt::Display for InvalidHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.messages().join("; "))
    }
}

impl std::error::Error for InvalidHooks {}

/// Defect of an entry of `hooks.resources`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("hooks.resources[{index}] {name:?}")]
struct InvalidEntry {
    index: usize,
    name: String,
    #[source]
    defect: EntryDefect,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum EntryDefect {
    #[error(transparent)]
    Pods(#[from] InvalidPods),
    #[error("postHooks[{index}]")]
    PostHook {
        index: usize,
        #[source]
        defect: InvalidHook,
    },
}

impl HookPlan {
    /// True if there are no hooks to run.
    pub fn is_empty(&self) -> bool {
        self.hooks.is_empty()
    }

    /// Groups the hooks by container, in the order in which the containers are first named.
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
    /// Compiles the hooks of a Restore, or returns all their errors.
    pub fn new(hooks: &RestoreHooks) -> Result<Self, InvalidHooks> {
        let (mut specs, mut errors) = (Vec::new(), Vec::new());
        for (index, hooks) in hooks.resources.iter().enumerate() {
            match compile(hooks) {
                Ok(spec) => specs.push(spec),
                Err(defects) => errors.extend(defects.into_iter().map(|defect| InvalidEntry {
                    index,
                    name: hooks.name.clone(),
                    defect,
                })),
            }
        }
        if errors.is_empty() { Ok(Self { specs }) } else { Err(InvalidHooks(errors)) }
    }

    /// Hooks to run in a created object. Only pods have hooks.
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

/// Compiles one entry, or returns all its defects.
fn compile(hooks: &RestoreResourceHooks) -> Result<Spec, Vec<EntryDefect>> {
    let pods = Pods::new(
        &hooks.included_namespaces,
        &hooks.excluded_namespaces,
        hooks.label_selector.as_ref(),
    );
    let (mut list, mut post_hook_defects) = (Vec::new(), Vec::new());
    for (index, hook) in hooks.post_hooks.iter().enumerate() {
        let Some(exec) = &hook.exec else { continue };
        match compile_exec(exec, &hooks.name) {
            Ok(hook) => list.push(hook),
            Err(defect) => post_hook_defects.push(EntryDefect::PostHook { index, defect }),
        }
    }
    match pods {
        Ok(pods) if post_hook_defects.is_empty() => Ok(Spec { pods, hooks: list }),
        pods => {
            let of_pods = pods.err().into_iter().flatten().map(EntryDefect::Pods);
            Err(of_pods.chain(post_hook_defects).collect())
        }
    }
}

fn compile_exec(exec: &ExecRestoreHook, name: &str) -> Result<Hook, InvalidHook> {
    if exec.command.is_empty() {
        return Err(InvalidHook::NoCommand);
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
