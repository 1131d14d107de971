//! For tests: a trial of a plugin that is broken on purpose. A kit that finds faults must be able
//! to find one.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{Kind, VolumeId};
use futures::FutureExt as _;

use super::rule::Judge;
use super::{Finding, Input, Restart, Verdict};
use crate::Plugin;

/// Restarts nothing.
pub(super) struct NoProcess;

#[async_trait]
impl Restart for NoProcess {
    async fn restart(&self) {}
}

pub(super) fn plugin(kind: Kind) -> Plugin {
    Plugin { kind, name: "x.io/y".parse().unwrap(), command: "/p".into() }
}

pub(super) fn input() -> Arc<Input> {
    let mut input = Input::new("id").unwrap();
    input.config.insert("key".to_owned(), "value".to_owned());
    input.bucket = Some("bowline-check".to_owned());
    input.volume = VolumeId::new("vol");
    input.timeout = Duration::from_millis(300);
    Arc::new(input)
}

/// What a trial finds, and what it is heard to find: they are the same.
pub(super) async fn findings(trial: impl AsyncFnOnce(&mut Judge<'_>)) -> Vec<Finding> {
    findings_until(std::future::pending(), trial).await
}

/// What a trial finds that is interrupted.
pub(super) async fn findings_until(
    interrupt: impl Future<Output = ()> + Send,
    trial: impl AsyncFnOnce(&mut Judge<'_>),
) -> Vec<Finding> {
    let mut heard = Vec::new();
    let mut on_finding = |finding: &Finding| heard.push(finding.clone());
    let interrupt = interrupt.boxed().shared();
    let mut judge = Judge::new(Path::new("/p"), input().timeout, interrupt, &mut on_finding);
    trial(&mut judge).await;
    let findings = judge.into_findings();
    assert_eq!(heard, findings);
    findings
}

/// The rules that are broken.
pub(super) fn broken(findings: &[Finding]) -> Vec<&'static str> {
    let is_broken = |finding: &&Finding| matches!(finding.verdict, Verdict::Broken(_));
    findings.iter().filter(is_broken).map(|finding| finding.rule).collect()
}

/// The rules that hold.
pub(super) fn kept(findings: &[Finding]) -> Vec<&'static str> {
    let holds = |finding: &&Finding| matches!(finding.verdict, Verdict::Holds(_));
    findings.iter().filter(holds).map(|finding| finding.rule).collect()
}

/// What is told to be left.
pub(super) fn left(findings: &[Finding]) -> Vec<&str> {
    findings.iter().flat_map(|finding| &finding.left).map(String::as_str).collect()
}
