//! All plugins of a server.

#[cfg(feature = "testing")]
pub(crate) mod in_process;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use bowline_plugin::{
    BackupItemAction, Code, Config, DeleteItemAction, Error, ItemBlockAction, Kind, Name,
    ObjectStore, RestoreItemAction, VolumeSnapshotter,
};
use futures::future::join_all;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::task::AbortHandle;

use crate::handle::Handle;
use crate::registry::{Family, Plugin, Registry};
use crate::slot::{Purpose, Slot};
use crate::{Options, list};

/// The key of a location's configuration that names a credentials file.
const CREDENTIALS_FILE: &str = "credentialsFile";

/// Finds, starts and supervises plugins.
///
/// Item actions are used through a [`PluginRun`]: they get a process for each run, since Go actions
/// cache data and the log of a process belongs to one run. Stores and snapshotters get one for each
/// configuration, since a second `Init` would overwrite the first.
#[derive(Debug)]
pub struct Host {
    inner: Arc<Inner>,
    reaper: AbortHandle,
}

#[derive(Debug)]
struct Inner {
    options: Arc<Options>,
    registry: Registry,
    configured: Mutex<HashMap<ConfiguredKey, Arc<Slot>>>,
    #[cfg(feature = "testing")]
    in_process: Option<Arc<in_process::InProcess>>,
}

/// Identity of a configured process. The content of the credentials is part of it, so that rotated
/// credentials take effect.
type ConfiguredKey = (PathBuf, Kind, Name, [u8; 32]);

impl Host {
    /// Searches for plugins and asks each binary for its list, again after a transient failure.
    /// Broken binaries are among the [problems](Registry::problems) of the registry and do not
    /// affect the others.
    pub async fn discover(options: Options) -> Self {
        let options = Arc::new(options);
        let registry = list::list_all(&options).await;
        for problem in registry.problems() {
            tracing::error!("{problem}");
        }
        let inner = Arc::new(Inner {
            options,
            registry,
            configured: Mutex::default(),
            #[cfg(feature = "testing")]
            in_process: None,
        });
        let reaper = tokio::spawn(stop_idle_processes(Arc::downgrade(&inner))).abort_handle();
        Self { inner, reaper }
    }

    /// The plugins that were found.
    pub fn registry(&self) -> &Registry {
        &self.inner.registry
    }

    /// The item actions for one backup, restore or deletion.
    pub fn run(&self) -> PluginRun {
        PluginRun { inner: Arc::clone(&self.inner), slots: Mutex::default() }
    }

    /// The object store of a provider, with the configuration of a location. `None` if there is no
    /// such plugin.
    pub async fn object_store(
        &self,
        provider: &str,
        config: Config,
    ) -> Result<Option<Arc<dyn ObjectStore>>, Error> {
        #[cfg(feature = "testing")]
        if let Some(plugins) = &self.inner.in_process {
            let name = name_of_provider(provider)?;
            return Ok(in_process::find(&plugins.object_stores, &name));
        }
        let handle = self.inner.open_configured(Family::ObjectStore, provider, config).await?;
        Ok(handle.map(|handle| Arc::new(handle) as Arc<dyn ObjectStore>))
    }

    /// The volume snapshotter of a provider, with the configuration of a location. `None` if there
    /// is no such plugin.
    pub async fn volume_snapshotter(
        &self,
        provider: &str,
        config: Config,
    ) -> Result<Option<Arc<dyn VolumeSnapshotter>>, Error> {
        #[cfg(feature = "testing")]
        if let Some(plugins) = &self.inner.in_process {
            let name = name_of_provider(provider)?;
            return Ok(in_process::find(&plugins.volume_snapshotters, &name));
        }
        let handle =
            self.inner.open_configured(Family::VolumeSnapshotter, provider, config).await?;
        Ok(handle.map(|handle| Arc::new(handle) as Arc<dyn VolumeSnapshotter>))
    }

    /// The kind and name of a provider's volume snapshotter.
    pub fn volume_snapshotter_kind(&self, provider: &str) -> Option<(Kind, Name)> {
        let name = Name::of_provider(provider).ok()?;
        let plugin = self.registry().find(Family::VolumeSnapshotter, &name)?;
        Some((plugin.kind, name))
    }

    /// Ends all processes of stores and snapshotters, and waits until they have ended.
    pub async fn shut_down(self) {
        let slots = self.inner.drain_configured();
        join_all(slots.iter().map(|slot| slot.close())).await;
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.reaper.abort();
    }
}

impl Inner {
    async fn open_configured(
        &self,
        family: Family,
        provider: &str,
        config: Config,
    ) -> Result<Option<Handle>, Error> {
        let name = name_of_provider(provider)?;
        let Some(plugin) = self.registry.find(family, &name) else { return Ok(None) };
        let hash = fingerprint(&config).await?;
        let key = (plugin.command.clone(), plugin.kind, name, hash);
        let mut configured = self.configured.lock();
        let slot = configured.entry(key).or_insert_with(|| {
            let purpose = Purpose::Configured { plugin: plugin.clone(), config };
            Arc::new(Slot::new(&plugin.command, Arc::clone(&self.options), purpose))
        });
        Ok(Some(Handle::new(Arc::clone(slot), plugin)))
    }

    /// Removes processes that have ended and that have no callers left, as after a change of
    /// credentials.
    fn remove_unused(&self) {
        let mut configured = self.configured.lock();
        configured.retain(|_, slot| Arc::strong_count(slot) > 1 || slot.is_alive());
    }

    fn drain_configured(&self) -> Vec<Arc<Slot>> {
        let mut configured = self.configured.lock();
        configured.drain().map(|(_, slot)| slot).collect()
    }
}

fn name_of_provider(provider: &str) -> Result<Name, Error> {
    Name::of_provider(provider)
        .map_err(|error| Error::new(Code::InvalidArgument, error.to_string()))
}

/// The plugins that take part in one run, in processes of its own.
///
/// Call [`shut_down`](Self::shut_down) when the run has ended. Dropping it ends the processes as
/// well, but without a graceful stop.
#[derive(Debug)]
pub struct PluginRun {
    inner: Arc<Inner>,
    slots: Mutex<HashMap<PathBuf, Arc<Slot>>>,
}

/// A plugin of a run.
#[derive(Clone)]
pub struct Named<T: ?Sized> {
    /// Its name.
    pub name: Name,
    /// The version that the host uses.
    pub kind: Kind,
    /// The plugin.
    pub plugin: Arc<T>,
}

impl PluginRun {
    /// The actions that take part in backups, in order.
    pub fn backup_item_actions(&self) -> Vec<Named<dyn BackupItemAction>> {
        #[cfg(feature = "testing")]
        if let Some(plugins) = &self.inner.in_process {
            return in_process::share(&plugins.backup_item_actions);
        }
        self.family(Family::BackupItemAction, |handle| Arc::new(handle) as _)
    }

    /// The actions that take part in restores, in order.
    pub fn restore_item_actions(&self) -> Vec<Named<dyn RestoreItemAction>> {
        #[cfg(feature = "testing")]
        if let Some(plugins) = &self.inner.in_process {
            return in_process::share(&plugins.restore_item_actions);
        }
        self.family(Family::RestoreItemAction, |handle| Arc::new(handle) as _)
    }

    /// The actions that take part in deletions, in order.
    pub fn delete_item_actions(&self) -> Vec<Named<dyn DeleteItemAction>> {
        #[cfg(feature = "testing")]
        if let Some(plugins) = &self.inner.in_process {
            return in_process::share(&plugins.delete_item_actions);
        }
        self.family(Family::DeleteItemAction, |handle| Arc::new(handle) as _)
    }

    /// The actions that name related items, in order.
    pub fn item_block_actions(&self) -> Vec<Named<dyn ItemBlockAction>> {
        #[cfg(feature = "testing")]
        if let Some(plugins) = &self.inner.in_process {
            return in_process::share(&plugins.item_block_actions);
        }
        self.family(Family::ItemBlockAction, |handle| Arc::new(handle) as _)
    }

    /// Ends the processes of this run, and waits until they have ended.
    pub async fn shut_down(self) {
        let slots: Vec<Arc<Slot>> = {
            let mut slots = self.slots.lock();
            slots.drain().map(|(_, slot)| slot).collect()
        };
        join_all(slots.iter().map(|slot| slot.close())).await;
    }

    fn family<T: ?Sized>(
        &self,
        family: Family,
        as_trait: impl Fn(Handle) -> Arc<T>,
    ) -> Vec<Named<T>> {
        let plugins = self.inner.registry.family(family);
        let named = |plugin: &Plugin| Named {
            name: plugin.name.clone(),
            kind: plugin.kind,
            plugin: as_trait(Handle::new(self.slot(&plugin.command), plugin)),
        };
        plugins.into_iter().map(named).collect()
    }

    /// All item actions of a binary share a process.
    fn slot(&self, command: &Path) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        let new = || {
            let is_here = |plugin: &&Plugin| plugin.command == command && !plugin.kind.needs_init();
            let plugins = self.inner.registry.plugins().iter().filter(is_here).cloned().collect();
            let options = Arc::clone(&self.inner.options);
            Arc::new(Slot::new(command, options, Purpose::ItemActions(plugins)))
        };
        Arc::clone(slots.entry(command.to_owned()).or_insert_with(new))
    }
}

/// A hash over a configuration and the credentials that it names.
async fn fingerprint(config: &Config) -> Result<[u8; 32], Error> {
    let mut hash = Sha256::new();
    for (key, value) in config {
        for text in [key, value] {
            hash.update(text.len().to_le_bytes());
            hash.update(text);
        }
    }
    if let Some(path) = config.get(CREDENTIALS_FILE) {
        let credentials = tokio::fs::read(path).await.map_err(|error| {
            Error::new(
                Code::FailedPrecondition,
                format!("cannot read credentials from {path}: {error}"),
            )
        })?;
        hash.update(credentials);
    }
    Ok(hash.finalize().into())
}

/// Ends the idle processes of stores and snapshotters.
async fn stop_idle_processes(inner: Weak<Inner>) {
    loop {
        let Some(pause) = inner.upgrade().map(|inner| inner.options.limits.idle / 4) else {
            return;
        };
        tokio::time::sleep(pause).await;
        let Some(inner) = inner.upgrade() else { return };
        let slots: Vec<Arc<Slot>> = {
            let configured = inner.configured.lock();
            configured.values().cloned().collect()
        };
        for slot in slots {
            slot.stop_if_idle().await;
        }
        inner.remove_unused();
    }
}
