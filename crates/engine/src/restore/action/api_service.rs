//! APIServices that the API server manages.

use async_trait::async_trait;
use bowline_api::Restore;
use bowline_plugin::{Encoded, Item, ResourceSelector, RestoreItemAction, RestoreOutput, Result};

/// Skips APIServices that the API server created for its own groups and for those of CustomResourceDefinitions: the
/// target's API server has created, or will create, the matching ones.
pub(super) struct ApiService;

/// Label of APIServices that the API server manages.
const AUTO_MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

#[async_trait]
impl RestoreItemAction for ApiService {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        let label_selector = AUTO_MANAGED.to_owned();
        Ok(ResourceSelector { label_selector, ..ResourceSelector::resources(["apiservices"]) })
    }

    async fn execute(&self, item: &Item, _: &Item, _: &Encoded<Restore>) -> Result<RestoreOutput> {
        Ok(RestoreOutput::skip(item))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::execute;
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn automanaged_api_services_are_skipped() {
        let item = json!({"kind": "APIService", "metadata": {"name": "v1.apps"}});
        let output = execute(&ApiService, &item, &Restore::default()).await.unwrap();
        assert!(output.skip_restore);
    }
}
