//! Lists of objects, read page by page.

use std::fmt::Debug;

use kube::Api;
use kube::api::ListParams;
use kube::core::ListMeta;
use serde::de::DeserializeOwned;

/// Number of objects per request.
pub(crate) const PAGE_SIZE: u32 = 500;

/// All objects of a list.
pub(crate) async fn list_all<K>(api: &Api<K>, params: ListParams) -> kube::Result<Vec<K>>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut all = Vec::new();
    visit_all(api, params, |object| all.push(object)).await?;
    Ok(all)
}

/// Visits all objects of a list, which are never all in memory.
pub(crate) async fn visit_all<K>(
    api: &Api<K>,
    params: ListParams,
    mut visit: impl FnMut(K),
) -> kube::Result<()>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut next = Some(params.limit(PAGE_SIZE));
    while let Some(params) = next {
        let page = api.list(&params).await?;
        page.items.into_iter().for_each(&mut visit);
        next = next_page(params, &page.metadata);
    }
    Ok(())
}

/// Parameters for the page after one with this metadata. None after the last page.
pub(crate) fn next_page(params: ListParams, page: &ListMeta) -> Option<ListParams> {
    let token = page.continue_.as_deref().filter(|token| !token.is_empty())?;
    Some(params.continue_token(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_page_has_no_token_or_an_empty_one() {
        let token_after = |token: Option<&str>| {
            let page = ListMeta { continue_: token.map(str::to_owned), ..ListMeta::default() };
            next_page(ListParams::default().labels("a=b"), &page)
        };
        assert!(token_after(None).is_none() && token_after(Some("")).is_none());
        let next = token_after(Some("t")).unwrap();
        assert_eq!(next.continue_token.as_deref(), Some("t"));
        assert_eq!(next.label_selector.as_deref(), Some("a=b"));
    }
}
