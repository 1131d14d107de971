//! Snapshots of volumes by their CSI drivers.
//!
//! The work has the same two halves as in [`snapshot`](super::snapshot), for the sake of the application. `plan_snapshots`
//! does everything that can be done before a pod is frozen: select the claims, the class and the names of the
//! VolumeSnapshots, and open the watches on them. `create` creates all VolumeSnapshots of a block at once, and waits
//! until each has its handle: then its point in time is fixed. After the thaw, `complete_snapshots` records what a restore must
//! know, and only then are the claims visited, which name their snapshot. Waiting until a snapshot is ready to use is
//! an operation, which continues after the backup's items.
//!
//! | file | content |
//! |---|---|
//! | `plan` | the plan for each claim |
//! | `class` | choice of the VolumeSnapshotClass |
//! | `object` | VolumeSnapshots and contents, written and read |
//! | `group` | claims that are snapshotted together |
//! | `create` | the freeze window, and the steps after it |
//! | `failure` | reasons why there is no snapshot |
//! | `record` | the outcome of a snapshot |
//! | `cleanup` | snapshots that no operation waits for |
//! | `snapshot_watch` | state of snapshots in the cluster while they are taken |
//! | `action` | the item actions, under the names of Velero's |
//! | `readiness` | the operations: readiness of snapshots |
//! | `retention` | keeping or deleting snapshots at the end |

mod action;
pub mod class;
mod cleanup;
mod create;
mod failure;
mod group;
mod plan;
mod readiness;
mod retention;
mod snapshot_watch;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_plugin::ResourceIdentifier;
use futures::TryStreamExt as _;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::OnceCell;

use super::Context;
use crate::cluster::{self, Query};
use crate::csi::record::SnapshotKey;
pub use crate::csi::record::{
    BACKUPPER, CsiSnapshotRecord, apply_operation_results, clear_discarded_handles,
    is_csi_operation,
};
use crate::csi::{CLASSES, CONTENTS, SNAPSHOTS, object};
use crate::item::Object;
use crate::journal::{CsiIntent, Intent};
use crate::report::Report;
use crate::resource::Resource;
pub(super) use action::built_in;
use class::Class;
pub(super) use cleanup::discard_unreferenced;
pub(super) use create::{SnapshotAttempt, complete_snapshots, create_snapshots};
use failure::ClassListError;
pub(super) use plan::{
    JournaledCsiSnapshot, PlannedCsiSnapshot, intents, plan_snapshot, plan_snapshots,
    prefer_plugins, waiting_claims,
};
pub use readiness::ReadinessWatch;
pub use retention::{
    DiscardResult, Leftovers, SnapshotApi, Target, discard, discard_and_report, release, retain,
    targets_of_operations,
};
use snapshot_watch::SnapshotWatch;

/// Number of objects read or written concurrently.
const MAX_CONCURRENT_REQUESTS: usize = 16;

/// The snapshots taken in a run, for the actions.
#[derive(Debug, Default)]
pub(super) struct CompletedSnapshots {
    records: Mutex<HashMap<SnapshotKey, CsiSnapshotRecord>>,
}

impl CompletedSnapshots {
    pub(super) fn add(&self, record: CsiSnapshotRecord) {
        let mut records = self.records.lock();
        records.insert((record.namespace.clone(), record.claim.clone()), record);
    }

    fn of_claim(&self, namespace: &str, name: &str) -> Option<CsiSnapshotRecord> {
        let records = self.records.lock();
        records.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    fn of_snapshot(&self, namespace: &str, name: &str) -> Option<CsiSnapshotRecord> {
        let records = self.records.lock();
        records.values().find(|one| one.namespace == namespace && one.name == name).cloned()
    }
}

/// CSI state of a run.
#[derive(Default)]
pub(super) struct Csi {
    pub(super) completed: Arc<CompletedSnapshots>,
    claims: Mutex<Claims>,
    /// Leftovers of an earlier process whose deletion was attempted.
    reclaimed: Mutex<HashSet<Target>>,
    classes: OnceCell<Result<Vec<(Class, Object)>, ClassListError>>,
    watch: OnceCell<SnapshotWatch>,
}

#[derive(Default)]
struct Claims {
    /// Claims that a block has handled.
    handled: HashSet<SnapshotKey>,
    /// Claims whose block is taking their snapshots. They are stored when that is done, and not before.
    in_flight: HashSet<SnapshotKey>,
}

/// Decision on the visit of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PvcVisit {
    /// Another visitor has stored the claim, or will.
    Skip,
    /// The caller stores the claim. A block has planned its snapshot.
    Planned,
    /// The caller stores the claim, and no block has planned its snapshot.
    Unplanned,
}

/// The resources of the snapshot API.
struct SnapshotResources {
    snapshots: Arc<Resource>,
    contents: Arc<Resource>,
    classes: Arc<Resource>,
}

impl SnapshotResources {
    fn of(context: &Context) -> Option<Self> {
        let find = |plural| {
            let found = context.resources.find(&object::resource(plural)).cloned();
            found.filter(|resource: &Arc<Resource>| resource.version == "v1")
        };
        Some(Self {
            snapshots: find(SNAPSHOTS)?,
            contents: find(CONTENTS)?,
            classes: find(CLASSES)?,
        })
    }
}

impl Csi {
    /// Marks a claim as handled.
    pub(super) fn mark_handled(&self, namespace: &str, name: &str) {
        self.claims.lock().handled.insert((namespace.to_owned(), name.to_owned()));
    }

    /// True if the calling block may snapshot the claim, which is in flight from then on.
    fn begin_snapshot(&self, namespace: &str, name: &str) -> bool {
        let key = (namespace.to_owned(), name.to_owned());
        let mut claims = self.claims.lock();
        let is_first = claims.handled.insert(key.clone());
        if is_first {
            claims.in_flight.insert(key);
        }
        is_first
    }

    /// Ends the flight of a claim: what is to be stored of it is known now.
    pub(super) fn finish_snapshot(&self, namespace: &str, name: &str) {
        self.claims.lock().in_flight.remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Decides on the visit of a claim. A claim that another block has in flight is left to that block;
    /// `mark_visited` marks the claim, and returns false if it was marked before. All of this is atomic, since blocks
    /// work concurrently.
    pub(super) fn reserve_pvc_visit(
        &self,
        namespace: &str,
        name: &str,
        is_of_another_block: bool,
        mark_visited: impl FnOnce() -> bool,
    ) -> PvcVisit {
        let key = (namespace.to_owned(), name.to_owned());
        let mut claims = self.claims.lock();
        if (is_of_another_block && claims.in_flight.contains(&key)) || !mark_visited() {
            return PvcVisit::Skip;
        }
        if claims.handled.insert(key) { PvcVisit::Unplanned } else { PvcVisit::Planned }
    }

    /// All classes, in the order of their names.
    async fn classes(
        &self,
        context: &Context,
        api: &SnapshotResources,
    ) -> Result<&[(Class, Object)], ClassListError> {
        let list = || async {
            let listed = context.cluster.list(&api.classes, Query::default());
            let listed: Result<Vec<Object>, cluster::Error> = listed.try_collect().await;
            let listed = listed.map_err(|error| ClassListError(error.to_string()))?;
            let mut classes = Vec::new();
            for object in listed {
                // A class that cannot be parsed is ignored.
                if let Ok(class) = Class::read(object.item.json()) {
                    classes.push((class, object));
                }
            }
            classes.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
            Ok(classes)
        };
        self.classes.get_or_init(list).await.as_deref().map_err(Clone::clone)
    }

    async fn watch(&self, context: &Context, api: &SnapshotResources) -> &SnapshotWatch {
        let open = || {
            let uid = context.request.uid.as_str();
            SnapshotWatch::open(&context.cluster, &api.snapshots, &api.contents, uid)
        };
        self.watch.get_or_init(open).await
    }

    /// The classes of snapshots, as they are in the cluster.
    pub(super) fn used_classes(&self, records: &[CsiSnapshotRecord]) -> Vec<Value> {
        let Some(Ok(classes)) = self.classes.get() else { return Vec::new() };
        let is_used = |class: &Class| records.iter().any(|record| record.class == class.name);
        let used = classes.iter().filter(|(class, _)| is_used(class));
        used.filter_map(|(_, object)| object.item.parse().ok()).collect()
    }
}

fn snapshot_api(context: &Context) -> Option<SnapshotApi<'_>> {
    SnapshotApi::new(&*context.cluster, &context.resources, context.request.run_ref())
}

fn warn_leftover(report: &Report, id: &ResourceIdentifier, target: &Target, reason: &str) {
    report.warn(id, format!("{target} may be left over: {reason}"));
}

/// Deletes a snapshot that was requested when the server ended and whose outcome is unknown.
pub(super) async fn reclaim(context: &Context, intent: &Intent) {
    let Some(csi_intent) = &intent.csi else { return };
    let Some(api) = snapshot_api(context) else { return };
    let target = Target::from(csi_intent);
    // Each member of a group names the group.
    let is_first = context.csi.reclaimed.lock().insert(target.clone());
    if !is_first {
        return;
    }
    let id: ResourceIdentifier = intent.item.clone().into();
    // A VolumeSnapshot that does not exist was never created.
    for (target, reason) in retention::discard(&api, &[target]).await.undeleted {
        warn_leftover(&context.report, &id, &target, &reason);
    }
}

/// Deletes the snapshots of a block that the next process repeats.
pub(super) async fn discard_block_snapshots(context: &Context, records: &[CsiSnapshotRecord]) {
    if let Some(api) = snapshot_api(context) {
        let targets = targets_of(records);
        for (target, reason) in retention::discard(&api, &targets).await.undeleted {
            let Target { namespace, name, .. } = target;
            tracing::warn!(
                namespace,
                name,
                "the next attempt deletes the VolumeSnapshot: {reason}"
            );
        }
    }
}

/// The VolumeSnapshots and VolumeGroupSnapshots of records.
pub fn targets_of(records: &[CsiSnapshotRecord]) -> Vec<Target> {
    records.iter().filter_map(CsiSnapshotRecord::target).collect()
}

/// Reads the classes, if an earlier process has taken snapshots.
pub(super) async fn load_classes(context: &Context) {
    if let Some(api) = SnapshotResources::of(context)
        && let Err(error) = context.csi.classes(context, &api).await
    {
        tracing::warn!("{error}");
    }
}

impl From<&CsiIntent> for Target {
    fn from(intent: &CsiIntent) -> Self {
        let (namespace, name) = (intent.namespace.clone(), intent.name.clone());
        Self { namespace, name, is_group: intent.is_group }
    }
}

impl super::request::Request {
    /// Time a CSI snapshot may take until its point in time is fixed.
    fn csi_snapshot_timeout(&self) -> Duration {
        // Validation refuses negative values.
        self.backup.spec.csi_snapshot_timeout.to_std().unwrap_or_default()
    }
}
