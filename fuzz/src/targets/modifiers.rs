//! Resource modifiers: YAML that a user writes, applied to any object.
//!
//! Two parts: the document, and the object.

use std::collections::BTreeMap;

use bowline_engine::GroupResource;
use bowline_engine::restore::modifier::Modifiers;

use super::{object, texts};

/// Kinds that the rules are tried on.
const KINDS: [(&str, &str); 3] =
    [("", "pods"), ("apps", "deployments"), ("", "persistentvolumeclaims")];

pub(super) fn run(input: &[u8]) {
    let Some([document, json]) = texts(input) else { return };
    let data: BTreeMap<_, _> = [("rules".to_owned(), document.to_owned())].into();
    let modifiers = match Modifiers::parse(&data) {
        Ok(modifiers) => modifiers,
        Err(error) => {
            let message = error.to_string();
            assert!(message.len() <= 4 * input.len() + 4096, "{} bytes", message.len());
            return;
        }
    };
    let Some(before) = object(json.as_bytes()) else { return };
    for (group, resource) in KINDS {
        let kind = GroupResource::new(group, resource);
        let mut after = before.clone();
        let errors = modifiers.apply(&kind, &mut after);
        if !modifiers.may_apply_to(&kind) {
            assert!(errors.is_empty() && after == before, "a rule for another kind was applied");
        }
        if after != before {
            for pointer in ["/apiVersion", "/kind", "/metadata/name"] {
                let text = after.pointer(pointer).and_then(serde_json::Value::as_str);
                assert!(text.is_some_and(|text| !text.is_empty()), "{pointer} is missing");
            }
        }
    }
}
