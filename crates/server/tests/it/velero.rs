//! Real Velero and Bowline on the same cluster and bucket.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::Path;

use bowline_api::{Backup, BackupPhase, BackupSpec, BackupStorageLocation, Restore, RestorePhase};
use bowline_testbed::apply::apply;
use bowline_testbed::{Bed, ControlPlane, S3, Velero, fixture, velero};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::rich_cluster;
use harness::{
    BowlineServer, api_of, back_up, eventually, install, reduced, restore, velero_output,
    without_restore_labels,
};

mod changes;
mod csi;
mod harness;
mod metrics;
mod restores;
mod volumes;

/// A backup of ours with operations.
const OPERATIONS_BACKUP: &str = "operated";

/// Kinds whose objects change by themselves, so that two backups never have the same.
const VOLATILE_KINDS: [&str; 8] = [
    "events",
    "leases.coordination.k8s.io",
    "backups.velero.io",
    "backupstoragelocations.velero.io",
    "serverstatusrequests.velero.io",
    "downloadrequests.velero.io",
    "backuprepositories.velero.io",
    "ipaddresses.networking.k8s.io",
];

#[tokio::test(flavor = "multi_thread")]
async fn velero_and_bowline_write_the_same_backups_and_restore_each_others() {
    crate::bed::install_log_subscriber();
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, bowline_testbed::Options::default()).await.unwrap();
    let s3 = S3::start(&bed).await.unwrap();
    let client = plane.client().await.unwrap();
    install(&client).await;
    rich_cluster::create(&client).await;
    let originals = read_all(&client).await;

    let running = Velero::start(&plane, &s3, velero::Options::default()).await.unwrap();
    let bucket = running.bucket().to_owned();
    use_credentials(&client, &s3).await;
    wait_until_settled(&client).await;
    back_up_all(&client, "by-velero").await;
    drop(running);
    let server = BowlineServer::start(&bed, &plane);
    back_up_all(&client, "by-bowline").await;
    server.end();
    back_up_with_operations(&bed, &plane, &client).await;

    let [theirs, ours] = ["by-velero", "by-bowline"].map(|name| archive(&bucket, name));
    assert_same_archives(&theirs, &ours);

    // Velero must find our backup in the bucket, not in the cluster.
    let backups: Api<Backup> = Api::namespaced(client.clone(), velero::NAMESPACE);
    backups.delete("by-bowline", &DeleteParams::default()).await.unwrap();
    delete_rich_cluster(&client).await;
    let running = Velero::start(&plane, &s3, velero::Options::default()).await.unwrap();
    eventually("Velero has found our backup", async || {
        let found = backups.get_opt("by-bowline").await.unwrap();
        found.is_some().then_some(())
    })
    .await;
    let describe = ["backup", "describe", "by-bowline", "--details", "--colorized=false"];
    let described = velero_output(&running, &describe).await;
    for words in ["Phase:  Completed", "shop/summer.2026", "v1/ConfigMap:", "Items backed up:"] {
        assert!(described.contains(words), "no {words:?} in:\n{described}");
    }
    assert_velero_shows_operations(&running).await;
    let logs = velero_output(&running, &["backup", "logs", "by-bowline"]).await;
    assert!(logs.contains("all items are in the archive"), "{logs}");
    velero_output(&running, &["restore", "create", "back", "--from-backup=by-bowline", "--wait"])
        .await;
    let restores: Api<Restore> = Api::namespaced(client.clone(), velero::NAMESPACE);
    let status = restores.get("back").await.unwrap().status.unwrap_or_default();
    let description =
        velero_output(&running, &["restore", "describe", "back", "--colorized=false"]).await;
    assert_eq!(status.phase, Some(RestorePhase::Completed), "{description}");
    let back = read_all(&client).await;
    for (id, original) in &originals {
        let found = back.get(id).unwrap_or_else(|| panic!("{id} was not restored"));
        assert_eq!(found, original, "{id}");
    }

    // The archive of Velero, restored by both into namespaces of their own.
    let mappings: Vec<String> =
        rich_cluster::NAMESPACES.iter().map(|name| format!("{name}:v-{name}")).collect();
    let mapped = format!("--namespace-mappings={}", mappings.join(","));
    let from = ["restore", "create", "v-all", "--from-backup=by-velero", &mapped, "--wait"];
    velero_output(&running, &from).await;
    drop(running);
    let server = BowlineServer::start(&bed, &plane);
    let mapping: BTreeMap<_, _> = rich_cluster::NAMESPACES
        .iter()
        .map(|name| (name.to_string(), format!("b-{name}")))
        .collect();
    let spec = json!({"backupName": "by-velero", "namespaceMapping": mapping});
    let status = restore(&client, velero::NAMESPACE, "b-all", spec).await;
    server.end();
    assert_eq!(status.phase, Some(RestorePhase::Completed), "{status:?}");
    let mut compared = 0;
    for object in rich_cluster::objects() {
        let Some(namespace) = object["metadata"]["namespace"].as_str() else { continue };
        let [theirs, ours] = ["v", "b"].map(|prefix| {
            let mut moved = object.clone();
            moved["metadata"]["namespace"] = format!("{prefix}-{namespace}").into();
            moved
        });
        let id = format!("{} {namespace}/{}", object["kind"], object["metadata"]["name"]);
        let read = async |moved: &Value| {
            let (api, name) = api_of(&client, moved).await;
            let found = api.get_opt(&name).await.unwrap();
            let found = found.unwrap_or_else(|| panic!("{id} was not restored to {moved}"));
            let text =
                serde_json::to_string(&reduced(serde_json::to_value(found).unwrap())).unwrap();
            // Names of the namespaces that it was restored to.
            text.replace(&format!("\"v-{namespace}"), &format!("\"b-{namespace}"))
        };
        let (theirs, ours) = (read(&theirs).await, read(&ours).await);
        assert_eq!(theirs.replace("\"v-", "\"b-"), ours, "{id}");
        compared += 1;
    }
    assert!(compared > 700, "{compared}");
}

/// Lets our built-in store have the credentials that Velero has in its environment.
async fn use_credentials(client: &Client, s3: &S3) {
    let text = std::fs::read_to_string(s3.credentials_file()).unwrap();
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s3", "namespace": velero::NAMESPACE},
        "stringData": {"cloud": text},
    });
    apply(client, secret).await.unwrap();
    let locations: Api<BackupStorageLocation> = Api::namespaced(client.clone(), velero::NAMESPACE);
    let change = json!({"spec": {"credential": {"name": "s3", "key": "cloud"}}});
    let patch = Patch::Merge(change);
    locations.patch(velero::LOCATION, &PatchParams::default(), &patch).await.unwrap();
}

/// Waits until the controllers have done what follows from the rich cluster.
async fn wait_until_settled(client: &Client) {
    for namespace in rich_cluster::NAMESPACES {
        eventually(&format!("{namespace} is set up"), async || {
            let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
            let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
            maps.get_opt("kube-root-ca.crt").await.unwrap()?;
            accounts.get_opt("default").await.unwrap().map(drop)
        })
        .await;
    }
    eventually("the pods of the deployment are there", async || {
        let pods: Api<Pod> = Api::namespaced(client.clone(), "shop");
        let pods = pods.list(&ListParams::default()).await.unwrap();
        (pods.items.len() == 2).then_some(())
    })
    .await;
}

/// Velero reads the operations of our backup.
async fn assert_velero_shows_operations(running: &Velero) {
    let describe = ["backup", "describe", OPERATIONS_BACKUP, "--details", "--colorized=false"];
    let described = velero_output(running, &describe).await;
    for words in [
        "Phase:  PartiallyFailed",
        "Operation for persistentvolumeclaims app-operated/good:",
        "Operation for persistentvolumeclaims app-operated/bad:",
        "fixture.bowline.io/bia-v2",
        "1500 of 1500 complete (Milliseconds)",
        "Operation Error:            the disk is full",
    ] {
        assert!(described.contains(words), "no {words:?} in:\n{described}");
    }
    let described =
        velero_output(running, &["backup", "describe", OPERATIONS_BACKUP, "--colorized=false"])
            .await;
    let counted = "Backup Item Operations:  1 of 2 completed successfully, 1 failed";
    assert!(described.contains(counted), "{described}");
}

/// Takes a backup of everything and waits for its end.
async fn back_up_all(client: &Client, name: &str) {
    // Without it Velero leaves out what lives in no namespace, by accident.
    let spec = BackupSpec { include_cluster_resources: Some(true), ..BackupSpec::default() };
    let status = back_up(client, velero::NAMESPACE, name, spec).await;
    assert_eq!(status.phase, Some(BackupPhase::Completed), "{status:?}");
}

/// Creates a backup with operations of a plugin: one succeeds, and one fails.
async fn back_up_with_operations(bed: &Bed, plane: &ControlPlane, client: &Client) {
    let namespace = "app-operated";
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    apply(client, object).await.unwrap();
    for (name, verbs) in
        [("good", "operation=1500"), ("bad", "operation=0,outcome=the disk is full")]
    {
        let annotations = json!({"fixture.bowline.io/do": verbs});
        let claim = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "none",
                "resources": {"requests": {"storage": "1Mi"}},
            },
        });
        apply(client, claim).await.unwrap();
    }
    let plugins = bed.subdir("plugins").unwrap();
    let plugin = fixture::rust_plugins().await.unwrap();
    std::os::unix::fs::symlink(plugin, plugins.join("fixture")).unwrap();
    let server = BowlineServer::start_with(bed, plane, |options| options.plugin_dir = plugins);
    let included_namespaces = vec![namespace.to_owned()];
    let spec = BackupSpec { included_namespaces, ..BackupSpec::default() };
    let status = back_up(client, velero::NAMESPACE, OPERATIONS_BACKUP, spec).await;
    assert_eq!(status.phase, Some(BackupPhase::PartiallyFailed), "{status:?}");
    server.end();
}

fn archive(bucket: &Path, name: &str) -> BTreeMap<String, Value> {
    let file = bucket.join(format!("backups/{name}/{name}.tar.gz"));
    let file = std::fs::File::open(file).unwrap();
    let mut tar = tar::Archive::new(flate2::read::MultiGzDecoder::new(file));
    let entries = tar.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().to_str().unwrap().to_owned();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (path, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    });
    entries.collect()
}

/// The same paths, and the same objects under them.
fn assert_same_archives(velero: &BTreeMap<String, Value>, bowline: &BTreeMap<String, Value>) {
    let still = |archive: &BTreeMap<String, Value>| -> BTreeSet<String> {
        let is_still = |path: &&String| {
            !VOLATILE_KINDS.iter().any(|kind| path.starts_with(&format!("resources/{kind}/")))
        };
        archive.keys().filter(is_still).cloned().collect()
    };
    let (their_paths, our_paths) = (still(velero), still(bowline));
    let missing: Vec<_> = their_paths.difference(&our_paths).collect();
    let surplus: Vec<_> = our_paths.difference(&their_paths).collect();
    assert!(
        missing.is_empty() && surplus.is_empty(),
        "missing: {missing:#?} surplus: {surplus:#?}"
    );
    assert!(our_paths.len() > 1000, "{}", our_paths.len());
    let mut same = 0;
    for path in &our_paths {
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        // A controller may have touched an object in between.
        if version(&velero[path]) == version(&bowline[path]) {
            assert_eq!(velero[path], bowline[path], "{path}");
            same += 1;
        }
    }
    assert!(same * 100 > our_paths.len() * 98, "{same} of {} are the same", our_paths.len());
}

/// The objects of the rich cluster, without fields that every restore changes.
async fn read_all(client: &Client) -> BTreeMap<String, Value> {
    let mut read = BTreeMap::new();
    for object in rich_cluster::objects() {
        let (api, name) = api_of(client, &object).await;
        let Some(found) = api.get_opt(&name).await.unwrap() else { continue };
        let id = format!("{} {}/{name}", object["kind"], found.namespace().unwrap_or_default());
        let mut found = without_restore_labels(serde_json::to_value(found).unwrap());
        if object["kind"] == "Namespace" {
            // Velero makes Namespaces anew, of labels, annotations and spec: who owned their fields is lost.
            found["metadata"].as_object_mut().unwrap().remove("managedFields");
        }
        read.insert(id, found);
    }
    read
}

/// Deletes the rich cluster, and waits until it is gone.
async fn delete_rich_cluster(client: &Client) {
    let mut objects = rich_cluster::objects();
    objects.retain(|object| {
        object["metadata"]["namespace"].is_null()
            && !matches!(object["kind"].as_str(), Some("Region"))
    });
    for object in &objects {
        let (api, name) = api_of(client, object).await;
        api.delete(&name, &DeleteParams::background()).await.unwrap();
    }
    for object in &objects {
        let (api, name) = api_of(client, object).await;
        let what = format!("{name} is gone");
        eventually(&what, async || api.get_opt(&name).await.unwrap().is_none().then_some(())).await;
    }
}
