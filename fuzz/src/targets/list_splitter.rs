//! Lists of the API server, split into their objects as the bytes arrive.

use std::sync::Arc;

use bowline_cluster::{GroupResource, Object, Resource, split_pieces};
use serde_json::Value;

pub(super) fn run(input: &[u8]) {
    let whole = split(input, usize::MAX);
    for size in [1, 2, 7, 64] {
        assert_eq!(split(input, size), whole, "pieces of {size} bytes make a difference");
    }
    let expected = expected_objects(input);
    let Some((objects, _)) = whole else {
        assert!(expected.is_none(), "a list is refused");
        return;
    };
    let resource = Arc::new(pods());
    for object in &objects {
        if let Ok(object) = Object::from_json(&resource, object.clone()) {
            assert!(!object.name.is_empty() && !object.name.contains('/'));
        }
    }
    if let Some(expected) = expected {
        let objects: Vec<Value> = objects
            .iter()
            .map(|object| serde_json::from_slice(object).expect("an object of a list is JSON"))
            .collect();
        assert_eq!(objects, expected);
    }
}

type Split = Option<(Vec<bytes::Bytes>, String)>;

fn split(input: &[u8], size: usize) -> Split {
    split_pieces("v1", "Pod", input.chunks(size))
}

#[derive(serde::Deserialize)]
struct List {
    #[serde(default)]
    metadata: Metadata,
    items: Vec<Value>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Metadata {
    #[serde(rename = "continue")]
    continue_token: String,
    #[serde(rename = "remainingItemCount")]
    remaining: Option<i64>,
}

/// The objects that a parser of whole lists finds, if it finds a list of objects.
fn expected_objects(input: &[u8]) -> Option<Vec<Value>> {
    // No API server writes the name of a field with escapes.
    if input.windows(2).any(|window| window == b"\\u") {
        return None;
    }
    let list: List = serde_json::from_slice(input).ok()?;
    let Metadata { continue_token, remaining } = list.metadata;
    drop((continue_token, remaining));
    let complete = |mut object: Value| {
        let fields = object.as_object_mut()?;
        for (field, value) in [("apiVersion", "v1"), ("kind", "Pod")] {
            fields.entry(field).or_insert_with(|| value.into());
        }
        Some(object)
    };
    list.items.into_iter().map(complete).collect()
}

fn pods() -> Resource {
    Resource {
        id: GroupResource::new("", "pods"),
        version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        singular: "pod".to_owned(),
        short_names: Vec::new(),
        is_namespaced: true,
        verbs: Vec::new(),
    }
}
