//! Backups and restores of small applications.

use std::fmt::Debug;

use bowline_api::{Backup, BackupPhase, BackupStatus, Restore, RestoreStatus};
use bowline_store::file::{ResourceList, Results};
use bowline_store::{BackupStore, RestoreName};
use bowline_testbed::apply::apply;
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::bed::World;

/// A Backup or Restore.
pub(crate) trait Run:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
{
}

impl Run for Backup {}
impl Run for Restore {}

/// Value of a key in the status of a run.
pub(crate) fn status_field<K: Run>(run: &K, key: &str) -> Value {
    serde_json::to_value(run).unwrap()["status"][key].take()
}

pub(crate) fn phase<K: Run>(run: &K) -> String {
    status_field(run, "phase").as_str().unwrap_or("New").to_owned()
}

pub(crate) fn is_over<K: Run>(run: &K) -> bool {
    ["Completed", "PartiallyFailed", "Failed", "FailedValidation"].contains(&phase(run).as_str())
}

pub(crate) fn is_waiting<K: Run>(run: &K) -> bool {
    phase(run) == "WaitingForPluginOperations"
}

/// Value of a condition: `True`, `False` or `Unknown`; empty without the condition.
pub(crate) fn condition<K: Run>(run: &K, type_: &str) -> String {
    let conditions = status_field(run, "conditions");
    let conditions = conditions.as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|condition| condition["type"] == type_);
    found.map_or("", |condition| condition["status"].as_str().unwrap()).to_owned()
}

/// Number of started, completed and failed operations of a run.
pub(crate) fn counts<K: Run>(run: &K) -> [i64; 3] {
    let kind = K::kind(&()).to_lowercase();
    ["Attempted", "Completed", "Failed"].map(|what| {
        status_field(run, &format!("{kind}ItemOperations{what}")).as_i64().unwrap_or_default()
    })
}

/// The phases of a run in their order.
pub(crate) fn phases<K: Run>(shown: &[K]) -> Vec<String> {
    let mut phases: Vec<String> = shown.iter().map(phase).collect();
    phases.dedup();
    phases
}

/// A namespace with a few objects.
pub(crate) async fn application(client: &Client, namespace: &str) {
    let metadata = |name: &str| json!({"name": name, "namespace": namespace});
    for object in [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("settings")}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata("password")}),
    ] {
        apply(client, object).await.unwrap();
    }
}

/// A pod that configures the fixture. Its namespace begins with `app-`.
pub(crate) fn pod(namespace: &str, name: &str, verbs: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {"fixture.bowline.io/do": verbs},
        },
        "spec": {"containers": [{"name": "main", "image": "example.io/none:1"}]},
    })
}

/// True if a backup has ended; one that expires at once may be deleted already.
pub(crate) fn is_over_or_deleting(backup: &Backup) -> bool {
    let phase = backup.status.as_ref().and_then(|status| status.phase.as_ref());
    phase.is_some_and(BackupPhase::is_terminal)
}

/// Takes a backup and waits for its end.
pub(crate) async fn back_up_and_wait(world: &World, name: &str, spec: Value) -> BackupStatus {
    world.create::<Backup>(json!({"metadata": {"name": name}, "spec": spec})).await;
    world.until::<Backup>(name, is_over_or_deleting).await.status.unwrap()
}

/// Backs up namespaces, which must succeed.
pub(crate) async fn back_up(world: &World, name: &str, namespaces: &[&str]) {
    let status = back_up_and_wait(world, name, json!({"includedNamespaces": namespaces})).await;
    assert_eq!(status.phase, Some(BackupPhase::Completed), "{status:?}");
}

/// Restores, and waits for the end.
pub(crate) async fn restore(world: &World, name: &str, spec: Value) -> RestoreStatus {
    world.create::<Restore>(json!({"metadata": {"name": name}, "spec": spec})).await;
    world.until::<Restore>(name, is_over).await.status.unwrap()
}

pub(crate) async fn list_of(store: &BackupStore, name: &str) -> ResourceList {
    let name = RestoreName::new(name).unwrap();
    store.get_restore_file(&name).await.unwrap().expect("there is a list")
}

pub(crate) async fn results_of(store: &BackupStore, name: &str) -> Results {
    let name = RestoreName::new(name).unwrap();
    store.get_restore_file(&name).await.unwrap().expect("there are results")
}
