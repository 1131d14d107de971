//! A cluster with a node and a CSI driver, and the pods whose volumes are backed up.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail, ensure};
use bowline_testbed::apply::apply;
use bowline_testbed::{Csi, Node, S3, csi, node};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, ObjectMeta};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bench_env::{BenchEnv, Binaries};
use crate::print_line;

/// Namespace of the pods.
pub(super) const NAMESPACE: &str = "shop";

/// Number of claims per pod.
const CLAIMS_OF_POD: usize = 5;
/// Size of the data in a volume.
const DATA: &str = "256k";
/// Number of objects created in parallel.
const IN_FLIGHT: usize = 32;
/// Longest wait for pods to run, and for snapshots to be created and deleted.
const CLUSTER_TIMEOUT: Duration = Duration::from_mins(10);
/// Time that the controllers may take after a server has reported a backup as deleted.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Pods to back up, and everything they depend on.
pub(super) struct Cluster {
    pub(super) csi: Csi,
    _node: Node,
    pub(super) env: BenchEnv,
    pub(super) pods: Vec<String>,
    pub(super) claims: Vec<String>,
    /// Folder in which the pods record freezes and thaws.
    hook_files: PathBuf,
}

/// Claims of each pod: as many as possible, until all claims are used.
fn distribute_claims(claims: usize) -> Vec<(String, Vec<String>)> {
    let pods = claims.div_ceil(CLAIMS_OF_POD);
    let pod = |number: usize| {
        let pod = format!("db-{number}");
        let count = CLAIMS_OF_POD.min(claims - (number - 1) * CLAIMS_OF_POD);
        let claims = (1..=count).map(|claim| format!("{pod}-disk-{claim}")).collect();
        (pod, claims)
    };
    (1..=pods).map(pod).collect()
}

impl Cluster {
    /// Starts everything, and waits until all pods run.
    pub(super) async fn set_up(
        s3: &Arc<S3>,
        binaries: &Binaries,
        claims: usize,
    ) -> anyhow::Result<Self> {
        let mut stage = BenchEnv::set_up_for_node(s3, binaries).await?;
        stage.has_csi = true;
        let node = Node::start(&stage.plane).await?;
        let csi = Csi::start(&stage.plane, Some(&node), csi::Options::default()).await?;
        let hook_files = node.volume("notes")?;
        let shares = distribute_claims(claims);
        print_line(format_args!("starting {} pods with {claims} claims", shares.len()));
        let client = &stage.client;
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        apply(client, namespace).await?;
        let account: Api<DynamicObject> = Api::namespaced_with(
            client.clone(),
            NAMESPACE,
            &ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ServiceAccount")),
        );
        wait_until("the namespace has its service account", CLUSTER_TIMEOUT, async || {
            Ok(account.get_opt("default").await?.is_some())
        })
        .await?;
        let of_pod = |(name, claims): &(String, Vec<String>)| {
            let pod = pod(name, claims, &hook_files);
            claims.iter().map(|name| claim(name)).chain([pod]).collect::<Vec<_>>()
        };
        let objects: Vec<Value> = shares.iter().flat_map(of_pod).collect();
        let mut applied =
            stream::iter(objects).map(|object| apply(client, object)).buffer_unordered(IN_FLIGHT);
        while applied.try_next().await?.is_some() {}
        drop(applied);
        let pods: Vec<String> = shares.iter().map(|(pod, _)| pod.clone()).collect();
        let api: Api<Pod> = Api::namespaced(stage.client.clone(), NAMESPACE);
        wait_until("all pods run", CLUSTER_TIMEOUT, async || {
            let found = api.list(&ListParams::default()).await?.items;
            Ok(found.len() == pods.len() && found.iter().all(is_ready))
        })
        .await?;
        let claims = shares.into_iter().flat_map(|(_, claims)| claims).collect();
        Ok(Self { csi, _node: node, env: stage, pods, claims, hook_files })
    }

    /// Removes the records of freezes and thaws.
    pub(super) fn remove_hook_files(&self) -> anyhow::Result<()> {
        for pod in &self.pods {
            for event in [FROZEN, THAWED] {
                match std::fs::remove_file(self.hook_files.join(hook_file_name(pod, event))) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(error).context("cannot remove the note of a pod");
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Duration of each pod's freeze in milliseconds, from the times at which its hooks wrote.
    pub(super) fn freeze_windows(&self) -> anyhow::Result<Vec<f64>> {
        let window = |pod: &String| -> anyhow::Result<f64> {
            let at = |event| written_at(&self.hook_files.join(hook_file_name(pod, event)));
            let (frozen, thawed) = (at(FROZEN)?, at(THAWED)?);
            let window = thawed.duration_since(frozen).context("thawed before it was frozen")?;
            // File times have a resolution of about four milliseconds.
            Ok((window.as_secs_f64() * 1000.0).round())
        };
        let window = |pod| window(pod).with_context(|| format!("the hooks of the pod {pod}"));
        self.pods.iter().map(window).collect()
    }

    /// Objects of a kind of the snapshot API, in one namespace or in all of them.
    fn objects(&self, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", kind);
        let (client, resource) = (self.env.client.clone(), ApiResource::from_gvk(&kind));
        match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        }
    }

    /// Takes a snapshot of each claim, all at once, and waits until all are ready.
    pub(super) async fn snapshot_all(&self) -> anyhow::Result<()> {
        let snapshot = |claim: &String| {
            json!({
                "apiVersion": "snapshot.storage.k8s.io/v1",
                "kind": "VolumeSnapshot",
                "metadata": {"name": claim, "namespace": NAMESPACE},
                "spec": {
                    "volumeSnapshotClassName": csi::SNAPSHOT_CLASS,
                    "source": {"persistentVolumeClaimName": claim},
                },
            })
        };
        let objects: Vec<Value> = self.claims.iter().map(snapshot).collect();
        let client = &self.env.client;
        let mut applied =
            stream::iter(objects).map(|object| apply(client, object)).buffer_unordered(IN_FLIGHT);
        while applied.try_next().await?.is_some() {}
        let api = self.objects("VolumeSnapshot", None);
        wait_until("all snapshots can be used", CLUSTER_TIMEOUT, async || {
            let found = api.list(&ListParams::default()).await?.items;
            let is_ready = |one: &DynamicObject| one.data["status"]["readyToUse"] == true;
            Ok(found.iter().filter(|one| is_ready(one)).count() == self.claims.len())
        })
        .await
    }

    /// Ensures that the next round starts without snapshots. Returns the number that the driver still had some time
    /// after all objects for them were gone.
    pub(super) async fn remove_snapshots(&self) -> anyhow::Result<u64> {
        // The content is deleted with its snapshot, or else was left over.
        for kind in ["VolumeSnapshot", "VolumeSnapshotContent"] {
            let api = self.objects(kind, None);
            for object in api.list(&ListParams::default()).await?.items {
                let ObjectMeta { name, namespace, .. } = object.metadata;
                let namespaced = self.objects(kind, namespace.as_deref());
                match namespaced.delete(&name.unwrap_or_default(), &DeleteParams::default()).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => {}
                    deleted => drop(deleted.context("cannot delete a snapshot")?),
                }
            }
            wait_until("no snapshot is in the cluster", CLUSTER_TIMEOUT, async || {
                Ok(api.list(&ListParams::default()).await?.items.is_empty())
            })
            .await?;
        }
        let deadline = Instant::now() + CLEANUP_TIMEOUT;
        loop {
            let leftovers = self.csi.snapshots()?;
            if leftovers.is_empty() {
                return Ok(0);
            }
            if Instant::now() >= deadline {
                let count = leftovers.len() as u64;
                print_line(format_args!("{count} snapshots are left of a deleted backup"));
                for handle in leftovers {
                    let folder = self.csi.snapshot(&handle);
                    let folder = folder.parent().context("a snapshot without a directory")?;
                    std::fs::remove_dir_all(folder).context("cannot remove a snapshot")?;
                }
                return Ok(count);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

const FROZEN: &str = "frozen";
const THAWED: &str = "thawed";

/// File in which a pod records an event.
fn hook_file_name(pod: &str, event: &str) -> String {
    format!("{pod}.{event}")
}

/// Time at which a hook wrote its line. More than one line means that more was done than measured.
fn written_at(path: &Path) -> anyhow::Result<SystemTime> {
    let name = path.file_name().unwrap_or_default().display();
    let text = std::fs::read_to_string(path).with_context(|| format!("{name} was not written"))?;
    let lines = text.lines().count();
    ensure!(lines == 1, "{name} was written {lines} times");
    path.metadata().and_then(|file| file.modified()).context("the time of a note")
}

fn is_ready(pod: &Pod) -> bool {
    let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    containers.is_some_and(|all| !all.is_empty() && all.iter().all(|one| one.ready))
}

async fn wait_until(
    description: &str,
    limit: Duration,
    is_true: impl AsyncFn() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + limit;
    while !is_true().await? {
        if Instant::now() >= deadline {
            bail!("waited {} s in vain until {description}", limit.as_secs());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Claim that gets its volume when its pod starts, as most do.
fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": csi::WAIT_FOR_CONSUMER_CLASS,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

/// Pod that fills its volumes and then waits.
fn pod(name: &str, claims: &[String], hook_files: &Path) -> Value {
    let hook = |event| {
        json!(["/bin/sh", "-c", format!("echo {event} >> /notes/{}", hook_file_name(name, event))])
    };
    let disk = |claim: &String| json!({"name": claim, "mountPath": format!("/disks/{claim}")});
    let source =
        |claim: &String| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
    let hook_volume = json!({"name": "notes", "hostPath": {"path": hook_files}});
    let fill = format!(
        "for disk in /disks/*; do head -c {DATA} /dev/urandom > $disk/data; done; exec sleep 1000000"
    );
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "annotations": {
                "pre.hook.backup.velero.io/command": hook(FROZEN).to_string(),
                "post.hook.backup.velero.io/command": hook(THAWED).to_string(),
            },
        },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main",
                "image": node::IMAGE,
                "imagePullPolicy": "Never",
                "command": ["/bin/sh", "-c", fill],
                "volumeMounts": claims.iter().map(disk)
                    .chain([json!({"name": "notes", "mountPath": "/notes"})])
                    .collect::<Vec<_>>(),
            }],
            "volumes": claims.iter().map(source).chain([hook_volume]).collect::<Vec<_>>(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_distributed_among_pods() {
        let counts = |claims| {
            let shares = distribute_claims(claims).into_iter();
            shares.map(|(_, claims)| claims.len()).collect::<Vec<_>>()
        };
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(5), [5]);
        assert_eq!(counts(12), [5, 5, 2]);
        let names: Vec<String> =
            distribute_claims(50).into_iter().flat_map(|(_, all)| all).collect();
        let unique: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!((names.len(), unique.len()), (50, 50));
    }

    #[test]
    fn hook_file_missing_or_written_twice_is_an_error() {
        let folder = std::env::temp_dir().join(format!("bowline-notes-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("db-1.frozen");
        assert!(written_at(&path).unwrap_err().to_string().contains("was not written"));
        std::fs::write(&path, "frozen\n").unwrap();
        assert!(written_at(&path).unwrap().elapsed().unwrap() < Duration::from_mins(1));
        std::fs::write(&path, "frozen\nfrozen\n").unwrap();
        assert!(written_at(&path).unwrap_err().to_string().contains("2 times"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
