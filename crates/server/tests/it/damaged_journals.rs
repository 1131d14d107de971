//! Runs whose journals are damaged: they end, and the readable part of the journals is kept for inspection.

use bowline_api::{Backup, BackupPhase, Restore, RestorePhase};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::bed::World;
use crate::support::runs::{back_up_and_wait, is_over};

/// A ConfigMap with the label of a journal page, and other contents.
fn invalid_page(name: &str, uid: &str, kind: &str) -> Value {
    let labels = json!({"bowline.io/journal": uid, "bowline.io/run-kind": kind});
    json!({"metadata": {"name": name, "labels": labels}, "data": {"a": "b"}})
}

#[tokio::test]
async fn runs_with_damaged_journals_fail_with_the_reason() {
    let mut world = World::start("damaged").await;
    world.filesystem_location("default").await;
    let few = json!({"includedNamespaces": ["default"], "includedResources": ["configmaps"]});
    let status = back_up_and_wait(&world, "whole", few).await;
    assert_eq!(status.phase, Some(BackupPhase::Completed), "{status:?}");
    world.end().await.unwrap();

    let spec = json!({"storageLocation": "default", "includedNamespaces": ["none"]});
    let running = json!({"phase": "InProgress"});
    let backup = json!({"metadata": {"name": "b"}, "spec": spec, "status": running});
    let backup = world.create::<Backup>(backup).await.uid().unwrap();
    let spec = json!({"backupName": "whole"});
    let restore = json!({"metadata": {"name": "r"}, "spec": spec, "status": running});
    let restore = world.create::<Restore>(restore).await.uid().unwrap();
    world.create::<ConfigMap>(invalid_page("of-b", &backup, "Backup")).await;
    world.create::<ConfigMap>(invalid_page("of-r", &restore, "Restore")).await;
    let options = world.options();
    world.run(options);

    let ended = world.until::<Backup>("b", is_over).await.status.unwrap();
    assert_eq!(ended.phase, Some(BackupPhase::Failed));
    let reasons = [ended.failure_reason];
    let ended = world.until::<Restore>("r", is_over).await.status.unwrap();
    assert_eq!(ended.phase, Some(RestorePhase::Failed));
    let reasons = reasons.into_iter().chain([ended.failure_reason]);
    for (reason, (page, uid)) in reasons.zip([("of-b", &backup), ("of-r", &restore)]) {
        for words in [page, "is not a journal page", "may still be frozen", "snapshots", uid] {
            assert!(reason.contains(words), "no {words:?} in {reason}");
        }
        assert!(world.api::<ConfigMap>().get_opt(page).await.unwrap().is_some(), "{page}");
    }
}
