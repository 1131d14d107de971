//! The window: VolumeSnapshots are made, and awaited until their point in time is fixed. And what follows it:
//! those that were taken are marked for restores, those that were not are taken away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_api::label;
use bowline_plugin::Item;
use futures::future::{BoxFuture, join, join_all};
use futures::{FutureExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::group::{self, Made, Members};
use super::leave::{self, Target};
use super::object::{self, Snapshot};
use super::plan::{Plan, Planned};
use super::record::Record;
use super::{AT_ONCE, Api, NO_API, reach};
use crate::backup::Context;
use crate::backup::item::Sink;
use crate::backup::volume::Snapshotted;
use crate::cluster::{self, Door};
use crate::item::Object;
use crate::point::{self, Point};
use crate::resource::Resource;

/// How often an object is marked, if what is in the way may pass.
const MARK_TRIES: u32 = 5;
/// The pause after the first time; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// A snapshot that was asked for.
pub(in crate::backup) struct Tried {
    record: Record,
    /// Whether there may be a VolumeSnapshot.
    is_made: bool,
    /// The group that it is in, or may be.
    group: Option<Target>,
    /// The same, if it was taken.
    made: Option<Made>,
}

impl Tried {
    /// What there may be of one that failed, if there may be anything.
    fn left(&self) -> Option<Target> {
        let Record { namespace, name, .. } = &self.record;
        let alone = || Target { namespace: namespace.clone(), name: name.clone(), is_group: false };
        self.is_made.then(|| self.group.clone().unwrap_or_else(alone))
    }
}

/// Takes the snapshots of all claims of a block side by side, and waits until the point in time of each is
/// fixed.
pub(in crate::backup) async fn take(
    context: &Context,
    planned: Vec<Planned>,
    sink: &Sink<'_>,
) -> Vec<Tried> {
    let (mut all, mut groups) = (Vec::new(), BTreeMap::new());
    for one in planned {
        if let Plan::Grouped(group) = &one.plan {
            let key = (group.namespace.clone(), group.name.clone());
            groups.entry(key).or_insert_with(Vec::new).push(one);
        } else {
            all.push(take_one(context, one, sink));
        }
    }
    let groups = groups.into_values().map(|group| take_group(context, group, sink));
    let (alone, grouped) = join(join_all(all), join_all(groups)).await;
    alone.into_iter().flatten().chain(grouped.into_iter().flatten()).collect()
}

async fn take_group(context: &Context, planned: Vec<Planned>, sink: &Sink<'_>) -> Vec<Tried> {
    let group = planned.iter().find_map(|one| match &one.plan {
        Plan::Grouped(group) => Some(group.clone()),
        _ => None,
    });
    let Some(group) = group else { return Vec::new() };
    let made = group::make(context, &group).await;
    let (namespace, name) = (group.namespace.clone(), group.name.clone());
    let target = Target { namespace, name, is_group: true };
    let tried = planned.into_iter().map(|one| {
        for warning in one.warnings {
            sink.report(context).warning(&one.record.claim_id(), warning);
        }
        // Those of a group have no class of their own, and their names come with them.
        let (name, class) = (String::new(), String::new());
        let failure = made.as_ref().err().map(|failure| failure.reason.clone());
        let record = Record { name, class, failure, ..one.record };
        let is_made = made.as_ref().map_or_else(|failure| failure.is_made, |_| true);
        Tried { record, is_made, group: Some(target.clone()), made: made.as_ref().ok().cloned() }
    });
    tried.collect()
}

async fn take_one(context: &Context, planned: Planned, sink: &Sink<'_>) -> Option<Tried> {
    let Planned { mut record, plan, warnings, .. } = planned;
    let (id, report) = (record.claim_id(), sink.report(context));
    for warning in warnings {
        report.warning(&id, warning);
    }
    let item = match plan {
        Plan::Ready(item) => item,
        // Those are taken together.
        Plan::Grouped(_) => return None,
        Plan::Failed(reason) => {
            record.failure = Some(reason);
            return Some(Tried { record, is_made: false, group: None, made: None });
        }
        Plan::Lacking(reason) => {
            report.error(&id, lost(&record, &reason));
            sink.snapshotted(context, &record.volume, Snapshotted::Lacking(reason));
            return None;
        }
    };
    let made = make(context, &mut record, &item).await;
    record.failure = made.as_ref().err().map(|failure| failure.reason.clone());
    let is_made = made.map_or_else(|failure| failure.is_made, |()| true);
    Some(Tried { record, is_made, group: None, made: None })
}

/// Why there is no snapshot, and whether there may be a VolumeSnapshot all the same.
pub(super) struct Failure {
    pub(super) reason: String,
    pub(super) is_made: bool,
}

async fn make(context: &Context, record: &mut Record, item: &Item) -> Result<(), Failure> {
    let failed = |is_made| move |reason| Failure { reason, is_made };
    let api = Api::of(context).ok_or_else(|| failed(false)(NO_API.to_owned()))?;
    let sight = context.csi.sight(context, &api).await;
    let key = record.key();
    sight.expect(&key);
    point::pass(Point::CsiSnapshotCreate);
    let name = (record.namespace.as_str(), record.name.as_str());
    let made = create(context, &api.snapshots, name, item).await;
    point::pass(Point::CsiSnapshotCreated);
    let uid = made
        .map_err(|error| failed(true)(format!("its VolumeSnapshot cannot be created: {error}")))?;
    record.begin();
    let limit = context.request.csi_snapshot_timeout();
    let taken = sight.taken(&key, &uid, limit, &context.cancel).await;
    point::pass(Point::CsiSnapshotTaken);
    taken.map_err(failed(true))?.note_in(record);
    Ok(())
}

/// Creates a VolumeSnapshot, or a group of them, and returns its uid. Where it is not known what came of
/// that, it is tried once more: the name is ours alone, so that whatever is there is what we made.
pub(super) async fn create(
    context: &Context,
    resource: &Arc<Resource>,
    (namespace, name): (&str, &str),
    item: &Item,
) -> Result<String, cluster::Error> {
    let create = || context.cluster.create(resource, namespace, item);
    let made = match create().await {
        Err(cluster::Error::Unreachable(_) | cluster::Error::Silent(_)) => create().await,
        made => made,
    };
    let made = match made {
        Err(error) if error.is_already_there() => {
            let found = context.cluster.get(resource, namespace, name).await?;
            found.ok_or(error)?
        }
        made => made?,
    };
    let read = Snapshot::read(&made.item);
    read.map(|made| made.metadata.uid)
        .map_err(|error| cluster::Error::Unreadable(error.to_string()))
}

fn lost(record: &Record, reason: &str) -> String {
    format!("the data of its volume {} is not in the backup: {reason}", record.volume)
}

/// Writes down what is to be known of the snapshots of a block, when nobody is frozen any more. Those that
/// failed are taken away, a group once for all its claims.
pub(in crate::backup) async fn finish(context: &Context, tried: Vec<Tried>, sink: &Sink<'_>) {
    let tried = with_members(context, tried).await;
    let (failed, taken): (Vec<_>, Vec<_>) =
        tried.into_iter().partition(|one| one.record.failure.is_some());
    let doomed: BTreeSet<Target> = failed.iter().filter_map(Tried::left).collect();
    let doomed: Vec<Target> = doomed.into_iter().collect();
    let mut all: Vec<BoxFuture<'_, ()>> = Vec::new();
    for one in taken {
        all.push(finish_taken(context, one.record, sink).boxed());
    }
    let taken = futures::stream::iter(all).buffer_unordered(AT_ONCE).collect::<()>();
    let (left, ()) = join(discard(context, &doomed), taken).await;
    for one in failed {
        finish_failed(context, one, &left, sink);
    }
}

/// Takes away what was made for claims whose snapshots failed. Returns what it could not.
async fn discard(context: &Context, doomed: &[Target]) -> Vec<Target> {
    let Some(reach) = reach(context).filter(|_| !doomed.is_empty()) else { return Vec::new() };
    let mut left = Vec::new();
    for (target, reason) in leave::discard(&reach, doomed).await.left {
        tracing::warn!("{target} of a snapshot that failed is left for now: {reason}");
        left.push(target);
    }
    left
}

/// The same, with what is known of the snapshots of groups now. A group that lacks one is not kept: whoever
/// deletes it must name all its snapshots to the driver, and nobody would know that one.
async fn with_members(context: &Context, tried: Vec<Tried>) -> Vec<Tried> {
    let mut groups: Vec<(Made, Vec<Tried>)> = Vec::new();
    let mut all = Vec::new();
    for one in tried {
        let Some(made) = one.made.clone() else {
            all.push(one);
            continue;
        };
        match groups.iter_mut().find(|(group, _)| *group == made) {
            Some((_, members)) => members.push(one),
            None => groups.push((made, vec![one])),
        }
    }
    let api = Api::of(context);
    for (made, members) in groups {
        let claims = members.iter().map(|one| one.record.claim.clone()).collect();
        let found = match &api {
            Some(api) => group::members(context, api, &made, &claims).await,
            None => Members { trouble: Some(NO_API.to_owned()), ..Members::default() },
        };
        let lacking = claims.iter().find(|claim| !found.of_claims.contains_key(*claim));
        for mut one in members {
            let record = &mut one.record;
            match (found.of_claims.get(&record.claim), lacking) {
                (Some((snapshot, taken)), None) => {
                    record.name.clone_from(&snapshot.metadata.name);
                    taken.note_in(record);
                    record.begin();
                }
                (Some(_), Some(other)) => {
                    record.failure = Some(format!(
                        "its group lacks the snapshot of the claim {other}, and a group is kept whole or \
                         not at all"
                    ));
                }
                (None, _) => {
                    let why = found.trouble.as_deref().unwrap_or("it is not in the group");
                    record.failure = Some(format!("no VolumeSnapshot was made of it: {why}"));
                }
            }
            all.push(one);
        }
    }
    all
}

/// Tells of a snapshot that failed. What could not be taken away is tried again at the end.
fn finish_failed(context: &Context, tried: Tried, left: &[Target], sink: &Sink<'_>) {
    let still = tried.left().filter(|target| left.contains(target));
    let mut record = tried.record;
    let reason = record.failure.clone().unwrap_or_default();
    let text = format!("{} could not snapshot it: {reason}", record.driver);
    sink.report(context).error(&record.claim_id(), lost(&record, &text));
    match still {
        // What is gone has no names.
        None => record.forget(),
        Some(group) if group.is_group => {
            record.forget();
            record.left_group = group.name;
        }
        Some(_) => {}
    }
    let volume = record.volume.clone();
    sink.snapshotted(context, &volume, Snapshotted::Csi(Box::new(record)));
}

async fn finish_taken(context: &Context, record: Record, sink: &Sink<'_>) {
    let Record { volume, name, driver, handle, .. } = &record;
    tracing::info!(volume, snapshot = name, driver, handle, "a CSI snapshot was taken");
    if let Some(api) = Api::of(context) {
        mark_all(context, &api, &record, sink).await;
        if let Some(Ok(classes)) = context.csi.classes.get()
            && let Some((_, class)) = classes.iter().find(|(class, _)| class.name == record.class)
        {
            sink.add_member(class.clone());
        }
    }
    context.csi.taken.add(record.clone());
    sink.snapshotted(context, &record.volume, Snapshotted::Csi(Box::new(record.clone())));
    point::pass(Point::CsiSnapshotNoted);
}

/// Marks a VolumeSnapshot and its content as those of the backup. They need not be read again then; where that
/// cannot be done, they are stored as they should be.
async fn mark_all(context: &Context, api: &Api, record: &Record, sink: &Sink<'_>) {
    let Record { namespace, name, content, .. } = record;
    let (backup, uid) = (context.request.name.as_str(), context.request.uid.as_str());
    let labels = json!({ "metadata": { "labels": { label::BACKUP_NAME: label::value(backup) } } });
    // Those of a group have no labels of ours yet.
    let marks = json!({ "metadata": {
        "labels": { label::BACKUP_NAME: label::value(backup), label::BACKUP_UID: uid },
        "annotations": object::annotations(record),
    } });
    let of_driver = mark(context, &api.contents, ("", content), &labels);
    let snapshot = mark(context, &api.snapshots, (namespace, name), &marks);
    let (of_driver, snapshot) = join(of_driver, snapshot).await;
    let (id, report) = (record.claim_id(), sink.report(context));
    match snapshot {
        Ok(object) => sink.add_member(object),
        // By its labels it is known whose it is when its group is gone; one that was made for the claim has
        // them from the start.
        Err(error) if !record.group_handle.is_empty() => {
            let text = format!(
                "its VolumeSnapshot {name} cannot be labelled, so that only its group says whose it is: \
                 {error}"
            );
            report.error(&id, text);
        }
        Err(error) => {
            report.warning(&id, format!("its VolumeSnapshot {name} cannot be marked: {error}"));
        }
    }
    match of_driver {
        Ok(object) => sink.add_member(object),
        Err(error) => {
            let text = format!("its VolumeSnapshotContent {content} cannot be labelled: {error}");
            report.warning(&id, text);
        }
    }
}

/// Changes an object. What may pass is tried again a few times.
async fn mark(
    context: &Context,
    resource: &Arc<Resource>,
    (namespace, name): (&str, &str),
    change: &Value,
) -> Result<Object, cluster::Error> {
    let mut pause = FIRST_PAUSE;
    for _ in 1..MARK_TRIES {
        match context.cluster.patch(resource, namespace, name, Door::Whole, change).await {
            Err(error) if may_pass(&error) && !context.is_over() => {
                tracing::debug!(name, "it is marked again: {error}");
                sleep(pause).await;
                pause *= 2;
            }
            marked => return marked,
        }
    }
    context.cluster.patch(resource, namespace, name, Door::Whole, change).await
}

/// Whether what is in the way may pass by itself.
fn may_pass(error: &cluster::Error) -> bool {
    match error {
        cluster::Error::Unreachable(_) | cluster::Error::Silent(_) => true,
        cluster::Error::Refused { code, .. } => {
            *code >= 500 || error.is_busy() || error.is_conflict()
        }
        _ => false,
    }
}
