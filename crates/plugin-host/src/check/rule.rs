//! What a rule is, and how it is judged: within a limit, and not after an interrupt.

use std::path::Path;
use std::time::Duration;

use bowline_plugin::{Error, Kind};
use futures::future::{BoxFuture, Shared};

use super::{Finding, Verdict};
use crate::Plugin;

/// How much longer a rule may take than a call in it, whose error says more.
const GRACE: Duration = Duration::from_millis(500);

/// What is checked. Rules change it: later ones build on what earlier ones found.
pub(super) trait Subject: Send {
    /// The plugin; none if it is the binary.
    fn plugin(&self) -> Option<&Plugin>;

    /// Why no more can be found out.
    fn is_stuck(&self) -> Option<&str> {
        None
    }

    /// What rules made and what may still be there, each in words. Rules note it as soon as they
    /// know it: they may be dropped at any time.
    fn left(&self) -> Vec<String> {
        Vec::new()
    }
}

/// What came of a rule: it holds, maybe with something to say, or it does not.
pub(super) type Outcome = Result<Option<String>, Unmet>;

/// It holds, and there is nothing to add.
pub(super) const HOLDS: Outcome = Ok(None);

/// Why a rule does not hold.
#[derive(Debug)]
pub(super) enum Unmet {
    Broken(String),
    Skipped(String),
}

impl Unmet {
    pub(super) fn broken(reason: impl Into<String>) -> Self {
        Self::Broken(reason.into())
    }

    pub(super) fn skipped(reason: impl Into<String>) -> Self {
        Self::Skipped(reason.into())
    }
}

impl From<Error> for Unmet {
    fn from(error: Error) -> Self {
        Self::Broken(error.message().to_owned())
    }
}

type Test<S> = for<'a> fn(&'a mut S) -> BoxFuture<'a, Outcome>;

/// A sentence, and how to find out whether it is true.
pub(super) struct Rule<S> {
    says: &'static str,
    /// The kinds that it is for; all if empty.
    kinds: &'static [Kind],
    test: Test<S>,
}

impl<S: Subject> Rule<S> {
    pub(super) const fn new(says: &'static str, test: Test<S>) -> Self {
        Self { says, kinds: &[], test }
    }

    /// A rule for some kinds only.
    pub(super) const fn only(kinds: &'static [Kind], says: &'static str, test: Test<S>) -> Self {
        Self { says, kinds, test }
    }

    fn is_for(&self, subject: &S) -> bool {
        let kind = subject.plugin().map(|plugin| plugin.kind);
        self.kinds.is_empty() || kind.is_some_and(|kind| self.kinds.contains(&kind))
    }
}

/// Judges rules and keeps what it found.
pub(super) struct Judge<'a> {
    /// How errors of the host name the binary; there is only one here.
    name: String,
    limit: Duration,
    interrupt: Shared<BoxFuture<'a, ()>>,
    on_finding: &'a mut (dyn FnMut(&Finding) + Send),
    findings: Vec<Finding>,
}

impl<'a> Judge<'a> {
    pub(super) fn new(
        command: &Path,
        limit: Duration,
        interrupt: Shared<BoxFuture<'a, ()>>,
        on_finding: &'a mut (dyn FnMut(&Finding) + Send),
    ) -> Self {
        let name = format!("plugin {}", command.display());
        Self { name, limit, interrupt, on_finding, findings: Vec::new() }
    }

    /// Judges the rules that are for a subject, one after the other.
    pub(super) async fn judge<S: Subject>(&mut self, rules: &[Rule<S>], subject: &mut S) {
        for rule in rules.iter().filter(|rule| rule.is_for(subject)).collect::<Vec<_>>() {
            let outcome = if let Some(reason) = subject.is_stuck() {
                Err(Unmet::skipped(reason))
            } else {
                let interrupt = self.interrupt.clone();
                tokio::select! {
                    biased;
                    () = interrupt => Err(Unmet::skipped("the check was interrupted")),
                    outcome = self.within_limit(rule, subject) => outcome,
                }
            };
            self.note(subject, rule, outcome, Vec::new());
        }
    }

    /// Judges a rule that removes what others made, if there is anything, and come what may. It does
    /// not hold as long as something is left.
    pub(super) async fn clean_up<S: Subject>(&mut self, rule: &Rule<S>, subject: &mut S) {
        if subject.left().is_empty() {
            return;
        }
        let outcome = self.within_limit(rule, subject).await;
        let left = subject.left();
        let outcome = match outcome {
            Ok(_) if !left.is_empty() => Err(Unmet::broken("something may be left")),
            outcome => outcome,
        };
        self.note(subject, rule, outcome, left);
    }

    pub(super) fn into_findings(self) -> Vec<Finding> {
        self.findings
    }

    async fn within_limit<S: Subject>(&self, rule: &Rule<S>, subject: &mut S) -> Outcome {
        let late = || format!("it was not done within {} s", self.limit.as_secs_f32());
        let tested = tokio::time::timeout(self.limit.saturating_add(GRACE), (rule.test)(subject));
        tested.await.unwrap_or_else(|_| Err(Unmet::Broken(late())))
    }

    fn note<S: Subject>(
        &mut self,
        subject: &S,
        rule: &Rule<S>,
        outcome: Outcome,
        left: Vec<String>,
    ) {
        let verdict = match outcome {
            Ok(note) => Verdict::Holds(note),
            Err(Unmet::Broken(reason)) => Verdict::Broken(self.shortened(&reason)),
            Err(Unmet::Skipped(reason)) => Verdict::Skipped(self.shortened(&reason)),
        };
        let plugin = subject.plugin().cloned();
        let finding = Finding { plugin, rule: rule.says, verdict, left };
        (self.on_finding)(&finding);
        self.findings.push(finding);
    }

    /// The text without the path of the binary, which is the same in all of them.
    fn shortened(&self, reason: &str) -> String {
        reason.replace(&format!("{}: ", self.name), "").replace(&format!("{} ", self.name), "it ")
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use futures::FutureExt as _;

    use super::*;

    #[derive(Default)]
    struct Counter {
        plugin: Option<Plugin>,
        stuck: Option<&'static str>,
        tested: usize,
        left: Vec<String>,
    }

    impl Subject for Counter {
        fn plugin(&self) -> Option<&Plugin> {
            self.plugin.as_ref()
        }

        fn is_stuck(&self) -> Option<&str> {
            self.stuck
        }

        fn left(&self) -> Vec<String> {
            self.left.clone()
        }
    }

    impl Counter {
        fn count(&mut self) -> String {
            self.tested += 1;
            format!("{} so far", self.tested)
        }

        fn tidy(&mut self) -> String {
            self.left.clear();
            self.count()
        }

        async fn hang(&mut self) -> Outcome {
            self.tested += 1;
            std::future::pending().await
        }

        fn block(&mut self) -> Outcome {
            self.stuck = Some("it is stuck");
            Err(Error::unknown("plugin /p: no answer").into())
        }
    }

    const COUNT: Rule<Counter> =
        Rule::new("counts", |counter| Box::pin(ready(Ok(Some(counter.count())))));
    const TIDY: Rule<Counter> =
        Rule::new("tidies", |counter| Box::pin(ready(Ok(Some(counter.tidy())))));
    const HANG: Rule<Counter> = Rule::new("hangs", |counter| Box::pin(counter.hang()));
    const BLOCK: Rule<Counter> = Rule::new("blocks", |counter| Box::pin(ready(counter.block())));

    async fn verdicts(
        rules: &[Rule<Counter>],
        counter: &mut Counter,
        interrupt: BoxFuture<'_, ()>,
    ) -> Vec<Verdict> {
        let mut heard = Vec::new();
        let mut on_finding = |finding: &Finding| heard.push(finding.clone());
        let limit = Duration::from_millis(250);
        let mut judge = Judge::new(Path::new("/p"), limit, interrupt.shared(), &mut on_finding);
        judge.judge(rules, counter).await;
        judge.clean_up(&TIDY, counter).await;
        let kept = judge.into_findings();
        assert_eq!(heard, kept);
        kept.into_iter().map(|finding| finding.verdict).collect()
    }

    /// Something is left to remove from the start.
    fn untidy() -> Counter {
        Counter { left: vec!["a thing".to_owned()], ..Counter::default() }
    }

    fn never() -> BoxFuture<'static, ()> {
        std::future::pending().boxed()
    }

    #[tokio::test]
    async fn a_rule_that_hangs_is_broken_and_the_next_one_is_judged() {
        let found = verdicts(&[HANG, COUNT], &mut untidy(), never()).await;
        assert_eq!(
            found,
            [
                Verdict::Broken("it was not done within 0.25 s".into()),
                Verdict::Holds(Some("2 so far".into())),
                Verdict::Holds(Some("3 so far".into())),
            ]
        );
    }

    #[tokio::test]
    async fn what_builds_on_a_broken_rule_is_skipped_but_not_what_cleans_up() {
        let found = verdicts(&[BLOCK, COUNT], &mut untidy(), never()).await;
        assert_eq!(
            found,
            [
                Verdict::Broken("no answer".into()),
                Verdict::Skipped("it is stuck".into()),
                Verdict::Holds(Some("1 so far".into())),
            ]
        );
    }

    #[tokio::test]
    async fn after_an_interrupt_only_what_cleans_up_is_judged() {
        let interrupt = std::future::ready(()).boxed();
        let found = verdicts(&[COUNT, HANG], &mut untidy(), interrupt).await;
        let skipped = Verdict::Skipped("the check was interrupted".into());
        assert_eq!(found, [skipped.clone(), skipped, Verdict::Holds(Some("1 so far".into()))]);
    }

    #[tokio::test]
    async fn a_rule_for_another_kind_leaves_no_finding() {
        let plugin = Plugin {
            kind: Kind::ObjectStore,
            name: "x.io/y".parse().unwrap(),
            command: "/p".into(),
        };
        let rules = [[Kind::DeleteItemAction], [Kind::ObjectStore]]
            .map(|kinds| Rule { kinds: Vec::leak(kinds.to_vec()), ..COUNT });
        let mut counter = Counter { plugin: Some(plugin), ..untidy() };
        assert_eq!(verdicts(&rules, &mut counter, never()).await.len(), 2);
    }

    #[tokio::test]
    async fn what_is_left_is_named_also_when_the_removal_hangs() {
        for (rule, reason) in
            [(HANG, "it was not done within 0.25 s"), (COUNT, "something may be left")]
        {
            let limit = Duration::from_millis(250);
            let mut on_finding = |_: &Finding| {};
            let mut judge = Judge::new(Path::new("/p"), limit, never().shared(), &mut on_finding);
            judge.clean_up(&rule, &mut untidy()).await;
            let [finding] = &judge.into_findings()[..] else { panic!("one finding") };
            assert_eq!(finding.verdict, Verdict::Broken(reason.into()));
            assert_eq!(finding.left, ["a thing"]);
        }
    }

    #[tokio::test]
    async fn where_nothing_is_left_nothing_is_removed() {
        let mut counter = Counter::default();
        assert_eq!(verdicts(&[], &mut counter, never()).await, []);
        assert_eq!(counter.tested, 0);
    }
}
