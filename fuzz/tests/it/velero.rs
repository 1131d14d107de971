//! Files of the corpus that Velero accepts, against what Velero makes of them (crates/store/golden/rewrite).
//!
//! What Velero accepts, we accept. What Velero writes of it, we read, and write to the byte; objects of Kubernetes
//! to the value, since the order of their metadata differs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bowline_fuzz::targets::bucket_files::{gzip, reencode};
use bowline_store::decode::Error;
use serde_json::Value;

/// Texts of our refusals of files that Velero accepts: what no Go program writes, and Velero reads by dropping a part.
/// Decision 054 has the reasons.
const DELIBERATE_REFUSALS: [&str; 6] = [
    // The later one wins in Go.
    "duplicate field",
    // Replaced by U+FFFD in Go.
    "lone leading surrogate",
    "unexpected end of hex escape",
    "invalid unicode code point",
    // Ignored in Go, also for a number or a text.
    "invalid type: null",
    // An object without a name, which cannot be imported.
    "missing field `metadata`",
];

/// Number of the file in the target.
const POD_VOLUME_BACKUPS: u8 = 7;

#[test]
fn files_that_velero_accepts_are_read_and_written_alike() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("tests/velero/bucket-files.json")).unwrap();
    let accepted: BTreeMap<String, String> = serde_json::from_str(&text).unwrap();
    assert!(accepted.len() > 20);
    for (name, rewritten) in accepted {
        let input = fs::read(root.join("corpus/bucket-files").join(&name)).unwrap();
        let (kind, content) = input.split_first().unwrap();
        let packed = if kind & 0x80 == 0 { gzip(content) } else { content.to_vec() };
        let kind = kind & !0x80;
        drop(accepted_by_us(&name, kind, &packed));
        // A list with `null` in place of an element is written as one.
        let Some(ours) = accepted_by_us(&name, kind, &gzip(rewritten.as_bytes())) else { continue };
        let ours = String::from_utf8(ours).unwrap();
        if rewritten.trim_end() == "null" {
            // Velero reads an empty list or map from either.
            assert!(["[]", "{}", "null"].contains(&ours.as_str()), "{name}: {ours}");
        } else if kind == POD_VOLUME_BACKUPS {
            assert_eq!(objects(&ours), objects(&rewritten), "{name}");
        } else {
            assert_eq!(ours, rewritten.trim_end(), "{name}");
        }
    }
}

/// Kubernetes objects, without what a list implies: we write their type, and Velero a time that is not set.
fn objects(text: &str) -> Vec<Value> {
    let mut objects: Option<Vec<Value>> = serde_json::from_str(text).unwrap();
    for object in objects.iter_mut().flatten() {
        let fields = object.as_object_mut().unwrap();
        fields.retain(|key, _| !["apiVersion", "kind"].contains(&key.as_str()));
        let metadata = fields["metadata"].as_object_mut().unwrap();
        metadata.retain(|_, value| !value.is_null());
    }
    objects.unwrap_or_default()
}

/// What we make of a file that Velero accepts; none if it is refused deliberately.
fn accepted_by_us(name: &str, kind: u8, packed: &[u8]) -> Option<Vec<u8>> {
    match reencode(kind, packed) {
        Ok(text) => Some(text),
        Err(Error::Json(json)) => {
            let reason = json.to_string();
            let is_deliberate = DELIBERATE_REFUSALS.iter().any(|text| reason.contains(text));
            assert!(is_deliberate, "{name} is refused: {reason}");
            None
        }
        Err(error) => panic!("{name} is refused: {error}"),
    }
}
