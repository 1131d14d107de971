//! Rules and their evaluation: within a limit, and not after an interrupt.

use std::path::Path;
use std::time::Duration;

use bowline_plugin::{Error, Kind};
use bowline_plugin_host::Plugin;
use futures::future::{BoxFuture, Shared};

use super::{Finding, RuleVerdict};

/// Time that a rule may take beyond the limit of a call in it, whose error is more precise.
const RULE_GRACE: Duration = Duration::from_millis(500);

/// The subject of a check. Rules change it: later ones depend on the results of earlier ones.
pub(super) trait CheckSubject: Send {
    /// The plugin; `None` for the binary.
    fn plugin(&self) -> Option<&Plugin>;

    /// Reason why no more rules can be checked.
    fn blocked_reason(&self) -> Option<&str> {
        None
    }

    /// Descriptions of the resources that rules created and that may still exist. Rules record them
    /// as soon as they know them: a rule may be dropped at any time.
    fn leftovers(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Outcome of a rule: it holds, with an optional remark, or it fails.
pub(super) type RuleOutcome = Result<Option<String>, RuleFailure>;

/// The rule holds, without a remark.
pub(super) const HOLDS: RuleOutcome = Ok(None);

/// Reasons why a rule fails.
#[derive(Debug)]
pub(super) enum RuleFailure {
    Broken(String),
    Skipped(String),
}

impl RuleFailure {
    pub(super) fn broken(reason: impl Into<String>) -> Self {
        Self::Broken(reason.into())
    }

    pub(super) fn skipped(reason: impl Into<String>) -> Self {
        Self::Skipped(reason.into())
    }
}

impl From<Error> for RuleFailure {
    fn from(error: Error) -> Self {
        Self::Broken(error.message().to_owned())
    }
}

type RuleTest<S> = for<'a> fn(&'a mut S) -> BoxFuture<'a, RuleOutcome>;

/// A sentence, and the check that verifies it.
pub(super) struct Rule<S> {
    text: &'static str,
    /// The kinds that the rule is for; all if empty.
    kinds: &'static [Kind],
    test: RuleTest<S>,
}

impl<S: CheckSubject> Rule<S> {
    pub(super) const fn new(text: &'static str, test: RuleTest<S>) -> Self {
        Self { text, kinds: &[], test }
    }

    /// A rule for some kinds only.
    pub(super) const fn for_kinds(
        kinds: &'static [Kind],
        text: &'static str,
        test: RuleTest<S>,
    ) -> Self {
        Self { text, kinds, test }
    }

    fn applies_to(&self, subject: &S) -> bool {
        let kind = subject.plugin().map(|plugin| plugin.kind);
        self.kinds.is_empty() || kind.is_some_and(|kind| self.kinds.contains(&kind))
    }
}

/// Checks rules and collects the findings.
pub(super) struct RuleRunner<'a> {
    /// The name of the binary in errors of the host; there is only one here.
    name: String,
    limit: Duration,
    interrupt: Shared<BoxFuture<'a, ()>>,
    on_finding: &'a mut (dyn FnMut(&Finding) + Send),
    findings: Vec<Finding>,
}

impl<'a> RuleRunner<'a> {
    pub(super) fn new(
        command: &Path,
        limit: Duration,
        interrupt: Shared<BoxFuture<'a, ()>>,
        on_finding: &'a mut (dyn FnMut(&Finding) + Send),
    ) -> Self {
        let name = format!("plugin {}", command.display());
        Self { name, limit, interrupt, on_finding, findings: Vec::new() }
    }

    /// Checks the rules for a subject, one after the other.
    pub(super) async fn run_rules<S: CheckSubject>(&mut self, rules: &[Rule<S>], subject: &mut S) {
        for rule in rules.iter().filter(|rule| rule.applies_to(subject)).collect::<Vec<_>>() {
            let outcome = if let Some(reason) = subject.blocked_reason() {
                Err(RuleFailure::skipped(reason))
            } else {
                let interrupt = self.interrupt.clone();
                tokio::select! {
                    biased;
                    () = interrupt => Err(RuleFailure::skipped("the check was interrupted")),
                    outcome = self.within_limit(rule, subject) => outcome,
                }
            };
            self.record_finding(subject, rule, outcome, Vec::new());
        }
    }

    /// Runs a rule that removes the resources of the others, if there are any, in every case. It
    /// fails as long as something is left over.
    pub(super) async fn clean_up<S: CheckSubject>(&mut self, rule: &Rule<S>, subject: &mut S) {
        if subject.leftovers().is_empty() {
            return;
        }
        let outcome = self.within_limit(rule, subject).await;
        let leftovers = subject.leftovers();
        let outcome = match outcome {
            Ok(_) if !leftovers.is_empty() => Err(RuleFailure::broken("leftovers may exist")),
            outcome => outcome,
        };
        self.record_finding(subject, rule, outcome, leftovers);
    }

    pub(super) fn into_findings(self) -> Vec<Finding> {
        self.findings
    }

    async fn within_limit<S: CheckSubject>(&self, rule: &Rule<S>, subject: &mut S) -> RuleOutcome {
        let timeout_reason = || format!("no result within {} s", self.limit.as_secs_f32());
        let tested =
            tokio::time::timeout(self.limit.saturating_add(RULE_GRACE), (rule.test)(subject));
        tested.await.unwrap_or_else(|_| Err(RuleFailure::Broken(timeout_reason())))
    }

    fn record_finding<S: CheckSubject>(
        &mut self,
        subject: &S,
        rule: &Rule<S>,
        outcome: RuleOutcome,
        leftovers: Vec<String>,
    ) {
        let verdict = match outcome {
            Ok(remark) => RuleVerdict::Holds(remark),
            Err(RuleFailure::Broken(reason)) => {
                RuleVerdict::Broken(self.without_binary_path(&reason))
            }
            Err(RuleFailure::Skipped(reason)) => {
                RuleVerdict::Skipped(self.without_binary_path(&reason))
            }
        };
        let plugin = subject.plugin().cloned();
        let finding = Finding { plugin, rule: rule.text, verdict, leftovers };
        (self.on_finding)(&finding);
        self.findings.push(finding);
    }

    /// The text without the path of the binary, which is the same in all of them.
    fn without_binary_path(&self, reason: &str) -> String {
        reason
            .replace(&format!("{}: ", self.name), "")
            .replace(&format!("{} ", self.name), "the plugin ")
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use futures::FutureExt as _;

    use super::*;

    #[derive(Default)]
    struct CountingSubject {
        plugin: Option<Plugin>,
        blocked: Option<&'static str>,
        tested: usize,
        leftovers: Vec<String>,
    }

    impl CheckSubject for CountingSubject {
        fn plugin(&self) -> Option<&Plugin> {
            self.plugin.as_ref()
        }

        fn blocked_reason(&self) -> Option<&str> {
            self.blocked
        }

        fn leftovers(&self) -> Vec<String> {
            self.leftovers.clone()
        }
    }

    impl CountingSubject {
        fn count_run(&mut self) -> String {
            self.tested += 1;
            format!("{} so far", self.tested)
        }

        fn clear_leftovers(&mut self) -> String {
            self.leftovers.clear();
            self.count_run()
        }

        async fn hang(&mut self) -> RuleOutcome {
            self.tested += 1;
            std::future::pending().await
        }

        fn block_rules(&mut self) -> RuleOutcome {
            self.blocked = Some("the plugin is stuck");
            Err(Error::unknown("plugin /p: no answer").into())
        }
    }

    const COUNT: Rule<CountingSubject> =
        Rule::new("counts", |counter| Box::pin(ready(Ok(Some(counter.count_run())))));
    const TIDY: Rule<CountingSubject> =
        Rule::new("tidies", |counter| Box::pin(ready(Ok(Some(counter.clear_leftovers())))));
    const HANG: Rule<CountingSubject> = Rule::new("hangs", |counter| Box::pin(counter.hang()));
    const BLOCK: Rule<CountingSubject> =
        Rule::new("blocks", |counter| Box::pin(ready(counter.block_rules())));

    async fn run_to_verdicts(
        rules: &[Rule<CountingSubject>],
        counter: &mut CountingSubject,
        interrupt: BoxFuture<'_, ()>,
    ) -> Vec<RuleVerdict> {
        let mut reported = Vec::new();
        let mut on_finding = |finding: &Finding| reported.push(finding.clone());
        let limit = Duration::from_millis(250);
        let mut runner =
            RuleRunner::new(Path::new("/p"), limit, interrupt.shared(), &mut on_finding);
        runner.run_rules(rules, counter).await;
        runner.clean_up(&TIDY, counter).await;
        let findings = runner.into_findings();
        assert_eq!(reported, findings);
        findings.into_iter().map(|finding| finding.verdict).collect()
    }

    /// A subject with leftovers from the start.
    fn subject_with_leftovers() -> CountingSubject {
        CountingSubject { leftovers: vec!["a thing".to_owned()], ..CountingSubject::default() }
    }

    fn pending_interrupt() -> BoxFuture<'static, ()> {
        std::future::pending().boxed()
    }

    #[tokio::test]
    async fn hanging_rule_is_broken_and_the_next_rule_runs() {
        let found =
            run_to_verdicts(&[HANG, COUNT], &mut subject_with_leftovers(), pending_interrupt())
                .await;
        assert_eq!(
            found,
            [
                RuleVerdict::Broken("no result within 0.25 s".into()),
                RuleVerdict::Holds(Some("2 so far".into())),
                RuleVerdict::Holds(Some("3 so far".into())),
            ]
        );
    }

    #[tokio::test]
    async fn rules_after_a_blocking_failure_are_skipped_except_clean_up() {
        let found =
            run_to_verdicts(&[BLOCK, COUNT], &mut subject_with_leftovers(), pending_interrupt())
                .await;
        assert_eq!(
            found,
            [
                RuleVerdict::Broken("no answer".into()),
                RuleVerdict::Skipped("the plugin is stuck".into()),
                RuleVerdict::Holds(Some("1 so far".into())),
            ]
        );
    }

    #[tokio::test]
    async fn after_an_interrupt_only_clean_up_runs() {
        let interrupt = std::future::ready(()).boxed();
        let found = run_to_verdicts(&[COUNT, HANG], &mut subject_with_leftovers(), interrupt).await;
        let skipped = RuleVerdict::Skipped("the check was interrupted".into());
        assert_eq!(found, [skipped.clone(), skipped, RuleVerdict::Holds(Some("1 so far".into()))]);
    }

    #[tokio::test]
    async fn rule_for_another_kind_leaves_no_finding() {
        let plugin = Plugin {
            kind: Kind::ObjectStore,
            name: "x.io/y".parse().unwrap(),
            command: "/p".into(),
        };
        let rules = [[Kind::DeleteItemAction], [Kind::ObjectStore]]
            .map(|kinds| Rule { kinds: Vec::leak(kinds.to_vec()), ..COUNT });
        let mut counter = CountingSubject { plugin: Some(plugin), ..subject_with_leftovers() };
        assert_eq!(run_to_verdicts(&rules, &mut counter, pending_interrupt()).await.len(), 2);
    }

    #[tokio::test]
    async fn leftovers_are_named_even_when_the_clean_up_hangs() {
        for (rule, reason) in [(HANG, "no result within 0.25 s"), (COUNT, "leftovers may exist")] {
            let limit = Duration::from_millis(250);
            let mut on_finding = |_: &Finding| {};
            let mut runner = RuleRunner::new(
                Path::new("/p"),
                limit,
                pending_interrupt().shared(),
                &mut on_finding,
            );
            runner.clean_up(&rule, &mut subject_with_leftovers()).await;
            let [finding] = &runner.into_findings()[..] else { panic!("one finding") };
            assert_eq!(finding.verdict, RuleVerdict::Broken(reason.into()));
            assert_eq!(finding.leftovers, ["a thing"]);
        }
    }

    #[tokio::test]
    async fn clean_up_is_skipped_without_leftovers() {
        let mut counter = CountingSubject::default();
        assert_eq!(run_to_verdicts(&[], &mut counter, pending_interrupt()).await, []);
        assert_eq!(counter.tested, 0);
    }
}
