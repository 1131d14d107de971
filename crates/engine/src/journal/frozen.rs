//! Which pods may be frozen, as the records of a journal say.
//!
//! In: the records, in order, also one at a time while the run goes on. Out: pods by the block that froze
//! them. Only a post-hook that has reached a pod, or the end of the pod, takes it off the list.

use std::collections::{BTreeMap, BTreeSet};

use super::{Pod, Record};

/// Pods that may be frozen, by block.
pub type Frozen = BTreeMap<u64, Vec<Pod>>;

/// Pods that may be frozen, and which blocks a process works on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrozenPods {
    pods: Frozen,
    /// Blocks that were begun by whoever writes the journal now, and that have not ended.
    open: BTreeSet<u64>,
}

impl FrozenPods {
    /// What records say that nobody works on any more.
    pub fn recover<'a>(records: impl IntoIterator<Item = &'a Record>) -> Self {
        let mut frozen = Self::default();
        for record in records {
            frozen.see(record);
        }
        frozen.open.clear();
        frozen
    }

    /// Takes note of a record.
    pub fn see(&mut self, record: &Record) {
        match record {
            Record::Begun(begun) if !begun.pods.is_empty() => {
                self.pods.insert(begun.block, begun.pods.clone());
                self.open.insert(begun.block);
            }
            Record::Ended(ended) => {
                self.open.remove(&ended.block);
                let begun = self.pods.remove(&ended.block).unwrap_or_default();
                // A block that has thawed a pod has thawed it for those that froze it before, too.
                for pod in begun {
                    if ended.frozen.iter().all(|left| left.uid != pod.uid) {
                        self.drop_pod(&pod.uid);
                    }
                }
                if !ended.frozen.is_empty() {
                    self.pods.insert(ended.block, ended.frozen.clone());
                }
            }
            Record::Thawed { block, .. } | Record::PostHooks { block, .. } => {
                self.open.remove(block);
                apply_thaw(&mut self.pods, record);
            }
            _ => {}
        }
    }

    /// All of them: for when no process works on the run.
    pub fn all(&self) -> Frozen {
        self.pods.clone()
    }

    /// Those that nobody is about to thaw, in a run that this process works on.
    pub fn left(&self) -> Frozen {
        let is_open = |block: &u64| self.open.contains(block);
        let held: BTreeSet<&str> = self
            .pods
            .iter()
            .filter(|(block, _)| is_open(block))
            .flat_map(|(_, pods)| pods.iter().map(|pod| pod.uid.as_str()))
            .collect();
        let mut left = Frozen::new();
        for (&block, pods) in self.pods.iter().filter(|(block, _)| !is_open(block)) {
            let pods = pods.iter().filter(|pod| !held.contains(pod.uid.as_str()));
            let pods: Vec<Pod> = pods.cloned().collect();
            if !pods.is_empty() {
                left.insert(block, pods);
            }
        }
        left
    }

    fn drop_pod(&mut self, uid: &str) {
        for pods in self.pods.values_mut() {
            pods.retain(|pod| pod.uid != uid);
        }
        self.pods.retain(|_, pods| !pods.is_empty());
    }
}

/// Takes pods off a list as a record says that post-hooks have been run. Other records change nothing.
pub fn apply_thaw(frozen: &mut Frozen, record: &Record) {
    match record {
        Record::Thawed { block, .. } => {
            frozen.remove(block);
        }
        Record::PostHooks { block, pod, ran, is_thawed, .. } => {
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
    use crate::journal::{Begun, Ended};

    fn pod(name: &str) -> Pod {
        Pod { name: name.into(), uid: format!("uid-{name}"), ..Pod::default() }
    }

    fn begun(block: u64, pods: &[&str]) -> Record {
        let pods = pods.iter().map(|name| pod(name)).collect();
        Record::Begun(Begun { block, pods, ..Begun::default() })
    }

    fn ended(block: u64, frozen: &[&str]) -> Record {
        let frozen = frozen.iter().map(|name| pod(name)).collect();
        Record::Ended(Box::new(Ended { block, frozen, ..Ended::default() }))
    }

    fn ran(block: u64, name: &str, ran: &[usize], is_thawed: bool) -> Record {
        let (pod, ran) = (format!("uid-{name}"), ran.to_vec());
        Record::PostHooks { block, pod, ran, is_thawed, errors: Vec::new() }
    }

    fn names(frozen: &Frozen) -> Vec<(u64, Vec<&str>)> {
        frozen
            .iter()
            .map(|(&block, pods)| (block, pods.iter().map(|pod| pod.name.as_str()).collect()))
            .collect()
    }

    #[test]
    fn pods_are_thawed_one_by_one() {
        let mut frozen = FrozenPods::recover(&[begun(0, &["a", "b"]), begun(1, &["c"])]);
        frozen.see(&ran(0, "b", &[], true));
        assert_eq!(names(&frozen.all()), [(0, vec!["a"]), (1, vec!["c"])]);
        frozen.see(&ran(0, "a", &[1], false));
        assert_eq!(frozen.all()[&0][0].ran, [1]);
        frozen.see(&ran(0, "a", &[], true));
        frozen.see(&Record::Thawed { block: 1, errors: Vec::new() });
        assert_eq!(frozen.all(), Frozen::new());
    }

    #[test]
    fn a_block_that_is_under_way_keeps_its_pods_to_itself() {
        let mut frozen = FrozenPods::recover(&[begun(0, &["a", "b"])]);
        assert_eq!(names(&frozen.left()), [(0, vec!["a", "b"])]);
        frozen.see(&begun(1, &["a"]));
        assert_eq!(names(&frozen.left()), [(0, vec!["b"])], "its application is frozen on purpose");
        assert_eq!(names(&frozen.all()), [(0, vec!["a", "b"]), (1, vec!["a"])]);
        frozen.see(&ended(1, &[]));
        assert_eq!(names(&frozen.all()), [(0, vec!["b"])], "its post-hooks have been run since");
    }

    #[test]
    fn a_pod_that_a_block_could_not_thaw_is_left_for_others_at_once() {
        let mut frozen = FrozenPods::default();
        frozen.see(&begun(0, &["a", "b"]));
        assert_eq!(frozen.left(), Frozen::new());
        frozen.see(&ended(0, &["b"]));
        assert_eq!(names(&frozen.left()), [(0, vec!["b"])]);
    }
}
