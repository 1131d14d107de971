//! All plugins that a process serves.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bowline_plugin::{
    BackupItemAction, DeleteItemAction, ItemBlockAction, Kind, Name, ObjectStore,
    RestoreItemAction, Result, VolumeSnapshotter,
};
use futures_util::{Stream, stream};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tonic::transport::Server;

use super::cancel_aware::RejectCancelledBody;
use super::process::{Controller, Health, Lister, Stdio};
use super::registry::Registry;
use crate::proto::{generated, health, plugin as go_plugin, v1, v2};

/// Maximum size of a request. Items are sent whole, up to three in one request.
const REQUEST_MAX: usize = 64 << 20;

/// Time for calls to finish after the request to stop. Hosts kill after two seconds.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// Pause when no connection can be accepted, for example because file descriptors are exhausted.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// All plugins that a process serves: implementations, by kind and name.
pub struct Plugins {
    command: String,
    backup_item_action_v1: Registry<dyn BackupItemAction>,
    backup_item_action_v2: Registry<dyn BackupItemAction>,
    volume_snapshotter_v1: Registry<dyn VolumeSnapshotter>,
    volume_snapshotter_v2: Registry<dyn VolumeSnapshotter>,
    object_store: Registry<dyn ObjectStore>,
    restore_item_action_v1: Registry<dyn RestoreItemAction>,
    restore_item_action_v2: Registry<dyn RestoreItemAction>,
    delete_item_action: Registry<dyn DeleteItemAction>,
    item_block_action: Registry<dyn ItemBlockAction>,
}

/// A plugin of this kind and name is already registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {name} is registered twice")]
pub struct AlreadyRegistered {
    /// The kind.
    pub kind: Kind,
    /// The name.
    pub name: Name,
}

type RegistrationResult = Result<(), AlreadyRegistered>;

impl Plugins {
    /// No plugins yet. `command` is the command that hosts start: the first argument of this
    /// process, unchanged.
    pub fn new(command: impl Into<String>) -> Self {
        Self {
            command: command.into(),
            backup_item_action_v1: Registry::new(Kind::BackupItemAction),
            backup_item_action_v2: Registry::new(Kind::BackupItemActionV2),
            volume_snapshotter_v1: Registry::new(Kind::VolumeSnapshotter),
            volume_snapshotter_v2: Registry::new(Kind::VolumeSnapshotterV2),
            object_store: Registry::new(Kind::ObjectStore),
            restore_item_action_v1: Registry::new(Kind::RestoreItemAction),
            restore_item_action_v2: Registry::new(Kind::RestoreItemActionV2),
            delete_item_action: Registry::new(Kind::DeleteItemAction),
            item_block_action: Registry::new(Kind::ItemBlockAction),
        }
    }

    /// Adds an action that starts no operations; if it does, its `execute` returns an error to the
    /// host.
    pub fn backup_item_action_v1(
        &mut self,
        name: Name,
        plugin: Arc<dyn BackupItemAction>,
    ) -> RegistrationResult {
        self.backup_item_action_v1.add(name, plugin)
    }

    /// Adds a backup item action.
    pub fn backup_item_action_v2(
        &mut self,
        name: Name,
        plugin: Arc<dyn BackupItemAction>,
    ) -> RegistrationResult {
        self.backup_item_action_v2.add(name, plugin)
    }

    /// Adds an action that starts no operations and makes no item wait; if it does, its `execute`
    /// returns an error to the host.
    pub fn restore_item_action_v1(
        &mut self,
        name: Name,
        plugin: Arc<dyn RestoreItemAction>,
    ) -> RegistrationResult {
        self.restore_item_action_v1.add(name, plugin)
    }

    /// Adds a restore item action.
    pub fn restore_item_action_v2(
        &mut self,
        name: Name,
        plugin: Arc<dyn RestoreItemAction>,
    ) -> RegistrationResult {
        self.restore_item_action_v2.add(name, plugin)
    }

    /// Adds a delete item action.
    pub fn delete_item_action(
        &mut self,
        name: Name,
        plugin: Arc<dyn DeleteItemAction>,
    ) -> RegistrationResult {
        self.delete_item_action.add(name, plugin)
    }

    /// Adds an item block action.
    pub fn item_block_action(
        &mut self,
        name: Name,
        plugin: Arc<dyn ItemBlockAction>,
    ) -> RegistrationResult {
        self.item_block_action.add(name, plugin)
    }

    /// Adds a snapshotter whose snapshots are complete when `create_snapshot` returns, and which
    /// has no progress to report. For others see [`v1_with_upload`](super::v1_with_upload).
    pub fn volume_snapshotter_v1(
        &mut self,
        name: Name,
        plugin: Arc<dyn VolumeSnapshotter>,
    ) -> RegistrationResult {
        self.volume_snapshotter_v1.add(name, plugin)
    }

    /// Adds a snapshotter. Velero does not know this kind and refuses to start if a plugin lists
    /// it: see [`host_knows`](crate::handshake::host_knows).
    pub fn volume_snapshotter_v2(
        &mut self,
        name: Name,
        plugin: Arc<dyn VolumeSnapshotter>,
    ) -> RegistrationResult {
        self.volume_snapshotter_v2.add(name, plugin)
    }

    /// Adds an object store.
    pub fn object_store(&mut self, name: Name, plugin: Arc<dyn ObjectStore>) -> RegistrationResult {
        self.object_store.add(name, plugin)
    }

    /// The plugins as listed to hosts, in that order.
    pub fn list(&self) -> Vec<(Kind, Name)> {
        let all = std::iter::empty()
            .chain(self.backup_item_action_v1.list())
            .chain(self.backup_item_action_v2.list())
            .chain(self.volume_snapshotter_v1.list())
            .chain(self.volume_snapshotter_v2.list())
            .chain(self.object_store.list())
            .chain(self.restore_item_action_v1.list())
            .chain(self.restore_item_action_v2.list())
            .chain(self.delete_item_action.list())
            .chain(self.item_block_action.list());
        all.map(|(kind, name)| (kind, name.clone())).collect()
    }

    /// Answers calls until a host requests the stop, or `shutdown` is ready. Calls in flight then
    /// have a second to finish; the rest are given up when the process ends, which should be next.
    pub async fn serve(
        self,
        listener: UnixListener,
        shutdown: impl Future<Output = ()> + Send,
    ) -> io::Result<()> {
        let (stop, stopped) = watch::channel(false);
        let router = self.router(&stop);
        let signal = async {
            tokio::select! {
                () = shutdown => { stop.send_replace(true); }
                () = wait_for_stop(stopped.clone()) => {}
            }
        };
        let grace_is_over = async {
            wait_for_stop(stopped.clone()).await;
            tokio::time::sleep(SHUTDOWN_GRACE).await;
        };
        tokio::select! {
            ended = router.serve_with_incoming_shutdown(incoming_connections(listener), signal) => {
                ended.map_err(io::Error::other)
            }
            () = grace_is_over => Ok(()),
        }
    }

    fn router(self, stop: &watch::Sender<bool>) -> tonic::transport::server::Router {
        /// A service of a plugin, with its message limit.
        macro_rules! service {
            ($($server:ident)::+, $registry:expr) => {
                $($server)::+::new($registry).max_decoding_message_size(REQUEST_MAX)
            };
        }
        let lister = Lister::new(&self.command, self.list());
        Server::builder()
            .add_service(health::health_server::HealthServer::new(Health))
            .add_service(go_plugin::grpc_stdio_server::GrpcStdioServer::new(Stdio(
                stop.subscribe(),
            )))
            .add_service(go_plugin::grpc_controller_server::GrpcControllerServer::new(Controller(
                stop.clone(),
            )))
            .add_service(generated::plugin_lister_server::PluginListerServer::new(lister))
            .add_service(service!(
                generated::backup_item_action_server::BackupItemActionServer,
                self.backup_item_action_v1
            ))
            .add_service(service!(
                v2::backup_item_action_server::BackupItemActionServer,
                self.backup_item_action_v2
            ))
            .add_service(service!(
                generated::restore_item_action_server::RestoreItemActionServer,
                self.restore_item_action_v1
            ))
            .add_service(service!(
                v2::restore_item_action_server::RestoreItemActionServer,
                self.restore_item_action_v2
            ))
            .add_service(service!(
                generated::delete_item_action_server::DeleteItemActionServer,
                self.delete_item_action
            ))
            .add_service(service!(
                v1::item_block_action_server::ItemBlockActionServer,
                self.item_block_action
            ))
            .add_service(service!(
                generated::volume_snapshotter_server::VolumeSnapshotterServer,
                self.volume_snapshotter_v1
            ))
            .add_service(service!(
                v2::volume_snapshotter_server::VolumeSnapshotterServer,
                self.volume_snapshotter_v2
            ))
            .add_service(RejectCancelledBody(service!(
                generated::object_store_server::ObjectStoreServer,
                self.object_store
            )))
    }
}

/// Waits for the request to stop.
pub(super) async fn wait_for_stop(mut stopped: watch::Receiver<bool>) {
    // Fails only when the sender is gone, so that no stop can be requested any more; that is a stop
    // as well.
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// The connections of hosts; more than one, since Go's hosts disconnect when they are idle.
fn incoming_connections(listener: UnixListener) -> impl Stream<Item = io::Result<UnixStream>> {
    stream::unfold(listener, async |listener| {
        loop {
            match listener.accept().await {
                Ok((connection, _)) => return Some((Ok(connection), listener)),
                Err(_) => tokio::time::sleep(ACCEPT_RETRY_PAUSE).await,
            }
        }
    })
}
