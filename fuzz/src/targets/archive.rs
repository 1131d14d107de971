//! The archive of a backup, as a restore unpacks it.
//!
//! The first byte says what follows: a compressed archive, or an uncompressed one, whose checksums are then corrected,
//! so that mutations reach the code behind them.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;

use bowline_engine::GroupResource;
use bowline_engine::unpack::{Contents, UnpackLimits, unpack};
use flate2::Compression;
use flate2::write::GzEncoder;

/// Longest message about one entry.
const MAX_MESSAGE: usize = 2000;
const BLOCK: usize = 512;

type Items = BTreeMap<(GroupResource, String, String), Vec<u8>>;

pub(super) fn run(input: &[u8]) {
    let Some((&mode, rest)) = input.split_first() else { return };
    let packed = match mode % 4 {
        0 => rest.to_vec(),
        1 => gzip(&repaired(rest)),
        2 => {
            // Several members, as Bowline writes them.
            let tar = repaired(rest);
            let (first, second) = tar.split_at(tar.len() / 2);
            [gzip(first), gzip(second)].concat()
        }
        _ => {
            let mut whole = gzip(&repaired(rest));
            whole.truncate(whole.len() * usize::from(mode) / 256);
            whole
        }
    };
    let limits = UnpackLimits::default();
    let Ok(contents) = unpack(packed.as_slice(), &std::env::temp_dir(), limits) else { return };
    assert!(contents.refusals.len() <= limits.refusals + 2);
    assert!(contents.damage.len() <= limits.refusals + 2);
    for defect in contents.refusals.iter().chain(&contents.damage) {
        let message = defect.to_string();
        assert!(message.len() <= MAX_MESSAGE, "a message of {} bytes", message.len());
    }
    let items = read(&contents);
    if contents.damage.is_empty() && contents.broken.is_none() {
        assert_eq!(contents.len(), items.len(), "every item of an undamaged archive can be read");
        let again = unpack(pack(&items).as_slice(), &std::env::temp_dir(), limits);
        assert_eq!(read(&again.expect("our own archive")), items);
    }
}

/// The readable items, each checked.
fn read(contents: &Contents) -> Items {
    let mut items = Items::new();
    for (resource, kind) in contents.kinds() {
        for (namespace, name) in kind.items() {
            for text in [namespace, name, &resource.resource, &resource.group] {
                assert!(!text.contains(['/', '\0']) && text != "..", "{text:?} leaves its folder");
            }
            assert!(!name.is_empty());
            let stand_in = contents.resource(resource, namespace, name);
            if let Some(stand_in) = stand_in.map(Arc::new)
                && let Ok(object) = contents.object(&stand_in, None, namespace, name)
            {
                assert_eq!((&*object.namespace, &*object.name), (namespace, name));
            }
            for version in kind.versions() {
                drop(contents.read(resource, Some(version), namespace, name));
            }
            if let Ok(item) = contents.read(resource, None, namespace, name) {
                let key = (resource.clone(), namespace.to_owned(), name.to_owned());
                items.insert(key, item.into_json().to_vec());
            }
        }
    }
    items
}

fn pack(items: &Items) -> Vec<u8> {
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for ((GroupResource { group, resource }, namespace, name), json) in items {
        let dot = if group.is_empty() { "" } else { "." };
        let folder = match namespace.as_str() {
            "" => "cluster".to_owned(),
            namespace => format!("namespaces/{namespace}"),
        };
        let mut header = tar::Header::new_gnu();
        header.set_size(json.len() as u64);
        header.set_mode(0o644);
        let path = format!("resources/{resource}{dot}{group}/{folder}/{name}.json");
        tar.append_data(&mut header, path, json.as_slice()).expect("a list takes all");
    }
    tar.into_inner().and_then(GzEncoder::finish).expect("a list takes all")
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(bytes).expect("a list takes all");
    gzip.finish().expect("a list takes all")
}

/// An archive with correct checksums and an end.
fn repaired(tar: &[u8]) -> Vec<u8> {
    let mut tar = tar.to_vec();
    tar.resize(tar.len().next_multiple_of(BLOCK) + 2 * BLOCK, 0);
    let mut at = 0;
    while let Some(block) = tar.get_mut(at..at + BLOCK) {
        at += BLOCK;
        if block.iter().all(|byte| *byte == 0) {
            continue;
        }
        let mut header = tar::Header::from_byte_slice(block).clone();
        header.set_cksum();
        block.copy_from_slice(header.as_bytes());
        let size = header.entry_size().ok().and_then(|size| usize::try_from(size).ok());
        at = at.saturating_add(size.unwrap_or(0).min(tar.len()).next_multiple_of(BLOCK));
    }
    tar
}
