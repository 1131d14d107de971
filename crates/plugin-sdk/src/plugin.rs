//! Registration and serving of the plugins of a binary.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use bowline_plugin::{
    BackupItemAction, DeleteItemAction, InvalidName, ItemBlockAction, Kind, Name, ObjectStore,
    RestoreItemAction, VolumeSnapshotter,
};
use bowline_plugin_wire::handshake::{COOKIE, COOKIE_ENV, KINDS_ENV, host_knows};
use bowline_plugin_wire::server::{AlreadyRegistered, Plugins, v1_with_upload};

use crate::{arguments, log, process, usage};

/// The plugins of a binary: add them, then [`serve`](Self::serve).
///
/// The methods for actions without a version in their names list the action as version 2, which
/// Velero has known since 1.11. Those ending in `_v1` are for older servers. Such actions cannot
/// start operations, and a restore action cannot make its item wait: if it does so anyway, its
/// `execute` returns an error to the server.
#[must_use = "a plugin does nothing until it is served"]
pub struct Plugin {
    command: String,
    plugins: Plugins,
    snapshotters: BTreeMap<Name, Arc<dyn VolumeSnapshotter>>,
    mistakes: Vec<RegistrationError>,
}

/// A mistake of the plugin's author, reported at the start so that it is noticed at once.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum RegistrationError {
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error(transparent)]
    Repeated(#[from] AlreadyRegistered),
    #[error(
        "VolumeSnapshotter {0} is registered twice: to servers without v2, the v2 plugin is served \
         as v1"
    )]
    BothVersions(Name),
    #[error("no plugin is registered")]
    NoPlugins,
    #[error("invalid path of this program: not UTF-8: {}", .0.display())]
    Command(PathBuf),
}

impl Plugin {
    /// An empty set of plugins.
    pub fn new() -> Self {
        // Servers start a plugin by the command listed here, and compare it: it must be identical.
        let command = std::env::args_os().next().unwrap_or_default();
        let (command, mistakes) = match command.into_string() {
            Ok(command) => (command, Vec::new()),
            Err(command) => (String::new(), vec![RegistrationError::Command(command.into())]),
        };
        let plugins = Plugins::new(command.clone());
        Self { command, plugins, snapshotters: BTreeMap::new(), mistakes }
    }

    /// Adds an action that takes part in backups.
    pub fn backup_item_action(self, name: &str, action: impl BackupItemAction + 'static) -> Self {
        self.add(name, |plugins, name| plugins.backup_item_action_v2(name, Arc::new(action)))
    }

    /// Adds an action that takes part in backups, as version 1.
    pub fn backup_item_action_v1(
        self,
        name: &str,
        action: impl BackupItemAction + 'static,
    ) -> Self {
        self.add(name, |plugins, name| plugins.backup_item_action_v1(name, Arc::new(action)))
    }

    /// Adds an action that takes part in restores.
    pub fn restore_item_action(self, name: &str, action: impl RestoreItemAction + 'static) -> Self {
        self.add(name, |plugins, name| plugins.restore_item_action_v2(name, Arc::new(action)))
    }

    /// Adds an action that takes part in restores, as version 1.
    pub fn restore_item_action_v1(
        self,
        name: &str,
        action: impl RestoreItemAction + 'static,
    ) -> Self {
        self.add(name, |plugins, name| plugins.restore_item_action_v1(name, Arc::new(action)))
    }

    /// Adds an action that takes part in the deletion of backups.
    pub fn delete_item_action(self, name: &str, action: impl DeleteItemAction + 'static) -> Self {
        self.add(name, |plugins, name| plugins.delete_item_action(name, Arc::new(action)))
    }

    /// Adds an action that names the items that must be backed up together.
    pub fn item_block_action(self, name: &str, action: impl ItemBlockAction + 'static) -> Self {
        self.add(name, |plugins, name| plugins.item_block_action(name, Arc::new(action)))
    }

    /// Adds a snapshotter.
    ///
    /// The snapshotter is listed as version 2 to servers that announce that they know it, as
    /// Bowline does. To others it is served as version 1: `create_snapshot` waits for the creation,
    /// uploads, and then returns; if that fails, the snapshot is deleted again.
    pub fn volume_snapshotter(
        mut self,
        name: &str,
        snapshotter: impl VolumeSnapshotter + 'static,
    ) -> Self {
        match name.parse() {
            Ok(name) if self.snapshotters.contains_key(&name) => {
                let repeated = AlreadyRegistered { kind: Kind::VolumeSnapshotterV2, name };
                self.mistakes.push(repeated.into());
            }
            Ok(name) => {
                self.snapshotters.insert(name, Arc::new(snapshotter));
            }
            Err(invalid) => self.mistakes.push(RegistrationError::Name(invalid)),
        }
        self
    }

    /// Adds a snapshotter whose snapshots are complete when `create_snapshot` returns, unless it
    /// has created a [`VolumePluginBackup`](bowline_api::VolumePluginBackup) by then that says
    /// otherwise. Its `progress` and `cancel` are never called.
    pub fn volume_snapshotter_v1(
        self,
        name: &str,
        snapshotter: impl VolumeSnapshotter + 'static,
    ) -> Self {
        self.add(name, |plugins, name| plugins.volume_snapshotter_v1(name, Arc::new(snapshotter)))
    }

    /// Adds an object store.
    pub fn object_store(self, name: &str, store: impl ObjectStore + 'static) -> Self {
        self.add(name, |plugins, name| plugins.object_store(name, Arc::new(store)))
    }

    /// Answers the server that started this process, until the server stops it. The result is the
    /// exit code of `main`.
    ///
    /// This function creates its own runtime, takes over standard output, installs its log as the
    /// default of [`tracing`], unless there is one, and replaces the panic hook.
    ///
    /// If a person starts the binary, it prints its usage. An invalid or duplicate plugin name ends
    /// the process at once, however it was started.
    pub fn serve(self) -> ExitCode {
        let by_host = std::env::var_os(COOKIE_ENV).is_some_and(|cookie| cookie == COOKIE);
        let report = if by_host { log::error } else { print_to_stderr };
        let kinds = match std::env::var(KINDS_ENV) {
            Ok(kinds) if by_host => Some(kinds),
            _ if by_host => None,
            _ => Some(Kind::VolumeSnapshotterV2.to_string()),
        };
        let command = self.command.clone();
        let plugins = match self.plugins_for_host(kinds.as_deref()) {
            Ok(plugins) => plugins,
            Err(mistakes) => {
                for mistake in mistakes {
                    report(&format!("error: {mistake}"));
                }
                return ExitCode::FAILURE;
            }
        };
        if !by_host {
            report(usage::usage_text(&command, &plugins.list()).trim_end());
            return ExitCode::FAILURE;
        }
        log::install(arguments::log_level(std::env::args_os().skip(1)));
        match process::run(plugins) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                report(&format!("error: {error}"));
                ExitCode::FAILURE
            }
        }
    }

    fn add(
        mut self,
        name: &str,
        register: impl FnOnce(&mut Plugins, Name) -> Result<(), AlreadyRegistered>,
    ) -> Self {
        let added = name.parse().map_err(RegistrationError::Name).and_then(|name| {
            register(&mut self.plugins, name).map_err(RegistrationError::Repeated)
        });
        self.mistakes.extend(added.err());
        self
    }

    /// The plugins for a host that knows these kinds, or all registration errors, whatever the
    /// host.
    fn plugins_for_host(mut self, kinds: Option<&str>) -> Result<Plugins, Vec<RegistrationError>> {
        let listed = self.plugins.list();
        if listed.is_empty() && self.snapshotters.is_empty() && self.mistakes.is_empty() {
            self.mistakes.push(RegistrationError::NoPlugins);
        }
        for (name, snapshotter) in self.snapshotters {
            if listed.contains(&(Kind::VolumeSnapshotter, name.clone())) {
                self.mistakes.push(RegistrationError::BothVersions(name));
                continue;
            }
            let registered = if host_knows(Kind::VolumeSnapshotterV2, kinds) {
                self.plugins.volume_snapshotter_v2(name, snapshotter)
            } else {
                self.plugins.volume_snapshotter_v1(name, v1_with_upload(snapshotter))
            };
            self.mistakes.extend(registered.err().map(RegistrationError::from));
        }
        if self.mistakes.is_empty() { Ok(self.plugins) } else { Err(self.mistakes) }
    }
}

impl Default for Plugin {
    fn default() -> Self {
        Self::new()
    }
}

#[expect(clippy::print_stderr, reason = "a person has started us and reads it")]
fn print_to_stderr(text: &str) {
    eprintln!("{text}");
}

#[cfg(test)]
mod tests;
