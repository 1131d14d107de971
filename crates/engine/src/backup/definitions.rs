//! CustomResourceDefinitions.
//!
//! They come after everything else: which ones are needed is known when all other items are stored.

use futures::StreamExt as _;

use super::Context;
use super::filter::CrdRule;
use super::item::{self, ItemOrigin, Sink};
use crate::report::ReportSubject;
use crate::resource::GroupResource;

/// Number of CustomResourceDefinitions read concurrently.
const CRDS_AT_ONCE: usize = 8;

/// Stores the definitions of the stored custom resources, unless the filters decide about definitions.
pub(super) async fn store(context: &Context, sink: &Sink<'_>) {
    if context.filter.crd_rule() != CrdRule::OfStored {
        return;
    }
    let id = GroupResource::new("apiextensions.k8s.io", "customresourcedefinitions");
    let Some(definitions) = context.resources.find(&id) else { return };
    let stored = context.inventory.resources();
    futures::stream::iter(stored)
        // The core group has no definitions.
        .filter(|stored| std::future::ready(!stored.group.is_empty()))
        .for_each_concurrent(CRDS_AT_ONCE, async |stored| {
            let name = stored.to_string();
            match context.cluster.get(definitions, "", &name).await {
                Ok(Some(definition)) => {
                    // The filters allow definitions here. One with the exclude label is left out, as in Velero
                    // (pkg/backup/backup.go, backupCRD).
                    item::visit(context, definition, ItemOrigin::default(), sink).await;
                }
                // Kinds built into the API server have no definition.
                Ok(None) => {}
                Err(error) => context.report.error(
                    ReportSubject::Run,
                    format!("the CustomResourceDefinition {name} is not in the backup: {error}"),
                ),
            }
        })
        .await;
}
