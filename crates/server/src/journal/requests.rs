//! Requests for the ConfigMaps of journals.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, ObjectList, Patch, PatchParams};
use kube::core::ObjectMeta;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::Error;
use super::page::{self, JournalContents, JournalId};
use crate::list::next_page;
use crate::patch;

/// Page size of lists, for pages and for metadata of pages.
const PAGES_PER_LIST: u32 = 32;
pub(super) const METADATA_PER_LIST: u32 = 250;

/// All pages; an error if there are too many.
pub(super) async fn all_pages(
    api: &Api<ConfigMap>,
    id: &JournalId,
) -> Result<Vec<ConfigMap>, Error> {
    let (mut pages, mut bytes) = (Vec::new(), 0);
    let params = ListParams::default().labels(&id.selector()).limit(PAGES_PER_LIST);
    let visit = |page: ConfigMap| {
        bytes += page::page_cost(&page);
        pages.push(page);
        let max_bytes = page::MAX_BYTES + page::READ_SLACK;
        let is_too_many = pages.len() > page::MAX_PAGES || bytes > max_bytes;
        if is_too_many { Err(Error::TooMany { run: id.run.clone() }) } else { Ok(()) }
    };
    for_each_listed(params, |params| async move { api.list(&params).await }, visit).await?;
    Ok(pages)
}

/// All pages, or the first ones if there are too many.
pub(super) async fn pages_up_to_limit(
    api: &Api<ConfigMap>,
    id: &JournalId,
) -> Result<Vec<ConfigMap>, Error> {
    let (mut pages, mut bytes) = (Vec::new(), 0);
    let params = ListParams::default().labels(&id.selector()).limit(PAGES_PER_LIST);
    let visit = |page: ConfigMap| {
        bytes += page::page_cost(&page);
        if pages.len() < page::MAX_PAGES && bytes <= page::MAX_BYTES + page::READ_SLACK {
            pages.push(page);
        }
        Ok(())
    };
    for_each_listed(params, |params| async move { api.list(&params).await }, visit).await?;
    Ok(pages)
}

/// Reads all pages, and signs the last one. Any earlier write to it that is still under way names
/// an older resource version, and is refused from then on.
pub(super) async fn take_over(
    api: &Api<ConfigMap>,
    id: &JournalId,
    writer: &str,
) -> Result<JournalContents, Error> {
    let pages = all_pages(api, id).await?;
    if pages.iter().any(|page| id.is_removed(page)) {
        delete_pages(api, id).await?;
        return Ok(JournalContents::default());
    }
    let contents = id.read(pages)?;
    let Some(last) = &contents.last else { return Ok(contents) };
    let page = last.name.clone();
    let signature = json!({ "metadata": { "annotations": { page::WRITER: writer } } });
    match patch_page(api, &page, last.version.as_deref(), signature).await {
        Ok(_) => Ok(contents),
        Err(error) if patch::is_conflict(&error) => Err(Error::Changed { page }),
        Err(source) => Err(Error::Write { page, source }),
    }
}

/// Deletes all pages, the first one last. The first page is marked before, so that the remains of
/// an interrupted deletion are never mistaken for a whole journal.
pub(super) async fn delete_pages(api: &Api<ConfigMap>, id: &JournalId) -> Result<(), Error> {
    let mut pages = BTreeSet::new();
    let params = ListParams::default().labels(&id.selector()).limit(METADATA_PER_LIST);
    let visit = |page: kube::core::PartialObjectMeta<ConfigMap>| {
        pages.extend(id.page_number(&page.name_any()));
        Ok(())
    };
    for_each_listed(params, |params| async move { api.list_metadata(&params).await }, visit)
        .await?;
    if pages.len() > 1 {
        let page = id.page_name(0);
        let mark = json!({ "metadata": { "annotations": { page::REMOVED: "true" } } });
        match patch_page(api, &page, None, mark).await {
            Err(source) if !patch::is_not_found(&source) => {
                return Err(Error::Write { page, source });
            }
            _ => {}
        }
    }
    for number in pages.into_iter().rev() {
        let page = id.page_name(number);
        match api.delete(&page, &DeleteParams::default()).await {
            Err(source) if !patch::is_not_found(&source) => {
                return Err(Error::Remove { page, source });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Patches a page. Requests an answer without the contents of the page, which may be large.
pub(super) async fn patch_page(
    api: &Api<ConfigMap>,
    name: &str,
    resource_version: Option<&str>,
    mut change: Value,
) -> kube::Result<ObjectMeta> {
    if let Some(version) = resource_version {
        change["metadata"]["resourceVersion"] = json!(version);
    }
    let field_manager = Some(patch::FIELD_MANAGER.to_owned());
    let params = PatchParams { field_manager, ..PatchParams::default() };
    Ok(api.patch_metadata(name, &params, &Patch::Merge(change)).await?.metadata)
}

/// Calls a function for each object of a paginated list.
pub(super) async fn for_each_listed<T, F>(
    params: ListParams,
    ask: impl Fn(ListParams) -> F,
    mut see: impl FnMut(T) -> Result<(), Error>,
) -> Result<(), Error>
where
    T: Clone,
    F: Future<Output = kube::Result<ObjectList<T>>>,
{
    let mut next = Some(params);
    while let Some(params) = next {
        let part = ask(params.clone()).await.map_err(Error::Read)?;
        part.items.into_iter().try_for_each(&mut see)?;
        next = next_page(params, &part.metadata);
    }
    Ok(())
}
