//! Pods that are not part of a run but affect the treatment of volumes that are.

use super::Context;
use super::volume::Volumes;

/// Records the pods of the cluster that mount claims of a block and are not in it. They are already known where
/// claims are grouped into blocks; otherwise they are listed now.
pub(super) async fn record_outside_pods(context: &Context, facts: &Volumes) {
    for (namespace, claim) in facts.claims() {
        match context.mounts.of_claim(&namespace, &claim).await {
            Ok(pods) => {
                for pod in pods.iter().filter(|pod| !facts.has_pod(&pod.facts)) {
                    facts.record_outside_pod(&pod.facts);
                    context.volumes.record_outside_pod(&pod.facts);
                }
            }
            Err(error) => tracing::warn!(
                namespace,
                claim,
                "cannot check whether pods request a file-system backup of the claim: {error}"
            ),
        }
    }
}
