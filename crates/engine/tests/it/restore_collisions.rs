//! Restores in which several items have the same target, on an in-memory cluster.

use std::sync::Arc;

use async_trait::async_trait;
use bowline_engine::cluster::{self, Cluster, Delegate, Fake};
use bowline_engine::item::Object;
use bowline_engine::resource::Resource;
use bowline_engine::restore::RestoreOutcome;
use bowline_plugin::Item;
use bowline_store::file::Messages;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::csi::{CONTENTS, SNAPSHOTS};
use crate::support::objects::namespace;
use crate::support::restore::restore_with;
use crate::support::restore_csi::{self, archived_claim};

/// A cluster that notes on each object when it was created, as API servers do.
struct TimestampingCluster(Fake);

#[async_trait]
impl Delegate for TimestampingCluster {
    fn inner(&self) -> &dyn Cluster {
        &self.0
    }

    async fn create(
        &self,
        of: &Arc<Resource>,
        namespace: &str,
        item: &Item,
    ) -> cluster::Result<Object> {
        let mut object: Value = item.parse().unwrap();
        object["metadata"]["creationTimestamp"] = json!(Timestamp::now());
        self.0.create(of, namespace, &Item::from_object(&object).unwrap()).await
    }
}

fn config_map(namespace: &str, name: &str, value: &str) -> (&'static str, Value) {
    let metadata = json!({"namespace": namespace, "name": name});
    let data = json!({"from": value});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
    ("configmaps", map)
}

/// Two namespaces with a ConfigMap that differs, one that is the same, and one that only one of them has.
fn two_namespaces() -> Vec<(&'static str, Value)> {
    vec![
        config_map("a", "settings", "a"),
        config_map("a", "same", "both"),
        config_map("a", "own", "a"),
        config_map("b", "settings", "b"),
        config_map("b", "same", "both"),
    ]
}

fn texts(messages: Messages) -> Vec<String> {
    let namespaces = messages.namespaces.into_values().flatten();
    messages.velero.into_iter().chain(messages.cluster).chain(namespaces).collect()
}

/// Messages of a restore: errors, then warnings.
fn messages(outcome: &RestoreOutcome) -> (Vec<String>, Vec<String>) {
    let results = outcome.report.results();
    (texts(results.errors), texts(results.warnings))
}

async fn restore(
    cluster: &Arc<TimestampingCluster>,
    objects: &[(&str, Value)],
    spec: Value,
    started_at: Timestamp,
) -> RestoreOutcome {
    let cluster: Arc<dyn Cluster> = Arc::clone(cluster) as _;
    restore_with(cluster, objects, spec, started_at, CancellationToken::new()).await
}

fn value(cluster: &TimestampingCluster, namespace: &str, name: &str) -> String {
    let map = cluster.0.object("configmaps", namespace, name).unwrap();
    map["data"]["from"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn collision_is_reported_also_after_a_restart() {
    // Into a third namespace, or into one of the backup.
    for (mapping, target) in [(json!({"a": "c", "b": "c"}), "c"), (json!({"a": "b"}), "b")] {
        let cluster = Arc::new(TimestampingCluster(Fake::usual()));
        let spec = json!({"namespaceMapping": mapping});
        let started_at = Timestamp::now();
        let mut before = None;
        // A process that resumes the restore at its end has the same result.
        for attempt in ["first", "second"] {
            let restored = restore(&cluster, &two_namespaces(), spec.clone(), started_at).await;
            let winner = value(&cluster, target, "settings");
            let loser = if winner == "a" { "b" } else { "a" };
            let (errors, warnings) = messages(&restored);
            assert_eq!(errors, [""; 0], "{attempt}");
            let [warning] = &warnings[..] else { panic!("{attempt}: {warnings:?}") };
            let expected = format!(
                "configmaps/settings: could not restore, ConfigMap \"settings\" already exists. \
                 Warning: the in-cluster version is different than the backed-up version: \
                 data.from; this restore created that object from configmaps/{winner}/settings"
            );
            assert_eq!(*warning, expected, "{attempt}");
            let of_loser = &restored.report.results().warnings.namespaces[loser];
            assert_eq!(of_loser.len(), 1, "it is told of the one that lost");
            assert_eq!(*before.get_or_insert(winner.clone()), winner, "it stays");
            assert_eq!(value(&cluster, target, "own"), "a");
        }
        let own = cluster.0.object("configmaps", target, "own").unwrap();
        assert!(own["metadata"].get("annotations").is_none(), "it is alone: {own}");
    }
}

#[tokio::test]
async fn each_item_recognises_its_object_after_a_restart() {
    for first in ["a", "b"] {
        let cluster = Arc::new(TimestampingCluster(Fake::usual()));
        let started_at = Timestamp::now();
        // The object that the dead process has created. A controller has changed it since.
        let (_, mut existing) = config_map("c", "settings", "changed since");
        existing["metadata"]["labels"] = json!({"velero.io/restore-name": "r"});
        existing["metadata"]["annotations"] =
            json!({"bowline.io/restored-from": format!("configmaps/{first}/settings")});
        existing["metadata"]["creationTimestamp"] = json!(started_at);
        cluster.0.put(namespace("c"));
        cluster.0.put(existing.clone());
        let spec = json!({"namespaceMapping": {"a": "c", "b": "c"}});
        let restored = restore(&cluster, &two_namespaces(), spec, started_at).await;
        let warned: Vec<String> =
            restored.report.results().warnings.namespaces.into_keys().collect();
        let loser = if first == "a" { "b" } else { "a" };
        assert_eq!(warned, [loser], "{:?}", messages(&restored));
        assert_eq!(cluster.0.object("configmaps", "c", "settings"), Some(existing));
    }
}

#[tokio::test]
async fn replacing_a_colliding_item_is_reported() {
    let cluster = Arc::new(TimestampingCluster(Fake::usual()));
    let spec = json!({
        "namespaceMapping": {"a": "c", "b": "c"}, "existingResourcePolicy": "update",
    });
    let started_at = Timestamp::now();
    // After a restart the object is that of the last one, so that both may have to say it.
    for attempt in ["first", "second"] {
        let restored = restore(&cluster, &two_namespaces(), spec.clone(), started_at).await;
        let (errors, warnings) = messages(&restored);
        assert_eq!(errors, [""; 0], "{attempt}");
        assert!((1..=2).contains(&warnings.len()), "{attempt}: {warnings:?}");
        for warning in &warnings {
            assert!(warning.contains("the item replaces configmaps/"), "{attempt}: {warning}");
        }
    }
}

#[tokio::test]
async fn excluded_or_unmapped_namespaces_cause_no_collision() {
    for spec in [
        json!({"namespaceMapping": {"a": "b"}, "includedNamespaces": ["a"]}),
        json!({"namespaceMapping": {"a": "b", "b": "a"}}),
        json!({}),
    ] {
        let cluster = Arc::new(TimestampingCluster(Fake::usual()));
        let mut objects = two_namespaces();
        // Annotations of an earlier restore mean nothing to this one.
        objects[0].1["metadata"]["annotations"] =
            json!({"bowline.io/restored-from": "configmaps/x/settings", "other": "kept"});
        let restored = restore(&cluster, &objects, spec.clone(), Timestamp::now()).await;
        assert_eq!(messages(&restored), (vec![], vec![]), "{spec}");
        let target = if spec == json!({}) { "a" } else { "b" };
        let created = cluster.0.object("configmaps", target, "settings").unwrap();
        assert_eq!(created["metadata"]["annotations"], json!({"other": "kept"}), "{spec}");
    }
}

#[tokio::test]
async fn items_renamed_to_one_name_are_distinguished() {
    let class = |name: &str| {
        let metadata = json!({"name": name});
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": metadata,
            "provisioner": name,
        });
        ("storageclasses.storage.k8s.io", class)
    };
    let spec = json!({"resourceModifier": {"kind": "ConfigMap", "name": "rules"}});
    // One item has the name already, and two are renamed to it.
    for names in [["one", "two"], ["new", "two"], ["one", "new"]] {
        let cluster = Arc::new(TimestampingCluster(Fake::usual()));
        let started_at = Timestamp::now();
        for attempt in ["first", "second"] {
            let objects = names.map(class);
            let restored = restore(&cluster, &objects, spec.clone(), started_at).await;
            let (errors, warnings) = messages(&restored);
            assert_eq!(errors, [""; 0], "{names:?} {attempt}");
            let [warning] = &warnings[..] else { panic!("{names:?} {attempt}: {warnings:?}") };
            assert!(warning.contains("this restore created that object"), "{warning}");
            let created = cluster.0.object("storageclasses.storage.k8s.io", "", "new").unwrap();
            let winner = created["provisioner"].as_str().unwrap();
            let loser = names.into_iter().find(|name| *name != winner).unwrap();
            assert!(warning.starts_with(&format!("storageclasses.storage.k8s.io/{loser}: ")));
        }
    }
}

/// The objects of a claim with a CSI snapshot, as those of another namespace.
fn moved(namespace: &str, handle: &str) -> Vec<(&'static str, Value)> {
    let mut objects = archived_claim("fast");
    for (kind, object) in &mut objects {
        let own = format!("{}-{namespace}", object["metadata"]["name"].as_str().unwrap());
        match *kind {
            "persistentvolumes" => {
                object["metadata"]["name"] = own.into();
                object["spec"]["claimRef"]["namespace"] = namespace.into();
            }
            CONTENTS => {
                object["metadata"]["name"] = own.into();
                object["spec"]["volumeSnapshotRef"]["namespace"] = namespace.into();
                object["status"]["snapshotHandle"] = handle.into();
            }
            SNAPSHOTS => {
                object["metadata"]["namespace"] = namespace.into();
                object["status"]["boundVolumeSnapshotContentName"] =
                    format!("vsc-{namespace}").into();
            }
            _ => {
                object["metadata"]["namespace"] = namespace.into();
                object["spec"]["volumeName"] = format!("pv-1-{namespace}").into();
            }
        }
    }
    objects
}

#[tokio::test]
async fn snapshots_of_one_name_in_two_namespaces_do_not_collide() {
    let cluster = Arc::new(TimestampingCluster(restore_csi::cluster()));
    let objects = [moved("a", "s-a"), moved("b", "s-b")].concat();
    let restored = restore(&cluster, &objects, json!({}), Timestamp::now()).await;
    assert_eq!(messages(&restored), (vec![], vec![]));
    assert_eq!(restored.operations.len(), 2, "both claims are followed");
    for namespace in ["a", "b"] {
        let claim = cluster.0.object("persistentvolumeclaims", namespace, "data").unwrap();
        let name = claim["spec"]["dataSource"]["name"].as_str().unwrap();
        let snapshot = cluster.0.object(SNAPSHOTS, namespace, name).unwrap();
        let content = snapshot["spec"]["source"]["volumeSnapshotContentName"].as_str().unwrap();
        let content = cluster.0.object(CONTENTS, "", content).unwrap();
        let handle = &content["spec"]["source"]["snapshotHandle"];
        assert_eq!(*handle, format!("s-{namespace}"));
        assert_eq!(content["spec"]["volumeSnapshotRef"]["namespace"], namespace);
    }
}

#[tokio::test]
async fn colliding_claim_with_data_is_an_error() {
    for policy in ["none", "update"] {
        let cluster = Arc::new(TimestampingCluster(restore_csi::cluster()));
        let objects = [moved("a", "s-a"), moved("b", "s-b")].concat();
        let spec =
            json!({"namespaceMapping": {"a": "c", "b": "c"}, "existingResourcePolicy": policy});
        let started_at = Timestamp::now();
        for attempt in ["first", "second"] {
            let restored = restore(&cluster, &objects, spec.clone(), started_at).await;
            let (errors, warnings) = messages(&restored);
            assert_eq!(warnings, [""; 0], "{policy} {attempt}");
            let [error] = &errors[..] else { panic!("{policy} {attempt}: {errors:?}") };
            let claim = cluster.0.object("persistentvolumeclaims", "c", "data").unwrap();
            let winner =
                claim["metadata"]["annotations"]["bowline.io/restored-from"].as_str().unwrap();
            let expected = format!(
                "persistentvolumeclaims/data: the data of the claim was not restored: this \
                 restore has created {winner} under the same name; restore the claim separately \
                 into another namespace"
            );
            assert_eq!(*error, expected, "{policy} {attempt}");
            assert_eq!(restored.operations.len(), 1, "only the one that is there is followed");
        }
    }
}
