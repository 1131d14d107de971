use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use bowline_api::Backup;
use bowline_plugin::{BackupItemAction, BackupOutput, DeleteItemAction, Encoded};
use parking_lot::Mutex;

use super::*;
use crate::test_support::{
    NoRestart, broken_rules, kept_rules, reported_leftovers, run_check, run_check_until,
    sample_input, sample_plugin,
};
use crate::{Finding, RuleVerdict};

#[test]
fn action_is_not_called_for_kinds_it_does_not_apply_to() {
    for (included, excluded, kind, may) in [
        ("", "", "Pod", true),
        ("*", "", "Pod", true),
        ("pods", "", "Pod", true),
        ("po", "", "Pod", true),
        ("Pod", "", "Pod", true),
        ("pvc", "", "Pod", false),
        ("persistentvolumeclaims", "", "PersistentVolumeClaim", true),
        ("persistentvolumes", "", "PersistentVolumeClaim", false),
        ("ingresses.networking.k8s.io", "", "Ingress", true),
        ("networkpolicies", "", "NetworkPolicy", true),
        ("gateways.example.com", "", "Gateway", true),
        ("", "pods", "Pod", false),
        ("", "nodes", "Pod", true),
    ] {
        let list = |value: &str| Some(value.to_owned()).filter(|word| !word.is_empty());
        let selector = ResourceSelector {
            included_resources: list(included).into_iter().collect(),
            excluded_resources: list(excluded).into_iter().collect(),
            ..ResourceSelector::default()
        };
        assert_eq!(may_select(&selector, kind), may, "{kind} in {selector:?}");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    ChangesItsSelector,
    ReturnsAnotherKind,
    FailsAtOnce,
    LosesOperationsOnRestart,
    RefusesTheSecondCancel,
    RefusesCancelOfUnknown,
    RefusesCancelAsVelero,
    NeverEnds,
    ChangesTheOutcome,
    KnowsEverything,
    IsUnclearAboutUnknown,
    StartsNothing,
    FailsConcurrentCalls,
    HangsInExecute,
    HangsInACancel,
    IgnoresCancel,
}

/// An action that counts its operations.
struct FakeAction {
    flaw: Flaw,
    selector_calls: AtomicUsize,
    started: AtomicUsize,
    /// Calls of `execute` that have not ended.
    calls_inside: AtomicUsize,
    cancelled: Mutex<Vec<String>>,
    was_restarted: AtomicBool,
    /// The names and uids of the backups of its calls.
    backups: Mutex<Vec<[String; 2]>>,
}

impl FakeAction {
    fn new(flaw: Flaw) -> Arc<Self> {
        Arc::new(Self {
            flaw,
            selector_calls: AtomicUsize::new(0),
            started: AtomicUsize::new(0),
            calls_inside: AtomicUsize::new(0),
            cancelled: Mutex::default(),
            was_restarted: AtomicBool::new(false),
            backups: Mutex::default(),
        })
    }

    fn new_check(self: &Arc<Self>) -> ItemActionCheck {
        let plugin = sample_plugin(Kind::BackupItemActionV2);
        ItemActionCheck::new(plugin, AnyAction::Backup(self.clone()), self.clone(), sample_input())
    }

    /// The operations that were cancelled.
    fn cancelled(&self) -> Vec<String> {
        let mut cancelled = self.cancelled.lock().clone();
        cancelled.retain(|id| id.starts_with("op-"));
        cancelled.sort();
        cancelled.dedup();
        cancelled
    }
}

#[async_trait]
impl Restart for FakeAction {
    async fn restart(&self) {
        self.was_restarted.store(true, Ordering::Relaxed);
    }
}

#[async_trait]
impl BackupItemAction for FakeAction {
    async fn applies_to(&self) -> bowline_plugin::Result<ResourceSelector> {
        let earlier_calls = self.selector_calls.fetch_add(1, Ordering::Relaxed);
        let odd = self.flaw == Flaw::ChangesItsSelector && earlier_calls % 2 == 1;
        Ok(ResourceSelector::resources([if odd { "secrets" } else { "pods" }]))
    }

    async fn execute(
        &self,
        item: &Item,
        backup: &Encoded<Backup>,
    ) -> bowline_plugin::Result<BackupOutput> {
        let backup: Value = serde_json::from_slice(&backup.json()).unwrap();
        let text = |key: &str| backup["metadata"][key].as_str().unwrap_or_default().to_owned();
        self.backups.lock().push([text("name"), text("uid")]);
        let others = self.calls_inside.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        self.calls_inside.fetch_sub(1, Ordering::Relaxed);
        if self.flaw == Flaw::FailsAtOnce && others > 0 {
            return Err(Error::unknown("busy"));
        }
        if self.flaw == Flaw::HangsInExecute
            || self.flaw == Flaw::FailsConcurrentCalls
                && (1..CONCURRENT_CALLS - 1).contains(&others)
        {
            std::future::pending::<()>().await;
        }
        let mut output = BackupOutput::unchanged(item);
        if self.flaw == Flaw::ReturnsAnotherKind {
            output.item = Item::from_json(r#"{"kind":"Secret"}"#).unwrap();
        }
        if self.flaw != Flaw::StartsNothing {
            let number = self.started.fetch_add(1, Ordering::Relaxed);
            output.operation = OperationId::new(format!("op-{number}"));
        }
        Ok(output)
    }

    async fn progress(
        &self,
        operation: &OperationId,
        _: &Encoded<Backup>,
    ) -> bowline_plugin::Result<Progress> {
        let is_operation_lost = self.flaw == Flaw::LosesOperationsOnRestart
            && self.was_restarted.load(Ordering::Relaxed);
        let is_known = operation.as_str().starts_with("op-") && !is_operation_lost;
        match self.flaw {
            Flaw::KnowsEverything => {}
            Flaw::IsUnclearAboutUnknown if !is_known => return Err(Error::unknown("who?")),
            _ if !is_known => return Err(Error::invalid_operation(operation)),
            _ => {}
        }
        let is_cancelled = self.cancelled.lock().iter().any(|id| id == operation.as_str());
        let earlier_calls = self.selector_calls.fetch_add(1, Ordering::Relaxed);
        let reason = if self.flaw == Flaw::ChangesTheOutcome {
            earlier_calls.to_string()
        } else {
            "canceled".to_owned()
        };
        let ends = is_cancelled && self.flaw != Flaw::NeverEnds;
        // Reported as running once after the cancellation.
        let is_done = is_cancelled && earlier_calls > 4;
        if self.flaw == Flaw::IgnoresCancel {
            let state = if is_done { State::Succeeded } else { State::Running };
            return Ok(Progress { state, ..Progress::default() });
        }
        let state = if ends { State::Failed(reason) } else { State::Running };
        Ok(Progress { state, ..Progress::default() })
    }

    async fn cancel(
        &self,
        operation: &OperationId,
        _: &Encoded<Backup>,
    ) -> bowline_plugin::Result<()> {
        let is_known = operation.as_str().starts_with("op-");
        if self.flaw == Flaw::HangsInACancel && operation.as_str() == "op-3" {
            std::future::pending::<()>().await;
        }
        if self.flaw == Flaw::RefusesCancelAsVelero && !is_known {
            return Err(Error::invalid_operation(operation));
        }
        let mut cancelled = self.cancelled.lock();
        let is_second = cancelled.iter().any(|id| id == operation.as_str());
        if self.flaw == Flaw::RefusesCancelOfUnknown && !is_known
            || self.flaw == Flaw::RefusesTheSecondCancel && is_second
        {
            return Err(Error::unknown("there is no such thing"));
        }
        cancelled.push(operation.to_string());
        Ok(())
    }
}

const KNOWN: &str = "Progress knows the operation at once";
const RESTART: &str = "Progress knows the operation after a restart of the process";
const TWICE: &str = "Cancel can be repeated";
const ENDS: &str = "a canceled operation ends";
const SAME: &str = "Progress returns the same outcome of an ended operation each time";
const UNKNOWN: &str = "Progress of an unknown operation returns a permanent error";

#[tokio::test(start_paused = true)]
async fn each_action_flaw_breaks_its_rule() {
    let expected: [(Flaw, &[&str]); 13] = [
        (Flaw::None, &[]),
        (Flaw::ChangesItsSelector, &["AppliesTo returns the same selector each time"]),
        (Flaw::ReturnsAnotherKind, &["returns an object of the same kind"]),
        (Flaw::FailsAtOnce, &["answers 16 calls at once"]),
        (Flaw::LosesOperationsOnRestart, &[RESTART, ENDS]),
        (Flaw::RefusesTheSecondCancel, &[TWICE]),
        (Flaw::RefusesCancelOfUnknown, &["Cancel accepts an unknown operation"]),
        (Flaw::NeverEnds, &[ENDS]),
        (Flaw::ChangesTheOutcome, &[SAME]),
        (Flaw::KnowsEverything, &[UNKNOWN]),
        (Flaw::IsUnclearAboutUnknown, &[UNKNOWN]),
        // `operation ID … is invalid` is the error of Velero's framework for this case.
        (Flaw::RefusesCancelAsVelero, &[]),
        (Flaw::StartsNothing, &[]),
    ];
    for (flaw, rules) in expected {
        let fake = FakeAction::new(flaw);
        let check = fake.new_check();
        let found = Box::pin(run_check(async |runner: &mut RuleRunner<'_>| {
            check.check_rules(runner).await;
        }))
        .await;
        assert_eq!(broken_rules(&found), rules, "{flaw:?}");
        // All started operations were cancelled.
        assert_eq!(fake.cancelled().len(), fake.started.load(Ordering::Relaxed), "{flaw:?}");
        let holds = kept_rules(&found);
        assert_eq!(flaw != Flaw::StartsNothing, holds.contains(&KNOWN), "{flaw:?}");
    }
}

const AT_ONCE_RULE: &str = "answers 16 calls at once";
const CANCEL_ALL: &str = "Cancel accepts all operations that the check started";

#[tokio::test(start_paused = true)]
async fn operation_is_cancelled_while_other_calls_hang() {
    let fake = FakeAction::new(Flaw::FailsConcurrentCalls);
    let check = fake.new_check();
    let found =
        Box::pin(run_check(async |runner: &mut RuleRunner<'_>| check.check_rules(runner).await))
            .await;
    assert_eq!(broken_rules(&found), [AT_ONCE_RULE, CANCEL_ALL]);
    // The operation of the first rule, and two of the sixteen.
    assert_eq!(fake.cancelled(), ["op-0", "op-1", "op-2"]);
    assert_eq!(
        reported_leftovers(&found),
        ["possibly operations of 14 calls for bowline-check-id without an answer"]
    );
}

#[tokio::test(start_paused = true)]
async fn interrupted_call_is_reported_as_possible_operation() {
    for kind in [Kind::BackupItemActionV2, Kind::BackupItemAction] {
        let fake = FakeAction::new(Flaw::HangsInExecute);
        let check = ItemActionCheck { plugin: sample_plugin(kind), ..fake.new_check() };
        let interrupt = tokio::time::sleep(sample_input().timeout / 3);
        let examine = async |runner: &mut RuleRunner<'_>| check.check_rules(runner).await;
        let found = run_check_until(interrupt, examine).await;
        if kind == Kind::BackupItemActionV2 {
            let expected = "possibly operations of 1 call for bowline-check-id without an answer";
            assert_eq!(
                (broken_rules(&found), reported_leftovers(&found)),
                (vec![CANCEL_ALL], vec![expected])
            );
        } else {
            assert_eq!((broken_rules(&found), reported_leftovers(&found)), (vec![], vec![]));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn operation_not_cancelled_in_time_is_named() {
    let fake = FakeAction::new(Flaw::HangsInACancel);
    let check = fake.new_check();
    let found =
        Box::pin(run_check(async |runner: &mut RuleRunner<'_>| check.check_rules(runner).await))
            .await;
    assert_eq!(
        (broken_rules(&found), reported_leftovers(&found)),
        (vec![CANCEL_ALL], vec!["operation op-3"])
    );
    assert_eq!(fake.cancelled().len(), CONCURRENT_CALLS);
}

#[tokio::test(start_paused = true)]
async fn operation_that_ignores_cancellation_is_reported() {
    for (flaw, is_reported) in [(Flaw::IgnoresCancel, true), (Flaw::None, false)] {
        let check = FakeAction::new(flaw).new_check();
        let found = Box::pin(run_check(async |runner: &mut RuleRunner<'_>| {
            check.check_rules(runner).await;
        }))
        .await;
        let finding = found.iter().find(|finding| finding.rule == ENDS).unwrap();
        let RuleVerdict::Holds(remark) = &finding.verdict else { panic!("{finding:?}") };
        let expected = "s, so the cancellation had no effect";
        assert_eq!(
            remark.as_ref().is_some_and(|remark| remark.ends_with(expected)),
            is_reported,
            "{remark:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn actions_are_called_with_this_checks_own_backup() {
    let fake = FakeAction::new(Flaw::None);
    let check = fake.new_check();
    Box::pin(run_check(async |runner: &mut RuleRunner<'_>| check.check_rules(runner).await)).await;
    let backups = fake.backups.lock();
    assert_eq!(backups.len(), 1 + CONCURRENT_CALLS);
    assert!(backups.iter().flatten().all(|word| word == "bowline-check-id"), "{backups:?}");
    let restore: Value = serde_json::from_slice(&sample::restore(&sample_input()).json()).unwrap();
    for key in ["name", "uid"] {
        assert_eq!(restore["metadata"][key], "bowline-check-id");
    }
}

/// Counts its deletions.
#[derive(Default)]
struct CountingDeleteAction(AtomicUsize);

#[async_trait]
impl DeleteItemAction for CountingDeleteAction {
    async fn applies_to(&self) -> bowline_plugin::Result<ResourceSelector> {
        Ok(ResourceSelector::default())
    }

    async fn execute(&self, _: &Item, _: &Encoded<Backup>) -> bowline_plugin::Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn delete_actions_run_only_when_requested() {
    for (kinds, calls) in [
        (vec![], 0),
        (vec![Kind::BackupItemAction], 0),
        (vec![Kind::BackupItemAction, Kind::DeleteItemAction], 1),
    ] {
        let fake = Arc::new(CountingDeleteAction::default());
        let input = Arc::new(Input { kinds, ..Input::clone(&sample_input()) });
        let (plugin, action) =
            (sample_plugin(Kind::DeleteItemAction), AnyAction::Delete(fake.clone()));
        let check = ItemActionCheck::new(plugin, action, Arc::new(NoRestart), input);
        let found = Box::pin(run_check(async |runner: &mut RuleRunner<'_>| {
            check.check_rules(runner).await;
        }))
        .await;
        assert_eq!(fake.0.load(Ordering::Relaxed), calls);
        let says_how = |finding: &Finding| matches!(&finding.verdict, RuleVerdict::Skipped(reason) if reason.ends_with("--kind DeleteItemAction"));
        assert_eq!(found.iter().filter(|finding| says_how(finding)).count(), 1 - calls);
        assert_eq!(kept_rules(&found).len(), 2 + calls);
    }
}
