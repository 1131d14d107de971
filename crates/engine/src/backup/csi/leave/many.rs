//! All snapshots of a backup, several at a time.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};

use super::{Gone, Held, Left, Reach, Target, Unkept};
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
    // Its members stay with it: the controller would not let them go before it.
    let mut staying = Vec::new();
    for group in groups {
        if let Err(reason) = reach.release_group(&group, &left).await {
            staying.push((group, reason));
        }
    }
    let stays = |target: &Target, held: &Held| {
        let is_it = |group: &Target| {
            group.namespace == target.namespace && held.snapshot.group() == Some(&group.name)
        };
        staying.iter().any(|(group, _)| is_it(group))
    };
    kept.retain(|(target, held)| !stays(target, held));
    let mut all = Vec::new();
    for (target, held) in &kept {
        all.push(named(target, reach.let_go(held).boxed()));
    }
    for (target, let_go) in side_by_side(all).await {
        left.extend(let_go.err().map(|reason| (target, reason)));
    }
    left.extend(staying);
    left
}

/// What came of snapshots that were to be deleted. Those that are in neither list are deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// Those that could not be deleted, with the reason.
    pub left: Vec<(Target, String)>,
    /// Those of which nothing was there by which they could be deleted, with what is missing. Their drivers
    /// may have them all the same.
    pub unseen: Vec<(Target, String)>,
}

impl Discarded {
    fn note(&mut self, target: Target, gone: Result<Gone, String>) {
        match gone {
            Ok(Gone::Deleted) => {}
            Ok(Gone::NotSeen(missing)) => self.unseen.push((target, missing.to_owned())),
            Err(reason) => self.left.push((target, reason)),
        }
    }
}

/// Deletes snapshots, at their drivers too.
pub async fn discard(reach: &Reach<'_>, targets: &[Target]) -> Discarded {
    let (mut alone, mut grouped) = (Vec::new(), BTreeMap::new());
    let mut discarded = Discarded::default();
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
            Ok(None) => {
                discarded
                    .note(target.clone(), Ok(Gone::NotSeen("its VolumeSnapshot is not there")));
            }
            Err(error) => discarded.note(target.clone(), Err(error.to_string())),
        }
    }
    let mut all = Vec::new();
    for (target, snapshot) in &alone {
        all.push(named(target, reach.discard(snapshot).boxed()));
    }
    for (group, (wanted, _)) in &grouped {
        all.push(named(group, reach.discard_group(group, *wanted).boxed()));
    }
    for (target, gone) in side_by_side(all).await {
        match grouped.get(&target) {
            // It is told of each.
            Some((_, members)) if !members.is_empty() => {
                for member in members {
                    discarded.note(member.clone(), gone.clone());
                }
            }
            _ => discarded.note(target, gone),
        }
    }
    discarded
}

/// The same; what could not be deleted is told.
pub async fn discard_or_tell(reach: &Reach<'_>, targets: &[Target], report: &Report) -> Left {
    let Discarded { left, unseen } = discard(reach, targets).await;
    for (target, reason) in &left {
        let text = format!("the snapshot could not be deleted, and is left over: {reason}");
        report.error(&target.id(), text);
    }
    for (target, missing) in &unseen {
        let text = format!(
            "there was nothing by which its snapshot could be deleted: {missing}; if the driver has one, \
             that is left over"
        );
        report.warning(&target.id(), text);
    }
    let targets = |all: Vec<(Target, String)>| all.into_iter().map(|(target, _)| target).collect();
    Left::new(targets(left), targets(unseen))
}

type Ended<T> = (Target, Result<T, String>);

fn named<'a, T: Send + 'a>(
    target: &'a Target,
    work: BoxFuture<'a, Result<T, String>>,
) -> BoxFuture<'a, Ended<T>> {
    async move { (target.clone(), work.await) }.boxed()
}

async fn side_by_side<T: Send>(all: Vec<BoxFuture<'_, Ended<T>>>) -> Vec<Ended<T>> {
    futures::stream::iter(all).buffer_unordered(AT_ONCE).collect().await
}
