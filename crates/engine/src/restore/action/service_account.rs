//! ServiceAccounts, whose tokens are not restored.

use async_trait::async_trait;
use bowline_api::Restore;
use bowline_plugin::{Encoded, Item, ResourceSelector, RestoreItemAction, RestoreOutput, Result};
use serde_json::Value;

use super::edit;
use crate::json::{remove_elements, text};

/// Removes references to tokens that Kubernetes generated, which `velero.io/secret` skips. Velero removes only one of
/// several.
pub(super) struct ServiceAccount;

fn change(account: &mut Value) -> bool {
    let token = format!("{}-token-", text(account, "/metadata/name"));
    remove_elements(account, "", "secrets", |secret| text(secret, "/name").starts_with(&token))
}

#[async_trait]
impl RestoreItemAction for ServiceAccount {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["serviceaccounts"]))
    }

    async fn execute(&self, item: &Item, _: &Item, _: &Encoded<Restore>) -> Result<RestoreOutput> {
        edit(item, |account| Ok(change(account)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::changes;
    use super::*;
    use serde_json::json;

    #[test]
    fn references_to_generated_tokens_are_removed() {
        let account = |secrets: &[&str]| {
            let secrets: Vec<_> = secrets.iter().map(|name| json!({"name": name})).collect();
            json!({"metadata": {"name": "app"}, "secrets": secrets})
        };
        let bare = json!({"metadata": {"name": "app"}});
        changes(
            change,
            [
                ("no secrets", bare.clone(), None),
                ("others", account(&["pull", "other-token-1", "app-tokens"]), None),
                ("a token", account(&["pull", "app-token-1"]), Some(account(&["pull"]))),
                ("only tokens", account(&["app-token-1", "app-token-2"]), Some(bare)),
            ],
        );
    }
}
