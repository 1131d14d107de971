//! Execution of hooks, and of the pre-hooks of a pod.

use bowline_plugin::ResourceIdentifier;

use super::{Hook, OnError, Plan, Tally};
use crate::cluster::{Cluster, Error, Exec, ExecOutcome};
use crate::hook;
use crate::item::Object;
use crate::report::Report;

/// Outcome of the pre-hooks of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreOutcome {
    /// True if a pre-hook was started, or may have been. Then the post-hooks must run, whatever else happens.
    pub started: bool,
    /// True if the pod may be backed up.
    pub may_be_stored: bool,
}

/// Runs the pre-hooks of a pod, one after the other. The first failure with `Fail` ends the sequence.
pub async fn run_pre(
    cluster: &dyn Cluster,
    pod: &Object,
    plan: &Plan,
    report: &Report,
    tally: &Tally,
) -> PreOutcome {
    let id = pod.id();
    let mut outcome = PreOutcome { started: false, may_be_stored: true };
    for hook in &plan.pre {
        let started_at = tally.now();
        let ended = run(cluster, &id, hook).await;
        tally.count(ended.is_err());
        // A pod that is gone has nothing to thaw. In every other case the hook may have started.
        if !ended.as_ref().is_err_and(|failure| failure.pod_is_gone) {
            outcome.started = true;
            tally.freeze(&id, started_at);
        }
        let Err(failure) = ended else { continue };
        let text = format!("the pre-hook {} failed: {}", HookLabel(hook), failure.text);
        match hook.on_error {
            OnError::Continue => {
                report.error(
                    &id,
                    format!("{text}; the backup continues with the pod (onError: Continue)"),
                );
            }
            OnError::Fail => {
                report.error(&id, format!("{text}; the pod is not backed up"));
                outcome.may_be_stored = false;
                break;
            }
        }
    }
    outcome
}

/// Failure of a hook.
pub(super) struct Failure {
    pub(super) text: String,
    pod_is_gone: bool,
    /// True if the API server or the node was not reached, so that the hook may or may not have started.
    pub(super) is_unreached: bool,
}

/// Runs a hook, once.
pub(super) async fn run(
    cluster: &dyn Cluster,
    pod: &ResourceIdentifier,
    hook: &Hook,
) -> Result<(), Failure> {
    let exec = Exec {
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        container: hook.container.clone(),
        command: hook.command.clone(),
        timeout: hook.timeout,
    };
    let executed = cluster.exec(&exec).await;
    if let Ok(ExecOutcome { output, .. }) = &executed {
        log_output(pod, hook, output);
    }
    check_result(executed)
}

/// Writes the output of a hook into the log of the backup, as Velero does (pkg/podexec). The cluster client limits
/// its length.
fn log_output(pod: &ResourceIdentifier, hook: &Hook, output: &str) {
    let output = output.trim();
    if !output.is_empty() {
        tracing::info!(%pod, container = hook.container, output, "output of the hook {}", HookLabel(hook));
    }
}

fn check_result(executed: Result<ExecOutcome, Error>) -> Result<(), Failure> {
    match executed.map(hook::failure) {
        Ok(None) => Ok(()),
        Ok(Some(text)) => Err(Failure { text, pod_is_gone: false, is_unreached: false }),
        Err(error) => Err(Failure {
            text: error.to_string(),
            pod_is_gone: error.is_not_found(),
            is_unreached: error.is_unavailable(),
        }),
    }
}

/// A hook in messages, without its command.
pub(super) struct HookLabel<'a>(pub(super) &'a Hook);

impl std::fmt::Display for HookLabel<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in the container {:?}", self.0.source, self.0.container)
    }
}
