//! The floor: every object of every archived kind, listed and discarded.
//!
//! One connection, one request at a time, pages of 500 in JSON. Only the few bytes that name the next page are parsed.
//! No backup that reads the cluster in this way can be faster.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::AsyncBufReadExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResource, ListMeta};
use kube::Client;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

const PAGE: usize = 500;

/// Longest time for all pages together.
const LIST_TIMEOUT: Duration = Duration::from_mins(30);

/// Bytes kept of each end of a page. The relevant part has a few hundred bytes.
const END_BYTES: usize = 8 * 1024;

/// Measurement of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct ListingMeasurement {
    pub(crate) wall_s: f64,
    /// Bytes of all answers together.
    pub(crate) bytes: u64,
    /// Number of objects, counted beforehand.
    pub(crate) count: u64,
    pub(crate) apiserver_cpu_s: f64,
}

/// Paths of all kinds that a backup includes: those that can be listed, read, created and deleted, each in its
/// preferred version.
pub(crate) async fn archived_kinds(client: &Client) -> anyhow::Result<Vec<String>> {
    let core = client.list_core_api_resources("v1").await.context("cannot list core resources")?;
    let mut paths = paths_of("/api/v1", &core.resources, &mut BTreeSet::new());
    let groups = client.list_api_groups().await.context("cannot list API groups")?;
    for group in groups.groups {
        let mut seen_resources = BTreeSet::new();
        if group.name == "events.k8s.io" {
            // The same objects as those of the core group.
            seen_resources.insert("events".to_owned());
        }
        let preferred = group.preferred_version.iter();
        for version in preferred.chain(&group.versions).map(|version| &version.group_version) {
            let found = client.list_api_group_resources(version).await;
            let found = found.with_context(|| format!("cannot list the resources of {version}"))?;
            paths.extend(paths_of(
                &format!("/apis/{version}"),
                &found.resources,
                &mut seen_resources,
            ));
        }
    }
    Ok(paths)
}

/// Paths of those resources that a backup includes and that were not seen in a better version.
fn paths_of(
    root: &str,
    resources: &[APIResource],
    seen_resources: &mut BTreeSet<String>,
) -> Vec<String> {
    let is_archived = |resource: &&APIResource| {
        let has = |verb: &str| resource.verbs.iter().any(|found| found == verb);
        ["list", "create", "get", "delete"].into_iter().all(has)
    };
    resources
        .iter()
        .filter(is_archived)
        .filter(|resource| seen_resources.insert(resource.name.clone()))
        .map(|resource| format!("{root}/{}", resource.name))
        .collect()
}

/// Number of objects, from a first page of one object for each kind.
pub(crate) async fn count(client: &Client, kinds: &[String]) -> anyhow::Result<u64> {
    #[derive(Deserialize)]
    struct List {
        metadata: ListMeta,
        items: Vec<IgnoredAny>,
    }
    let mut count = 0;
    for kind in kinds {
        let request = http::Request::get(format!("{kind}?limit=1")).body(Vec::new())?;
        let list: List =
            client.request(request).await.with_context(|| format!("cannot count {kind}"))?;
        let more = list.metadata.remaining_item_count.unwrap_or_default();
        count += list.items.len() as u64 + u64::try_from(more).unwrap_or_default();
    }
    Ok(count)
}

/// Lists all objects of these kinds. Returns the duration and the number of bytes.
pub(crate) async fn list(client: &Client, kinds: &[String]) -> anyhow::Result<(Duration, u64)> {
    let started = Instant::now();
    let all = async {
        let mut bytes = 0;
        for kind in kinds {
            let mut next = Some(String::new());
            while let Some(token) = next {
                let path = format!("{kind}?limit={PAGE}{token}");
                let page = read_page(client, &path).await;
                let page = page.with_context(|| format!("cannot list {kind}"))?;
                bytes += page.bytes;
                next = page.next_page()?.map(|token| format!("&continue={token}"));
            }
        }
        anyhow::Ok(bytes)
    };
    let bytes =
        tokio::time::timeout(LIST_TIMEOUT, all).await.context("listing took too long")??;
    Ok((started.elapsed(), bytes))
}

async fn read_page(client: &Client, path: &str) -> anyhow::Result<Page> {
    let request = http::Request::get(path)
        .header(http::header::ACCEPT, "application/json")
        .body(Vec::new())?;
    let mut body = pin!(client.request_stream(request).await?);
    let mut page = Page::default();
    loop {
        let chunk = body.fill_buf().await?;
        if chunk.is_empty() {
            return Ok(page);
        }
        page.add_chunk(chunk);
        let length = chunk.len();
        body.consume_unpin(length);
    }
}

/// Both ends of a page.
#[derive(Debug, Default)]
struct Page {
    bytes: u64,
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Page {
    fn add_chunk(&mut self, chunk: &[u8]) {
        self.bytes += chunk.len() as u64;
        let room = END_BYTES - self.head.len();
        self.head.extend_from_slice(&chunk[..chunk.len().min(room)]);
        let end = &chunk[chunk.len().saturating_sub(END_BYTES)..];
        let surplus = (self.tail.len() + end.len()).saturating_sub(END_BYTES);
        self.tail.drain(..surplus);
        self.tail.extend_from_slice(end);
    }

    /// Token of the next page, if any.
    ///
    /// The list's own metadata come before its items, except for custom resources, whose lists have their fields in
    /// alphabetical order: there they come last.
    fn next_page(&self) -> anyhow::Result<Option<String>> {
        const FIELD: &str = "\"metadata\":";
        let (head, tail) =
            (String::from_utf8_lossy(&self.head), String::from_utf8_lossy(&self.tail));
        let before_items = head.split("\"items\":").next().unwrap_or_default();
        let first = before_items.split_once(FIELD).and_then(|(_, text)| first_value(text));
        let last = || tail.rsplit_once(FIELD).and_then(|(_, text)| first_value(text));
        let metadata = first.or_else(last).context("a list has no metadata where it should be")?;
        // A token of base64 without padding, which needs no quoting in a query.
        Ok(metadata.continue_.filter(|token| !token.is_empty()))
    }
}

fn first_value(text: &str) -> Option<ListMeta> {
    serde_json::Deserializer::from_str(text).into_iter().next()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Page {
        let mut page = Page::default();
        // In small pieces, as they may arrive.
        text.as_bytes().chunks(7).for_each(|chunk| page.add_chunk(chunk));
        page
    }

    #[test]
    fn next_page_token_is_found_at_either_end() {
        let item = r#"{"metadata":{"name":"x","continue":"wrong"},"data":{"continue":"wrong"}}"#;
        let items = vec![item; 300].join(",");
        let builtin = format!(
            r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"9","continue":"abc"}},"items":[{items}]}}"#
        );
        let custom = format!(
            r#"{{"apiVersion":"e.com/v1","items":[{items}],"kind":"XList","metadata":{{"continue":"abc","resourceVersion":"9"}}}}"#
        );
        for text in [&builtin, &custom] {
            let page = page(text);
            assert_eq!(page.bytes, text.len() as u64);
            assert_eq!(page.next_page().unwrap().as_deref(), Some("abc"), "{text:.60}");
            let ended =
                text.replace("\"continue\":\"abc\",", "").replace(",\"continue\":\"abc\"", "");
            assert_eq!(super::tests::page(&ended).next_page().unwrap(), None);
        }
    }

    #[test]
    fn page_without_metadata_is_an_error() {
        assert!(page("{\"items\":[]}").next_page().is_err());
        assert!(page("").next_page().is_err());
    }

    #[test]
    fn resource_is_listed_once_and_only_if_restorable() {
        let resource = |name: &str, verbs: &[&str]| APIResource {
            name: name.to_owned(),
            verbs: verbs.iter().map(|&verb| verb.to_owned()).collect(),
            ..APIResource::default()
        };
        let full = ["create", "delete", "get", "list", "watch"];
        let resources = [
            resource("pods", &full),
            resource("pods/status", &["get", "patch"]),
            resource("bindings", &["create"]),
            resource("events", &full),
        ];
        let mut seen_resources = BTreeSet::from(["events".to_owned()]);
        assert_eq!(paths_of("/api/v1", &resources, &mut seen_resources), ["/api/v1/pods"]);
        assert!(paths_of("/api/v1", &resources, &mut seen_resources).is_empty());
    }
}
