//! Compact keys of items, for sets of all items of a run: with 300,000 items, such a set is the largest thing in memory
//! that grows with them.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;

use bowline_plugin::ResourceIdentifier;

/// Hash of an item. With 96 bits, the probability that two of ten million items share one is less than one in 10^15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ItemHash([u32; 3]);

/// Makes the hashes of a run. Its keys are random, so that nobody who names items can construct two with one hash.
#[derive(Debug, Default)]
pub(crate) struct ItemHasher(RandomState, RandomState);

impl ItemHasher {
    #[expect(clippy::cast_possible_truncation, reason = "each word has its part of the bits")]
    pub(crate) fn hash(&self, id: &ResourceIdentifier) -> ItemHash {
        let [first, second] = [&self.0, &self.1].map(|key| key.hash_one(id));
        ItemHash([(first >> 32) as u32, first as u32, second as u32])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Four bytes more for each item would be a megabyte or two with 300,000.
    #[test]
    fn key_of_an_item_takes_twelve_bytes() {
        assert_eq!(std::mem::size_of::<ItemHash>(), 12);
        assert_eq!(std::mem::align_of::<ItemHash>(), 4, "nothing is lost to padding");
    }

    #[test]
    fn each_part_of_a_name_counts() {
        let id = |group: &str, resource: &str, namespace: &str, name: &str| ResourceIdentifier {
            group: group.into(),
            resource: resource.into(),
            namespace: namespace.into(),
            name: name.into(),
        };
        let all = [
            id("", "", "", "a"),
            id("", "", "a", ""),
            id("", "a", "", ""),
            id("a", "", "", ""),
            id("", "", "a", "b"),
            id("", "", "ab", ""),
        ];
        let hasher = ItemHasher::default();
        let hashes: HashSet<ItemHash> = all.iter().map(|id| hasher.hash(id)).collect();
        assert_eq!(hashes.len(), all.len());
        assert!(all.iter().all(|id| hashes.contains(&hasher.hash(id))));
    }
}
