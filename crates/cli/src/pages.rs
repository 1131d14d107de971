//! Lists of the API server, read page by page.

use anyhow::anyhow;
use kube::api::{ListParams, ObjectList};

use crate::installation::{Installation, is_not_found, is_unknown_kind};

/// Number of objects per page.
const PAGE_SIZE: u32 = 500;
/// Largest number of pages. No list is longer, unless the server never ends it.
const MAX_PAGES: usize = 10_000;

/// Reason why reading a list ended.
#[derive(Debug)]
pub(crate) enum ListEnd {
    /// The list has no more pages.
    Complete,
    /// The list has more pages than the limit.
    Truncated,
    /// The cluster does not serve the kind.
    UnknownKind(kube::Error),
}

/// The values that `select` returns for the objects of a list.
///
/// `doing` is the purpose, for errors. A list without an end is an error, so that no caller takes a part for the whole.
pub(crate) async fn list<K: Clone, T>(
    installation: &Installation,
    doing: &str,
    params: ListParams,
    request: impl AsyncFn(&ListParams) -> kube::Result<ObjectList<K>>,
    mut select: impl FnMut(K) -> Option<T>,
) -> anyhow::Result<Vec<T>> {
    let mut found = Vec::new();
    let visit = |object| found.extend(select(object));
    match visit_pages(installation, doing, params, MAX_PAGES, request, visit).await? {
        ListEnd::Complete => Ok(found),
        ListEnd::UnknownKind(error) => Err(installation.explain_error(doing, error)),
        ListEnd::Truncated => Err(truncated(doing)),
    }
}

/// The same, but a kind that the cluster does not serve has no objects.
pub(crate) async fn list_if_served<K: Clone, T>(
    installation: &Installation,
    doing: &str,
    params: ListParams,
    request: impl AsyncFn(&ListParams) -> kube::Result<ObjectList<K>>,
    mut select: impl FnMut(K) -> Option<T>,
) -> anyhow::Result<Vec<T>> {
    let mut found = Vec::new();
    let visit = |object| found.extend(select(object));
    match visit_pages(installation, doing, params, MAX_PAGES, request, visit).await? {
        ListEnd::Complete | ListEnd::UnknownKind(_) => Ok(found),
        ListEnd::Truncated => Err(truncated(doing)),
    }
}

fn truncated(doing: &str) -> anyhow::Error {
    anyhow!("cannot {doing}: the list has more than {MAX_PAGES} pages of {PAGE_SIZE} objects")
}

/// Calls `visit` for each object of a list, up to a number of pages.
pub(crate) async fn visit_pages<K: Clone>(
    installation: &Installation,
    doing: &str,
    params: ListParams,
    max_pages: usize,
    request: impl AsyncFn(&ListParams) -> kube::Result<ObjectList<K>>,
    mut visit: impl FnMut(K),
) -> anyhow::Result<ListEnd> {
    let mut params = params.limit(PAGE_SIZE);
    for _ in 0..max_pages {
        let page = async {
            match request(&params).await {
                Err(error) if is_not_found(&error) || is_unknown_kind(&error) => Ok(Err(error)),
                page => page.map(Ok),
            }
        };
        let page = match installation.call_api(doing, page).await? {
            Ok(page) => page,
            Err(error) => return Ok(ListEnd::UnknownKind(error)),
        };
        page.items.into_iter().for_each(&mut visit);
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(ListEnd::Complete);
        }
    }
    Ok(ListEnd::Truncated)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Api, ResourceExt as _};
    use serde_json::{Value, json};

    use super::*;
    use crate::fake_installation::installation_that_answers;

    fn page(name: &str, next: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"continue": next},
            "items": [{"metadata": {"name": name}}],
        })
    }

    #[tokio::test]
    async fn list_is_read_to_its_last_page() {
        let installation = installation_that_answers(|query| {
            assert!(
                query.contains("labelSelector=a%3Db") && query.contains("limit=500"),
                "{query}"
            );
            match query {
                first if !first.contains("continue=") => (200, page("first", "next")),
                _ => (200, page("second", "")),
            }
        });
        let api: Api<ConfigMap> = installation.api();
        let params = ListParams::default().labels("a=b");
        let request = async |params: &ListParams| api.list(params).await;
        let name = |object: ConfigMap| Some(object.name_any());
        let names = list(&installation, "list all", params, request, name).await.unwrap();
        assert_eq!(names, ["first", "second"]);
    }

    #[tokio::test]
    async fn kind_that_is_not_served_is_an_error_or_has_no_objects() {
        let installation =
            installation_that_answers(|_| (404, Value::String("404 page not found".to_owned())));
        let api: Api<ConfigMap> = installation.api();
        let request = async |params: &ListParams| api.list(params).await;
        let (doing, params) = ("list all", ListParams::default());
        let listed = list_if_served(&installation, doing, params.clone(), &request, Some).await;
        assert_eq!(listed.unwrap(), []);
        let error = list(&installation, doing, params, request, Some).await.unwrap_err();
        assert!(error.to_string().starts_with("cannot list all: "), "{error}");
    }

    #[tokio::test]
    async fn list_without_an_end_is_an_error() {
        let installation = installation_that_answers(|_| (200, page("again", "next")));
        let api: Api<ConfigMap> = installation.api();
        let request = async |params: &ListParams| api.list(params).await;
        let params = ListParams::default();
        let mut count = 0;
        let end = visit_pages(&installation, "x", params.clone(), 3, &request, |_| count += 1);
        assert!(matches!(end.await, Ok(ListEnd::Truncated)));
        assert_eq!(count, 3);
        let listed = list(&installation, "list all", params, request, Some).await;
        let error = listed.unwrap_err().to_string();
        assert!(error.starts_with("cannot list all: the list has more than"), "{error}");
    }
}
