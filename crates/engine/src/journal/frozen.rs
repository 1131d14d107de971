//! Pods that may be frozen, as recorded in a journal.
//!
//! Input: the entries, in order, also one at a time while the run is in progress. Output: pods by the block that
//! froze them. Only a post-hook that has reached a pod, or the end of the pod, removes it from the list.

use std::collections::{BTreeMap, BTreeSet};

use super::{JournalEntry, Pod};

/// Pods that may be frozen, by block.
pub type FrozenByBlock = BTreeMap<u64, Vec<Pod>>;

/// Pods that may be frozen, and the blocks that a process is working on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrozenPods {
    pods: FrozenByBlock,
    /// Blocks that the current writer of the journal has started and that have not ended.
    open: BTreeSet<u64>,
}

impl FrozenPods {
    /// State from the entries of a run that no process is working on.
    pub fn recover<'a>(records: impl IntoIterator<Item = &'a JournalEntry>) -> Self {
        let mut frozen = Self::default();
        for record in records {
            frozen.apply(record);
        }
        frozen.open.clear();
        frozen
    }

    /// Applies a journal entry.
    pub fn apply(&mut self, record: &JournalEntry) {
        match record {
            JournalEntry::BlockStarted(started) if !started.pods.is_empty() => {
                self.pods.insert(started.block, started.pods.clone());
                self.open.insert(started.block);
            }
            JournalEntry::BlockEnded(ended) => {
                self.open.remove(&ended.block);
                let frozen_at_start = self.pods.remove(&ended.block).unwrap_or_default();
                // A block that has thawed a pod has thawed it for the blocks that froze it before, too.
                for pod in frozen_at_start {
                    if ended.frozen.iter().all(|still_frozen| still_frozen.uid != pod.uid) {
                        self.drop_pod(&pod.uid);
                    }
                }
                if !ended.frozen.is_empty() {
                    self.pods.insert(ended.block, ended.frozen.clone());
                }
            }
            JournalEntry::Thawed { block, .. } | JournalEntry::PostHooks { block, .. } => {
                self.open.remove(block);
                apply_thaw(&mut self.pods, record);
            }
            _ => {}
        }
    }

    /// All such pods: for a run that no process is working on.
    pub fn all(&self) -> FrozenByBlock {
        self.pods.clone()
    }

    /// Pods that no block is about to thaw, in a run that this process is working on.
    pub fn unattended(&self) -> FrozenByBlock {
        let is_open = |block: &u64| self.open.contains(block);
        let open_uids: BTreeSet<&str> = self
            .pods
            .iter()
            .filter(|(block, _)| is_open(block))
            .flat_map(|(_, pods)| pods.iter().map(|pod| pod.uid.as_str()))
            .collect();
        let mut unattended = FrozenByBlock::new();
        for (&block, pods) in self.pods.iter().filter(|(block, _)| !is_open(block)) {
            let pods = pods.iter().filter(|pod| !open_uids.contains(pod.uid.as_str()));
            let pods: Vec<Pod> = pods.cloned().collect();
            if !pods.is_empty() {
                unattended.insert(block, pods);
            }
        }
        unattended
    }

    fn drop_pod(&mut self, uid: &str) {
        for pods in self.pods.values_mut() {
            pods.retain(|pod| pod.uid != uid);
        }
        self.pods.retain(|_, pods| !pods.is_empty());
    }
}

/// Removes pods from a list if an entry says that their post-hooks have run. Other entries change nothing.
pub fn apply_thaw(frozen: &mut FrozenByBlock, record: &JournalEntry) {
    match record {
        JournalEntry::Thawed { block, .. } => {
            frozen.remove(block);
        }
        JournalEntry::PostHooks { block, pod, ran, is_thawed, .. } => {
            let Some(pods) = frozen.get_mut(block) else { return };
            if *is_thawed {
                pods.retain(|one| one.uid != *pod);
            } else if let Some(one) = pods.iter_mut().find(|one| one.uid == *pod) {
                one.ran.clone_from(ran);
            }
            if pods.is_empty() {
                frozen.remove(block);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{BlockEnded, BlockStarted};

    fn pod(name: &str) -> Pod {
        Pod { name: name.into(), uid: format!("uid-{name}"), ..Pod::default() }
    }

    fn block_started(block: u64, pods: &[&str]) -> JournalEntry {
        let pods = pods.iter().map(|name| pod(name)).collect();
        JournalEntry::BlockStarted(BlockStarted { block, pods, ..BlockStarted::default() })
    }

    fn block_ended(block: u64, frozen: &[&str]) -> JournalEntry {
        let frozen = frozen.iter().map(|name| pod(name)).collect();
        JournalEntry::BlockEnded(Box::new(BlockEnded { block, frozen, ..BlockEnded::default() }))
    }

    fn post_hooks(block: u64, name: &str, ran: &[usize], is_thawed: bool) -> JournalEntry {
        let (pod, ran) = (format!("uid-{name}"), ran.to_vec());
        JournalEntry::PostHooks { block, pod, ran, is_thawed, errors: Vec::new() }
    }

    fn names(frozen: &FrozenByBlock) -> Vec<(u64, Vec<&str>)> {
        frozen
            .iter()
            .map(|(&block, pods)| (block, pods.iter().map(|pod| pod.name.as_str()).collect()))
            .collect()
    }

    #[test]
    fn pods_are_thawed_one_by_one() {
        let mut frozen =
            FrozenPods::recover(&[block_started(0, &["a", "b"]), block_started(1, &["c"])]);
        frozen.apply(&post_hooks(0, "b", &[], true));
        assert_eq!(names(&frozen.all()), [(0, vec!["a"]), (1, vec!["c"])]);
        frozen.apply(&post_hooks(0, "a", &[1], false));
        assert_eq!(frozen.all()[&0][0].ran, [1]);
        frozen.apply(&post_hooks(0, "a", &[], true));
        frozen.apply(&JournalEntry::Thawed { block: 1, errors: Vec::new() });
        assert_eq!(frozen.all(), FrozenByBlock::new());
    }

    #[test]
    fn pods_of_an_open_block_are_not_unattended() {
        let mut frozen = FrozenPods::recover(&[block_started(0, &["a", "b"])]);
        assert_eq!(names(&frozen.unattended()), [(0, vec!["a", "b"])]);
        frozen.apply(&block_started(1, &["a"]));
        assert_eq!(
            names(&frozen.unattended()),
            [(0, vec!["b"])],
            "its application is frozen on purpose"
        );
        assert_eq!(names(&frozen.all()), [(0, vec!["a", "b"]), (1, vec!["a"])]);
        frozen.apply(&block_ended(1, &[]));
        assert_eq!(names(&frozen.all()), [(0, vec!["b"])], "its post-hooks have been run since");
    }

    #[test]
    fn pod_that_its_block_could_not_thaw_is_unattended_at_once() {
        let mut frozen = FrozenPods::default();
        frozen.apply(&block_started(0, &["a", "b"]));
        assert_eq!(frozen.unattended(), FrozenByBlock::new());
        frozen.apply(&block_ended(0, &["b"]));
        assert_eq!(names(&frozen.unattended()), [(0, vec!["b"])]);
    }
}
