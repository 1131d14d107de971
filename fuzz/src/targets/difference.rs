//! What a restore finds different in the cluster, and the patch that removes the difference.
//!
//! Two parts: the object of the backup, and the one in the cluster.

use bowline_engine::restore::difference::{
    differs, label_patch, merge_patch, service_account_patch,
};
use serde_json::Value;

use super::{object, parts};

pub(super) fn run(input: &[u8]) {
    let [desired, cluster] = parts(input).map(object);
    let (Some(desired), Some(cluster)) = (desired, cluster) else { return };
    for object in [&desired, &cluster] {
        let found = differs(object, object);
        assert!(found.is_none(), "an object differs from itself: {found:?}");
    }
    let patch = merge_patch(&cluster, &desired);
    let patched = patch_with(&cluster, &patch);
    let found = differs(&desired, &patched);
    assert!(found.is_none(), "{found:?} remain after {patch}: {patched}");
    for patch in [label_patch(&cluster, &desired), service_account_patch(&cluster, &desired)] {
        assert!(patch.is_object());
        drop(patch_with(&cluster, &patch));
    }
}

fn patch_with(object: &Value, patch: &Value) -> Value {
    let mut patched = object.clone();
    json_patch::merge(&mut patched, patch);
    patched
}
