//! Helpers for comparisons with Velero: our server beside it, and objects in comparable form.

use std::io::Read as _;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use bowline_api::access::Profile;
use bowline_api::{
    Backup, BackupPhase, BackupSpec, BackupStatus, BackupStorageLocation, Restore, RestorePhase,
    RestoreStatus, annotation,
};
use bowline_server::Options;
use bowline_testbed::apply::apply;
use bowline_testbed::{Bed, ControlPlane, Poll, S3, Velero, kubeconfig, s3, velero};
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind, NamespaceResourceScope};
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::bed::{SERVER, account};

/// Time limit of a step. The machine may be busy with a compiler.
const LIMIT: Duration = Duration::from_mins(5);
/// The bucket of Velero's location.
const BUCKET: &str = "velero";
/// Namespace of our server, beside Velero's own namespace.
pub(super) const NAMESPACE: &str = "bowline";

/// A server of ours, on a thread and runtime of its own, as in a process of its own.
pub(super) struct BowlineServer {
    stop: CancellationToken,
    thread: JoinHandle<Result<(), bowline_server::Error>>,
}

impl BowlineServer {
    /// A server in Velero's namespace, without plugins.
    pub(super) fn start(bed: &Bed, plane: &ControlPlane) -> Self {
        Self::start_with(bed, plane, |_| {})
    }

    /// A server with other options.
    pub(super) fn start_with(
        bed: &Bed,
        plane: &ControlPlane,
        change: impl FnOnce(&mut Options),
    ) -> Self {
        let mut options = Options {
            plugin_dir: bed.subdir("no-plugins").unwrap(),
            scratch_dir: bed.subdir("scratch").unwrap(),
            backup_sync_period: Duration::from_secs(1),
            ..Options::default()
        };
        change(&mut options);
        let stop = CancellationToken::new();
        let kubeconfig = plane.kubeconfig_here(SERVER).unwrap();
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            tokio::runtime::Runtime::new().unwrap().block_on(async {
                let client = kubeconfig::client(&kubeconfig).await.unwrap();
                bowline_server::run(client, options, stopped.cancelled_owned()).await
            })
        });
        Self { stop, thread }
    }

    pub(super) fn end(self) {
        self.stop.cancel();
        self.thread.join().unwrap().unwrap();
    }
}

/// Waits for something that Velero does.
pub(super) async fn eventually<P: Poll>(what: &str, poll: impl AsyncFnMut() -> P) -> P::Answer {
    bowline_testbed::eventually(what, LIMIT, poll).await
}

/// Installs our definitions, and the rights of our servers.
pub(super) async fn install(client: &Client) {
    for namespace in [velero::NAMESPACE, NAMESPACE] {
        account(SERVER, namespace, Profile::Full).grant(client).await.unwrap();
    }
    for crd in bowline_api::crds::all() {
        apply(client, serde_json::to_value(crd).unwrap()).await.unwrap();
    }
}

/// A location in Velero's bucket, in any namespace, that our built-in store can use: Velero has the
/// credentials in its environment.
pub(super) async fn create_location(client: &Client, s3: &S3, namespace: &str) {
    s3.create_bucket(BUCKET).unwrap();
    let text = std::fs::read_to_string(s3.credentials_file()).unwrap();
    for object in [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "s3", "namespace": namespace},
            "stringData": {"cloud": text},
        }),
        json!({
            "apiVersion": "velero.io/v1",
            "kind": "BackupStorageLocation",
            "metadata": {"name": velero::LOCATION, "namespace": namespace},
            "spec": location(s3),
        }),
    ] {
        apply(client, object).await.unwrap();
    }
}

/// The spec of a location in Velero's bucket, with the credentials in the Secret `s3`.
pub(super) fn location(s3: &S3) -> Value {
    json!({
        "default": true,
        "provider": "aws",
        "objectStorage": {"bucket": BUCKET},
        "credential": {"name": "s3", "key": "cloud"},
        "config": {"region": s3::REGION, "s3ForcePathStyle": "true", "s3Url": s3.url()},
    })
}

/// Takes a backup and waits for its end.
pub(super) async fn back_up(
    client: &Client,
    namespace: &str,
    name: &str,
    spec: BackupSpec,
) -> BackupStatus {
    let backups: Api<Backup> = Api::namespaced(client.clone(), namespace);
    let locations: Api<BackupStorageLocation> = Api::namespaced(client.clone(), namespace);
    eventually("the location can be used", async || {
        let location = locations.get(velero::LOCATION).await.unwrap();
        crate::bed::is_available(&location).then_some(())
    })
    .await;
    let mut backup = Backup::new(name, spec);
    // Velero stores its credentials with the rest, and the archives of both are compared.
    let include = (annotation::INCLUDE_CREDENTIALS.to_owned(), "true".to_owned());
    backup.metadata.annotations = Some([include].into());
    backups.create(&PostParams::default(), &backup).await.unwrap();
    eventually(&format!("{name} has ended"), async || {
        let status = backups.get(name).await.unwrap().status.unwrap_or_default();
        status.phase.as_ref().is_some_and(BackupPhase::is_terminal).then_some(status)
    })
    .await
}

/// Restores, and waits for the end.
pub(super) async fn restore(
    client: &Client,
    namespace: &str,
    name: &str,
    spec: Value,
) -> RestoreStatus {
    let restore = json!({
        "apiVersion": "velero.io/v1",
        "kind": "Restore",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    });
    apply(client, restore).await.unwrap();
    let restores: Api<Restore> = Api::namespaced(client.clone(), namespace);
    eventually(&format!("{name} has ended"), async || {
        let status = restores.get(name).await.unwrap().status.unwrap_or_default();
        status.phase.as_ref().is_some_and(RestorePhase::is_terminal).then_some(status)
    })
    .await
}

/// Waits until an object is there.
pub(super) async fn until_there<K>(client: &Client, namespace: &str, name: &str) -> K
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let what = format!("{name} is in {namespace}");
    eventually(&what, async || api.get_opt(name).await.unwrap()).await
}

/// Output of a command of Velero.
pub(super) async fn velero_output(velero: &Velero, arguments: &[&str]) -> String {
    let output = velero.command().args(arguments).output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{arguments:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// A compressed file of JSON.
pub(super) fn read_compressed<T: DeserializeOwned>(file: &Path) -> T {
    let opened =
        std::fs::File::open(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut text = String::new();
    flate2::read::MultiGzDecoder::new(opened).read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Something that is ignored when objects are compared.
struct Exception {
    what: &'static str,
    /// Why it may differ, though both restores did the same.
    reason: &'static str,
    leave_out: fn(&mut Value),
}

/// All exceptions. Everything else is compared.
const EXCEPTIONS: [Exception; 5] = [
    Exception {
        what: "status",
        reason: "controllers write it, and no restore here asks for it",
        leave_out: |object| drop(object.as_object_mut().unwrap().remove("status")),
    },
    Exception {
        what: "metadata: uid, resourceVersion, creationTimestamp, generation",
        reason: "the API server gives each object its own",
        leave_out: |object| {
            let metadata = object["metadata"].as_object_mut().unwrap();
            for field in ["uid", "resourceVersion", "creationTimestamp", "generation"] {
                metadata.remove(field);
            }
        },
    },
    Exception {
        what: "managedFields: entries that are no Apply, and the time of those that are",
        reason: "both write back what was applied; of the others Velero writes back all, we those of objects \
                 that have an Apply (record 034), and controllers add theirs at any time; some objects \
                 are applied anew for each side",
        leave_out: |object| {
            let metadata = object["metadata"].as_object_mut().unwrap();
            let Some(entries) = metadata.get_mut("managedFields").and_then(Value::as_array_mut)
            else {
                return;
            };
            entries.retain(|entry| entry["operation"] == "Apply" && entry["subresource"].is_null());
            for entry in &mut *entries {
                entry.as_object_mut().unwrap().remove("time");
            }
            if entries.is_empty() {
                metadata.remove("managedFields");
            }
        },
    },
    Exception {
        what: "Service: clusterIP and clusterIPs, and each nodePort that nobody chose",
        reason: "the API server gives them out; one that somebody chose has an owner, and is compared",
        leave_out: |object| {
            if object["kind"] != "Service" {
                return;
            }
            let chosen = object["metadata"]["managedFields"].to_string().contains("f:nodePort");
            let spec = object["spec"].as_object_mut().unwrap();
            if spec["clusterIP"] != "None" {
                spec.remove("clusterIP");
                spec.remove("clusterIPs");
            }
            let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
            for port in ports.into_iter().flatten().filter(|_| !chosen) {
                port.as_object_mut().unwrap().remove("nodePort");
            }
        },
    },
    Exception {
        what: "Deployment: the annotation deployment.kubernetes.io/revision",
        reason: "its controller counts",
        leave_out: |object| {
            if object["kind"] == "Deployment"
                && let Some(annotations) = object["metadata"]["annotations"].as_object_mut()
            {
                annotations.remove("deployment.kubernetes.io/revision");
            }
        },
    },
];

/// An object without what two restores of it need not have in common. The order of the exceptions counts: who
/// chose a port is known by the managed fields.
pub(super) fn reduced(mut object: Value) -> Value {
    for Exception { what, reason, leave_out } in &EXCEPTIONS {
        assert!(!what.is_empty() && !reason.is_empty());
        leave_out(&mut object);
    }
    object
}

/// An object as [`reduced`] leaves it, without the labels by which whatever was restored is known:
/// an object that was not restored has none.
pub(super) fn without_restore_labels(object: Value) -> Value {
    let mut object = reduced(object);
    remove_restore_labels(&mut object);
    object
}

/// Removes the labels of restored objects.
pub(super) fn remove_restore_labels(object: &mut Value) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
        for label in ["velero.io/backup-name", "velero.io/restore-name"] {
            labels.remove(label);
        }
        if labels.is_empty() {
            metadata.remove("labels");
        }
    }
}

/// Location and name of an object.
pub(super) async fn api_of(client: &Client, object: &Value) -> (Api<DynamicObject>, String) {
    let types = kube::core::TypeMeta {
        api_version: object["apiVersion"].as_str().unwrap().to_owned(),
        kind: object["kind"].as_str().unwrap().to_owned(),
    };
    let kind = GroupVersionKind::try_from(&types).unwrap();
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    let Ok((resource, capabilities)) = pinned_kind(client, &kind).await else {
        // Its definition is gone.
        return (Api::all_with(client.clone(), &ApiResource::from_gvk(&kind)), name);
    };
    let api = match capabilities.scope {
        Scope::Namespaced => Api::namespaced_with(client.clone(), namespace, &resource),
        Scope::Cluster => Api::all_with(client.clone(), &resource),
    };
    (api, name)
}
