//! A plugin that is built with our SDK, run by Velero.

use std::path::Path;
use std::process::Command;

use bowline_api::{Backup, BackupPhase};
use bowline_plugin::Item;
use bowline_testbed::{Bed, ControlPlane, Options, S3, Velero, apply, velero};
use kube::Api;
use serde_json::{Value, json};

use crate::fixture::{Set, annotation};

/// Output of a command that reads a file.
fn read(program: &str, arguments: &[&str], file: &Path) -> Vec<u8> {
    let output = Command::new(program).args(arguments).arg(file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

#[tokio::test]
async fn velero_runs_both_action_versions_of_the_sdk() {
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
    let s3 = S3::start(&bed).await.unwrap();
    let client = plane.client().await.unwrap();
    for crd in bowline_api::crds::all() {
        apply::apply(&client, serde_json::to_value(crd).unwrap()).await.unwrap();
    }
    let plugins = Set::Rust.binaries().await.into_iter().map(|(_, path)| path).collect();
    let state = bed.subdir("state").unwrap();
    let environment = vec![("FIXTURE_STATE_DIR".into(), state.into())];
    let options = velero::Options { plugins, environment, ..velero::Options::default() };
    let velero = Velero::start(&plane, &s3, options).await.unwrap();

    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "app-1"}});
    apply::apply(&client, namespace).await.unwrap();
    // A pod that starts an operation of half a second in the action of version 2.
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "namespace": "app-1",
            "annotations": {"fixture.bowline.io/do": "operation=500"},
        },
        "spec": {"containers": [{"name": "main", "image": "example.com/none:1"}]},
    });
    apply::apply(&client, pod).await.unwrap();
    let mut create = velero.command();
    create.args(["backup", "create", "one", "--include-namespaces=app-1", "--wait"]);
    let output = create.output().await.unwrap();
    assert!(output.status.success(), "{output:?}");

    let backups: Api<Backup> = Api::namespaced(client, velero::NAMESPACE);
    let status = backups.get("one").await.unwrap().status.unwrap_or_default();
    assert_eq!(status.phase, Some(BackupPhase::Completed), "{status:?}");
    // Velero lists a name in both versions twice, and runs its newest version each time.
    assert_eq!(status.backup_item_operations_completed, 3, "of `bia-v2`, and two of `both`");

    let folder = velero.bucket().join("backups/one");
    let path = "resources/pods/namespaces/app-1/p.json";
    let stored = read(
        "tar",
        &["--extract", "--to-stdout", path, "--gzip", "--file"],
        &folder.join("one.tar.gz"),
    );
    let seen_by = annotation(&Item::from_json(stored).unwrap(), "seen-by").unwrap();
    for name in ["bia-v1", "bia-v2", "both-v2"] {
        assert!(
            seen_by.split(',').any(|by| by == format!("fixture.bowline.io/{name}")),
            "{seen_by}"
        );
    }
    let operations = read("gzip", &["-dc"], &folder.join("one-itemoperations.json.gz"));
    let operations: Vec<Value> = serde_json::from_slice(&operations).unwrap();
    assert!(!operations.is_empty());
    for operation in operations {
        assert_eq!(operation["status"]["phase"], "Completed", "{operation:#}");
    }
}
