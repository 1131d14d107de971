//! The trial of a plugin that takes a configuration: a store or a snapshotter, in a process of its
//! own. Nothing else of it is judged if it refuses its configuration, which is its fault only if it
//! was given one.

use std::sync::Arc;

use async_trait::async_trait;
use bowline_plugin::{Class, Code, Config, Error, Result};

use super::rule::{HOLDS, Judge, Outcome, Rule, Subject, Unmet};
use super::{Bench, Input, Restart};
use crate::Plugin;
use crate::handle::Handle;
use crate::slot::{Purpose, Slot};

/// What the rules of a family of such plugins make, and have to remember.
#[async_trait]
pub(super) trait Made: Default + Send + 'static {
    /// What is called to make it.
    type Plugin: Send + Sync + ?Sized;

    /// The rules of the family.
    const RULES: &'static [Rule<Trial<Self>>];
    /// Judged at the end if anything may be left.
    const CLEAN_UP: Rule<Trial<Self>>;

    /// The plugin behind a handle.
    fn plugin(handle: Handle) -> Arc<Self::Plugin>;

    /// What a plugin of the family is configured with.
    fn config(input: &Input) -> Config;

    /// What else must be given before anything but the configuration can be judged, as a hint.
    fn lacks(_: &Input) -> Option<&'static str> {
        None
    }

    /// Configures a plugin.
    async fn init(plugin: &Self::Plugin, config: &Config) -> Result<()>;

    /// What may still be there of it, each in words.
    fn left(&self, input: &Input) -> Vec<String>;
}

/// A plugin on trial.
pub(super) struct Trial<M: Made> {
    plugin: Plugin,
    /// What is called.
    pub(super) called: Arc<M::Plugin>,
    pub(super) process: Arc<dyn Restart>,
    pub(super) input: Arc<Input>,
    pub(super) config: Config,
    is_configured: Option<bool>,
    pub(super) made: M,
}

impl<M: Made> Subject for Trial<M> {
    fn plugin(&self) -> Option<&Plugin> {
        Some(&self.plugin)
    }

    fn is_stuck(&self) -> Option<&str> {
        if self.is_configured? {
            M::lacks(&self.input)
        } else {
            Some("it has not taken its configuration")
        }
    }

    fn left(&self) -> Vec<String> {
        self.made.left(&self.input)
    }
}

pub(super) async fn check<M: Made>(judge: &mut Judge<'_>, Bench { plugin, options, input }: Bench) {
    let purpose = Purpose::Configured { plugin: plugin.clone(), config: M::config(&input) };
    let slot = Arc::new(Slot::new(&plugin.command, options, purpose));
    let called = M::plugin(Handle::new(Arc::clone(&slot), &plugin));
    let process = Arc::clone(&slot) as Arc<dyn Restart>;
    Trial::<M>::new(plugin, called, process, input).examine(judge).await;
    slot.close().await;
}

impl<M: Made> Trial<M> {
    pub(super) fn new(
        plugin: Plugin,
        called: Arc<M::Plugin>,
        process: Arc<dyn Restart>,
        input: Arc<Input>,
    ) -> Self {
        let (config, made) = (M::config(&input), M::default());
        Self { plugin, called, process, input, config, is_configured: None, made }
    }

    pub(super) async fn examine(mut self, judge: &mut Judge<'_>) {
        judge.judge(M::RULES, &mut self).await;
        judge.clean_up(&M::CLEAN_UP, &mut self).await;
    }

    pub(super) async fn takes_its_configuration(&mut self) -> Outcome {
        self.is_configured = Some(false);
        if let Err(error) = M::init(&self.called, &self.config).await {
            return Err(match self.hint().filter(|_| is_refusal(&error)) {
                Some(hint) => Unmet::Skipped(format!("{}; {hint}", error.message())),
                None => error.into(),
            });
        }
        self.is_configured = Some(true);
        HOLDS
    }

    /// What it may have been missing if it refuses its configuration.
    fn hint(&self) -> Option<&'static str> {
        if self.input.config.is_empty() {
            return Some("give its configuration with --config");
        }
        M::lacks(&self.input)
    }
}

/// Whether a plugin said no, and did not die, hang or panic: that it must never do.
fn is_refusal(error: &Error) -> bool {
    error.class() != Class::Transient && error.code() != Code::Aborted
}
