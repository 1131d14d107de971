//! Compares our CRDs with Velero's.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::{
    golden::{self, VELERO_KINDS},
    schema_walk::{self, Node},
};

fn velero_facts(kind: &str) -> Value {
    golden::read("velero-crds.json")[kind].clone()
}

fn velero_nodes(kind: &str) -> BTreeMap<String, Node> {
    let versions = velero_facts(kind)["versions"].clone();
    let [(_, version)] = versions.as_object().unwrap().iter().collect::<Vec<_>>()[..] else {
        panic!("{kind}: one version")
    };
    serde_json::from_value(version["paths"].clone()).unwrap()
}

#[test]
fn facts_cover_all_of_veleros_kinds() {
    let facts = golden::read("velero-crds.json");
    let kinds: BTreeSet<_> = facts.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(kinds, BTreeSet::from(VELERO_KINDS));
}

#[test]
fn names_scope_and_versions_match_velero() {
    for kind in VELERO_KINDS {
        let (facts, crd) = (velero_facts(kind), schema_walk::crd(kind));
        assert_eq!(facts["group"], crd.spec.group);
        assert_eq!(facts["scope"], crd.spec.scope);
        let names = serde_json::to_value(&crd.spec.names).unwrap();
        for (key, value) in facts["names"].as_object().unwrap() {
            assert_eq!(&names[key], value, "{kind} {key}");
        }
        for (version, facts) in facts["versions"].as_object().unwrap() {
            let own_version = crd.spec.versions.iter().find(|ours| ours.name == *version).unwrap();
            assert_eq!(
                (&facts["served"], &facts["storage"]),
                (&json!(own_version.served), &json!(own_version.storage))
            );
            let subresources = facts["subresources"].as_object();
            assert!(subresources.is_none_or(serde_json::Map::is_empty));
            assert_eq!(own_version.subresources, None, "{kind}");
        }
    }
}

#[test]
fn every_printer_column_of_velero_is_present_in_order() {
    for kind in VELERO_KINDS {
        let crd = schema_walk::crd(kind);
        let columns =
            serde_json::to_value(&crd.spec.versions[0].additional_printer_columns).unwrap();
        let mut columns = columns.as_array().unwrap().iter();
        let versions = velero_facts(kind)["versions"].clone();
        for version in versions.as_object().unwrap().values() {
            for column in version["columns"].as_array().into_iter().flatten() {
                assert!(columns.any(|ours| ours == column), "{kind} lacks {column}");
            }
        }
    }
}

/// The schema says what Velero's says, keyword by keyword, and no more than we mean to add.
#[test]
fn schema_matches_velero_except_for_additions() {
    let mut differences = Vec::new();
    for kind in VELERO_KINDS {
        let velero = velero_nodes(kind);
        let own_nodes = schema_walk::nodes(&schema_walk::schema(&schema_walk::crd(kind)));
        for (path, expected) in &velero {
            match own_nodes.get(path) {
                None => differences.push(format!("{kind}: {path} is missing")),
                Some(node) if without_additions(node, expected) != *expected => {
                    differences.push(format!("{kind}: {path} is {node:?}, Velero's {expected:?}"));
                }
                Some(_) => {}
            }
        }
        for path in own_nodes.keys().filter(|path| !velero.contains_key(*path)) {
            let is_ours = matches!(kind, "Backup" | "Restore" | "BackupStorageLocation")
                && path.starts_with("status.conditions")
                || kind == "Backup" && path.starts_with("status.freezeWindows");
            if !is_ours {
                differences.push(format!("{kind}: {path} is not Velero's"));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// A node of ours without the keyword that we add to objects.
fn without_additions(node: &Node, velero: &Node) -> Node {
    let mut node = node.clone();
    let keyword = "x-kubernetes-preserve-unknown-fields";
    if !velero.contains_key(keyword) && node["type"] == "object" {
        node.remove(keyword);
    }
    // A set has no order.
    if let (Some(own_values), Some(velero_values)) = (node.get("enum"), velero.get("enum"))
        && texts(own_values) == texts(velero_values)
    {
        node.insert("enum".into(), velero_values.clone());
    }
    node
}

fn texts(list: &Value) -> BTreeSet<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// All objects are ours and keep unknown fields, except those that Kubernetes defines.
#[test]
fn every_own_object_keeps_unknown_fields() {
    let foreign = [
        "metadata",
        "labelSelector",
        "orLabelSelectors[]",
        "matchExpressions[]",
        "credential",
        "caCertRef",
        "resourcePolicy",
        "resourceModifier",
        "pod",
        "conditions[]",
    ];
    for crd in bowline_api::crds::all() {
        let kind = &crd.spec.names.kind;
        for (path, node) in schema_walk::nodes(&schema_walk::schema(&crd)) {
            let keeps = node.contains_key("x-kubernetes-preserve-unknown-fields");
            let is_map = node_is_map(&crd, &path);
            let name = path.rsplit('.').next().unwrap();
            let is_foreign = foreign.contains(&name)
                && path != "spec.metadata"
                && path != "spec.template.metadata";
            if node["type"] == "object" && !is_map && !is_foreign {
                assert!(keeps, "{kind}: {path} drops unknown fields");
            }
        }
    }
}

fn node_is_map(
    crd: &k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    path: &str,
) -> bool {
    schema_walk::nodes(&schema_walk::schema(crd)).contains_key(&format!("{path}{{}}"))
}

#[test]
fn short_names_match_velero() {
    let names: Vec<_> = bowline_api::crds::all()
        .into_iter()
        .map(|crd| (crd.spec.names.kind, crd.spec.names.short_names.unwrap_or_default().join(",")))
        .collect();
    let names: Vec<_> = names.iter().map(|(kind, short)| (kind.as_str(), short.as_str())).collect();
    assert_eq!(
        names,
        [
            ("Backup", "bak"),
            ("Restore", "rst"),
            ("Schedule", "sched"),
            ("BackupStorageLocation", "bsl"),
            ("VolumeSnapshotLocation", "vsl"),
            ("BackupRepository", "repo"),
            ("PodVolumeBackup", "pvb"),
            ("PodVolumeRestore", "pvr"),
            ("DeleteBackupRequest", "dbr"),
            ("DownloadRequest", "dreq"),
            ("ServerStatusRequest", "ssr"),
            ("DataUpload", "du"),
            ("DataDownload", "dd"),
            ("VolumePluginBackup", "vpb"),
            ("VolumePluginRestore", "vpr"),
        ]
    );
}

#[test]
fn every_property_has_a_short_description() {
    fn check(kind: &str, path: &str, schema: &Value) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            let description = property["description"].as_str().unwrap_or_default();
            assert!(
                path == ".metadata" || !description.is_empty(),
                "{kind}: {path} is not described"
            );
            assert!(description.len() < 120, "{kind}: {path}: {description}");
            check(kind, &path, property);
        }
        if schema["items"].is_object() {
            check(kind, &format!("{path}[]"), &schema["items"]);
        }
    }
    for crd in bowline_api::crds::all() {
        check(&crd.spec.names.kind, "", &schema_walk::schema(&crd));
    }
}

#[test]
fn plugin_progress_accepts_both_spellings() {
    for kind in ["VolumePluginBackup", "VolumePluginRestore"] {
        let nodes = schema_walk::nodes(&schema_walk::schema(&schema_walk::crd(kind)));
        for name in ["totalBytes", "TotalBytes", "bytesDone", "BytesDone"] {
            let node = &nodes[&format!("status.progress.{name}")];
            assert_eq!(
                node,
                &Node::from([("type".into(), json!("integer")), ("format".into(), json!("int64"))])
            );
        }
        assert_eq!(nodes["status.phase"], Node::from([("type".into(), json!("string"))]));
    }
}
