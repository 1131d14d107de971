//! Result of each item, for `-resource-list.json.gz`.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bowline_store::file::ResourceList;

/// Action taken for an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AppliedAction {
    /// The object was created.
    Created,
    /// The object existed and was changed.
    Updated,
    /// The item could not be restored.
    Failed,
    /// The object existed, or the item was not to be restored.
    Skipped,
}

impl AppliedAction {
    /// Velero's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// Results of all items.
#[derive(Debug, Default)]
pub(super) struct ItemOutcomes {
    /// By kind, namespace and name in the cluster.
    all: Mutex<ByKind>,
}

type ByKind = BTreeMap<String, BTreeMap<(String, String), AppliedAction>>;

impl ItemOutcomes {
    pub(super) fn record(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        name: &str,
        action: AppliedAction,
    ) {
        let key = (namespace.to_owned(), name.to_owned());
        self.lock().entry(format!("{api_version}/{kind}")).or_default().insert(key, action);
    }

    /// Number of items.
    pub(super) fn count(&self) -> usize {
        self.lock().values().map(BTreeMap::len).sum()
    }

    /// True if an object of a kind was created or changed.
    pub(super) fn has_written(&self, kind: &str) -> bool {
        let written = |action: &AppliedAction| {
            matches!(action, AppliedAction::Created | AppliedAction::Updated)
        };
        self.lock().iter().any(|(name, items)| name.ends_with(kind) && items.values().any(written))
    }

    /// Contents of the resource list file.
    pub(super) fn list(&self) -> ResourceList {
        let format_item =
            |((namespace, name), action): (&(String, String), &AppliedAction)| match namespace
                .as_str()
            {
                "" => format!("{name}({})", action.as_str()),
                namespace => format!("{namespace}/{name}({})", action.as_str()),
            };
        let of_kind = |(kind, items): (&String, &BTreeMap<_, _>)| {
            let mut list: Vec<String> = items.iter().map(format_item).collect();
            list.sort_unstable();
            (kind.clone(), list)
        };
        ResourceList(self.lock().iter().map(of_kind).collect())
    }

    fn lock(&self) -> MutexGuard<'_, ByKind> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_list_has_veleros_format() {
        let outcomes = ItemOutcomes::default();
        outcomes.record("apps/v1", "Deployment", "shop", "web", AppliedAction::Created);
        outcomes.record("v1", "Namespace", "", "shop", AppliedAction::Skipped);
        outcomes.record("v1", "Pod", "shop", "b", AppliedAction::Failed);
        outcomes.record("v1", "Pod", "shop", "a", AppliedAction::Failed);
        outcomes.record("v1", "Pod", "shop", "a", AppliedAction::Updated);
        let list = outcomes.list().0;
        assert_eq!(list["apps/v1/Deployment"], ["shop/web(created)"]);
        assert_eq!(list["v1/Namespace"], ["shop(skipped)"]);
        assert_eq!(list["v1/Pod"], ["shop/a(updated)", "shop/b(failed)"]);
        assert_eq!(outcomes.count(), 4);
        assert!(outcomes.has_written("Deployment") && !outcomes.has_written("Namespace"));
    }
}
