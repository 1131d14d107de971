//! Item blocks: items that belong together, and the steps around them.
//!
//! A block is a pod with its claims, volumes and the other pods that share them, the items of a user-defined order,
//! or the items that ItemBlockActions relate. Within a block:
//!
//! 1. its volumes are prepared for snapshots, and the intents are written to the journal,
//! 2. the pre-hooks of its pods run,
//! 3. its items and their additional items are backed up, concurrently with the snapshots of its volumes,
//! 4. the post-hooks run for every pod whose pre-hooks were started, whatever else happened,
//! 5. claims that CSI drivers have snapshotted are visited, since they name their snapshot,
//! 6. only then follow the journal and the archive, so that no application waits for an upload.

mod builder;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bowline_plugin::ResourceIdentifier;
use futures::FutureExt as _;
use futures::future::join;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tracing::Instrument as _;

use super::Context;
use super::archive::Archive;
use super::block_journal::{self, IntentsInJournal};
use super::collect::SpooledItem;
use super::hook::{self, Plan, PodThaw};
use super::item::{self, ItemOrigin, Sink};
use super::snapshot_plan::{CreatedSnapshots, JournaledPlan, SnapshotPlan};
use super::thaw::give_up_if_canceled;
use crate::failpoint::{self, Failpoint};
use crate::item::Object;
use crate::journal;
use crate::report::ReportSubject;
use builder::BlockBuilder;

/// Limit on the blocks that wait for CSI drivers, besides those that the workers hold.
const MAX_WAITING_BLOCKS: usize = 32;

/// Groups spooled items into blocks, and backs the blocks up concurrently.
pub(super) async fn process(context: &Arc<Context>, spooled: Vec<SpooledItem>, archive: &Archive) {
    let workers = Arc::new(Semaphore::new(context.options.block_workers));
    let waiting = Arc::new(Semaphore::new(MAX_WAITING_BLOCKS));
    let mut tasks = JoinSet::new();
    let mut builder = BlockBuilder::new(context, spooled);
    loop {
        // A block is built when a worker is free: blocks that wait would hold objects in memory.
        let Ok(worker) = Arc::clone(&workers).acquire_owned().await else { break };
        let Some(block) = builder.next_block().await else { break };
        let (context, archive) = (Arc::clone(context), archive.clone());
        let waiting = Arc::clone(&waiting);
        let task = async move { back_up_block(&context, block, &archive, worker, waiting).await };
        tasks.spawn(task.in_current_span());
    }
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            context.report.error(
                ReportSubject::Run,
                format!("the backup of an item block was aborted: {error}"),
            );
        }
    }
}

/// Backs up a block. The block holds its worker until the end, unless it has to wait for a CSI driver: such a wait
/// must not keep other blocks from their turn.
async fn back_up_block(
    context: &Context,
    block: Vec<Object>,
    archive: &Archive,
    worker: OwnedSemaphorePermit,
    waiting: Arc<Semaphore>,
) {
    let (plans, unreadable) = hook_plans(context, &block);
    let new_items = || block.iter().filter(|object| is_new(context, object));
    let plan = SnapshotPlan::prepare(context, new_items).await;
    let has_to_wait = !plan.waiting_claims().is_empty();
    let _permit =
        if has_to_wait { waiting.acquire_owned().await.unwrap_or(worker) } else { worker };
    let mut intents = block_journal::intents(context, new_items());
    intents.extend(plan.intents());
    let ids: Vec<ResourceIdentifier> = block.iter().map(Object::id).collect();
    if plans.is_empty() && intents.is_empty() {
        let sink = Sink::archive(archive).with_members(block);
        exclude_pods(context, &sink, &unreadable);
        visit_all(context, &ids, &sink, &mut None).await;
        // Without intents no snapshot is requested; the reasons are reported.
        let plan = plan.with_proof(&IntentsInJournal::default());
        plan.create(context, &sink).await.finish(context, &sink).await;
        return;
    }
    let pods = plans.iter().map(|(pod, _)| journal_pod(pod)).collect();
    let journaled = match block_journal::begin_block(context, pods, intents).await {
        Ok(block) => block,
        // Nothing has been touched yet, and nothing may be.
        Err(error) => {
            for id in ids {
                if context.visited.mark_visited(&id) {
                    context.report.error(&id, format!("the item is not backed up: {error}"));
                }
            }
            return;
        }
    };
    let plan = plan.with_proof(journaled.start_intents());
    let sink = Sink::for_block(journaled).with_members(block).with_deferred(plan.waiting_claims());
    exclude_pods(context, &sink, &unreadable);
    let BlockOutcome { is_complete, frozen } =
        back_up_frozen(context, &plans, plan, &ids, &sink).await;
    if let Some(mut journaled) = sink.into_block() {
        journaled.frozen = frozen;
        block_journal::end_block(context, journaled, is_complete, archive).await;
    }
}

struct BlockOutcome {
    /// True if the block was backed up completely. A block that had not really started when the server ends is left
    /// to the next server.
    is_complete: bool,
    /// Pods whose post-hooks did not reach them.
    frozen: Vec<journal::Pod>,
}

/// Freezes, backs up and thaws a block.
async fn back_up_frozen(
    context: &Context,
    plans: &[(Object, Plan)],
    snapshots: JournaledPlan,
    ids: &[ResourceIdentifier],
    sink: &Sink<'_>,
) -> BlockOutcome {
    let results = sink.results(context);
    let (report, tally) = (results.report(), results.tally());
    let cluster = &*context.cluster;
    let hook_context = hook::HookContext { cluster, report, tally };
    let mut to_thaw = Vec::new();
    let (mut visited, mut created) = (None, CreatedSnapshots::default());
    let window = async {
        for (pod, plan) in plans {
            if context.has_stopped() {
                return false;
            }
            // Recorded before anything can happen to the pod.
            to_thaw.push((pod, plan));
            failpoint::hit(Failpoint::PreHook);
            let outcome = hook::run_pre(cluster, pod, plan, report, tally).await;
            failpoint::hit(Failpoint::Frozen);
            if !outcome.started && !plan.pre.is_empty() {
                to_thaw.pop();
            }
            if !outcome.may_be_stored {
                exclude_pod(context, sink, &pod.id());
            }
        }
        if context.has_stopped() {
            return false;
        }
        let visits = visit_all(context, ids, sink, &mut visited);
        ((), created) = join(visits, snapshots.create(context, sink)).await;
        !context.is_aborted()
    };
    // The pods are thawed whatever happens in the window.
    let window = AssertUnwindSafe(window).catch_unwind().await;
    let mut unreached = Vec::new();
    for (pod, plan) in to_thaw {
        let thaw = PodThaw::new(pod, plan);
        // A pod that is not reached must not delay the others.
        if !unreached.is_empty() {
            unreached.push(thaw);
            continue;
        }
        failpoint::hit(Failpoint::PostHook);
        unreached.extend(thaw.run(hook_context).await);
        failpoint::hit(Failpoint::Thawed);
    }
    // A canceled run still thaws, but does not wait for a node that is unavailable.
    let given_up = context.stop.child_token();
    let frozen = tokio::select! {
        frozen = hook::retry_thaw_all(hook_context, unreached, &given_up) => frozen,
        never = give_up_if_canceled(&context.cancel, &given_up) => match never {},
    };
    let unthawed = |still_frozen: hook::FrozenPod<'_>| journal::Pod {
        ran: still_frozen.ran,
        ..journal_pod(still_frozen.pod)
    };
    let frozen = frozen.into_iter().map(unthawed).collect();
    created.finish(context, sink).await;
    item::visit_deferred(context, sink).await;
    if window.is_err() {
        let remaining = ids.iter().filter(|id| sink.take_member(id).is_some());
        for id in visited.into_iter().chain(remaining) {
            let text =
                "the item is not backed up: its item block was aborted by a bug; see the log";
            report.error(id, text);
        }
    }
    BlockOutcome { is_complete: window.unwrap_or(true) && !context.is_aborted(), frozen }
}

/// Visits the items of a block, and records the current one.
async fn visit_all<'a>(
    context: &Context,
    ids: &'a [ResourceIdentifier],
    sink: &Sink<'_>,
    visited: &mut Option<&'a ResourceIdentifier>,
) {
    for id in ids {
        if context.is_aborted() {
            return;
        }
        // The item may already have been visited as an additional item.
        if let Some(object) = sink.take_member(id) {
            *visited = Some(id);
            item::visit(context, object, ItemOrigin::default(), sink).await;
        }
    }
}

/// True if an item has not been backed up yet.
fn is_new(context: &Context, object: &Object) -> bool {
    !object.is_being_deleted && !context.visited.contains(&object.id())
}

/// A pod as the journal records it before the freeze.
fn journal_pod(pod: &Object) -> journal::Pod {
    let (namespace, name) = (pod.namespace.clone(), pod.name.clone());
    journal::Pod { namespace, name, uid: uid_of(pod), ran: Vec::new() }
}

/// The uid of an object, which distinguishes it from others of its name.
pub(super) fn uid_of(object: &Object) -> String {
    #[derive(Deserialize)]
    struct Envelope {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        #[serde(default)]
        uid: String,
    }
    let read = object.item.parse::<Envelope>();
    read.map(|envelope| envelope.metadata.uid).unwrap_or_default()
}

/// Keeps a pod from being stored, with its block or in any other way.
fn exclude_pod(context: &Context, sink: &Sink<'_>, pod: &ResourceIdentifier) {
    context.visited.mark_visited(pod);
    sink.take_member(pod);
}

/// [`exclude_pod`] for several pods.
fn exclude_pods(context: &Context, sink: &Sink<'_>, pods: &[ResourceIdentifier]) {
    for pod in pods {
        exclude_pod(context, sink, pod);
    }
}

/// The pods of a block that have hooks. Pods whose hooks cannot be parsed are reported and, like pods whose pre-hooks
/// failed, not stored.
fn hook_plans(
    context: &Context,
    block: &[Object],
) -> (Vec<(Object, Plan)>, Vec<ResourceIdentifier>) {
    let (mut plans, mut unreadable) = (Vec::new(), Vec::new());
    for pod in block {
        let id = pod.id();
        if !pod.resource.is_core("pods") || pod.is_being_deleted || context.visited.contains(&id) {
            continue;
        }
        match context.hooks.plan_and_warn(pod) {
            Ok((plan, warnings)) => {
                for warning in warnings {
                    context.report.warn(&id, warning);
                }
                if !plan.is_empty() {
                    plans.push((pod.clone(), plan));
                }
            }
            Err(error) => {
                context.report.error(&id, format!("{error}; the pod is not backed up"));
                unreadable.push(id);
            }
        }
    }
    (plans, unreadable)
}
