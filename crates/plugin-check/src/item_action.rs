//! Rules for item actions of all kinds. Those for operations are in [`super::operation`].

use std::future::ready;
use std::sync::Arc;

use bowline_plugin::{Error, Item, Kind, OperationId, Progress, ResourceSelector, State};
use bowline_plugin_host::{Handle, Plugin, Purpose, Slot};
use futures::StreamExt as _;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use serde_json::Value;
use tokio::time::Instant;

use super::action::{ActionInput, ActionOutput, AnyAction};
use super::rule::{CheckSubject, HOLDS, Rule, RuleFailure, RuleOutcome, RuleRunner};
use super::{CheckContext, Input, Restart, is_outcome_unknown, sample};

/// Number of concurrent calls.
const CONCURRENT_CALLS: usize = 16;

const RETURN_ITEMS: &[Kind] = &[
    Kind::BackupItemAction,
    Kind::BackupItemActionV2,
    Kind::RestoreItemAction,
    Kind::RestoreItemActionV2,
];
const V2: &[Kind] = &[Kind::BackupItemActionV2, Kind::RestoreItemActionV2];

const RULES: &[Rule<ItemActionCheck>] = &[
    Rule::new("AppliesTo returns the same selector each time", |action| {
        Box::pin(action.returns_a_selector())
    }),
    Rule::new("answers for the item", |action| Box::pin(action.executes())),
    Rule::for_kinds(RETURN_ITEMS, "returns an object of the same kind", |action| {
        Box::pin(ready(action.returns_same_kind()))
    }),
    Rule::for_kinds(V2, "Progress knows the operation at once", |action| {
        Box::pin(action.knows_its_operation())
    }),
    Rule::for_kinds(V2, "Progress knows the operation after a restart of the process", |action| {
        Box::pin(action.knows_its_operation_after_a_restart())
    }),
    Rule::for_kinds(V2, "Cancel can be repeated", |action| Box::pin(action.accepts_cancel())),
    Rule::for_kinds(V2, "a canceled operation ends", |action| {
        Box::pin(action.ends_cancelled_operation())
    }),
    Rule::for_kinds(
        V2,
        "Progress returns the same outcome of an ended operation each time",
        |action| Box::pin(action.keeps_the_outcome()),
    ),
    Rule::for_kinds(V2, "Progress of an unknown operation returns a permanent error", |action| {
        Box::pin(action.refuses_unknown_operation())
    }),
    Rule::for_kinds(V2, "Cancel accepts an unknown operation", |action| {
        Box::pin(action.accepts_cancel_of_unknown_operation())
    }),
    Rule::for_kinds(
        &[Kind::RestoreItemActionV2],
        "AreAdditionalItemsReady answers for no item and for one",
        |action| Box::pin(action.reports_readiness()),
    ),
    Rule::new("answers 16 calls at once", |action| Box::pin(action.answers_concurrent_calls())),
];

const CANCEL_OPERATIONS: Rule<ItemActionCheck> =
    Rule::new("Cancel accepts all operations that the check started", |action| {
        Box::pin(action.cancel_all())
    });

/// An action that is being checked, in its own process.
pub(super) struct ItemActionCheck {
    plugin: Plugin,
    pub(super) action: AnyAction,
    pub(super) process: Arc<dyn Restart>,
    pub(super) action_input: ActionInput,
    pub(super) input: Arc<Input>,
    selector: Option<ResourceSelector>,
    /// Output of the action for the item.
    output: Option<ActionOutput>,
    /// Operations that are running as far as known.
    pub(super) running: Vec<OperationId>,
    /// Number of calls for the item that may have started an operation whose id is unknown.
    unanswered_calls: usize,
    pub(super) cancelled_at: Option<Instant>,
    pub(super) ended: Option<State>,
}

impl CheckSubject for ItemActionCheck {
    fn plugin(&self) -> Option<&Plugin> {
        Some(&self.plugin)
    }

    fn leftovers(&self) -> Vec<String> {
        let mut leftovers: Vec<String> =
            self.running.iter().map(|operation| format!("operation {operation}")).collect();
        if self.unanswered_calls > 0 && V2.contains(&self.plugin.kind) {
            let calls = if self.unanswered_calls == 1 { "call" } else { "calls" };
            let of = format!("of {} {calls} for {}", self.unanswered_calls, self.input.name());
            leftovers.push(format!("possibly operations {of} without an answer"));
        }
        leftovers
    }
}

pub(super) async fn check(
    runner: &mut RuleRunner<'_>,
    CheckContext { plugin, options, input }: CheckContext,
) {
    let purpose = Purpose::ItemActions(vec![plugin.clone()]);
    let slot = Arc::new(Slot::new(&plugin.command, options, purpose));
    let handle = Handle::new(Arc::clone(&slot), &plugin);
    if let Some(action) = AnyAction::new(handle, plugin.kind) {
        let process = Arc::clone(&slot) as Arc<dyn Restart>;
        ItemActionCheck::new(plugin, action, process, input).check_rules(runner).await;
    }
    slot.close().await;
}

impl ItemActionCheck {
    fn new(
        plugin: Plugin,
        action: AnyAction,
        process: Arc<dyn Restart>,
        input: Arc<Input>,
    ) -> Self {
        Self {
            plugin,
            action,
            process,
            action_input: ActionInput::new(&input),
            input,
            selector: None,
            output: None,
            running: Vec::new(),
            unanswered_calls: 0,
            cancelled_at: None,
            ended: None,
        }
    }

    async fn check_rules(mut self, runner: &mut RuleRunner<'_>) {
        runner.run_rules(RULES, &mut self).await;
        runner.clean_up(&CANCEL_OPERATIONS, &mut self).await;
    }

    async fn returns_a_selector(&mut self) -> RuleOutcome {
        let first = self.action.applies_to().await?;
        let second = self.action.applies_to().await?;
        if first != second {
            return Err(RuleFailure::Broken(format!("first {first:?}, then {second:?}")));
        }
        self.selector = Some(first);
        HOLDS
    }

    async fn executes(&mut self) -> RuleOutcome {
        let kind = kind_of(&self.input.item)?;
        if self.selector.as_ref().is_some_and(|selector| !may_select(selector, &kind)) {
            return Err(RuleFailure::Skipped(format!(
                "the action does not apply to a {kind}; pass an item that it applies to with --item"
            )));
        }
        let kind = self.plugin.kind;
        if kind == Kind::DeleteItemAction && !self.input.kinds.contains(&kind) {
            // The action would remove the data behind the item: a snapshot, a disk.
            return Err(RuleFailure::skipped(
                "the action may delete the data of the item; to call it, add --kind \
                 DeleteItemAction",
            ));
        }
        self.output = self.execute_concurrently(1).await.pop().transpose()?;
        HOLDS
    }

    fn returns_same_kind(&self) -> RuleOutcome {
        let given = kind_of(&self.input.item)?;
        match &self.require_output()?.item {
            Some(item) => match kind_of(item)? {
                kind if kind == given => HOLDS,
                kind => Err(RuleFailure::Broken(format!(
                    "the action received a {given} and returned a {kind}"
                ))),
            },
            None => Err(RuleFailure::broken("the action returned no item")),
        }
    }

    async fn reports_readiness(&mut self) -> RuleOutcome {
        for items in [Vec::new(), vec![sample::pod_identifier()]] {
            self.action.are_additional_items_ready(&items, &self.action_input).await?;
        }
        HOLDS
    }

    async fn answers_concurrent_calls(&mut self) -> RuleOutcome {
        if self.plugin.kind == Kind::DeleteItemAction {
            // Deleted data is gone: `Execute` for the same item need not succeed again.
            let calls = (0..CONCURRENT_CALLS).map(|_| self.action.applies_to());
            return all_succeeded(join_all(calls).await);
        }
        self.require_output()?;
        all_succeeded(self.execute_concurrently(CONCURRENT_CALLS).await)
    }

    /// Calls the action this many times concurrently. Each answer is recorded as soon as it
    /// arrives: others may never arrive.
    async fn execute_concurrently(&mut self, calls: usize) -> Vec<Result<ActionOutput, Error>> {
        self.unanswered_calls += calls;
        let mut in_flight: FuturesUnordered<_> =
            (0..calls).map(|_| self.action.execute(&self.action_input)).collect();
        let mut answers = Vec::new();
        while let Some(result) = in_flight.next().await {
            if !result.as_ref().is_err_and(is_outcome_unknown) {
                self.unanswered_calls -= 1;
            }
            let started = result.as_ref().ok().and_then(|answer| answer.operation.clone());
            self.running.extend(started.filter(|id| !self.running.contains(id)));
            answers.push(result);
        }
        answers
    }

    /// Output of the action for the item; without it, rules about it cannot be checked.
    pub(super) fn require_output(&self) -> Result<&ActionOutput, RuleFailure> {
        self.output
            .as_ref()
            .ok_or_else(|| RuleFailure::skipped("the action has not answered for the item"))
    }

    pub(super) async fn progress(&self, operation: &OperationId) -> Result<Progress, Error> {
        self.action.progress(operation, &self.action_input).await
    }

    pub(super) async fn cancel(&self, operation: &OperationId) -> Result<(), Error> {
        self.action.cancel(operation, &self.action_input).await
    }
}

/// Holds if none of the calls failed.
pub(super) fn all_succeeded<T>(answers: Vec<Result<T, Error>>) -> RuleOutcome {
    let count = answers.len();
    let errors: Vec<Error> = answers.into_iter().filter_map(Result::err).collect();
    match errors.first() {
        None => HOLDS,
        Some(first) => {
            Err(RuleFailure::Broken(format!("{} of {count} calls failed: {first}", errors.len())))
        }
    }
}

fn kind_of(item: &Item) -> Result<String, RuleFailure> {
    let object: Value = item.parse().map_err(|error| RuleFailure::Broken(error.to_string()))?;
    Ok(object.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned())
}

/// True if a selector may select the resource of a kind. Only a cluster can decide for certain;
/// namespaces and labels do not matter, since no action fails because of those.
fn may_select(selector: &ResourceSelector, kind: &str) -> bool {
    let names = names_of(&kind.to_lowercase());
    let means = |name: &String| {
        let resource = name.split('.').next().unwrap_or_default().to_lowercase();
        name == "*" || names.contains(&resource)
    };
    let included = &selector.included_resources;
    (included.is_empty() || included.iter().any(means))
        && !selector.excluded_resources.iter().any(means)
}

/// Possible names of the resource of a kind: `pod`, `pods`, `po`.
fn names_of(kind: &str) -> Vec<String> {
    const SHORT: [(&str, &str); 16] = [
        ("configmap", "cm"),
        ("cronjob", "cj"),
        ("customresourcedefinition", "crd"),
        ("daemonset", "ds"),
        ("deployment", "deploy"),
        ("ingress", "ing"),
        ("namespace", "ns"),
        ("networkpolicy", "netpol"),
        ("node", "no"),
        ("persistentvolume", "pv"),
        ("persistentvolumeclaim", "pvc"),
        ("pod", "po"),
        ("replicaset", "rs"),
        ("service", "svc"),
        ("serviceaccount", "sa"),
        ("statefulset", "sts"),
    ];
    let plural = match kind.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => format!("{stem}ies"),
        _ if kind.ends_with(['s', 'x']) => format!("{kind}es"),
        _ => format!("{kind}s"),
    };
    let short =
        SHORT.iter().filter(|(long, _)| *long == kind).map(|(_, short)| (*short).to_owned());
    short.chain([kind.to_owned(), plural]).collect()
}

#[cfg(test)]
mod tests;
