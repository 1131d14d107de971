//! Snapshots of volumes by their CSI drivers.
//!
//! The same two halves as in [`snapshot`](super::snapshot), for the sake of the application. `prepare` does
//! what can be done before anybody is frozen: which claims, which class, what the VolumeSnapshots will be
//! called, and the watches that tell of them. `take` makes all VolumeSnapshots of a block at once, and
//! waits until each has its handle: then its point in time is fixed. After the thaw, `finish` writes down
//! what a restore must know, and only then are the claims visited, which say which snapshot they have.
//! That a snapshot can be used is an operation, which goes on behind the backup.
//!
//! | file | what it holds |
//! |---|---|
//! | `plan` | what is to be done for which claim |
//! | `class` | which VolumeSnapshotClass |
//! | `object` | VolumeSnapshots and contents, written and read |
//! | `group` | claims that are snapshotted together |
//! | `take` | the window, and what follows it |
//! | `record` | what came of a snapshot |
//! | `sight` | what the cluster says of snapshots while they are taken |
//! | `action` | the item actions, under the names of Velero's |
//! | `follow` | the operations: whether snapshots can be used |
//! | `leave` | what becomes of snapshots at the end |

mod action;
pub mod class;
mod follow;
mod group;
mod leave;
mod object;
mod plan;
mod record;
mod sight;
mod take;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bowline_plugin::ResourceIdentifier;
use futures::TryStreamExt as _;
use serde_json::Value;
use tokio::sync::OnceCell;

use super::Context;
use crate::cluster::{self, Query};
use crate::item::Object;
use crate::journal::{CsiIntent, Intent};
use crate::report::Report;
use crate::resource::Resource;
pub use action::BACKUPPER;
pub(super) use action::built_in;
use class::Class;
pub use follow::Follower;
pub use leave::{Reach, Target, discard, discard_or_tell, release, retain, targets};
use object::{CLASSES, CONTENTS, SNAPSHOTS};
pub(super) use plan::{Planned, claims, if_noted, intents, or_plugins, prepare};
pub use record::{Record, forget_discarded, is_of_csi, settle};
use sight::{Key, Sight};
pub(super) use take::{finish, take};

/// How many objects are read or written at a time.
const AT_ONCE: usize = 16;

const NO_API: &str = "the cluster does not serve snapshot.storage.k8s.io/v1; install the snapshot \
                      controller and its definitions if the driver can take snapshots";

/// The snapshots that were taken in a run, for the actions.
#[derive(Debug, Default)]
pub(super) struct Taken {
    records: Mutex<HashMap<Key, Record>>,
}

impl Taken {
    /// Notes one.
    pub(super) fn add(&self, record: Record) {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.insert((record.namespace.clone(), record.claim.clone()), record);
    }

    fn of_claim(&self, namespace: &str, name: &str) -> Option<Record> {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    fn of_snapshot(&self, namespace: &str, name: &str) -> Option<Record> {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.values().find(|one| one.namespace == namespace && one.name == name).cloned()
    }
}

/// What a run knows of CSI.
#[derive(Default)]
pub(super) struct Csi {
    pub(super) taken: Arc<Taken>,
    /// Claims that somebody has seen to.
    claimed: Mutex<HashSet<Key>>,
    classes: OnceCell<Result<Vec<(Class, Object)>, String>>,
    sight: OnceCell<Sight>,
}

/// The resources of the snapshot API.
struct Api {
    snapshots: Arc<Resource>,
    contents: Arc<Resource>,
    classes: Arc<Resource>,
}

impl Api {
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
    /// Whether a claim is left to the caller.
    pub(super) fn claim(&self, namespace: &str, name: &str) -> bool {
        let key = (namespace.to_owned(), name.to_owned());
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner).insert(key)
    }

    /// Whether nobody has seen to a claim.
    pub(super) fn is_unclaimed(&self, namespace: &str, name: &str) -> bool {
        let key = (namespace.to_owned(), name.to_owned());
        !self.claimed.lock().unwrap_or_else(PoisonError::into_inner).contains(&key)
    }

    /// All classes, in the order of their names.
    async fn classes(&self, context: &Context, api: &Api) -> Result<&[(Class, Object)], String> {
        let list = || async {
            let listed = context.cluster.list(&api.classes, Query::default());
            let listed: Result<Vec<Object>, cluster::Error> = listed.try_collect().await;
            let listed = listed
                .map_err(|error| format!("VolumeSnapshotClasses cannot be listed: {error}"))?;
            let mut classes = Vec::new();
            for object in listed {
                // One that cannot be read is as if it were not there.
                if let Ok(class) = Class::read(object.item.json()) {
                    classes.push((class, object));
                }
            }
            classes.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
            Ok(classes)
        };
        self.classes.get_or_init(list).await.as_deref().map_err(Clone::clone)
    }

    async fn sight(&self, context: &Context, api: &Api) -> &Sight {
        let open = || {
            let uid = context.request.uid.as_str();
            Sight::open(&context.cluster, &api.snapshots, &api.contents, uid)
        };
        self.sight.get_or_init(open).await
    }

    /// The classes of snapshots, as they are in the cluster.
    pub(super) fn used_classes(&self, records: &[Record]) -> Vec<Value> {
        let Some(Ok(classes)) = self.classes.get() else { return Vec::new() };
        let is_used = |class: &Class| records.iter().any(|record| record.class == class.name);
        let used = classes.iter().filter(|(class, _)| is_used(class));
        used.filter_map(|(_, object)| object.item.parse().ok()).collect()
    }
}

fn reach(context: &Context) -> Option<Reach<'_>> {
    Reach::new(&*context.cluster, &context.resources, context.request.of())
}

fn tell_left(report: &Report, id: &ResourceIdentifier, target: &Target, reason: &str) {
    let Target { namespace, name, is_group } = target;
    let kind = if *is_group { "VolumeGroupSnapshot" } else { "VolumeSnapshot" };
    let text =
        format!("the {kind} {namespace}/{name} that was made for it may be left over: {reason}");
    report.warning(id, text);
}

/// Takes away a snapshot that was asked for when the server ended, so that nobody knows what came of it.
pub(super) async fn reclaim(context: &Context, intent: &Intent) {
    let Some(wanted) = &intent.csi else { return };
    let Some(reach) = reach(context) else { return };
    let id: ResourceIdentifier = intent.item.clone().into();
    for (target, reason) in leave::discard(&reach, &[wanted.into()]).await {
        tell_left(&context.report, &id, &target, &reason);
    }
}

/// Takes away the snapshots of a block that is done again by the next process.
pub(super) async fn undo(context: &Context, records: &[Record]) {
    if let Some(reach) = reach(context) {
        let targets = targets_of(records);
        for (target, reason) in leave::discard(&reach, &targets).await {
            let Target { namespace, name, .. } = target;
            tracing::warn!(namespace, name, "the next process takes it away: {reason}");
        }
    }
}

/// The VolumeSnapshots of records. One that failed has none any more.
pub fn targets_of(records: &[Record]) -> Vec<Target> {
    records.iter().filter(|record| !record.name.is_empty()).map(Into::into).collect()
}

/// Reads the classes, if an earlier process has taken snapshots.
pub(super) async fn recall(context: &Context) {
    if let Some(api) = Api::of(context)
        && let Err(reason) = context.csi.classes(context, &api).await
    {
        tracing::warn!("{reason}");
    }
}

impl From<&CsiIntent> for Target {
    fn from(intent: &CsiIntent) -> Self {
        let (namespace, name) = (intent.namespace.clone(), intent.name.clone());
        Self { namespace, name, is_group: intent.is_group }
    }
}

impl super::request::Request {
    /// How long a CSI snapshot may take until its point in time is fixed.
    fn csi_snapshot_timeout(&self) -> Duration {
        // A negative one was refused.
        self.backup.spec.csi_snapshot_timeout.to_std().unwrap_or_default()
    }
}
