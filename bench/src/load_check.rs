//! Checks that everything is restored: the created objects by name, each kind listed once.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use kube::Client;
use serde::Deserialize;

use crate::fill::{Load, Object};

const PAGE: usize = 1000;

/// Requests only the metadata of objects.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Objects by the path that lists all of their kind, each with its namespace.
type ObjectNames = BTreeMap<String, BTreeSet<(String, String)>>;

/// Fails unless every object of `load` is in the cluster.
pub(crate) async fn check(client: &Client, load: Load) -> anyhow::Result<()> {
    let mut missing = Vec::new();
    for (kind, wanted) in names(load.namespaces().chain(load.contents())) {
        let found = list(client, &kind).await.with_context(|| format!("cannot list {kind}"))?;
        missing.extend(
            wanted.difference(&found).map(|(namespace, name)| format!("{kind} {namespace}/{name}")),
        );
    }
    ensure!(
        missing.is_empty(),
        "{} of {} objects are not back, {} among them",
        missing.len(),
        load.len(),
        missing[0]
    );
    Ok(())
}

fn names(objects: impl Iterator<Item = Object>) -> ObjectNames {
    let mut names = ObjectNames::new();
    for object in objects {
        let text = |field: &str| object.body["metadata"][field].as_str().unwrap_or_default();
        let (namespace, name) = (text("namespace").to_owned(), text("name").to_owned());
        let namespace_segment = format!("/namespaces/{namespace}/");
        let kind = object.collection.replacen(&namespace_segment, "/", 1);
        names.entry(kind).or_default().insert((namespace, name));
    }
    names
}

async fn list(client: &Client, kind: &str) -> anyhow::Result<BTreeSet<(String, String)>> {
    #[derive(Deserialize)]
    struct List {
        metadata: ListMeta,
        items: Vec<Item>,
    }
    #[derive(Deserialize)]
    struct Item {
        metadata: ObjectMeta,
    }
    let mut found = BTreeSet::new();
    let mut next = Some(String::new());
    while let Some(token) = next {
        let request = http::Request::get(format!("{kind}?limit={PAGE}{token}"))
            .header(http::header::ACCEPT, METADATA)
            .body(Vec::new())?;
        let list: List = client.request(request).await?;
        found.extend(list.items.into_iter().map(|item| {
            let ObjectMeta { namespace, name, .. } = item.metadata;
            (namespace.unwrap_or_default(), name.unwrap_or_default())
        }));
        // A token of base64 without padding, which needs no quoting in a query.
        let token = list.metadata.continue_.filter(|token| !token.is_empty());
        next = token.map(|token| format!("&continue={token}"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_checked_against_the_cluster_wide_list() {
        let load = Load::Mix { objects: 450, seed: 1 };
        let names = names(load.namespaces().chain(load.contents()));
        assert_eq!(names.values().map(BTreeSet::len).sum::<usize>(), 450);
        assert_eq!(names["/api/v1/namespaces"].len(), 3);
        assert!(names["/api/v1/pods"].iter().all(|(namespace, _)| namespace.starts_with("bench-")));
        assert!(names.contains_key("/apis/bench.bowline.io/v1/certificates"));
        assert_eq!(names.len(), 17, "the kinds of the mix, and namespaces");
    }
}
