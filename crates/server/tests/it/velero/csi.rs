//! CSI snapshots: each server restores those of the other, with data.

use std::path::PathBuf;

use bowline_api::{Backup, BackupPhase, BackupSpec, DeleteBackupRequest, RestorePhase};
use bowline_testbed::apply::apply;
use bowline_testbed::{Bed, ControlPlane, Csi, S3, Velero, csi, velero};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim};
use kube::api::DeleteParams;
use kube::{Api, Client};
use serde_json::json;

use super::harness::{BowlineServer, back_up, eventually, install, restore};
use super::use_credentials;

const APP: &str = "shop";
const CLAIMS: [&str; 2] = ["orders", "log"];

/// Velero with CSI volumes.
fn with_csi() -> velero::Options {
    velero::Options {
        arguments: vec!["--features=EnableCSI".to_owned()],
        ..velero::Options::default()
    }
}

/// The folder with the data of a claim, when it has a volume.
async fn folder(client: &Client, csi: &Csi, namespace: &str, claim: &str) -> PathBuf {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    eventually(&format!("{namespace}/{claim} is bound"), async || {
        let claim = claims.get(claim).await.unwrap();
        let is_bound = claim.status?.phase.as_deref() == Some("Bound");
        let volume = claim.spec?.volume_name.filter(|_| is_bound)?;
        let volume = volumes.get_opt(&volume).await.unwrap()?;
        Some(csi.volume(&volume.spec?.csi?.volume_handle))
    })
    .await
}

async fn assert_data_as_before(client: &Client, csi: &Csi, namespace: &str) {
    for claim in CLAIMS {
        let file = folder(client, csi, namespace, claim).await.join("file");
        let found = std::fs::read_to_string(&file).unwrap();
        assert_eq!(found, format!("{claim} before"), "{namespace}");
    }
}

async fn back_up_app(client: &Client, name: &str) {
    let spec = BackupSpec { included_namespaces: vec![APP.to_owned()], ..BackupSpec::default() };
    let status = back_up(client, velero::NAMESPACE, name, spec).await;
    assert_eq!(status.phase, Some(BackupPhase::Completed), "{name}: {status:?}");
    assert_eq!(status.csi_volume_snapshots_completed, 2, "{name}");
}

/// Brings a backup back into another namespace.
async fn restore_into(client: &Client, backup: &str, namespace: &str) {
    let spec = json!({"backupName": backup, "namespaceMapping": {APP: namespace}});
    let name = format!("{backup}-back");
    let status = restore(client, velero::NAMESPACE, &name, spec).await;
    assert_eq!(status.phase, Some(RestorePhase::Completed), "{backup}: {status:?}");
}

async fn delete(client: &Client, backup: &str) {
    let request = json!({
        "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest",
        "metadata": {"name": backup, "namespace": velero::NAMESPACE},
        "spec": {"backupName": backup},
    });
    apply(client, request).await.unwrap();
    let requests: Api<DeleteBackupRequest> = Api::namespaced(client.clone(), velero::NAMESPACE);
    let backups: Api<Backup> = Api::namespaced(client.clone(), velero::NAMESPACE);
    eventually(&format!("{backup} is gone"), async || {
        let request = requests.get_opt(backup).await.unwrap();
        let errors = request.and_then(|request| request.status).map(|status| status.errors);
        let errors = errors.unwrap_or_default();
        assert!(errors.is_empty(), "{backup}: {errors:?}");
        backups.get_opt(backup).await.unwrap().is_none().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn velero_and_bowline_restore_each_others_csi_snapshots() {
    crate::bed::install_log_subscriber();
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, bowline_testbed::Options::default()).await.unwrap();
    let s3 = S3::start(&bed).await.unwrap();
    let client = plane.client().await.unwrap();
    install(&client).await;
    let driver = Csi::start(&plane, None, csi::Options::default()).await.unwrap();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": APP}});
    apply(&client, namespace).await.unwrap();
    for name in CLAIMS {
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": APP},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": csi::CLASS,
                "resources": {"requests": {"storage": "1Mi"}},
            },
        });
        apply(&client, claim).await.unwrap();
        let folder = folder(&client, &driver, APP, name).await;
        std::fs::write(folder.join("file"), format!("{name} before")).unwrap();
    }

    let running = Velero::start(&plane, &s3, with_csi()).await.unwrap();
    use_credentials(&client, &s3).await;
    back_up_app(&client, "by-velero").await;
    drop(running);
    let server = BowlineServer::start(&bed, &plane);
    back_up_app(&client, "by-bowline").await;

    // The application and its volumes are lost.
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.delete(APP, &DeleteParams::default()).await.unwrap();
    eventually("the application is gone", async || {
        namespaces.get_opt(APP).await.unwrap().is_none().then_some(())
    })
    .await;
    eventually("its volumes are gone", async || driver.volumes().unwrap().is_empty().then_some(()))
        .await;
    assert_eq!(driver.snapshots().unwrap().len(), 4);

    restore_into(&client, "by-velero", "ours").await;
    assert_data_as_before(&client, &driver, "ours").await;
    server.end();
    let running = Velero::start(&plane, &s3, with_csi()).await.unwrap();
    restore_into(&client, "by-bowline", "theirs").await;
    assert_data_as_before(&client, &driver, "theirs").await;
    drop(running);

    let server = BowlineServer::start(&bed, &plane);
    delete(&client, "by-velero").await;
    assert_eq!(driver.snapshots().unwrap().len(), 2);
    delete(&client, "by-bowline").await;
    assert_eq!(driver.snapshots().unwrap(), [""; 0]);
    // The volumes do not need them any more.
    assert_data_as_before(&client, &driver, "ours").await;
    server.end();
}
