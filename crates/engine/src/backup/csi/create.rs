//! The freeze window, in which VolumeSnapshots are created and awaited until their point in time is fixed, and the
//! steps after it: successful snapshots are labelled for restores, failed ones are deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use bowline_api::label;
use bowline_plugin::Item;
use futures::future::{BoxFuture, join, join_all};
use futures::{FutureExt as _, StreamExt as _};
use serde_json::{Value, json};

use super::failure::{ApiMissing, CsiSnapshotError};
use super::group::{self, CreatedGroup, GroupMembers};
use super::plan::{CsiPlan, JournaledCsiSnapshot, PlannedCsiSnapshot};
use super::retention::{self, Target};
use super::{MAX_CONCURRENT_REQUESTS, SnapshotResources, snapshot_api};
use crate::backup::Context;
use crate::backup::item::Sink;
use crate::backup::volume::SnapshotOutcome;
use crate::cluster::{self, Subresource};
use crate::csi::object::{self, Snapshot};
use crate::csi::record::CsiSnapshotRecord;
use crate::failpoint::{self, Failpoint};
use crate::item::Object;
use crate::resource::Resource;

/// Retries of labelling an object, if the obstacle may pass.
const LABEL_RETRIES: ExponentialBuilder =
    ExponentialBuilder::new().with_min_delay(Duration::from_millis(200)).with_max_times(4);

/// A requested snapshot.
pub(in crate::backup) struct SnapshotAttempt {
    record: CsiSnapshotRecord,
    /// True if a VolumeSnapshot may exist.
    may_exist: bool,
    /// The group that it is in, or may be in.
    group: Option<Target>,
    /// The group, if it was created.
    created_group: Option<CreatedGroup>,
}

impl SnapshotAttempt {
    /// The object that a failed attempt may have left, if any.
    fn leftover(&self) -> Option<Target> {
        let CsiSnapshotRecord { namespace, name, .. } = &self.record;
        let alone = || Target { namespace: namespace.clone(), name: name.clone(), is_group: false };
        self.may_exist.then(|| self.group.clone().unwrap_or_else(alone))
    }
}

/// Takes the snapshots of all claims of a block concurrently, and waits until the point in time of each is fixed.
pub(in crate::backup) async fn create_snapshots(
    context: &Context,
    journaled: Vec<JournaledCsiSnapshot>,
    sink: &Sink<'_>,
) -> Vec<SnapshotAttempt> {
    let (mut all, mut groups) = (Vec::new(), BTreeMap::new());
    for one in journaled.into_iter().map(JournaledCsiSnapshot::into_planned) {
        if let CsiPlan::Grouped(group) = &one.plan {
            let key = (group.namespace.clone(), group.name.clone());
            groups.entry(key).or_insert_with(Vec::new).push(one);
        } else {
            all.push(create_one(context, one, sink));
        }
    }
    let groups = groups.into_values().map(|group| create_group(context, group, sink));
    let (alone, grouped) = join(join_all(all), join_all(groups)).await;
    alone.into_iter().flatten().chain(grouped.into_iter().flatten()).collect()
}

async fn create_group(
    context: &Context,
    planned: Vec<PlannedCsiSnapshot>,
    sink: &Sink<'_>,
) -> Vec<SnapshotAttempt> {
    let group = planned.iter().find_map(|one| match &one.plan {
        CsiPlan::Grouped(group) => Some(group.clone()),
        _ => None,
    });
    let Some(group) = group else { return Vec::new() };
    let created = group::create(context, &group).await;
    let (namespace, name) = (group.namespace.clone(), group.name.clone());
    let target = Target { namespace, name, is_group: true };
    let attempts = planned.into_iter().map(|one| {
        for warning in one.warnings {
            sink.report(context).warn(&one.record.claim_id(), warning);
        }
        // Snapshots of a group have no class of their own, and their names come from the controller.
        let (name, class) = (String::new(), String::new());
        let failure = created.as_ref().err().map(|failure| failure.error.to_string());
        let record = CsiSnapshotRecord { name, class, failure, ..one.record };
        let may_exist = created.as_ref().map_or_else(|failure| failure.may_exist, |_| true);
        SnapshotAttempt {
            record,
            may_exist,
            group: Some(target.clone()),
            created_group: created.as_ref().ok().cloned(),
        }
    });
    attempts.collect()
}

async fn create_one(
    context: &Context,
    planned: PlannedCsiSnapshot,
    sink: &Sink<'_>,
) -> Option<SnapshotAttempt> {
    let PlannedCsiSnapshot { mut record, plan, warnings, .. } = planned;
    let (id, report) = (record.claim_id(), sink.report(context));
    for warning in warnings {
        report.warn(&id, warning);
    }
    let item = match plan {
        CsiPlan::Ready(item) => item,
        // Members of a group are created together.
        CsiPlan::Grouped(_) => return None,
        CsiPlan::Failed(error) => {
            record.failure = Some(error.to_string());
            return Some(SnapshotAttempt {
                record,
                may_exist: false,
                group: None,
                created_group: None,
            });
        }
        CsiPlan::Unsupported(error) => {
            let reason = error.to_string();
            report.error(&id, data_loss_message(&record, &reason));
            sink.results(context)
                .record_snapshot(&record.volume, SnapshotOutcome::Unsupported(reason));
            return None;
        }
    };
    let created = create_and_wait(context, &mut record, &item).await;
    record.failure = created.as_ref().err().map(|failure| failure.error.to_string());
    let may_exist = created.map_or_else(|failure| failure.may_exist, |()| true);
    Some(SnapshotAttempt { record, may_exist, group: None, created_group: None })
}

/// Reason why there is no snapshot, and whether a VolumeSnapshot may exist nevertheless.
pub(super) struct CsiCreateFailure {
    pub(super) error: CsiSnapshotError,
    pub(super) may_exist: bool,
}

async fn create_and_wait(
    context: &Context,
    record: &mut CsiSnapshotRecord,
    item: &Item,
) -> Result<(), CsiCreateFailure> {
    let failed = |may_exist| move |error| CsiCreateFailure { error, may_exist };
    let api = SnapshotResources::of(context).ok_or_else(|| failed(false)(ApiMissing.into()))?;
    let watch = context.csi.watch(context, &api).await;
    let key = record.key();
    watch.expect(&key);
    failpoint::hit(Failpoint::CsiSnapshotCreate);
    let name = (record.namespace.as_str(), record.name.as_str());
    let created = create(context, &api.snapshots, name, item).await;
    failpoint::hit(Failpoint::CsiSnapshotCreated);
    let uid = created.map_err(|error| failed(true)(CsiSnapshotError::Create(error)))?;
    record.name_operation();
    let limit = context.request.csi_snapshot_timeout();
    let content = watch.wait_until_taken(&key, &uid, limit, &context.cancel).await;
    failpoint::hit(Failpoint::CsiSnapshotTaken);
    content.map_err(failed(true))?.copy_into(record);
    Ok(())
}

/// Creates a VolumeSnapshot, or a group of them, and returns its uid. Where the outcome is unknown, the request is
/// repeated once: only this run uses the name, so an object of that name is the one that it created.
pub(super) async fn create(
    context: &Context,
    resource: &Arc<Resource>,
    (namespace, name): (&str, &str),
    item: &Item,
) -> Result<String, cluster::Error> {
    let create = || context.cluster.create(resource, namespace, item);
    let created = match create().await {
        Err(cluster::Error::Unreachable(_) | cluster::Error::Timeout(_)) => create().await,
        made => made,
    };
    let created = match created {
        Err(error) if error.is_already_exists() => {
            let found = context.cluster.get(resource, namespace, name).await?;
            found.ok_or(error)?
        }
        made => made?,
    };
    let read = Snapshot::read(&created.item);
    read.map(|made| made.metadata.uid)
        .map_err(|error| cluster::Error::Unreadable(error.to_string()))
}

fn data_loss_message(record: &CsiSnapshotRecord, reason: &str) -> String {
    format!("the data of volume {} is not in the backup: {reason}", record.volume)
}

/// Records the facts about the snapshots of a block, when no pod is frozen any more. Failed ones are deleted, a group
/// once for all its claims.
pub(in crate::backup) async fn complete_snapshots(
    context: &Context,
    attempts: Vec<SnapshotAttempt>,
    sink: &Sink<'_>,
) {
    let attempts = with_members(context, attempts).await;
    let (failed, created): (Vec<_>, Vec<_>) =
        attempts.into_iter().partition(|one| one.record.failure.is_some());
    let to_discard: BTreeSet<Target> =
        failed.iter().filter_map(SnapshotAttempt::leftover).collect();
    let to_discard: Vec<Target> = to_discard.into_iter().collect();
    let mut all: Vec<BoxFuture<'_, ()>> = Vec::new();
    for one in created {
        all.push(complete_snapshot(context, one.record, sink).boxed());
    }
    let finishing =
        futures::stream::iter(all).buffer_unordered(MAX_CONCURRENT_REQUESTS).collect::<()>();
    let (undeleted, ()) = join(discard(context, &to_discard), finishing).await;
    for one in failed {
        finish_failed(context, one, &undeleted, sink);
    }
}

/// Deletes the objects of claims whose snapshots failed. Returns those that could not be deleted.
async fn discard(context: &Context, targets: &[Target]) -> Vec<Target> {
    let Some(api) = snapshot_api(context).filter(|_| !targets.is_empty()) else {
        return Vec::new();
    };
    let mut undeleted = Vec::new();
    for (target, reason) in retention::discard(&api, targets).await.undeleted {
        tracing::warn!("cannot delete {target} of a failed snapshot yet: {reason}");
        undeleted.push(target);
    }
    undeleted
}

/// The attempts, with the current state of the snapshots of groups. A group that lacks one is not kept: deleting it
/// requires naming all its snapshots to the driver, and the name of that one would be unknown.
async fn with_members(context: &Context, attempts: Vec<SnapshotAttempt>) -> Vec<SnapshotAttempt> {
    let mut groups: Vec<(CreatedGroup, Vec<SnapshotAttempt>)> = Vec::new();
    let mut all = Vec::new();
    for one in attempts {
        let Some(created_group) = one.created_group.clone() else {
            all.push(one);
            continue;
        };
        match groups.iter_mut().find(|(group, _)| *group == created_group) {
            Some((_, members)) => members.push(one),
            None => groups.push((created_group, vec![one])),
        }
    }
    let api = SnapshotResources::of(context);
    for (created_group, members) in groups {
        let claims = members.iter().map(|one| one.record.claim.clone()).collect();
        let found = match &api {
            Some(api) => group::find_members(context, api, &created_group, &claims).await,
            None => GroupMembers { error: Some(ApiMissing.to_string()), ..GroupMembers::default() },
        };
        let lacking = claims.iter().find(|claim| !found.of_claims.contains_key(*claim));
        for mut one in members {
            let record = &mut one.record;
            match (found.of_claims.get(&record.claim), lacking) {
                (Some((snapshot, created)), None) => {
                    record.name.clone_from(&snapshot.metadata.name);
                    created.copy_into(record);
                    record.name_operation();
                }
                (Some(_), Some(other)) => {
                    record.failure = Some(format!(
                        "the volume group has no snapshot of claim {other}, and Bowline keeps only \
                         complete groups"
                    ));
                }
                (None, _) => {
                    let reason =
                        found.error.as_deref().unwrap_or("the group does not contain the claim");
                    record.failure =
                        Some(format!("no VolumeSnapshot was created for the claim: {reason}"));
                }
            }
            all.push(one);
        }
    }
    all
}

/// Reports a failed snapshot. Deletion of its leftovers is retried at the end.
fn finish_failed(
    context: &Context,
    attempt: SnapshotAttempt,
    undeleted: &[Target],
    sink: &Sink<'_>,
) {
    let leftover = attempt.leftover().filter(|target| undeleted.contains(target));
    let mut record = attempt.record;
    let reason = record.failure.clone().unwrap_or_default();
    let text = format!("driver {} created no snapshot: {reason}", record.driver);
    sink.report(context).error(&record.claim_id(), data_loss_message(&record, &text));
    match leftover {
        // A deleted object has no names.
        None => record.clear_names(),
        Some(group) if group.is_group => {
            record.clear_names();
            record.left_group = group.name;
        }
        Some(_) => {}
    }
    let volume = record.volume.clone();
    sink.results(context).record_snapshot(&volume, SnapshotOutcome::CsiSnapshot(Box::new(record)));
}

async fn complete_snapshot(context: &Context, record: CsiSnapshotRecord, sink: &Sink<'_>) {
    let CsiSnapshotRecord { volume, name, driver, handle, .. } = &record;
    tracing::info!(volume, snapshot = name, driver, handle, "CSI snapshot created");
    if let Some(api) = SnapshotResources::of(context) {
        label_objects(context, &api, &record, sink).await;
        if let Some(Ok(classes)) = context.csi.classes.get()
            && let Some((_, class)) = classes.iter().find(|(class, _)| class.name == record.class)
        {
            sink.add_member(class.clone());
        }
    }
    context.csi.completed.add(record.clone());
    sink.results(context)
        .record_snapshot(&record.volume, SnapshotOutcome::CsiSnapshot(Box::new(record.clone())));
    failpoint::hit(Failpoint::CsiSnapshotRecorded);
}

/// Labels a VolumeSnapshot and its content as those of the backup. They need not be read again then; where that
/// fails, they are stored as they should be.
async fn label_objects(
    context: &Context,
    api: &SnapshotResources,
    record: &CsiSnapshotRecord,
    sink: &Sink<'_>,
) {
    let CsiSnapshotRecord { namespace, name, content, .. } = record;
    let (backup, uid) = (context.request.name.as_str(), context.request.uid.as_str());
    let labels = json!({ "metadata": { "labels": { label::BACKUP_NAME: label::value(backup) } } });
    // Members of a group have no labels of ours yet.
    let marks = json!({ "metadata": {
        "labels": { label::BACKUP_NAME: label::value(backup), label::BACKUP_UID: uid },
        "annotations": object::annotations(record),
    } });
    let labelled_content = patch_with_retry(context, &api.contents, ("", content), &labels);
    let labelled_snapshot = patch_with_retry(context, &api.snapshots, (namespace, name), &marks);
    let (labelled_content, labelled_snapshot) = join(labelled_content, labelled_snapshot).await;
    let (id, report) = (record.claim_id(), sink.report(context));
    match labelled_snapshot {
        Ok(object) => sink.add_member(object),
        // The labels identify the owner when the group is gone; a VolumeSnapshot created for the claim has them from
        // the start.
        Err(error) if !record.group_handle.is_empty() => {
            let text = format!(
                "VolumeSnapshot {name} cannot be labeled, so only its group identifies the \
                 backup: {error}"
            );
            report.error(&id, text);
        }
        Err(error) => {
            report.warn(&id, format!("VolumeSnapshot {name} cannot be labeled: {error}"));
        }
    }
    match labelled_content {
        Ok(object) => sink.add_member(object),
        Err(error) => {
            let text = format!("VolumeSnapshotContent {content} cannot be labeled: {error}");
            report.warn(&id, text);
        }
    }
}

/// Patches an object, with a few retries for transient errors.
async fn patch_with_retry(
    context: &Context,
    resource: &Arc<Resource>,
    (namespace, name): (&str, &str),
    change: &Value,
) -> Result<Object, cluster::Error> {
    let patch = || context.cluster.patch(resource, namespace, name, Subresource::None, change);
    patch
        .retry(LABEL_RETRIES)
        .when(|error| is_transient(error) && !context.is_aborted())
        .notify(|error, _| tracing::debug!(name, "retrying to label the object: {error}"))
        .await
}

/// True if the obstacle may pass without intervention.
fn is_transient(error: &cluster::Error) -> bool {
    match error {
        cluster::Error::Unreachable(_) | cluster::Error::Timeout(_) => true,
        cluster::Error::Refused { code, .. } => {
            *code >= 500 || error.is_throttled() || error.is_conflict()
        }
        _ => false,
    }
}
