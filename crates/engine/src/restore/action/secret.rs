//! Secrets with ServiceAccount tokens, which another cluster would not accept.

use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::Restore;
use bowline_plugin::{Encoded, Item, ResourceSelector, RestoreItemAction, RestoreOutput, Result};
use serde::Deserialize;
use serde_json::Value;

use super::lookup::{Accounts, CachedLookup, Lookup, cached_or_read};
use super::{edit, read, target_namespace};
use crate::json::remove_entries;

/// Skips the tokens that Kubernetes generated for ServiceAccounts, and empties those that users requested, so that
/// Kubernetes fills them anew.
///
/// The accounts are looked up in the target namespace of the Secret; Velero looks in the original one. Accounts that
/// are restored after the first token do not count: accounts come before Secrets, so there are none.
pub(super) struct Secret {
    lookup: Arc<Lookup>,
    accounts: CachedLookup<Accounts>,
}

/// The required fields of a Secret. Most Secrets are not affected, and some are large.
#[derive(Deserialize)]
struct Envelope {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    namespace: String,
    name: String,
}

impl Envelope {
    fn is_token(&self) -> bool {
        self.kind.as_deref() == Some("kubernetes.io/service-account-token")
    }
}

/// Removes the fields that Kubernetes fills in.
fn change(secret: &mut Value) -> bool {
    let uid = ["kubernetes.io/service-account.uid"];
    let uid = remove_entries(secret, "/metadata", "annotations", &uid);
    let token = remove_entries(secret, "", "data", &["token", "ca.crt"]);
    uid || token
}

impl Secret {
    pub(super) fn new(lookup: &Arc<Lookup>) -> Self {
        Self { lookup: Arc::clone(lookup), accounts: CachedLookup::new() }
    }
}

#[async_trait]
impl RestoreItemAction for Secret {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["secrets"]))
    }

    async fn execute(
        &self,
        item: &Item,
        _: &Item,
        restore: &Encoded<Restore>,
    ) -> Result<RestoreOutput> {
        let secret: Envelope = read(item)?;
        if !secret.is_token() {
            return Ok(RestoreOutput::unchanged(item));
        }
        let accounts = cached_or_read(&self.accounts, self.lookup.accounts()).await?;
        let namespace = target_namespace(&restore.spec, &secret.metadata.namespace);
        if accounts.have_token(namespace, &secret.metadata.name) {
            return Ok(RestoreOutput::skip(item));
        }
        edit(item, |secret| Ok(change(secret)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{changes, execute, lookup_in, restore};
    use super::*;
    use crate::cluster::{self, Fake};
    use serde_json::json;

    #[test]
    fn generated_token_fields_are_removed() {
        let uid = "kubernetes.io/service-account.uid";
        let name = "kubernetes.io/service-account.name";
        changes(
            change,
            [
                ("nothing", json!({"metadata": {}, "data": {"own": "eA=="}}), None),
                (
                    "token, certificate and uid",
                    json!({
                        "metadata": {"annotations": {uid: "1", name: "app"}},
                        "data": {"token": "eA==", "ca.crt": "eA==", "namespace": "eA=="},
                    }),
                    Some(json!({
                        "metadata": {"annotations": {name: "app"}},
                        "data": {"namespace": "eA=="},
                    })),
                ),
                ("token only", json!({"data": {"token": "eA=="}}), Some(json!({}))),
            ],
        );
    }

    fn account(namespace: &str, name: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"namespace": namespace, "name": name},
        })
    }

    fn secret(kind: &str, namespace: &str, name: &str) -> Value {
        json!({
            "kind": "Secret",
            "type": kind,
            "metadata": {"namespace": namespace, "name": name},
            "data": {"token": "eA==", "namespace": "eA=="},
        })
    }

    const TOKEN: &str = "kubernetes.io/service-account-token";

    #[tokio::test]
    async fn generated_tokens_are_skipped_and_others_emptied() {
        let fake = Fake::usual().with(account("new", "app")).with(account("other", "db"));
        let (fake, lookup) = lookup_in(fake);
        let restore = restore(json!({"namespaceMapping": {"shop": "new"}}));
        let action = Secret::new(&lookup);
        for (kind, namespace, name, skip, changed) in [
            (TOKEN, "shop", "app-token-x7k2p", true, false),
            (TOKEN, "new", "app-token-x7k2p", true, false),
            (TOKEN, "shop", "my-token", false, true),
            (TOKEN, "shop", "db-token-x7k2p", false, true),
            ("Opaque", "shop", "app-token-x7k2p", false, false),
        ] {
            let secret = secret(kind, namespace, name);
            let output = execute(&action, &secret, &restore).await.unwrap();
            assert_eq!(output.skip_restore, skip, "{kind} {namespace}/{name}");
            let restored: Value = output.item.parse().unwrap();
            assert_eq!(restored != secret, changed, "{kind} {namespace}/{name}");
        }
        assert_eq!(fake.lists().len(), 1);
    }

    #[tokio::test]
    async fn accounts_are_listed_only_for_tokens_and_must_be_listed() {
        let (fake, lookup) = lookup_in(Fake::usual());
        fake.fail_list("serviceaccounts", 0, || cluster::Error::Refused {
            code: 403,
            reason: "Forbidden".into(),
            message: "no".into(),
        });
        let action = Secret::new(&lookup);
        execute(&action, &secret("Opaque", "a", "b"), &Restore::default()).await.unwrap();
        assert!(fake.lists().is_empty());
        for _ in 0..2 {
            let token = secret(TOKEN, "a", "b");
            let error = execute(&action, &token, &Restore::default()).await.unwrap_err();
            assert!(error.message().starts_with("cannot list the ServiceAccounts: "), "{error}");
        }
        assert_eq!(fake.lists().len(), 1);
    }
}
