//! Check of a plugin that has a configuration: a store or a snapshotter, in its own process. If the
//! plugin refuses its configuration, nothing else is checked; that is its fault only if a
//! configuration was given.

use std::sync::Arc;

use async_trait::async_trait;
use bowline_plugin::{Class, Code, Config, Error, Result};
use bowline_plugin_host::{Handle, Plugin, Purpose, Slot};

use super::rule::{CheckSubject, HOLDS, Rule, RuleFailure, RuleOutcome, RuleRunner};
use super::{CheckContext, Input, Restart};

/// Resources that the rules of a family create and must remember.
#[async_trait]
pub(super) trait CreatedResources: Default + Send + 'static {
    /// The trait that creates them.
    type Plugin: Send + Sync + ?Sized;

    /// The rules of the family.
    const RULES: &'static [Rule<ConfiguredCheck<Self>>];
    /// Runs at the end if anything may be left over.
    const CLEAN_UP: Rule<ConfiguredCheck<Self>>;

    /// The plugin behind a handle.
    fn plugin(handle: Handle) -> Arc<Self::Plugin>;

    /// The configuration for a plugin of the family.
    fn config(input: &Input) -> Config;

    /// A hint naming the input without which nothing but the configuration can be checked.
    fn missing_input(_: &Input) -> Option<&'static str> {
        None
    }

    /// Configures a plugin.
    async fn init(plugin: &Self::Plugin, config: &Config) -> Result<()>;

    /// Descriptions of the resources that may still exist.
    fn leftovers(&self, input: &Input) -> Vec<String>;
}

/// A plugin that is being checked.
pub(super) struct ConfiguredCheck<M: CreatedResources> {
    plugin: Plugin,
    /// The plugin's trait object.
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
            Some("the plugin has not accepted its configuration")
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

    /// A hint about input that may be missing if the plugin refuses its configuration.
    fn hint(&self) -> Option<&'static str> {
        if self.input.config.is_empty() {
            return Some("give its configuration with --config");
        }
        M::missing_input(&self.input)
    }
}

/// True if a plugin refused its configuration, as opposed to dying, hanging or panicking, which it
/// must never do.
fn is_config_refusal(error: &Error) -> bool {
    error.class() != Class::Transient && error.code() != Code::Aborted
}
