//! The decoders of kopia's repositories.
//!
//! The first byte chooses a decoder. What is compressed in a repository is compressed here, so that mutations reach the
//! code behind it.

use std::collections::BTreeSet;
use std::io::Write as _;

use bowline_repository::directory::Directory;
use bowline_repository::format::FormatBlob;
use bowline_repository::index::{self, Index};
use bowline_repository::pack::Postamble;
use bowline_repository::snapshot::Snapshot;
use bowline_repository::splitter::{Splitter, SplitterAlgorithm};
use bowline_repository::{BlobId, ContentId, ManifestId, ObjectId};
use bowline_repository::{compression, epoch, manifest, object};

/// Greatest length of decompressed data here.
const MAX_LENGTH: usize = 1 << 20;

pub(super) fn run(input: &[u8]) {
    let Some((&decoder, rest)) = input.split_first() else { return };
    match decoder {
        b'b' => format_blob(rest),
        b'c' => compressed(rest),
        b'd' => directory(rest),
        b'e' => epochs(rest),
        b'i' => index(rest),
        b'm' => manifests(rest),
        b'o' => object_list(rest),
        b'p' => postamble(rest),
        b's' => split(rest),
        _ => ids(rest),
    }
}

fn format_blob(blob: &[u8]) {
    let Ok(parsed) = FormatBlob::parse(blob) else { return };
    assert_eq!(FormatBlob::parse(&parsed.encode().unwrap()).unwrap(), parsed);
}

fn compressed(data: &[u8]) {
    if let Ok(plain) = compression::decompress_object(data, MAX_LENGTH) {
        assert!(plain.len() <= MAX_LENGTH);
    }
}

fn directory(json: &[u8]) {
    let Ok(parsed) = Directory::parse(json) else { return };
    assert_eq!(Directory::parse(&parsed.encode().unwrap()).unwrap(), parsed);
    for name in parsed.entries.iter().filter_map(|entry| entry.file_name()) {
        let mut components = std::path::Path::new(name).components();
        let first = components.next();
        assert!(matches!(first, Some(std::path::Component::Normal(_))), "{name:?}");
        assert_eq!(components.next(), None, "{name:?}");
    }
    let built = Directory::new(parsed.entries, jiff::Timestamp::UNIX_EPOCH);
    assert_eq!(Directory::parse(&built.encode().unwrap()).unwrap(), built);
}

fn epochs(names: &[u8]) {
    let Ok(text) = std::str::from_utf8(names) else { return };
    let listing: BTreeSet<BlobId> = text.lines().filter_map(|name| name.parse().ok()).collect();
    let selected = epoch::select(listing.iter().cloned());
    let unique: BTreeSet<BlobId> = selected.index_blobs.iter().cloned().collect();
    assert_eq!(unique.len(), selected.index_blobs.len(), "no blob is read twice");
    assert!(unique.is_subset(&listing));
    let reversed = epoch::select(listing.into_iter().rev());
    assert_eq!(reversed.index_blobs.into_iter().collect::<BTreeSet<_>>(), unique);
}

fn index(data: &[u8]) {
    let Ok(parsed) = Index::parse(data.to_vec().into()) else { return };
    let entries: Vec<_> = parsed.entries().collect();
    assert_eq!(entries.len(), parsed.len());
    assert!(entries.is_sorted_by_key(|entry| entry.content));
    for entry in &entries {
        assert_eq!(parsed.get(&entry.content).as_ref(), Some(entry));
    }
    let Ok(built) = index::build(entries.iter().cloned()) else { return };
    let again = Index::parse(built.into()).unwrap();
    if entries.iter().all(|entry| entry.length.is_some()) {
        assert!(again.entries().eq(entries));
    }
}

fn manifests(json: &[u8]) {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(json).unwrap();
    let Ok(entries) = manifest::parse_list(&encoder.finish().unwrap()) else { return };
    let again = manifest::parse_list(&manifest::encode_list(entries.clone()).unwrap()).unwrap();
    assert_eq!(again.len(), entries.len());
    for (id, entry) in manifest::merge(entries) {
        assert!(id == entry.id && !entry.deleted);
        let Ok(snapshot) = Snapshot::parse(&entry) else { continue };
        assert_eq!(snapshot.labels()["type"], "snapshot");
        serde_json::to_string(&snapshot).unwrap();
    }
}

fn object_list(json: &[u8]) {
    let Ok(parts) = object::parse_list(json) else { return };
    let mut end = 0;
    for part in &parts {
        assert_eq!(part.start, end);
        end += part.length;
    }
    if let Ok(again) = object::encode_list(&parts) {
        assert_eq!(object::parse_list(&again).unwrap(), parts);
    }
}

fn postamble(tail: &[u8]) {
    if let Some(found) = Postamble::find(tail) {
        assert!(found.hash.len() < tail.len());
    }
}

/// Where data is cut does not depend on how it arrives.
fn split(data: &[u8]) {
    let algorithm = SplitterAlgorithm::Buzhash { average: 256 };
    let cuts = |piece: usize| {
        let mut splitter = Splitter::new(algorithm);
        let (mut cuts, mut start) = (Vec::new(), 0);
        while start < data.len() {
            let end = data.len().min((start / piece + 1) * piece);
            let cut = splitter.next_cut(&data[start..end]);
            start = cut.map_or(end, |length| start + length);
            cuts.extend(cut.map(|_| start));
        }
        cuts
    };
    let whole = cuts(usize::MAX / 2);
    assert_eq!(cuts(1), whole);
    assert_eq!(cuts(100), whole);
}

fn ids(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    if let Ok(id) = text.parse::<BlobId>() {
        assert_eq!(id.as_str(), text);
    }
    if let Ok(id) = text.parse::<ContentId>() {
        assert_eq!(id.to_string().parse(), Ok(id));
    }
    if let Ok(id) = text.parse::<ObjectId>() {
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.list().map_or(0, |list| list.depth() + 1), id.depth());
    }
    if let Ok(id) = text.parse::<ManifestId>() {
        assert_eq!(id.to_string(), text);
    }
}
