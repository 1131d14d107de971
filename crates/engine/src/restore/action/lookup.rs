//! Lookups of actions in the cluster.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bowline_api::label;
use bowline_plugin::{Class, Code, Error, Result};
use futures::StreamExt as _;
use serde::Deserialize;
use tokio::sync::OnceCell;

use crate::cluster::{self, Cluster, Query};
use crate::resource::{GroupResource, Resources};

/// Reads the cluster on behalf of the actions.
pub(super) struct Lookup {
    cluster: Arc<dyn Cluster>,
    resources: Arc<Resources>,
    /// Namespace of the server, which holds the ConfigMaps of actions.
    namespace: String,
}

/// Cached result of a lookup, including a failure.
pub(super) type CachedLookup<T> = OnceCell<Result<T>>;

/// The cached result, or the result of the lookup, which the first caller performs. A temporary failure is not cached:
/// the next caller repeats the lookup.
pub(super) async fn cached_or_read<T: Send>(
    cache: &CachedLookup<T>,
    read: impl Future<Output = Result<T>> + Send,
) -> Result<&T> {
    let settle = || async {
        match read.await {
            Err(error) if error.class() == Class::Transient => Err(error),
            settled => Ok(settled),
        }
    };
    cache.get_or_try_init(settle).await?.as_ref().map_err(Clone::clone)
}

/// Names of the ServiceAccounts in each namespace.
#[derive(Default)]
pub(super) struct Accounts(HashMap<String, HashSet<String>>);

impl Accounts {
    /// True if a name is a generated name of the token of an existing ServiceAccount: `<account>-token-<random>`.
    pub(super) fn have_token(&self, namespace: &str, name: &str) -> bool {
        let Some(accounts) = self.0.get(namespace) else { return false };
        name.match_indices("-token-").any(|(end, _)| accounts.contains(&name[..end]))
    }
}

impl Lookup {
    pub(super) fn new(
        cluster: &Arc<dyn Cluster>,
        resources: &Arc<Resources>,
        namespace: &str,
    ) -> Self {
        Self {
            cluster: Arc::clone(cluster),
            resources: Arc::clone(resources),
            namespace: namespace.to_owned(),
        }
    }

    /// The data of the ConfigMap for an action, which is found by its labels. Empty if there is none.
    pub(super) async fn config(&self, action: &str) -> Result<BTreeMap<String, String>> {
        #[derive(Deserialize)]
        struct ConfigMap {
            data: Option<BTreeMap<String, String>>,
        }
        let Some(resource) = self.resources.core("configmaps") else { return Ok(BTreeMap::new()) };
        let failed =
            |error| action_error(&error, &format!("cannot read the ConfigMap for {action}"));
        let label_selector = format!("{},{action}=RestoreItemAction", label::PLUGIN_CONFIG);
        let namespace = Some(self.namespace.clone());
        let query = Query { namespace, label_selector, ..Query::default() };
        let mut list = self.cluster.list(resource, query.clone());
        let Some(found) = list.next().await else { return Ok(BTreeMap::new()) };
        let found = found.map_err(failed)?;
        if let Some(second) = list.next().await {
            let (one, other) = (&found.name, second.map_err(failed)?.name);
            return Err(Error::new(
                Code::FailedPrecondition,
                format!(
                    "found more than one ConfigMap matching label selector {:?}, among them {one} \
                     and {other}: remove the labels from all but one",
                    query.label_selector
                ),
            ));
        }
        let config: ConfigMap = super::read(&found.item)
            .map_err(|error| error.context(format_args!("ConfigMap {}", found.name)))?;
        Ok(config.data.unwrap_or_default())
    }

    /// The ServiceAccounts of the cluster.
    pub(super) async fn accounts(&self) -> Result<Accounts> {
        let mut accounts = Accounts::default();
        let Some(resource) = self.resources.core("serviceaccounts") else { return Ok(accounts) };
        let mut list = self.cluster.list(resource, Query::default());
        while let Some(account) = list.next().await {
            match account {
                Ok(account) => {
                    accounts.0.entry(account.namespace).or_default().insert(account.name);
                }
                Err(cluster::Error::Object(error)) => {
                    tracing::warn!("a ServiceAccount cannot be read and is ignored: {error}");
                }
                Err(error) => return Err(action_error(&error, "cannot list the ServiceAccounts")),
            }
        }
        Ok(accounts)
    }

    /// Fails if there is no such StorageClass.
    pub(super) async fn require_storage_class(&self, name: &str) -> Result<()> {
        let id = GroupResource::new("storage.k8s.io", "storageclasses");
        let found = match self.resources.find(&id) {
            Some(resource) if !name.is_empty() => {
                self.cluster.get(resource, "", name).await.map_err(|error| {
                    action_error(&error, &format!("cannot read storage class {name:?}"))
                })?
            }
            _ => None,
        };
        let missing = || {
            let message = format!("the cluster has no storage class {name:?}: create it first");
            Error::new(Code::NotFound, message)
        };
        found.map(|_| ()).ok_or_else(missing)
    }
}

/// Converts an error of the cluster into one of an action.
pub(super) fn action_error(error: &cluster::Error, context: &str) -> Error {
    use cluster::Error::{Expired, Refused, Timeout, Unreachable};
    let code = match error {
        Unreachable(_) | Timeout(_) | Expired { .. } | Refused { code: 429 | 500.., .. } => {
            Code::Unavailable
        }
        Refused { code: 401 | 403, .. } => Code::PermissionDenied,
        _ => Code::Unknown,
    };
    Error::new(code, error.to_string()).context(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lookup_result_is_cached_unless_the_error_is_transient() {
        let gone = || Error::new(Code::Unavailable, "gone");
        let forbidden = || Error::new(Code::PermissionDenied, "forbidden");

        let cache = CachedLookup::new();
        assert_eq!(cached_or_read(&cache, async { Err(gone()) }).await, Err(gone()));
        assert_eq!(cached_or_read(&cache, async { Ok(1) }).await, Ok(&1));
        assert_eq!(cached_or_read(&cache, async { Ok(2) }).await, Ok(&1));

        let cache = CachedLookup::new();
        assert_eq!(cached_or_read(&cache, async { Err(forbidden()) }).await, Err(forbidden()));
        assert_eq!(cached_or_read(&cache, async { Ok(1) }).await, Err(forbidden()));
    }

    #[test]
    fn token_secret_is_recognised_by_its_service_account_name() {
        let names = ["app", "a-token-b"].map(str::to_owned).into();
        let accounts = Accounts([("shop".to_owned(), names)].into());
        for (namespace, name, is_token) in [
            ("shop", "app-token-x7k2p", true),
            ("shop", "a-token-b-token-x7k2p", true),
            ("shop", "app-token-", true),
            ("shop", "app-token", false),
            ("shop", "my-app-token-x7k2p", false),
            ("shop", "application-token-x7k2p", false),
            ("other", "app-token-x7k2p", false),
        ] {
            assert_eq!(accounts.have_token(namespace, name), is_token, "{namespace}/{name}");
        }
    }
}
