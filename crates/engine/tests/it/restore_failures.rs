//! Restores with failures: replaced pods and terminating namespaces, on an in-memory cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bowline_engine::cluster::{self, Cluster, Delegate, Error, Fake};
use bowline_engine::item::Object;
use bowline_engine::resource::Resource;
use bowline_engine::restore;
use bowline_plugin::Item;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::objects::{config_map, namespace};
use crate::support::restore::restore_of;

/// A cluster in which every created pod is soon replaced by a foreign running pod.
struct PodReplacingCluster {
    fake: Fake,
    /// True if the answer to the next creation of a pod is lost, and the pod is replaced later.
    loses_next_response: AtomicBool,
}

impl PodReplacingCluster {
    fn replace(&self, namespace: &str, name: &str) {
        let running = json!({"running": {}});
        self.fake.put(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "uid": "of somebody else"},
            "spec": {"containers": [{"name": "main"}]},
            "status": {"containerStatuses": [{"name": "main", "ready": true, "state": running}]},
        }));
    }
}

#[async_trait]
impl Delegate for PodReplacingCluster {
    fn inner(&self) -> &dyn Cluster {
        &self.fake
    }

    async fn get(
        &self,
        of: &Arc<Resource>,
        namespace: &str,
        name: &str,
    ) -> cluster::Result<Option<Object>> {
        let found = self.fake.get(of, namespace, name).await;
        if of.is_core("pods") {
            self.replace(namespace, name);
        }
        found
    }

    async fn create(
        &self,
        of: &Arc<Resource>,
        namespace: &str,
        item: &Item,
    ) -> cluster::Result<Object> {
        let created = self.fake.create(of, namespace, item).await?;
        if !of.is_core("pods") {
            return Ok(created);
        }
        if self.loses_next_response.swap(false, Ordering::Relaxed) {
            let mut pod: Value = created.item.parse().unwrap();
            pod["metadata"]["creationTimestamp"] = json!(Timestamp::now());
            self.fake.put(pod);
            return Err(Error::Unreachable("connection reset".into()));
        }
        self.replace(namespace, &created.name);
        Ok(created)
    }
}

#[tokio::test]
async fn hooks_never_run_in_another_pod_of_the_same_name() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "db", "namespace": "shop",
            "annotations": {"post.hook.restore.velero.io/command": "load"},
        },
        "spec": {"containers": [{"name": "main"}]},
    });
    for loses in [false, true] {
        let usurped = Arc::new(PodReplacingCluster {
            fake: Fake::usual(),
            loses_next_response: AtomicBool::new(loses),
        });
        let restored =
            restore_of(usurped.clone(), &[("pods", pod.clone())], CancellationToken::new()).await;
        assert_eq!(usurped.fake.execs(), [], "an answer is lost: {loses}");
        assert_eq!(restored.hooks, (1, 1));
        assert_eq!(restored.resources.0["v1/Pod"], ["shop/db(created)"]);
        let errors = restored.report.results().errors.namespaces;
        let [error] = &errors["shop"][..] else { panic!("not one error: {errors:?}") };
        assert!(error.contains("was deleted and replaced by another"), "{error}");
    }
}

#[tokio::test]
async fn terminating_namespace_does_not_delay_a_stop() {
    let mut terminating = namespace("shop");
    terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let fake = Arc::new(Fake::usual().with(terminating));
    let stop = CancellationToken::new();
    let objects = [("configmaps", config_map("shop", "a"))];
    let restored = restore_of(fake.clone(), &objects, stop.clone());
    let stopped = async {
        while fake.gets().is_empty() {
            tokio::task::yield_now().await;
        }
        stop.cancel();
    };
    let both = futures::future::join(restored, stopped);
    let (restored, ()) = tokio::time::timeout(Duration::from_mins(1), both).await.unwrap();
    assert!(matches!(restored.fatal, Some(restore::FatalError::Stopped)), "{:?}", restored.fatal);
    assert_eq!(fake.creations(), []);
}
