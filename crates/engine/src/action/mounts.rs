//! Pods by the claims that they mount.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bowline_plugin::Result;

use super::Reader;
use super::lazy::LazyMap;
use super::pod::Pod;
use crate::backup::volume::PodFacts;
use crate::cluster::Query;

/// Pods that mount claims. They are listed on the first use, once for all items of a run, and
/// little is kept of them.
pub(crate) struct Mounts {
    reader: Reader,
    /// Namespaces that the run is limited to. Then pods are listed in each of them that has claims,
    /// else in all at once.
    namespaces: HashSet<String>,
    listed: LazyMap<String, ByNamespace>,
}

#[derive(Clone, Debug)]
pub(crate) struct MountingPod {
    /// Volumes of the pod.
    pub(crate) facts: Arc<PodFacts>,
    pub(crate) is_running: bool,
}

/// Pods, by the namespace and the name of the claim that they mount.
type ByNamespace = HashMap<String, HashMap<String, Vec<MountingPod>>>;

impl Mounts {
    pub(super) fn new(reader: Reader, namespaces: Vec<String>) -> Self {
        Self { reader, namespaces: namespaces.into_iter().collect(), listed: LazyMap::default() }
    }

    /// Pods that mount a claim, included in the run or not.
    pub(crate) async fn of_claim(&self, namespace: &str, claim: &str) -> Result<Vec<MountingPod>> {
        let scope = match (self.namespaces.is_empty(), self.namespaces.contains(namespace)) {
            (true, _) => None,
            (false, true) => Some(namespace.to_owned()),
            // The run does not include this namespace.
            (false, false) => return Ok(Vec::new()),
        };
        let listed = self.listed.entry(scope.clone().unwrap_or_default());
        let listed = listed.get(self.list(scope)).await?;
        let pods = listed.get(namespace).and_then(|claims| claims.get(claim));
        Ok(pods.cloned().unwrap_or_default())
    }

    async fn list(&self, namespace: Option<String>) -> Result<ByNamespace> {
        let mut mounts = ByNamespace::new();
        let query = Query { namespace, ..Query::default() };
        let collect_mounts = |object: &crate::Object| {
            let pod: Pod = serde_json::from_slice(object.item.json())?;
            // Most pods mount no claims, so only the others are parsed completely.
            let mut claims = pod.claims().peekable();
            if claims.peek().is_none() {
                return Ok(());
            }
            let (facts, is_running) = (Arc::new(PodFacts::read(object)?), pod.is_running());
            let in_namespace = mounts.entry(object.namespace.clone()).or_default();
            for claim in claims {
                let pods = in_namespace.entry(claim.to_owned()).or_default();
                let mounting = MountingPod { facts: Arc::clone(&facts), is_running };
                if pods.last().is_none_or(|last| !Arc::ptr_eq(&last.facts, &facts)) {
                    pods.push(mounting);
                }
            }
            Ok(())
        };
        self.reader.for_each_object("", "pods", query, collect_mounts).await?;
        Ok(mounts)
    }
}
