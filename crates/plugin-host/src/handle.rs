//! Plugins as trait objects: each method is a call through a [`Slot`], with the appropriate limit.
//!
//! The version of a kind that a process speaks is decided here, once; the clients of older versions
//! adapt themselves to the trait.

mod item_action;
mod object_store;
mod volume_snapshotter;

use std::sync::Arc;

use bowline_plugin::{Code, Config, Error, Kind, Name};

use crate::Limits;
use crate::registry::Plugin;
use crate::slot::{Call, Slot};

/// A plugin in a process that is started when the plugin is called.
#[derive(Clone, Debug)]
pub struct Handle {
    slot: Arc<Slot>,
    kind: Kind,
    name: Name,
}

impl Handle {
    /// The plugin in the process of a slot.
    pub fn new(slot: Arc<Slot>, plugin: &Plugin) -> Self {
        Self { slot, kind: plugin.kind, name: plugin.name.clone() }
    }

    fn limits(&self) -> &Limits {
        &self.slot.options().limits
    }

    /// A call that looks up or records something.
    fn metadata_call(&self, method: &'static str) -> Call {
        Call { method, limit: self.limits().metadata, is_work: false }
    }

    /// The call for the items that an action applies to.
    fn applies_to_call(&self) -> Call {
        Call { method: "AppliesTo", limit: self.limits().applies_to, is_work: false }
    }

    /// A call that processes an item.
    fn execute_call(&self, method: &'static str) -> Call {
        Call { method, limit: self.limits().execute, is_work: true }
    }

    /// A call that may move the data of a volume. Callers decide how many run at once: a call that
    /// takes hours must never keep a snapshot from being taken while an application is frozen.
    fn volume_call(&self, method: &'static str) -> Call {
        Call { method, limit: self.limits().volume, is_work: false }
    }

    /// A handle is for one configuration: another one needs another process.
    fn require_config(&self, config: &Config) -> Result<(), Error> {
        if self.slot.config() == Some(config) {
            return Ok(());
        }
        let text = format!("{} was opened with another configuration", self.name);
        Err(Error::new(Code::FailedPrecondition, text))
    }
}
