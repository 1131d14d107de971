//! The first calls to a process that was just started.

use std::time::Duration;

use bowline_plugin::{
    BackupItemAction as _, Code, Config, DeleteItemAction as _, Error, ItemBlockAction as _, Kind,
    ObjectStore as _, ResourceSelector, RestoreItemAction as _, VolumeSnapshotter as _,
};
use bowline_plugin_wire::{Connection, client};

use crate::registry::Plugin;
use crate::slot::{Purpose, may_be_gone};

/// Calls each plugin of the process once, one after the other. An error names the method.
///
/// An item action that answers with an error is not our concern here: its caller will hear it. But
/// a process that dies, or does not answer, is.
pub(crate) async fn run(
    connection: &Connection,
    purpose: &Purpose,
    limit: Duration,
) -> Result<(), (&'static str, Error)> {
    match purpose {
        Purpose::ItemActions(plugins) => {
            for plugin in plugins {
                let asked = applies_to(connection.clone(), plugin);
                match within(limit, "AppliesTo", asked).await {
                    Err(error) if is_fatal(&error) => return Err(("AppliesTo", error)),
                    _ => {}
                }
            }
            Ok(())
        }
        Purpose::Configured { plugin, config } => {
            let init = init(connection.clone(), plugin, config);
            within(limit, "Init", init).await.map_err(|error| ("Init", error))
        }
    }
}

/// What an action applies to.
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
        // These have no items to apply to.
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

fn is_fatal(error: &Error) -> bool {
    may_be_gone(error) || error.code() == Code::DeadlineExceeded
}

async fn within<T>(
    limit: Duration,
    method: &str,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
        let text = format!("no answer to {method} within {} s", limit.as_secs_f32());
        Err(Error::new(Code::DeadlineExceeded, text))
    })
}
