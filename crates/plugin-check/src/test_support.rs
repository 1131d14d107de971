//! Test support: checks of a plugin that is broken on purpose. A check must be able to find such a
//! fault.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{Kind, VolumeId};
use bowline_plugin_host::Plugin;
use futures::FutureExt as _;

use super::rule::RuleRunner;
use super::{Finding, Input, Restart, RuleVerdict};

/// Restarts nothing.
pub(super) struct NoRestart;

#[async_trait]
impl Restart for NoRestart {
    async fn restart(&self) {}
}

pub(super) fn sample_plugin(kind: Kind) -> Plugin {
    Plugin { kind, name: "x.io/y".parse().unwrap(), command: "/p".into() }
}

pub(super) fn sample_input() -> Arc<Input> {
    let mut input = Input::new("id").unwrap();
    input.config.insert("key".to_owned(), "value".to_owned());
    input.bucket = Some("bowline-check".to_owned());
    input.volume = VolumeId::new("vol");
    input.timeout = Duration::from_millis(300);
    Arc::new(input)
}

/// The findings of a check, which are the same as the reported ones.
pub(super) async fn run_check(check: impl AsyncFnOnce(&mut RuleRunner<'_>)) -> Vec<Finding> {
    run_check_until(std::future::pending(), check).await
}

/// The findings of a check that is interrupted.
pub(super) async fn run_check_until(
    interrupt: impl Future<Output = ()> + Send,
    check: impl AsyncFnOnce(&mut RuleRunner<'_>),
) -> Vec<Finding> {
    let mut reported = Vec::new();
    let mut on_finding = |finding: &Finding| reported.push(finding.clone());
    let interrupt = interrupt.boxed().shared();
    let mut runner =
        RuleRunner::new(Path::new("/p"), sample_input().timeout, interrupt, &mut on_finding);
    check(&mut runner).await;
    let findings = runner.into_findings();
    assert_eq!(reported, findings);
    findings
}

/// The rules that are broken.
pub(super) fn broken_rules(findings: &[Finding]) -> Vec<&'static str> {
    let is_broken = |finding: &&Finding| matches!(finding.verdict, RuleVerdict::Broken(_));
    findings.iter().filter(is_broken).map(|finding| finding.rule).collect()
}

/// The rules that hold.
pub(super) fn kept_rules(findings: &[Finding]) -> Vec<&'static str> {
    let holds = |finding: &&Finding| matches!(finding.verdict, RuleVerdict::Holds(_));
    findings.iter().filter(holds).map(|finding| finding.rule).collect()
}

/// The leftovers in the findings.
pub(super) fn reported_leftovers(findings: &[Finding]) -> Vec<&str> {
    findings.iter().flat_map(|finding| &finding.leftovers).map(String::as_str).collect()
}
