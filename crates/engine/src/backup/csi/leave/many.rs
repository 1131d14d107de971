//! All snapshots of a backup, several at a time.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};

use super::{Reach, Target, Unkept};
use crate::report::Report;

/// How many snapshots are seen to at a time.
const AT_ONCE: usize = 16;

/// Sees to it that snapshots outlive their objects. What cannot be is told: such a snapshot would be lost
/// with its VolumeSnapshot. Returns those that are lost already, with the reason.
pub async fn retain(
    reach: &Reach<'_>,
    targets: &[Target],
    report: &Report,
) -> Vec<(Target, String)> {
    let mut all = Vec::new();
    for target in targets {
        all.push(async move { (target, reach.retain(target).await) }.boxed());
    }
    let mut all = futures::stream::iter(all).buffer_unordered(AT_ONCE);
    let mut lost = Vec::new();
    while let Some((target, kept)) = all.next().await {
        match kept {
            Ok(()) => {}
            Err(Unkept::Lost(reason)) => lost.push((target.clone(), reason)),
            Err(Unkept::AtRisk(reason)) => {
                let text = format!("the snapshot may go when its VolumeSnapshot does: {reason}");
                report.error(&target.id(), text);
            }
        }
    }
    lost
}

/// Removes the objects of snapshots that are kept. Returns those that it could not, with the reason.
pub async fn release(reach: &Reach<'_>, targets: &[Target]) -> Vec<(Target, String)> {
    let mut reads = Vec::new();
    for target in targets {
        reads.push(async move { (target, reach.hold(target).await) }.boxed());
    }
    let mut reads = futures::stream::iter(reads).buffer_unordered(AT_ONCE);
    let (mut kept, mut groups, mut left) = (Vec::new(), BTreeSet::new(), Vec::new());
    while let Some((target, read)) = reads.next().await {
        match read {
            Ok(Some(held)) => {
                if let Some(group) = held.snapshot.group() {
                    let (namespace, name) = (target.namespace.clone(), group.to_owned());
                    groups.insert(Target { namespace, name, is_group: true });
                }
                kept.push((target, held));
            }
            Ok(None) => {}
            Err(reason) => left.push((target.clone(), reason)),
        }
    }
    // A group deletes its VolumeSnapshots; that harms nobody when all of them are held.
    if left.is_empty() {
        for group in &groups {
            if let Err(reason) = reach.remove_group(group, "Retain").await {
                left.push((group.clone(), reason));
            }
        }
    }
    let mut all = Vec::new();
    for (target, held) in &kept {
        all.push(named(target, reach.let_go(held).boxed()));
    }
    left.extend(side_by_side(all).await);
    left
}

/// Deletes snapshots, at their drivers too. Returns those that it could not, with the reason.
pub async fn discard(reach: &Reach<'_>, targets: &[Target]) -> Vec<(Target, String)> {
    let (mut alone, mut grouped, mut left) = (Vec::new(), BTreeMap::new(), Vec::new());
    let (groups, snapshots): (Vec<_>, Vec<_>) = targets.iter().partition(|one| one.is_group);
    for group in groups {
        grouped.insert(group.clone(), (None, Vec::new()));
    }
    let mut reads = Vec::new();
    for target in snapshots {
        reads.push(async move { (target, reach.snapshot(target).await) }.boxed());
    }
    // All of them first: a group takes its VolumeSnapshots with it.
    let mut reads = futures::stream::iter(reads).buffer_unordered(AT_ONCE);
    while let Some((target, read)) = reads.next().await {
        match read {
            Ok(Some(snapshot)) => match snapshot.group().map(str::to_owned) {
                Some(name) => {
                    let group = Target { name, is_group: true, ..target.clone() };
                    let wanted = || (Some(targets), Vec::new());
                    grouped.entry(group).or_insert_with(wanted).1.push(target.clone());
                }
                None => alone.push((target, snapshot)),
            },
            Ok(None) => {}
            Err(error) => left.push((target.clone(), error.to_string())),
        }
    }
    let mut all = Vec::new();
    for (target, snapshot) in &alone {
        all.push(named(target, reach.discard(snapshot).boxed()));
    }
    for (group, (wanted, _)) in &grouped {
        all.push(named(group, reach.discard_group(group, *wanted).boxed()));
    }
    for (target, reason) in side_by_side(all).await {
        match grouped.get(&target) {
            // It is told of each.
            Some((_, members)) if !members.is_empty() => {
                left.extend(members.iter().map(|member| (member.clone(), reason.clone())));
            }
            _ => left.push((target, reason)),
        }
    }
    left
}

/// The same; what could not be deleted is told.
pub async fn discard_or_tell(
    reach: &Reach<'_>,
    targets: &[Target],
    report: &Report,
) -> Vec<Target> {
    let left = discard(reach, targets).await;
    for (target, reason) in &left {
        let text = format!("the snapshot could not be deleted, and is left over: {reason}");
        report.error(&target.id(), text);
    }
    left.into_iter().map(|(target, _)| target).collect()
}

type Failure = Option<(Target, String)>;

fn named<'a>(
    target: &'a Target,
    work: BoxFuture<'a, Result<(), String>>,
) -> BoxFuture<'a, Failure> {
    async move { work.await.err().map(|reason| (target.clone(), reason)) }.boxed()
}

async fn side_by_side(all: Vec<BoxFuture<'_, Failure>>) -> Vec<(Target, String)> {
    let left: Vec<_> = futures::stream::iter(all).buffer_unordered(AT_ONCE).collect().await;
    left.into_iter().flatten().collect()
}
