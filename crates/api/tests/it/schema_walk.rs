//! Walks an object and its CRD schema side by side.
//!
//! Paths are written as in the golden facts: `spec.hooks.resources[].name`, where `[]` stands for
//! every item of a list.

use std::collections::BTreeMap;

use bowline_api::crds;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

/// One node of a schema, without its children.
pub(crate) type Node = BTreeMap<String, Value>;

pub(crate) fn crd(kind: &str) -> CustomResourceDefinition {
    crds::all().into_iter().find(|crd| crd.spec.names.kind == kind).unwrap()
}

/// The schema of a CRD's only version, as JSON.
pub(crate) fn schema(crd: &CustomResourceDefinition) -> Value {
    let [version] = crd.spec.versions.as_slice() else { panic!("one version") };
    serde_json::to_value(version.schema.as_ref().unwrap().open_api_v3_schema.as_ref()).unwrap()
}

/// Every node of a schema by its path, in the form of the golden facts.
pub(crate) fn nodes(schema: &Value) -> BTreeMap<String, Node> {
    let mut nodes = BTreeMap::new();
    walk(schema, "", false, &mut nodes);
    nodes
}

fn walk(schema: &Value, path: &str, required: bool, into: &mut BTreeMap<String, Node>) {
    let structure = ["description", "properties", "items", "additionalProperties", "required"];
    let mut node: Node = schema.as_object().unwrap().clone().into_iter().collect();
    node.retain(|key, _| !structure.contains(&key.as_str()));
    if required {
        node.insert("required".into(), true.into());
    }
    if !path.is_empty() {
        into.insert(path.to_owned(), node);
    }
    let names = schema["required"].as_array().cloned().unwrap_or_default();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let inner = format!("{path}.{name}");
        let required = names.iter().any(|required| required == name);
        walk(property, inner.trim_start_matches('.'), required, into);
    }
    if schema["items"].is_object() {
        walk(&schema["items"], &format!("{path}[]"), false, into);
    }
    if schema["additionalProperties"].is_object() {
        walk(&schema["additionalProperties"], &format!("{path}{{}}"), false, into);
    }
}

fn keeps_unknown_fields(node: &Node) -> bool {
    node.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(true))
        && node["type"] == "object"
}

/// Adds a field to each object that keeps unknown ones; answers their paths.
pub(crate) fn add_to_our_objects(kind: &str, object: &mut Value, field: &str) -> Vec<String> {
    let nodes = nodes(&schema(&crd(kind)));
    let own_objects: Vec<_> =
        nodes.into_iter().filter(|(_, node)| keeps_unknown_fields(node)).collect();
    for (path, _) in &own_objects {
        let mut added = 0;
        visit(object, path, &mut |value| {
            value[field] = json!({ "at": path, "list": [1, null, "x"] });
            added += 1;
        });
        assert!(added > 0, "{kind}: the golden has no {path}");
    }
    own_objects.into_iter().map(|(path, _)| path).collect()
}

/// The paths of all typed properties that an object of ours has.
pub(crate) fn our_properties(kind: &str, object: &Value) -> Vec<String> {
    let nodes = nodes(&schema(&crd(kind)));
    let is_ours = |path: &str| {
        let parent = path.rsplit_once('.').map_or("", |(parent, _)| parent);
        nodes.get(parent).is_some_and(keeps_unknown_fields)
    };
    let mut paths: Vec<_> = nodes.keys().filter(|path| is_ours(path)).cloned().collect();
    paths.retain(|path| !path.ends_with(']') && !path.ends_with('}'));
    paths.retain(|path| {
        let mut found = false;
        visit(&mut object.clone(), path, &mut |_| found = true);
        found
    });
    paths
}

/// The paths where null is allowed.
pub(crate) fn nullable_paths(kind: &str) -> Vec<String> {
    let nodes = nodes(&schema(&crd(kind)));
    let nullable = |node: &Node| node.get("nullable") == Some(&json!(true));
    nodes.into_iter().filter(|(_, node)| nullable(node)).map(|(path, _)| path).collect()
}

/// Sets every value at a path.
pub(crate) fn replace(object: &mut Value, path: &str, with: &Value) {
    let mut replaced = 0;
    visit(object, path, &mut |value| {
        *value = with.clone();
        replaced += 1;
    });
    assert!(replaced > 0, "nothing at {path}");
}

/// Removes every value at a path.
pub(crate) fn remove(object: &mut Value, path: &str) {
    let (parent, name) = path.rsplit_once('.').unwrap();
    visit(object, parent, &mut |value| {
        value.as_object_mut().unwrap().remove(name);
    });
}

fn visit(value: &mut Value, path: &str, act: &mut impl FnMut(&mut Value)) {
    if path.is_empty() {
        act(value);
    } else if let Some(rest) = path.strip_prefix("[]") {
        for item in value.as_array_mut().into_iter().flatten() {
            visit(item, rest.trim_start_matches('.'), act);
        }
    } else {
        let end = path.find(['.', '[']).unwrap_or(path.len());
        let (name, rest) = path.split_at(end);
        if let Some(inner) = value.get_mut(name) {
            visit(inner, rest.trim_start_matches('.'), act);
        }
    }
}
