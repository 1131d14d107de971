//! Plugins in the process of the server, for simulations: no binaries, no gRPC.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use bowline_plugin::{
    BackupItemAction, DeleteItemAction, ItemBlockAction, Kind, Name, ObjectStore,
    RestoreItemAction, VolumeSnapshotter,
};
use parking_lot::Mutex;

use super::{Host, Inner, Named};
use crate::Options;
use crate::registry::Registry;

/// Plugins that run in this process. Each has the kind whose version the host uses.
#[derive(Default)]
#[expect(missing_docs, reason = "each is the list of the plugins of the trait of that name")]
pub struct InProcess {
    pub backup_item_actions: Vec<Named<dyn BackupItemAction>>,
    pub restore_item_actions: Vec<Named<dyn RestoreItemAction>>,
    pub delete_item_actions: Vec<Named<dyn DeleteItemAction>>,
    pub item_block_actions: Vec<Named<dyn ItemBlockAction>>,
    pub volume_snapshotters: Vec<Named<dyn VolumeSnapshotter>>,
    pub object_stores: Vec<Named<dyn ObjectStore>>,
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcess").finish_non_exhaustive()
    }
}

impl InProcess {
    fn registry(&self) -> Registry {
        let mut listing = identities(&self.backup_item_actions);
        listing.extend(identities(&self.restore_item_actions));
        listing.extend(identities(&self.delete_item_actions));
        listing.extend(identities(&self.item_block_actions));
        listing.extend(identities(&self.volume_snapshotters));
        listing.extend(identities(&self.object_stores));
        let listing: Vec<_> = listing.into_iter().map(Ok).collect();
        let mut registry = Registry::default();
        if !listing.is_empty() {
            registry.add(Path::new("in-process"), &listing);
        }
        registry
    }
}

fn identities<T: ?Sized>(plugins: &[Named<T>]) -> Vec<(Kind, Name)> {
    plugins.iter().map(|plugin| (plugin.kind, plugin.name.clone())).collect()
}

/// The plugin with this name.
pub(super) fn find<T: ?Sized>(plugins: &[Named<T>], name: &Name) -> Option<Arc<T>> {
    plugins.iter().find(|plugin| plugin.name == *name).map(|found| Arc::clone(&found.plugin))
}

/// The same plugins.
pub(super) fn share<T: ?Sized>(plugins: &[Named<T>]) -> Vec<Named<T>> {
    let share = |Named { name, kind, plugin }: &Named<T>| Named {
        name: name.clone(),
        kind: *kind,
        plugin: Arc::clone(plugin),
    };
    plugins.iter().map(share).collect()
}

impl Host {
    /// A host of plugins in this process. There are no others.
    pub fn in_process(plugins: Arc<InProcess>) -> Self {
        let (options, registry) = (Arc::new(Options::default()), plugins.registry());
        let (configured, in_process) = (Mutex::default(), Some(plugins));
        let inner = Arc::new(Inner { options, registry, configured, in_process });
        // No process is ever idle.
        Self { inner, reaper: tokio::spawn(async {}).abort_handle() }
    }
}
