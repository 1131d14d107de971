//! Retention of all snapshots of a backup, several at a time.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};

use super::{
    DiscardOutcome, Leftovers, RetainError, RetainedSnapshot, RetentionError, SnapshotApi, Target,
};
use crate::report::Report;

/// Number of snapshots processed concurrently.
const MAX_CONCURRENT_REQUESTS: usize = 16;

/// Makes snapshots outlive their objects. Failures are reported: such a snapshot would be lost with its
/// VolumeSnapshot. Returns those that are lost already, with the reason.
pub async fn retain(
    api: &SnapshotApi<'_>,
    targets: &[Target],
    report: &Report,
) -> Vec<(Target, String)> {
    let mut all = Vec::new();
    for target in targets {
        all.push(async move { (target, api.retain(target).await) }.boxed());
    }
    let mut all = futures::stream::iter(all).buffer_unordered(MAX_CONCURRENT_REQUESTS);
    let mut lost = Vec::new();
    while let Some((target, retained)) = all.next().await {
        match retained {
            Ok(()) => {}
            Err(RetainError::Lost(reason)) => lost.push((target.clone(), reason.to_owned())),
            Err(RetainError::AtRisk(reason)) => {
                let text = format!(
                    "the CSI snapshot may be deleted together with its VolumeSnapshot: {reason}"
                );
                report.error(&target.id(), text);
            }
        }
    }
    lost
}

/// Removes the objects of retained snapshots. Returns those that could not be removed, with the reason.
pub async fn release(api: &SnapshotApi<'_>, targets: &[Target]) -> Vec<(Target, String)> {
    let mut reads = Vec::new();
    for target in targets {
        reads.push(async move { (target, api.retain_objects(target).await) }.boxed());
    }
    let mut reads = futures::stream::iter(reads).buffer_unordered(MAX_CONCURRENT_REQUESTS);
    let (mut retained, mut groups, mut undeleted) = (Vec::new(), BTreeSet::new(), Vec::new());
    while let Some((target, read)) = reads.next().await {
        match read {
            Ok(Some(objects)) => {
                if let Some(group) = objects.snapshot.group() {
                    let (namespace, name) = (target.namespace.clone(), group.to_owned());
                    groups.insert(Target { namespace, name, is_group: true });
                }
                retained.push((target, objects));
            }
            Ok(None) => {}
            Err(error) => undeleted.push((target.clone(), error.to_string())),
        }
    }
    // The members of a group stay with it: the controller would not release them before the group.
    let mut kept_groups = Vec::new();
    for group in groups {
        if let Err(error) = api.release_group(&group, &undeleted).await {
            kept_groups.push((group, error.to_string()));
        }
    }
    let is_in_kept_group = |target: &Target, objects: &RetainedSnapshot| {
        let matches_group = |group: &Target| {
            group.namespace == target.namespace && objects.snapshot.group() == Some(&group.name)
        };
        kept_groups.iter().any(|(group, _)| matches_group(group))
    };
    retained.retain(|(target, objects)| !is_in_kept_group(target, objects));
    let mut all = Vec::new();
    for (target, objects) in &retained {
        all.push(with_target(target, api.delete_objects(objects).boxed()));
    }
    for (target, deleted) in run_concurrently(all).await {
        undeleted.extend(deleted.err().map(|error| (target, error.to_string())));
    }
    undeleted.extend(kept_groups);
    undeleted
}

/// Outcome of deleting snapshots. Those that are in neither list are deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscardResult {
    /// Snapshots that could not be deleted, with the reason.
    pub undeleted: Vec<(Target, String)>,
    /// Snapshots without any object by which they could be deleted, with what is missing. Their drivers may still
    /// have them.
    pub not_found: Vec<(Target, String)>,
}

impl DiscardResult {
    fn record(&mut self, target: Target, outcome: &Result<DiscardOutcome, RetentionError>) {
        match outcome {
            Ok(DiscardOutcome::Deleted) => {}
            Ok(DiscardOutcome::NotFound(missing)) => {
                self.not_found.push((target, (*missing).to_owned()));
            }
            Err(error) => self.undeleted.push((target, error.to_string())),
        }
    }
}

/// Deletes snapshots, at their drivers too.
pub async fn discard(api: &SnapshotApi<'_>, targets: &[Target]) -> DiscardResult {
    let (mut ungrouped, mut grouped) = (Vec::new(), BTreeMap::new());
    let mut discarded = DiscardResult::default();
    let (groups, snapshots): (Vec<_>, Vec<_>) = targets.iter().partition(|one| one.is_group);
    for group in groups {
        grouped.insert(group.clone(), (None, Vec::new()));
    }
    let mut reads = Vec::new();
    for target in snapshots {
        reads.push(async move { (target, api.snapshot(target).await) }.boxed());
    }
    // All reads come first: deleting a group deletes its VolumeSnapshots.
    let mut reads = futures::stream::iter(reads).buffer_unordered(MAX_CONCURRENT_REQUESTS);
    while let Some((target, read)) = reads.next().await {
        match read {
            Ok(Some(snapshot)) => match snapshot.group().map(str::to_owned) {
                Some(name) => {
                    let group = Target { name, is_group: true, ..target.clone() };
                    let wanted = || (Some(targets), Vec::new());
                    grouped.entry(group).or_insert_with(wanted).1.push(target.clone());
                }
                None => ungrouped.push((target, snapshot)),
            },
            Ok(None) => {
                discarded.record(
                    target.clone(),
                    &Ok(DiscardOutcome::NotFound("the VolumeSnapshot does not exist")),
                );
            }
            Err(error) => discarded.record(target.clone(), &Err(error.into())),
        }
    }
    let mut all = Vec::new();
    for (target, snapshot) in &ungrouped {
        all.push(with_target(target, api.discard(snapshot).boxed()));
    }
    for (group, (wanted, _)) in &grouped {
        all.push(with_target(group, api.discard_group(group, *wanted).boxed()));
    }
    for (target, outcome) in run_concurrently(all).await {
        match grouped.get(&target) {
            // The failure is reported for each member.
            Some((_, members)) if !members.is_empty() => {
                for member in members {
                    discarded.record(member.clone(), &outcome);
                }
            }
            _ => discarded.record(target, &outcome),
        }
    }
    discarded
}

/// [`discard`], which also reports the snapshots that could not be deleted.
pub async fn discard_and_report(
    api: &SnapshotApi<'_>,
    targets: &[Target],
    report: &Report,
) -> Leftovers {
    let DiscardResult { undeleted, not_found } = discard(api, targets).await;
    for (target, reason) in &undeleted {
        let text = format!("the CSI snapshot could not be deleted and is left over: {reason}");
        report.error(&target.id(), text);
    }
    for (target, missing) in &not_found {
        let text = format!(
            "the CSI snapshot could not be deleted: {missing}; the snapshot may remain in storage"
        );
        report.warn(&target.id(), text);
    }
    let targets = |all: Vec<(Target, String)>| all.into_iter().map(|(target, _)| target).collect();
    Leftovers::new(targets(undeleted), targets(not_found))
}

type TargetResult<T, E> = (Target, Result<T, E>);

fn with_target<'a, T: Send + 'a, E: Send + 'a>(
    target: &'a Target,
    work: BoxFuture<'a, Result<T, E>>,
) -> BoxFuture<'a, TargetResult<T, E>> {
    async move { (target.clone(), work.await) }.boxed()
}

async fn run_concurrently<T: Send, E: Send>(
    all: Vec<BoxFuture<'_, TargetResult<T, E>>>,
) -> Vec<TargetResult<T, E>> {
    futures::stream::iter(all).buffer_unordered(MAX_CONCURRENT_REQUESTS).collect().await
}
