//! Sample application of the demo: its objects, and the folders of its files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bowline_testbed::Bed;
use bowline_testbed::apply::apply;
use bowline_testbed::kwok::ExecutingPod;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams};
use kube::core::{GroupVersionKind, TypeMeta};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::volume::{self, JOURNAL};
use crate::output;

const MANIFESTS: &str = include_str!("sample.yaml");

/// Namespaces of the application.
pub(super) const NAMESPACES: [&str; 2] = ["shop", "shop-data"];

/// Volume, and the pod that mounts it.
const VOLUME: &str = "orders";
const POD: &str = "orders-0";

/// Number of pods: three of the storefront, one of the database.
const PODS: usize = 4;

const START_TIMEOUT: Duration = Duration::from_mins(1);
const DELETE_TIMEOUT: Duration = Duration::from_mins(2);

/// Identity of an object. Sorted as tables show them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectId {
    /// Empty for cluster-scoped objects.
    pub(super) namespace: String,
    pub(super) kind: String,
    pub(super) name: String,
}

/// Objects as the API server returns them.
pub(super) type Objects = BTreeMap<ObjectId, Value>;

impl ObjectId {
    pub(super) fn from_object(object: &Value) -> Self {
        let field = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let [namespace, kind, name] =
            ["/metadata/namespace", "/kind", "/metadata/name"].map(|at| field(at).to_owned());
        Self { namespace, kind, name }
    }
}

/// Application on this machine.
pub(super) struct SampleApplication {
    objects: Vec<Value>,
    /// Folder of the volumes.
    volumes: PathBuf,
    /// Pod with the volume, whose hooks are executed.
    pod: ExecutingPod,
}

impl SampleApplication {
    /// Application with its files in the bed. Creates nothing yet.
    pub(super) fn new(bed: &Bed) -> anyhow::Result<Self> {
        let folder = |name: &str| {
            let folder = bed.subdir(name).and_then(|folder| folder.canonicalize());
            folder.with_context(|| format!("cannot create a directory for {name}"))
        };
        let (volumes, requests) = (folder("volumes")?, folder(POD)?);
        let [_, namespace] = NAMESPACES;
        let pod = ExecutingPod::new(namespace, POD, &requests)?;
        let mut objects: Vec<Value> =
            serde_saphyr::from_multiple(MANIFESTS).context("cannot read the sample application")?;
        for object in &mut objects {
            match object["kind"].as_str() {
                Some("PersistentVolume") => {
                    object["spec"]["local"]["path"] = json!(volumes.join(VOLUME));
                }
                Some("StatefulSet") => {
                    let containers = &mut object["spec"]["template"]["spec"]["containers"];
                    containers[0]["name"] = json!(pod.container());
                }
                _ => {}
            }
        }
        Ok(Self { objects, volumes, pod })
    }

    /// Pod whose hooks are executed.
    pub(super) fn pod(&self) -> &ExecutingPod {
        &self.pod
    }

    /// Folder of the volumes.
    pub(super) fn volumes(&self) -> &Path {
        &self.volumes
    }

    /// Original path of its volume.
    pub(super) fn volume(&self) -> PathBuf {
        self.volumes.join(VOLUME)
    }

    /// Folder in which its database receives requests to pause.
    pub(super) fn requests(&self) -> &Path {
        &self.pod.folder
    }

    /// Creates the application and waits until its pods run.
    pub(super) async fn create(&self, client: &Client) -> anyhow::Result<()> {
        volume::create_files(&self.volume())
            .context("cannot create the files of the sample application")?;
        for object in &self.objects {
            apply(client, object.clone()).await?;
        }
        wait_until_running(client).await
    }

    /// Table of the existing objects.
    pub(super) async fn summary(&self, client: &Client) -> anyhow::Result<String> {
        let mut ids: Vec<ObjectId> = self.objects.iter().map(ObjectId::from_object).collect();
        ids.sort();
        let rows = ids.into_iter().map(|id| [id.namespace, id.kind, id.name]).collect();
        let table = output::table(["NAMESPACE", "KIND", "NAME"], rows);
        let running = running_pods(client).await?;
        Ok(format!(
            "\nThe sample application, with {running} pods running:\n\n{table}\n\
             The volume is the directory {}.\n\
             The database writes orders to {JOURNAL} there continuously.\n",
            self.volume().display(),
        ))
    }

    /// Reads the application: the objects that it was created from, and its pods.
    pub(super) async fn read(&self, client: &Client) -> anyhow::Result<Objects> {
        let mut found = Vec::new();
        for object in &self.objects {
            let ObjectId { kind, name, .. } = ObjectId::from_object(object);
            match api_for(client, object)?.get(&name).await {
                Ok(object) => found.push(serde_json::to_value(object)?),
                // The object does not exist, or not even its kind.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot read {kind} {name}"));
                }
            }
        }
        for pod in pods(client).await? {
            found.push(serde_json::to_value(pod)?);
        }
        Ok(found.into_iter().map(|object| (ObjectId::from_object(&object), object)).collect())
    }

    /// Deletes the objects of the application, and waits until they are gone; then deletes its files.
    pub(super) async fn destroy(&self, client: &Client) -> anyhow::Result<()> {
        // Everything in a namespace is deleted with it.
        for object in
            self.objects.iter().filter(|object| ObjectId::from_object(object).namespace.is_empty())
        {
            let ObjectId { kind, name, .. } = ObjectId::from_object(object);
            let deleted = api_for(client, object)?.delete(&name, &DeleteParams::background()).await;
            deleted.with_context(|| format!("cannot delete {kind} {name}"))?;
        }
        let deadline = Instant::now() + DELETE_TIMEOUT;
        loop {
            let remaining = self.read(client).await?;
            let Some(first) = remaining.keys().next() else { break };
            if Instant::now() >= deadline {
                bail!(
                    "{} objects of the sample application still exist after {} s, among them {} {}",
                    remaining.len(),
                    DELETE_TIMEOUT.as_secs(),
                    first.kind,
                    first.name
                );
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        std::fs::remove_dir_all(self.volume()).context("cannot delete the files of the application")
    }
}

/// Path of the application's volume according to the cluster.
pub(super) async fn volume_path(client: &Client) -> anyhow::Result<PathBuf> {
    let api: Api<PersistentVolume> = Api::all(client.clone());
    let volume = api.get(VOLUME).await.context("cannot read the volume")?;
    let local = volume.spec.and_then(|spec| spec.local);
    Ok(local.context("the volume has an unexpected type")?.path.into())
}

/// Waits until the pods of the application run.
pub(super) async fn wait_until_running(client: &Client) -> anyhow::Result<()> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        let running = running_pods(client).await?;
        if running == PODS {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!(
                "{running} of {PODS} pods of the sample application are running after one minute"
            );
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// API of an object of the application. Sends no discovery request, since the kind may be gone with its definition.
fn api_for(client: &Client, object: &Value) -> anyhow::Result<Api<DynamicObject>> {
    let types: TypeMeta = serde_json::from_value(object.clone())?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
    let namespace = ObjectId::from_object(object).namespace;
    Ok(if namespace.is_empty() {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), &namespace, &resource)
    })
}

async fn pods(client: &Client) -> anyhow::Result<Vec<Pod>> {
    let mut found = Vec::new();
    for namespace in NAMESPACES {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let list = pods.list(&ListParams::default()).await.context("cannot list pods")?;
        found.extend(list.items);
    }
    Ok(found)
}

async fn running_pods(client: &Client) -> anyhow::Result<usize> {
    let is_running = |pod: &&Pod| {
        pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
    };
    Ok(pods(client).await?.iter().filter(is_running).count())
}
