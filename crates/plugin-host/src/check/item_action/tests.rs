use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use bowline_api::Backup;
use bowline_plugin::{BackupItemAction, BackupOutput, Encoded};

use super::*;
use crate::check::sabotage::{broken, findings, input, kept, plugin};

#[test]
fn an_action_is_not_called_for_a_kind_that_it_does_not_apply_to() {
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
        let list = |word: &str| Some(word.to_owned()).filter(|word| !word.is_empty());
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
    ChangesItsMind,
    ReturnsAnotherKind,
    FailsAtOnce,
    ForgetsOverRestarts,
    RefusesTheSecondCancel,
    RefusesCancelOfUnknown,
    NeverEnds,
    ChangesTheOutcome,
    KnowsEverything,
    IsUnclearAboutUnknown,
    StartsNothing,
}

/// An action whose operations are counted.
struct Fake {
    flaw: Flaw,
    asked: AtomicUsize,
    started: AtomicUsize,
    /// Calls of `execute` that have not ended.
    inside: AtomicUsize,
    cancelled: Mutex<Vec<String>>,
    was_restarted: AtomicBool,
}

#[async_trait]
impl Restart for Fake {
    async fn restart(&self) {
        self.was_restarted.store(true, Ordering::Relaxed);
    }
}

#[async_trait]
impl BackupItemAction for Fake {
    async fn applies_to(&self) -> bowline_plugin::Result<ResourceSelector> {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        let odd = self.flaw == Flaw::ChangesItsMind && asked % 2 == 1;
        Ok(ResourceSelector::resources([if odd { "secrets" } else { "pods" }]))
    }

    async fn execute(
        &self,
        item: &Item,
        _: &Encoded<Backup>,
    ) -> bowline_plugin::Result<BackupOutput> {
        let others = self.inside.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        self.inside.fetch_sub(1, Ordering::Relaxed);
        if self.flaw == Flaw::FailsAtOnce && others > 0 {
            return Err(Error::unknown("busy"));
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
        let is_forgotten =
            self.flaw == Flaw::ForgetsOverRestarts && self.was_restarted.load(Ordering::Relaxed);
        let is_known = operation.as_str().starts_with("op-") && !is_forgotten;
        match self.flaw {
            Flaw::KnowsEverything => {}
            Flaw::IsUnclearAboutUnknown if !is_known => return Err(Error::unknown("who?")),
            _ if !is_known => return Err(Error::invalid_operation(operation)),
            _ => {}
        }
        let is_cancelled = self.cancelled.lock().unwrap().iter().any(|id| id == operation.as_str());
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        let reason = if self.flaw == Flaw::ChangesTheOutcome {
            asked.to_string()
        } else {
            "canceled".to_owned()
        };
        let ends = is_cancelled && self.flaw != Flaw::NeverEnds;
        let state = if ends { State::Failed(reason) } else { State::Running };
        Ok(Progress { state, ..Progress::default() })
    }

    async fn cancel(
        &self,
        operation: &OperationId,
        _: &Encoded<Backup>,
    ) -> bowline_plugin::Result<()> {
        let is_known = operation.as_str().starts_with("op-");
        let mut cancelled = self.cancelled.lock().unwrap();
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

const KNOWN: &str = "knows the progress of its operation at once";
const RESTART: &str = "knows its operation after a restart of its process";
const TWICE: &str = "accepts the cancellation of its operation, twice";
const ENDS: &str = "ends an operation that was cancelled";
const SAME: &str = "tells the same outcome of an ended operation each time";
const UNKNOWN: &str = "tells a permanent error as the progress of an unknown operation";

#[tokio::test]
async fn each_flaw_of_an_action_is_found_by_its_rule() {
    let expected: [(Flaw, &[&str]); 12] = [
        (Flaw::None, &[]),
        (Flaw::ChangesItsMind, &["tells what it applies to, the same each time"]),
        (Flaw::ReturnsAnotherKind, &["returns an object of the same kind"]),
        (Flaw::FailsAtOnce, &["answers 16 calls at once"]),
        (Flaw::ForgetsOverRestarts, &[RESTART, ENDS]),
        (Flaw::RefusesTheSecondCancel, &[TWICE]),
        (Flaw::RefusesCancelOfUnknown, &["accepts the cancellation of an unknown operation"]),
        (Flaw::NeverEnds, &[ENDS]),
        (Flaw::ChangesTheOutcome, &[SAME]),
        (Flaw::KnowsEverything, &[UNKNOWN]),
        (Flaw::IsUnclearAboutUnknown, &[UNKNOWN]),
        (Flaw::StartsNothing, &[]),
    ];
    for (flaw, rules) in expected {
        let fake = Arc::new(Fake {
            flaw,
            asked: AtomicUsize::new(0),
            started: AtomicUsize::new(0),
            inside: AtomicUsize::new(0),
            cancelled: Mutex::default(),
            was_restarted: AtomicBool::new(false),
        });
        let plugin = plugin(Kind::BackupItemActionV2);
        let trial = Trial::new(plugin, AnyAction::Backup(fake.clone()), fake.clone(), input());
        let found = findings(async |judge: &mut Judge<'_>| trial.examine(judge).await).await;
        assert_eq!(broken(&found), rules, "{flaw:?}");
        // All that was started was cancelled.
        let mut cancelled = fake.cancelled.lock().unwrap().clone();
        cancelled.retain(|id| id.starts_with("op-"));
        cancelled.sort();
        cancelled.dedup();
        assert_eq!(cancelled.len(), fake.started.load(Ordering::Relaxed), "{flaw:?}");
        let holds = kept(&found);
        assert_eq!(flaw != Flaw::StartsNothing, holds.contains(&KNOWN), "{flaw:?}");
    }
}
