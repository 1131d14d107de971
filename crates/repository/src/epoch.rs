//! Epochs: which index blobs together are complete.
//!
//! Writers add uncompacted blobs (`xn`) to the current epoch. Maintenance begins epochs (`xe`), merges the blobs of an
//! old one into one (`xs`), and many epochs into a range (`xr`); it lets deletions take effect (`xw`). Blobs that were
//! merged stay for hours, so that a listing contains more than is needed, and never less.

use std::collections::BTreeMap;

use crate::id::BlobId;

/// Prefix of all blobs of this module.
pub const PREFIX: &str = "x";

/// Prefix of the blobs that name the current epoch.
pub const MARKER_PREFIX: &str = "xe";

/// Epochs before the current one that writers may still write to.
const UNSETTLED_EPOCHS: u64 = 2;

/// The blobs that describe the contents of a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Epochs {
    /// The epoch that writers write to.
    pub write_epoch: u64,
    /// Deletions up to this second since 1970 have taken effect.
    pub deletion_watermark: i64,
    /// Index blobs to read.
    pub index_blobs: Vec<BlobId>,
}

/// What a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EpochBlob {
    /// `xe<n>`: epoch n has begun.
    Marker(u64),
    /// `xn<n>_…`: indexes of one flush in epoch n.
    Uncompacted(u64),
    /// `xs<n>_…`: all indexes of epoch n.
    Compacted(u64),
    /// `xr<a>_<b>_…`: all indexes of the epochs from a to b.
    Range(u64, u64),
    /// `xw<seconds>`: deletions up to then take effect.
    Watermark(i64),
}

impl EpochBlob {
    /// `None` for names that kopia ignores too.
    fn parse(name: &str) -> Option<Self> {
        let (kind, rest) = name.strip_prefix(PREFIX)?.split_at_checked(1)?;
        let mut parts = rest.split('_');
        let first = parts.next()?;
        let epoch = || first.parse().ok();
        match kind {
            "e" => epoch().map(Self::Marker),
            "n" => epoch().map(Self::Uncompacted),
            "s" => epoch().map(Self::Compacted),
            "r" => {
                let last = parts.next()?.parse().ok()?;
                // The hash follows.
                parts.next()?;
                epoch().filter(|&epoch| epoch <= last).map(|epoch| Self::Range(epoch, last))
            }
            "w" => first.parse().ok().map(Self::Watermark),
            _ => None,
        }
    }
}

/// Start of the name of an index blob that is written to an epoch.
pub fn uncompacted_prefix(epoch: u64) -> String {
    format!("{PREFIX}n{epoch}_")
}

/// True if an index that was written to `epoch` counts while `write_epoch` is the current one: maintenance has not
/// merged the epoch without it.
pub fn is_unsettled(epoch: u64, write_epoch: u64) -> bool {
    write_epoch < epoch.saturating_add(UNSETTLED_EPOCHS)
}

/// Selects the blobs to read from a listing of all blobs with [`PREFIX`].
pub fn select(listing: impl IntoIterator<Item = BlobId>) -> Epochs {
    let mut epochs = Epochs::default();
    let mut uncompacted = BTreeMap::<u64, Vec<BlobId>>::new();
    let mut compacted = BTreeMap::<u64, Vec<BlobId>>::new();
    let mut ranges = BTreeMap::<(u64, u64), Vec<BlobId>>::new();
    for blob in listing {
        match EpochBlob::parse(blob.as_str()) {
            Some(EpochBlob::Marker(epoch)) => epochs.write_epoch = epochs.write_epoch.max(epoch),
            Some(EpochBlob::Uncompacted(epoch)) => {
                uncompacted.entry(epoch).or_default().push(blob);
            }
            Some(EpochBlob::Compacted(epoch)) => compacted.entry(epoch).or_default().push(blob),
            Some(EpochBlob::Range(first, last)) => {
                ranges.entry((first, last)).or_default().push(blob);
            }
            Some(EpochBlob::Watermark(second)) => {
                epochs.deletion_watermark = epochs.deletion_watermark.max(second);
            }
            None => {}
        }
    }
    let ranges = ranges
        .into_iter()
        .filter_map(|(range, blobs)| Some((range, first_complete_set(blobs)?)))
        .collect();
    let mut next = 0;
    for ((_, last), blobs) in longest_chain(&ranges) {
        epochs.index_blobs.extend(blobs.iter().cloned());
        next = last.saturating_add(1);
    }
    let settled_below = epochs.write_epoch.saturating_add(1).saturating_sub(UNSETTLED_EPOCHS);
    for (epoch, blobs) in compacted {
        if epoch >= next
            && epoch < settled_below
            && let Some(set) = first_complete_set(blobs)
        {
            epochs.index_blobs.extend(set);
            uncompacted.remove(&epoch);
        }
    }
    // A writer that saw a newer marker may be one epoch ahead.
    let last = epochs.write_epoch.saturating_add(1);
    if next <= last {
        epochs
            .index_blobs
            .extend(uncompacted.range(next..=last).flat_map(|(_, blobs)| blobs.clone()));
    }
    epochs
}

/// The ranges that join from epoch 0 on as far as possible; of several such chains one with the fewest parts.
fn longest_chain(ranges: &BTreeMap<(u64, u64), Vec<BlobId>>) -> Vec<((u64, u64), &Vec<BlobId>)> {
    // For each first epoch the best chain from there: its last epoch, number of parts, and the end of its first part.
    let mut best = BTreeMap::<u64, (u64, usize, u64)>::new();
    for &(first, last) in ranges.keys().rev() {
        let (end, parts) = last
            .checked_add(1)
            .and_then(|next| best.get(&next))
            .map_or((last, 1), |(end, parts, _)| (*end, parts + 1));
        let other = best.get(&first);
        if other.is_none_or(|(other_end, other_parts, _)| {
            end > *other_end || end == *other_end && parts < *other_parts
        }) {
            best.insert(first, (end, parts, last));
        }
    }
    let mut chain = Vec::new();
    let mut first = 0;
    while let Some(&(_, _, last)) = best.get(&first) {
        if let Some(blobs) = ranges.get(&(first, last)) {
            chain.push(((first, last), blobs));
        }
        let Some(next) = last.checked_add(1) else { break };
        first = next;
    }
    chain
}

/// The first set that is complete: blobs are named `…-s<session>-c<count>`, and count of them have the same session. A
/// blob with another name is a set of its own.
fn first_complete_set(mut blobs: Vec<BlobId>) -> Option<Vec<BlobId>> {
    blobs.sort();
    let mut sets = BTreeMap::<String, Vec<BlobId>>::new();
    for blob in blobs {
        let mut parts = blob.as_str().split('-').skip(1);
        let session = parts.next().filter(|session| session.starts_with('s'));
        let count = parts.next().and_then(|count| count.strip_prefix('c')?.parse::<usize>().ok());
        let (Some(session), Some(count)) = (session.map(str::to_owned), count) else {
            return Some(vec![blob]);
        };
        let set = sets.entry(session).or_default();
        set.push(blob);
        if set.len() == count {
            return Some(std::mem::take(set));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "00112233445566778899aabbccddeeff";

    fn name(short: &str) -> BlobId {
        // `xn0-s1-c1` stands for `xn0_<hash>-s1-c1`.
        short.replacen('-', &format!("_{HASH}-"), 1).parse().unwrap()
    }

    /// The names that are selected from these, in the short form.
    fn selected(names: &[&str]) -> (u64, Vec<String>) {
        let epochs = select(names.iter().map(|short| name(short)));
        let short = |blob: BlobId| blob.as_str().replacen(&format!("_{HASH}"), "", 1);
        (epochs.write_epoch, epochs.index_blobs.into_iter().map(short).collect())
    }

    #[test]
    fn repository_without_markers_is_in_epoch_0() {
        assert_eq!(selected(&[]), (0, vec![]));
        let names = ["xn0-s1-c1", "xn0-s2-c1", "xn1-s3-c1", "xn2-s4-c1"];
        assert_eq!(selected(&names), (0, names[..3].iter().map(ToString::to_string).collect()));
    }

    #[test]
    fn compacted_epoch_counts_once_it_is_settled() {
        let names = ["xn0-s1-c1", "xs0-s9-c1", "xn1-s2-c1", "xe1"];
        assert_eq!(selected(&names).1, ["xn0-s1-c1", "xn1-s2-c1"]);
        let names = ["xn0-s1-c1", "xs0-s9-c1", "xn1-s2-c1", "xe1", "xe2"];
        assert_eq!(selected(&names), (2, vec!["xs0-s9-c1".into(), "xn1-s2-c1".into()]));
    }

    #[test]
    fn incomplete_set_does_not_count() {
        let incomplete = ["xe2", "xn0-s1-c1", "xs0-s9-c2"];
        assert_eq!(selected(&incomplete).1, ["xn0-s1-c1"]);
        let complete = ["xe2", "xn0-s1-c1", "xs0a-s8-c2", "xs0-s9-c2", "xs0-s9-c2b"];
        assert_eq!(selected(&complete[..4]).1, ["xn0-s1-c1"], "of two sessions, one each");
        let first = format!("xs0_1{}-s9-c2", &HASH[1..]);
        let second = format!("xs0_2{}-s9-c2", &HASH[1..]);
        let blobs = [first.as_str(), &second].map(|name| name.parse().unwrap());
        let epochs = select(blobs.iter().cloned().chain([name("xe2"), name("xn0-s1-c1")]));
        assert_eq!(epochs.index_blobs, blobs);
    }

    #[test]
    fn ranges_join_from_epoch_0_as_far_as_they_reach() {
        let names = [
            "xe20",
            "xr0_3-s1-c1",
            "xr0_7-s2-c1",
            "xr4_9-s3-c1",
            "xr8_8-s4-c1",
            "xr11_12-s5-c1",
            "xs5-s6-c1",
            "xs10-s7-c1",
            "xn10-s8-c1",
            "xn12-s8-c1",
            "xn21-s9-c1",
            "xn22-s9-c1",
        ];
        assert_eq!(
            selected(&names).1,
            ["xr0_3-s1-c1", "xr4_9-s3-c1", "xs10-s7-c1", "xn12-s8-c1", "xn21-s9-c1"]
        );
    }

    #[test]
    fn chain_with_fewer_parts_is_chosen() {
        let names = ["xe9", "xr0_1-s1-c1", "xr2_3-s1-c1", "xr0_3-s2-c1"];
        assert_eq!(selected(&names).1, ["xr0_3-s2-c1"]);
    }

    #[test]
    fn last_watermark_counts() {
        let epochs = select(["xw5", "xw77", "xw6", "xwx"].map(|name| name.parse().unwrap()));
        assert_eq!(epochs.deletion_watermark, 77);
    }

    #[test]
    fn names_that_mean_nothing_are_ignored() {
        let greatest = format!("xe{}", u64::MAX);
        let range = format!("xr0_{}-s1-c1", u64::MAX);
        let names = ["x", "xq1", "xe", "xe-1", "xr3_1-s1-c1", "xr0_1", "xnx-s1-c1", "kopia"];
        assert_eq!(selected(&names), (0, vec![]));
        assert_eq!(selected(&[&greatest, "xn1-s1-c1"]), (u64::MAX, vec!["xn1-s1-c1".into()]));
        assert_eq!(selected(&[&greatest, &range, "xn1-s1-c1"]).1, [range]);
    }
}
