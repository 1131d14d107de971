//! The index of an archive.
//!
//! The first byte says whether the digests and sums of the index that follows are corrected, so that mutations reach
//! the code behind them.

use bowline_engine::archive_index::{Header, Root, decode_leaf};
use sha2::{Digest as _, Sha256};

/// Sizes and places of the format.
const HEADER: usize = 120;
const MEMBER: usize = 44;
const LEAF: usize = 52;
const ENTRY: usize = 20;
const DIGESTED_HEADER: usize = 88;

pub(super) fn run(input: &[u8]) {
    let Some((&mode, index)) = input.split_first() else { return };
    let mut index = index.to_vec();
    if mode & 1 == 1 {
        let _ = repair(&mut index);
    }
    let Ok(root) = Root::decode(&index) else { return };
    assert_eq!(Header::decode(&index).ok(), Some(root.header));
    assert_eq!(root.members.len(), root.header.members as usize);
    let ends = root.members.iter().map(|member| member.offset + u64::from(member.length));
    assert_eq!(ends.max(), Some(root.header.archive_length), "the members fill the archive");
    assert!(root.index_length() >= root.header.root_end());
    for leaf in &root.leaves {
        let end = leaf.offset + leaf.length();
        assert!(end <= root.index_length(), "a leaf leaves the index");
        let range = usize::try_from(leaf.offset).ok().zip(usize::try_from(end).ok());
        let Some(bytes) = range.and_then(|(start, end)| index.get(start..end)) else { continue };
        for entry in decode_leaf(bytes, leaf, root.header.members).into_iter().flatten() {
            assert!(entry.member < root.header.members);
            assert!(entry.key >= leaf.first);
        }
        assert_eq!(root.leaf_of(leaf.first), Some(leaf));
    }
}

/// Corrects the digests, and the sums in the header, if the parts are there.
fn repair(index: &mut [u8]) -> Option<()> {
    let number = |index: &[u8], at: usize| {
        Some(u32::from_le_bytes(index.get(at..at + 4)?.try_into().ok()?) as usize)
    };
    let (members, leaves) = (number(index, 8)?, number(index, 12)?);
    let leaves_start = members.checked_mul(MEMBER)?.checked_add(HEADER)?;
    let root_end = leaves.checked_mul(LEAF)?.checked_add(leaves_start)?;
    index.get(..root_end)?;
    let mut digest = Sha256::new();
    let mut archive_length = 0_u64;
    for member in 0..members {
        let at = HEADER + member * MEMBER;
        archive_length += number(index, at)? as u64;
        digest.update(&index[at + 12..at + MEMBER]);
    }
    index[24..32].copy_from_slice(&archive_length.to_le_bytes());
    index[32..64].copy_from_slice(&digest.finalize());
    let (mut entry, mut entries) = (root_end, 0_u64);
    for leaf in 0..leaves {
        let at = leaves_start + leaf * LEAF;
        let count = number(index, at + 16)?;
        let end = count.checked_mul(ENTRY)?.checked_add(entry)?;
        if let Some(bytes) = index.get(entry..end) {
            let digest = Sha256::digest(bytes);
            index[at + 20..at + LEAF].copy_from_slice(&digest);
        }
        entries += count as u64;
        entry = end;
    }
    index[16..24].copy_from_slice(&entries.to_le_bytes());
    let digest = Sha256::new()
        .chain_update(&index[..DIGESTED_HEADER])
        .chain_update(&index[HEADER..root_end])
        .finalize();
    index[DIGESTED_HEADER..HEADER].copy_from_slice(&digest);
    Some(())
}
