//! Whether a plugin binary keeps the rules: a conformance kit.
//!
//! [`run`] drives every plugin that a binary lists through its contract, in processes that are
//! started, supervised and ended as in a server. What it finds is data: a [`Finding`] per rule.
//!
//! # What a caller can rely on
//! - It ends: every rule has a limit, and a plugin that hangs has broken the rule that it hung in.
//! - Objects and snapshots that it made are deleted and operations cancelled, also after an
//!   interrupt; [`Finding::leftovers`] names what may be left all the same. A volume cannot be deleted
//!   through a plugin; the finding names it. What an action itself creates stays.
//! - A delete action is called with an item only if its kind is asked for: it removes what it is for.
//! - A failure is told once. Rules that build on one that is broken are skipped, with the reason.
//!
//! The files: `rule` (what a rule is, and how it is judged), `sample` (what plugins are shown), and
//! one file per family with a table of its rules.

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
use futures::FutureExt as _;

use crate::inspect::{registry, trait_and_version};
use crate::slot::Slot;
use crate::{Limits, Options, Plugin, Problem};
use object_store::CreatedObjects;
use rule::RuleRunner;
use volume_snapshotter::CreatedSnapshots;

/// What was found out about a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The plugin that the rule is for; none if it is for the binary.
    pub plugin: Option<Plugin>,
    /// The rule, in words that follow on "the plugin".
    pub rule: &'static str,
    /// Whether it is kept.
    pub verdict: RuleVerdict,
    /// What the check made and could not remove, or may not have removed.
    pub leftovers: Vec<String>,
}

/// Whether a rule is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleVerdict {
    /// It is, and maybe there is something to say about it.
    Holds(Option<String>),
    /// It is not, for this reason.
    Broken(String),
    /// It could not be found out, for this reason.
    Skipped(String),
}

/// What a check works with.
#[derive(Clone, Debug)]
pub struct Input {
    /// Tells this check from all others: what it makes carries it in its name.
    pub id: String,
    /// The kinds to check; all if empty, but then delete actions are not called with the item.
    pub kinds: Vec<Kind>,
    /// What item actions are called with.
    pub item: Item,
    /// What stores and snapshotters are configured with.
    pub config: Config,
    /// The scratch bucket that stores are used on. Without it no objects are put.
    pub bucket: Option<String>,
    /// The volume to make snapshots of. Without it none are made.
    pub volume: Option<VolumeId>,
    /// The zone of the volume.
    pub zone: String,
    /// A PersistentVolume of the snapshotter's.
    pub persistent_volume: Option<Item>,
    /// How long a rule may take.
    pub timeout: Duration,
}

impl Input {
    /// How long a rule may take, unless said otherwise.
    pub const TIMEOUT: Duration = Duration::from_secs(30);

    /// A sample pod, no configuration, no bucket, no volume.
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

    /// The name of what this check makes, and of no other.
    fn name(&self) -> String {
        format!("{}-{}", sample::NAME, self.id)
    }
}

/// Checks all plugins of a binary. Each finding is handed out as soon as it is known; all of them
/// come back at the end.
///
/// Once `interrupt` is ready no more rules are judged, and what was made is removed. It is a
/// [`Problem`] if the binary cannot be started, does not list its plugins, or has none of a kind that
/// is asked for.
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
        registry = registry(command, &options) => registry?,
        () = interrupt.clone() => return Ok(Vec::new()),
    };
    if let Some(kind) = missing_kind(&input.kinds, registry.plugins()) {
        let reason = format!("it has no {kind}");
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

/// The first trait that is asked for and that no plugin serves, in whatever version.
fn missing_kind(requested: &[Kind], plugins: &[Plugin]) -> Option<&'static str> {
    let has =
        |trait_name| plugins.iter().any(|plugin| trait_and_version(plugin.kind).0 == trait_name);
    requested.iter().map(|kind| trait_and_version(*kind).0).find(|trait_name| !has(*trait_name))
}

/// A process that can be ended, so that the next call finds another.
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

/// What the check of one plugin starts from.
struct CheckContext {
    plugin: Plugin,
    options: Arc<Options>,
    input: Arc<Input>,
}

/// Whether the outcome of a call is not known: the plugin did not answer.
fn is_outcome_unknown(error: &Error) -> bool {
    error.class() == Class::Transient
}

/// No call may take longer than a rule: its error says more than that the rule took too long.
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
