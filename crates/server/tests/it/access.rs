//! Servers with the permissions of `bowline install --profile backup-only`: they do everything but
//! restores.

use std::path::PathBuf;
use std::time::Duration;

use bowline_api::access::Profile;
use bowline_api::{
    Backup, BackupPhase, DeleteBackupRequest, DownloadRequest, Restore, RestorePhase, Schedule,
};
use bowline_server::Options;
use bowline_testbed::apply::apply;
use bowline_testbed::{Bed, ControlPlane, Node, kubeconfig, node};
use k8s_openapi::api::core::v1::{Namespace, Service};
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::bed::{World, account, eventually, shared};
use crate::support::csi::{APP, CsiScenario, run_csi_scenario_as};
use crate::support::runs::{application, back_up_and_wait, is_over_or_deleting, phase, restore};

/// Whom servers are to the cluster here.
const USER: &str = "backup-only";
const ROLES: &str = "rbac.authorization.k8s.io";

/// The kubeconfig of a server that may only back up, with its own namespace being this one.
async fn backup_only(plane: &ControlPlane, user: &str, namespace: &str) -> PathBuf {
    account(user, namespace, Profile::BackupOnly).open(plane).await.unwrap()
}

/// Asserts that a restore was refused for missing permissions, with a hint.
fn assert_refused_with_hint(restore: &Restore) {
    let status = restore.status.clone().unwrap_or_default();
    assert_eq!(status.phase, Some(RestorePhase::FailedValidation), "{status:?}");
    let errors = status.validation_errors.join("; ");
    for words in ["`--profile=backup-only`", "`bowline install --profile=full`"] {
        assert!(errors.contains(words), "{errors}");
    }
}

#[tokio::test]
async fn backup_only_server_does_everything_but_restores() {
    const SPACE: &str = "backup-only";
    const NIGHTLY: &str = "velero.io/schedule-name=nightly";
    let mut world = World::without_server(SPACE).await;
    let kubeconfig = backup_only(shared().plane(), USER, SPACE).await;
    let often = Duration::from_secs(1);
    let options = Options { garbage_collection_frequency: often, ..world.options() };
    world.run_as(kubeconfig, options, |client| client);
    let store = world.filesystem_location("default").await;
    let app = format!("{SPACE}-app");
    application(&world.client, &app).await;
    let spec = json!({"includedNamespaces": [app]});
    let status = back_up_and_wait(&world, "b", spec.clone()).await;
    assert_eq!(status.phase, Some(BackupPhase::Completed), "{status:?}");

    // A schedule, whose backups expire.
    let template = json!({"includedNamespaces": [app], "ttl": "1s"});
    let schedule = json!({"schedule": "@every 1s", "template": template});
    world.create::<Schedule>(json!({"metadata": {"name": "nightly"}, "spec": schedule})).await;
    let scheduled = async || {
        let params = ListParams::default().labels(NIGHTLY);
        world.api::<Backup>().list(&params).await.unwrap().items
    };
    let scheduled_backup = eventually("a backup of the schedule has ended", async || {
        scheduled().await.into_iter().find(is_over_or_deleting)
    })
    .await;
    world.delete::<Schedule>("nightly").await;
    world.until_gone::<Backup>(&scheduled_backup.name_any()).await;

    // Only the resource is deleted, and the sync recreates it from the bucket.
    world.delete::<Backup>("b").await;
    let synced = world.until::<Backup>("b", is_over_or_deleting).await;
    assert_eq!(phase(&synced), "Completed");
    let target = json!({"kind": "BackupLog", "name": "b"});
    world
        .create::<DownloadRequest>(json!({"metadata": {"name": "d"}, "spec": {"target": target}}))
        .await;
    let has_link = |request: &DownloadRequest| {
        request.status.as_ref().is_some_and(|status| !status.download_url.is_empty())
    };
    world.until::<DownloadRequest>("d", has_link).await;

    let spec = json!({"backupName": "b", "namespaceMapping": {&app: "backup-only-new"}});
    restore(&world, "r", spec).await;
    assert_refused_with_hint(&world.api::<Restore>().get("r").await.unwrap());
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    assert_eq!(namespaces.get_opt("backup-only-new").await.unwrap(), None);

    let request = json!({"metadata": {"name": "away"}, "spec": {"backupName": "b"}});
    world.create::<DeleteBackupRequest>(request).await;
    world.until_gone::<Backup>("b").await;
    world.until_gone::<DeleteBackupRequest>("away").await;
    assert!(!store.exists(&"b".parse().unwrap()).await.unwrap());
    world.end().await.unwrap();
}

#[tokio::test]
async fn server_restores_only_where_it_has_permissions() {
    const SPACE: &str = "services-only";
    const SOURCE_NAMESPACE: &str = "services-app";
    const ALLOWED_NAMESPACE: &str = "services-may";
    const DENIED_NAMESPACE: &str = "services-may-not";
    let mut world = World::without_server(SPACE).await;
    for namespace in [SOURCE_NAMESPACE, ALLOWED_NAMESPACE, DENIED_NAMESPACE] {
        application(&world.client, namespace).await;
    }
    let own = json!({"name": "services", "namespace": ALLOWED_NAMESPACE});
    let rule = json!({"apiGroups": [""], "resources": ["services"], "verbs": ["create", "patch"]});
    for object in [
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": SOURCE_NAMESPACE},
            "spec": {"ports": [{"port": 80}]},
        }),
        json!({
            "apiVersion": format!("{ROLES}/v1"), "kind": "Role", "metadata": own, "rules": [rule],
        }),
        json!({
            "apiVersion": format!("{ROLES}/v1"), "kind": "RoleBinding", "metadata": own,
            "roleRef": {"apiGroup": ROLES, "kind": "Role", "name": "services"},
            "subjects": [{"apiGroup": ROLES, "kind": "User", "name": SPACE}],
        }),
    ] {
        apply(&world.client, object).await.unwrap();
    }
    let kubeconfig = backup_only(shared().plane(), SPACE, SPACE).await;
    world.run_as(kubeconfig, world.options(), |client| client);
    world.filesystem_location("default").await;
    let status =
        back_up_and_wait(&world, "b", json!({"includedNamespaces": [SOURCE_NAMESPACE]})).await;
    assert_eq!(status.phase, Some(BackupPhase::Completed), "{status:?}");

    let into = |namespace: &str| {
        json!({
            "backupName": "b", "includedResources": ["services"],
            "namespaceMapping": {SOURCE_NAMESPACE: namespace},
        })
    };
    let status = restore(&world, "may", into(ALLOWED_NAMESPACE)).await;
    assert_eq!(status.phase, Some(RestorePhase::Completed), "{status:?}");
    let services: Api<Service> = Api::namespaced(world.client.clone(), ALLOWED_NAMESPACE);
    assert!(services.get_opt("web").await.unwrap().is_some());
    restore(&world, "may-not", into(DENIED_NAMESPACE)).await;
    let refused = world.api::<Restore>().get("may-not").await.unwrap();
    assert_refused_with_hint(&refused);
    let errors = refused.status.unwrap().validation_errors.join("; ");
    assert!(errors.contains("services-may-not"), "{errors}");
    world.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_only_server_runs_hooks_and_manages_csi_snapshots() {
    if !node::require_for_test("a_server_that_may_only_back_up_runs_hooks_and_takes_csi_snapshots")
    {
        return;
    }
    let bed = Bed::isolated().unwrap();
    let plane = ControlPlane::start(&bed, bowline_testbed::Options::default()).await.unwrap();
    let node = Node::start(&plane).await.unwrap();
    let server = kubeconfig::client(&backup_only(&plane, USER, "velero").await).await.unwrap();
    Box::pin(run_csi_scenario_as(server, &bed, &plane, Some(&node), assert_hooks_and_snapshots))
        .await;
}

async fn assert_hooks_and_snapshots(stage: &CsiScenario) {
    stage.claims("db", &["orders"]).await;
    stage.pod("db", &["orders"]).await;
    stage.back_up("b", "db", json!({})).await;
    let backup = stage.backup("b", crate::support::runs::is_over).await;
    assert_eq!(stage.errors("b").await, [""; 0]);
    assert_eq!(phase(&backup), "Completed", "{:?}", backup.status);
    let status = backup.status.unwrap();
    let snapshots = (status.csi_volume_snapshots_attempted, status.csi_volume_snapshots_completed);
    assert_eq!(snapshots, (1, 1));
    assert_eq!(status.freeze_windows.len(), 1, "its hooks have run");
    assert_eq!(stage.csi.snapshots().unwrap().len(), 1);

    let metadata = |name: &str| json!({"name": name, "namespace": "velero"});
    let restore = json!({
        "apiVersion": "velero.io/v1", "kind": "Restore", "metadata": metadata("r"),
        "spec": {"backupName": "b", "namespaceMapping": {APP: "elsewhere"}},
    });
    apply(&stage.client, restore).await.unwrap();
    let restores: Api<Restore> = Api::namespaced(stage.client.clone(), "velero");
    let refused = stage
        .until("the end of the restore", async || {
            let restore = restores.get("r").await.unwrap();
            let phase = restore.status.as_ref()?.phase.as_ref()?;
            phase.is_terminal().then(|| restore.clone())
        })
        .await;
    assert_refused_with_hint(&refused);

    let request = json!({
        "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest",
        "metadata": metadata("away"), "spec": {"backupName": "b"},
    });
    apply(&stage.client, request).await.unwrap();
    let backups: Api<Backup> = Api::namespaced(stage.client.clone(), "velero");
    stage
        .until("the end of the backup", async || {
            backups.get_opt("b").await.unwrap().is_none().then_some(())
        })
        .await;
    stage.until_no_objects().await;
    stage
        .until("the end of its snapshot", async || {
            stage.csi.snapshots().unwrap().is_empty().then_some(())
        })
        .await;
}
