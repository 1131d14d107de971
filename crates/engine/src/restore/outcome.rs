//! Outcome of a restore, and the result of each item, for `-resource-list.json.gz`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_store::file::{ResourceList, RestoreVolumeInfo};
use jiff::Timestamp;
use parking_lot::Mutex;

use super::FatalError;
use super::context::Context;
use crate::journal::RecoveredRun;
use crate::operation::{Operation, record};
use crate::report::Report;
use crate::shared_names::SharedNames;

/// Outcome of a restore.
#[derive(Debug)]
pub struct RestoreOutcome {
    /// The reason why the restore could not continue, if so.
    pub fatal: Option<FatalError>,
    /// Warnings and errors.
    pub report: Report,
    /// Result of each item.
    pub resources: ResourceList,
    /// Number of items in `resources`.
    pub items: usize,
    /// Expected number of items, including those that were not reached or that a damaged archive lacks.
    pub total: usize,
    /// Operations that actions started.
    pub operations: Vec<Operation>,
    /// Number of hooks attempted, and number of hooks failed.
    pub hooks: (u64, u64),
    /// Restored volumes.
    pub volumes: Vec<RestoreVolumeInfo>,
}

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
pub(super) struct ItemOutcomes(Mutex<Outcomes>);

#[derive(Debug, Default)]
struct Outcomes {
    /// By kind, namespace and name in the cluster. In the end these are all items of the restore, so each namespace is
    /// there once, and names take no more than their length.
    by_kind: BTreeMap<String, BTreeMap<ObjectName, AppliedAction>>,
    namespaces: SharedNames,
}

/// Namespace and name.
type ObjectName = (Arc<str>, Box<str>);

impl ItemOutcomes {
    pub(super) fn record(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        name: &str,
        action: AppliedAction,
    ) {
        let mut outcomes = self.0.lock();
        let key = (outcomes.namespaces.share(namespace), name.into());
        let of_kind = outcomes.by_kind.entry(format!("{api_version}/{kind}"));
        of_kind.or_default().insert(key, action);
    }

    /// Number of items.
    pub(super) fn count(&self) -> usize {
        self.0.lock().by_kind.values().map(BTreeMap::len).sum()
    }

    /// True if an object of a kind was created or changed.
    pub(super) fn has_written(&self, kind: &str) -> bool {
        let written = |action: &AppliedAction| {
            matches!(action, AppliedAction::Created | AppliedAction::Updated)
        };
        let outcomes = self.0.lock();
        let mut of_kind = outcomes.by_kind.iter().filter(|(name, _)| name.ends_with(kind));
        of_kind.any(|(_, items)| items.values().any(written))
    }

    /// Contents of the resource list file. Each name is dropped when its text is there, so that they are not all in
    /// memory twice.
    pub(super) fn into_list(self) -> ResourceList {
        let text = |((namespace, name), action): (ObjectName, AppliedAction)| match &*namespace {
            "" => format!("{name}({})", action.as_str()),
            namespace => format!("{namespace}/{name}({})", action.as_str()),
        };
        let of_kind = |(kind, items): (String, BTreeMap<ObjectName, AppliedAction>)| {
            let mut list: Vec<String> = items.into_iter().map(text).collect();
            list.sort_unstable();
            (kind, list)
        };
        ResourceList(self.0.into_inner().by_kind.into_iter().map(of_kind).collect())
    }
}

/// Builds the outcome from the results of the stages.
pub(super) fn build_outcome(
    context: Context,
    fatal: Option<FatalError>,
    hooks: (u64, u64),
    report: Arc<Report>,
) -> RestoreOutcome {
    let items = context.outcomes.count();
    let lost = usize::try_from(context.progress.lost()).unwrap_or(usize::MAX);
    let total = match &fatal {
        // The plan is known, the results of the unreached items are not.
        Some(_) => usize::try_from(context.progress.total()).unwrap_or(usize::MAX),
        None => items.saturating_add(lost),
    };
    let operations = context.operations.into_inner();
    let volumes = context.volume_outcomes.infos();
    // Its memory is better used for the list of results.
    drop((context.report, context.reserved_items));
    let resources = context.outcomes.into_list();
    let total = total.max(items);
    RestoreOutcome {
        fatal,
        report: unwrap_report(report),
        resources,
        items,
        total,
        operations,
        hooks,
        volumes,
    }
}

impl RestoreOutcome {
    pub(super) fn without_items(fatal: FatalError, report: Report) -> Self {
        Self {
            fatal: Some(fatal),
            report,
            resources: ResourceList::default(),
            items: 0,
            total: 0,
            operations: Vec::new(),
            hooks: (0, 0),
            volumes: Vec::new(),
        }
    }
}

/// Operations that an earlier process started.
pub fn operations_before_restart(
    recovered: &RecoveredRun,
    timeout: Duration,
    began: Timestamp,
) -> Vec<Operation> {
    let records = recovered.finished.iter().flat_map(|ended| ended.restore_operations.clone());
    let finished = records.filter_map(|one| record::from_restore(one, timeout, began).ok());
    finished.chain(abandoned_operations(recovered, timeout, began)).collect()
}

/// Operations that an earlier attempt started for items that are repeated. Nobody waits for them.
pub fn abandoned_operations(
    recovered: &RecoveredRun,
    timeout: Duration,
    began: Timestamp,
) -> Vec<Operation> {
    let records = recovered.abandoned.restore_operations.iter().cloned();
    records.filter_map(|one| record::from_restore(one, timeout, began).ok()).collect()
}

/// The report, even if another task still holds a reference to it.
pub(super) fn unwrap_report(report: Arc<Report>) -> Report {
    Arc::try_unwrap(report).unwrap_or_else(|shared| shared.take_all())
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
        assert_eq!(outcomes.count(), 4);
        assert!(outcomes.has_written("Deployment") && !outcomes.has_written("Namespace"));
        let list = outcomes.into_list().0;
        assert_eq!(list["apps/v1/Deployment"], ["shop/web(created)"]);
        assert_eq!(list["v1/Namespace"], ["shop(skipped)"]);
        assert_eq!(list["v1/Pod"], ["shop/a(updated)", "shop/b(failed)"]);
    }
}
