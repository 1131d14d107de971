//! The first calls to a newly started process.

use std::time::Duration;

use bowline_plugin::{
    BackupItemAction as _, Config, DeleteItemAction as _, Error, ItemBlockAction as _, Kind,
    ObjectStore as _, ResourceSelector, RestoreItemAction as _, VolumeSnapshotter as _,
};
use bowline_plugin_wire::{Connection, client};

use crate::process::Process;
use crate::registry::Plugin;
use crate::slot::{Purpose, may_mean_process_ended};

/// Time for which an error waits for the end of the process that would explain it.
const EXIT_GRACE: Duration = Duration::from_millis(500);

/// The warm-up as a whole took too long.
pub(crate) struct WarmUpTimeout;

/// Calls each plugin of the process once, one after the other, within `limit` in total. Returns the
/// method, and its outcome.
///
/// An error of an item action is ignored here: its caller will get it. But a process that dies, or
/// does not answer, is an error.
pub(crate) async fn run(
    process: &Process,
    purpose: &Purpose,
    limit: Duration,
) -> (&'static str, Result<Result<(), Error>, WarmUpTimeout>) {
    let connection = process.connection();
    match purpose {
        Purpose::ItemActions(plugins) => {
            let all = async {
                for plugin in plugins {
                    match applies_to(connection.clone(), plugin).await {
                        Err(error)
                            if may_mean_process_ended(&error)
                                && has_process_ended(process).await =>
                        {
                            return Err(error);
                        }
                        _ => {}
                    }
                }
                Ok(())
            };
            ("AppliesTo", tokio::time::timeout(limit, all).await.map_err(|_| WarmUpTimeout))
        }
        Purpose::Configured { plugin, config } => {
            let init = init(connection.clone(), plugin, config);
            ("Init", tokio::time::timeout(limit, init).await.map_err(|_| WarmUpTimeout))
        }
    }
}

/// True if the process has ended: a plugin may also report "unavailable" for its own reasons.
async fn has_process_ended(process: &Process) -> bool {
    process.wait_for_end(EXIT_GRACE).await.is_some()
}

/// The items that an action applies to.
pub(crate) async fn applies_to(
    connection: Connection,
    plugin: &Plugin,
) -> Result<ResourceSelector, Error> {
    let name = plugin.name.clone();
    match plugin.kind {
        Kind::BackupItemAction => {
            client::BackupItemActionV1::new(connection, name).applies_to().await
        }
        Kind::BackupItemActionV2 => {
            client::BackupItemActionV2::new(connection, name).applies_to().await
        }
        Kind::RestoreItemAction => {
            client::RestoreItemActionV1::new(connection, name).applies_to().await
        }
        Kind::RestoreItemActionV2 => {
            client::RestoreItemActionV2::new(connection, name).applies_to().await
        }
        Kind::DeleteItemAction => {
            client::DeleteItemAction::new(connection, name).applies_to().await
        }
        Kind::ItemBlockAction => client::ItemBlockAction::new(connection, name).applies_to().await,
        // These kinds apply to no items.
        Kind::VolumeSnapshotter | Kind::VolumeSnapshotterV2 | Kind::ObjectStore => {
            Ok(ResourceSelector::default())
        }
    }
}

async fn init(connection: Connection, plugin: &Plugin, config: &Config) -> Result<(), Error> {
    let name = plugin.name.clone();
    match plugin.kind {
        Kind::ObjectStore => client::ObjectStore::new(connection, name).init(config).await,
        Kind::VolumeSnapshotterV2 => {
            client::VolumeSnapshotterV2::new(connection, name).init(config).await
        }
        _ => client::VolumeSnapshotterV1::new(connection, name).init(config).await,
    }
}
