//! The trial of a plugin that takes a configuration: a store or a snapshotter, in a process of its
//! own. Nothing else of it is judged if it refuses its configuration, which is its fault only if it
//! was given one.

use std::sync::Arc;

use async_trait::async_trait;
use bowline_plugin::{Class, Code, Config, Error, Result};

use super::rule::{CheckSubject, HOLDS, Rule, RuleFailure, RuleOutcome, RuleRunner};
use super::{CheckContext, Input, Restart};
use crate::Plugin;
use crate::handle::Handle;
use crate::slot::{Purpose, Slot};

/// What the rules of a family of such plugins make, and have to remember.
#[async_trait]
pub(super) trait CreatedResources: Default + Send + 'static {
    /// What is called to make it.
    type Plugin: Send + Sync + ?Sized;

    /// The rules of the family.
    const RULES: &'static [Rule<ConfiguredCheck<Self>>];
    /// Judged at the end if anything may be left.
    const CLEAN_UP: Rule<ConfiguredCheck<Self>>;

    /// The plugin behind a handle.
    fn plugin(handle: Handle) -> Arc<Self::Plugin>;

    /// What a plugin of the family is configured with.
    fn config(input: &Input) -> Config;

    /// What else must be given before anything but the configuration can be judged, as a hint.
    fn missing_input(_: &Input) -> Option<&'static str> {
        None
    }

    /// Configures a plugin.
    async fn init(plugin: &Self::Plugin, config: &Config) -> Result<()>;

    /// What may still be there of it, each in words.
    fn leftovers(&self, input: &Input) -> Vec<String>;
}

/// A plugin on trial.
pub(super) struct ConfiguredCheck<M: CreatedResources> {
    plugin: Plugin,
    /// What is called.
    pub(super) api: Arc<M::Plugin>,
    pub(super) process: Arc<dyn Restart>,
    pub(super) input: Arc<Input>,
    pub(super) config: Config,
    is_configured: Option<bool>,
    pub(super) created: M,
}

impl<M: CreatedResources> CheckSubject for ConfiguredCheck<M> {
    fn plugin(&self) -> Option<&Plugin> {
        Some(&self.plugin)
    }

    fn blocked_reason(&self) -> Option<&str> {
        if self.is_configured? {
            M::missing_input(&self.input)
        } else {
            Some("it has not taken its configuration")
        }
    }

    fn leftovers(&self) -> Vec<String> {
        self.created.leftovers(&self.input)
    }
}

pub(super) async fn check<M: CreatedResources>(
    runner: &mut RuleRunner<'_>,
    CheckContext { plugin, options, input }: CheckContext,
) {
    let purpose = Purpose::Configured { plugin: plugin.clone(), config: M::config(&input) };
    let slot = Arc::new(Slot::new(&plugin.command, options, purpose));
    let called = M::plugin(Handle::new(Arc::clone(&slot), &plugin));
    let process = Arc::clone(&slot) as Arc<dyn Restart>;
    ConfiguredCheck::<M>::new(plugin, called, process, input).check_rules(runner).await;
    slot.close().await;
}

impl<M: CreatedResources> ConfiguredCheck<M> {
    pub(super) fn new(
        plugin: Plugin,
        called: Arc<M::Plugin>,
        process: Arc<dyn Restart>,
        input: Arc<Input>,
    ) -> Self {
        let (config, created) = (M::config(&input), M::default());
        Self { plugin, api: called, process, input, config, is_configured: None, created }
    }

    pub(super) async fn check_rules(mut self, runner: &mut RuleRunner<'_>) {
        runner.run_rules(M::RULES, &mut self).await;
        runner.clean_up(&M::CLEAN_UP, &mut self).await;
    }

    pub(super) async fn accepts_its_configuration(&mut self) -> RuleOutcome {
        self.is_configured = Some(false);
        if let Err(error) = M::init(&self.api, &self.config).await {
            return Err(match self.hint().filter(|_| is_config_refusal(&error)) {
                Some(hint) => RuleFailure::Skipped(format!("{}; {hint}", error.message())),
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
        M::missing_input(&self.input)
    }
}

/// Whether a plugin said no, and did not die, hang or panic: that it must never do.
fn is_config_refusal(error: &Error) -> bool {
    error.class() != Class::Transient && error.code() != Code::Aborted
}
