//! Journals of all runs: found by label, and read without taking them over.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use bowline_api::label;
use bowline_engine::journal::JournalEntry;
use bowline_store::name::RunUid;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::Error;
use super::attempts::{self, Attempts};
use super::page::{self, JournalId};
use super::requests::{
    METADATA_PER_LIST, all_pages, for_each_listed, pages_up_to_limit, patch_page,
};
use crate::patch;

/// Maximum number of journals per listing. The remaining ones wait for the next listing, and the
/// log says so.
const MAX_JOURNALS: usize = 100_000;

/// A journal in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedJournal {
    /// Its run.
    pub id: JournalId,
    /// Storage location of the run, if the journal contains it.
    pub location: Option<String>,
    /// Bucket that the location named when the run started.
    pub bucket: Option<String>,
    /// Hash that changes with each record.
    pub fingerprint: u64,
}

/// Readable part of a journal, damaged or not.
#[derive(Debug, Default)]
pub(crate) struct SalvagedJournal {
    /// Readable records, in order.
    pub(crate) records: Vec<JournalEntry>,
    /// True if the pods of a damaged journal have been thawed, which cannot be appended to it.
    pub(crate) is_thawed: bool,
}

/// All journals, whether their runs still exist or not.
pub async fn list_journals(client: Client, namespace: &str) -> Result<Vec<ListedJournal>, Error> {
    let api = Api::namespaced(client, namespace);
    let mut attempts = Attempts::new(attempts::WHOLE_JOURNAL_LIMITS);
    loop {
        match attempts.attempt(list_once(&api)).await {
            Ok(found) => return Ok(found),
            Err(error) => attempts.wait_before_retry(error).await?,
        }
    }
}

async fn list_once(api: &Api<ConfigMap>) -> Result<Vec<ListedJournal>, Error> {
    let mut found: BTreeMap<String, (ListedJournal, DefaultHasher)> = BTreeMap::new();
    let mut is_truncated = false;
    let params = ListParams::default().labels(label::JOURNAL).limit(METADATA_PER_LIST);
    let visit = |page: kube::core::PartialObjectMeta<ConfigMap>| {
        let value = |values: &BTreeMap<String, String>, key| values.get(key).cloned();
        let uid = value(page.labels(), label::JOURNAL).unwrap_or_default();
        let location = value(page.annotations(), page::LOCATION);
        let bucket = value(page.annotations(), page::BUCKET);
        let version = (page.name_any(), page.resource_version());
        // Pages of an older server do not contain the location.
        if let Some((known, hasher)) = found.get_mut(&uid) {
            // A later bucket of the same location does not count.
            if known.location.is_none() {
                (known.location, known.bucket) = (location, bucket);
            }
            version.hash(hasher);
            return Ok(());
        }
        if found.len() >= MAX_JOURNALS {
            is_truncated = true;
            return Ok(());
        }
        let Ok(run) = RunUid::new(uid.clone()) else {
            let page = page.name_any();
            tracing::warn!("ConfigMap {page} has the invalid run uid {uid:?} in its journal label");
            return Ok(());
        };
        let kind = value(page.labels(), label::RUN_KIND).unwrap_or_default();
        let name = value(page.annotations(), page::RUN_NAME).unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        version.hash(&mut hasher);
        let id = JournalId { run, kind, name };
        found.insert(uid, (ListedJournal { id, location, bucket, fingerprint: 0 }, hasher));
        Ok(())
    };
    for_each_listed(params, |params| async move { api.list_metadata(&params).await }, visit)
        .await?;
    if is_truncated {
        tracing::error!(
            "more than {MAX_JOURNALS} journals in the namespace; cleanup processes the rest later"
        );
    }
    let listed = |(journal, hasher): (ListedJournal, DefaultHasher)| ListedJournal {
        fingerprint: hasher.finish(),
        ..journal
    };
    Ok(found.into_values().map(listed).collect())
}

/// Reads a journal that another task may have open, without taking it over.
pub(crate) async fn read(
    client: Client,
    namespace: &str,
    id: &JournalId,
) -> Result<Vec<JournalEntry>, Error> {
    let api = Api::namespaced(client, namespace);
    let mut attempts = Attempts::new(attempts::WHOLE_JOURNAL_LIMITS);
    loop {
        match attempts.attempt(all_pages(&api, id)).await {
            Ok(pages) if pages.iter().any(|page| id.is_removed(page)) => return Ok(Vec::new()),
            Ok(pages) => return Ok(id.read(pages)?.records),
            Err(error) => attempts.wait_before_retry(error).await?,
        }
    }
}

/// Reads the readable part of a journal and skips the rest.
pub(crate) async fn salvage(
    client: Client,
    namespace: &str,
    id: &JournalId,
) -> Result<SalvagedJournal, Error> {
    let api = Api::namespaced(client, namespace);
    let mut attempts = Attempts::new(attempts::WHOLE_JOURNAL_LIMITS);
    loop {
        match attempts.attempt(pages_up_to_limit(&api, id)).await {
            Ok(pages) => return Ok(id.salvage(pages)),
            Err(error) => attempts.wait_before_retry(error).await?,
        }
    }
}

/// Marks a damaged journal: its pods have been thawed.
pub(crate) async fn mark_thawed(
    client: Client,
    namespace: &str,
    id: &JournalId,
) -> Result<(), Error> {
    let api = Api::namespaced(client, namespace);
    let mut attempts = Attempts::new(attempts::WHOLE_JOURNAL_LIMITS);
    loop {
        let mark = async {
            let Some(page) = pages_up_to_limit(&api, id).await?.first().map(ResourceExt::name_any)
            else {
                return Ok(());
            };
            let mark = json!({ "metadata": { "annotations": { page::THAWED: "true" } } });
            match patch_page(&api, &page, None, mark).await {
                Err(source) if !patch::is_not_found(&source) => Err(Error::Write { page, source }),
                _ => Ok(()),
            }
        };
        match attempts.attempt(mark).await {
            Ok(()) => return Ok(()),
            Err(error) => attempts.wait_before_retry(error).await?,
        }
    }
}
