//! Conformance check: verifies that a plugin binary keeps the rules.
//!
//! [`run`] drives every plugin that a binary lists through its contract, in processes that are
//! started, supervised and ended as in a server. The results are data: a [`Finding`] per rule.
//!
//! # Guarantees
//! - The check ends: every rule has a limit, and a plugin that hangs has broken the rule in which
//!   it hung.
//! - Objects and snapshots that the check created are deleted and operations cancelled, also after
//!   an interrupt; [`Finding::leftovers`] names what may remain. A volume cannot be deleted through
//!   a plugin; the finding names it. Resources that an action itself creates remain.
//! - A delete action is called with an item only if its kind is requested: it removes the data
//!   behind the item.
//! - A failure is reported once. Rules that depend on a broken one are skipped, with the reason.
//!
//! The files: `rule` (rules and their evaluation), `sample` (the sample input for plugins), and one
//! file per family with a table of its rules.

mod action;
mod binary;
mod configured_plugin;
mod item_action;
mod object_store;
mod operation;
mod rule;
mod sample;
#[cfg(test)]
mod test_support;
mod volume_snapshotter;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{Class, Config, Error, InvalidItem, Item, Kind, VolumeId};
use bowline_plugin_host::{Limits, Options, Plugin, Problem, Slot, inspect};
use futures::FutureExt as _;

use object_store::CreatedObjects;
use rule::RuleRunner;
use volume_snapshotter::CreatedSnapshots;

/// Result of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The plugin that the rule is for; `None` if the rule is for the binary.
    pub plugin: Option<Plugin>,
    /// The rule, phrased to follow "the plugin".
    pub rule: &'static str,
    /// The verdict.
    pub verdict: RuleVerdict,
    /// Resources that the check created and could not remove, or may not have removed.
    pub leftovers: Vec<String>,
}

/// Verdict on a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleVerdict {
    /// The rule holds, with an optional remark.
    Holds(Option<String>),
    /// The rule is broken, for this reason.
    Broken(String),
    /// The rule could not be checked, for this reason.
    Skipped(String),
}

/// Input of a check.
#[derive(Clone, Debug)]
pub struct Input {
    /// Unique id of this check, part of the name of everything that it creates.
    pub id: String,
    /// The kinds to check; all if empty, but then delete actions are not called with the item.
    pub kinds: Vec<Kind>,
    /// The item for calls of item actions.
    pub item: Item,
    /// The configuration of stores and snapshotters.
    pub config: Config,
    /// The scratch bucket for stores. Without it no objects are stored.
    pub bucket: Option<String>,
    /// The volume to snapshot. Without it no snapshots are created.
    pub volume: Option<VolumeId>,
    /// The zone of the volume.
    pub zone: String,
    /// A PersistentVolume that belongs to the snapshotter.
    pub persistent_volume: Option<Item>,
    /// Time limit of a rule.
    pub timeout: Duration,
}

impl Input {
    /// Default time limit of a rule.
    pub const TIMEOUT: Duration = Duration::from_secs(30);

    /// A sample pod, without configuration, bucket or volume.
    pub fn new(id: impl Into<String>) -> Result<Self, InvalidItem> {
        Ok(Self {
            id: id.into(),
            kinds: Vec::new(),
            item: sample::pod()?,
            config: Config::new(),
            bucket: None,
            volume: None,
            zone: String::new(),
            persistent_volume: None,
            timeout: Self::TIMEOUT,
        })
    }

    /// The name, unique to this check, of the resources that it creates.
    fn name(&self) -> String {
        format!("{}-{}", sample::NAME, self.id)
    }
}

/// Checks all plugins of a binary. Each finding is reported as soon as it is known; all of them are
/// returned at the end.
///
/// Once `interrupt` is ready no more rules are checked, and created resources are removed. The
/// result is a [`Problem`] if the binary cannot be started, does not list its plugins, or has none
/// of a requested kind.
pub async fn run(
    command: &Path,
    options: Options,
    input: Input,
    interrupt: impl Future<Output = ()> + Send,
    mut on_finding: impl FnMut(&Finding) + Send,
) -> Result<Vec<Finding>, Problem> {
    let options =
        Arc::new(Options { limits: limits_for_check(input.timeout, options.limits), ..options });
    let input = Arc::new(input);
    let interrupt = interrupt.boxed().shared();
    let registry = tokio::select! {
        registry = inspect::registry(command, &options) => registry?,
        () = interrupt.clone() => return Ok(Vec::new()),
    };
    if let Some(kind) = missing_kind(&input.kinds, registry.plugins()) {
        let reason = format!("the binary has no {kind}");
        return Err(Problem { command: command.to_owned(), reason });
    }
    let mut runner = RuleRunner::new(command, input.timeout, interrupt, &mut on_finding);
    binary::check(&mut runner, command, &options, &registry).await;
    let is_meant = |plugin: &&Plugin| input.kinds.is_empty() || input.kinds.contains(&plugin.kind);
    for plugin in registry.plugins().iter().filter(is_meant) {
        let bench =
            CheckContext { plugin: plugin.clone(), options: options.clone(), input: input.clone() };
        match plugin.kind {
            Kind::ObjectStore => {
                configured_plugin::check::<CreatedObjects>(&mut runner, bench).await;
            }
            Kind::VolumeSnapshotter | Kind::VolumeSnapshotterV2 => {
                configured_plugin::check::<CreatedSnapshots>(&mut runner, bench).await;
            }
            Kind::BackupItemAction
            | Kind::BackupItemActionV2
            | Kind::RestoreItemAction
            | Kind::RestoreItemActionV2
            | Kind::DeleteItemAction
            | Kind::ItemBlockAction => item_action::check(&mut runner, bench).await,
        }
    }
    Ok(runner.into_findings())
}

/// The first requested trait that no plugin serves, in any version.
fn missing_kind(requested: &[Kind], plugins: &[Plugin]) -> Option<&'static str> {
    let has = |trait_name| {
        plugins.iter().any(|plugin| inspect::trait_and_version(plugin.kind).0 == trait_name)
    };
    requested
        .iter()
        .map(|kind| inspect::trait_and_version(*kind).0)
        .find(|trait_name| !has(*trait_name))
}

/// A process that can be ended, so that the next call starts another.
#[async_trait]
trait Restart: Send + Sync {
    async fn restart(&self);
}

#[async_trait]
impl Restart for Slot {
    async fn restart(&self) {
        self.stop().await;
    }
}

/// The starting point for the check of one plugin.
struct CheckContext {
    plugin: Plugin,
    options: Arc<Options>,
    input: Arc<Input>,
}

/// True if the outcome of a call is unknown because the plugin did not answer.
fn is_outcome_unknown(error: &Error) -> bool {
    error.class() == Class::Transient
}

/// No call may take longer than a rule: the error of the call is more precise than that of the
/// rule.
fn limits_for_check(timeout: Duration, limits: Limits) -> Limits {
    Limits {
        start: timeout,
        metadata: timeout,
        applies_to: timeout,
        execute: timeout,
        volume: timeout,
        stream_silence: timeout,
        ..limits
    }
}
