//! The host's side: the traits of [`bowline_plugin`] over a [`Connection`](crate::Connection).
//!
//! There is one adapter per service and version. Those of version 1 behave like the newest version
//! with its new features unused: see each. An adapter consists of a connection and a name, so it
//! can be created for each call.
//!
//! # Guarantees
//! - Code, text and origin of a plugin's error are kept as the plugin sent them.
//! - An answer that breaks the rules is an error of code `Internal` that names the plugin and the
//!   rule, and never a panic.
//! - When a call is dropped, the plugin is notified. Calls have no time limits of their own.
//! - If there is no answer because the plugin is gone, the code is `Unavailable` or `Cancelled`.

mod backup_item_action;
mod delete_item_action;
mod item_block_action;
mod object_store;
mod process;
mod restore_item_action;
mod volume_snapshotter;

use bowline_plugin::{Code, Error, Item, Name, Progress, Result};
use bytes::Bytes;

pub use backup_item_action::{BackupItemActionV1, BackupItemActionV2};
pub use delete_item_action::DeleteItemAction;
pub use item_block_action::ItemBlockAction;
pub use object_store::ObjectStore;
pub use process::{
    InvalidListing, ListedPlugin, OutputChannel, ProcessOutput, check_health, list_plugins,
    output_stream, shutdown,
};
pub use restore_item_action::{RestoreItemActionV1, RestoreItemActionV2};
pub use volume_snapshotter::{VolumeSnapshotterV1, VolumeSnapshotterV2};

use crate::{convert, proto};

/// Declares the adapter of a service.
macro_rules! adapter {
    ($(#[$doc:meta])* $name:ident, $($stub:ident)::+) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            connection: $crate::Connection,
            plugin: bowline_plugin::Name,
        }

        impl $name {
            /// The plugin of this name behind a connection.
            pub fn new(connection: $crate::Connection, plugin: bowline_plugin::Name) -> Self {
                Self { connection, plugin }
            }

            fn stub(&self) -> $($stub)::+<tonic::transport::Channel> {
                $($stub)::+::new(self.connection.channel())
                    .max_decoding_message_size(self.connection.message_limit())
                    .max_encoding_message_size(self.connection.message_limit())
            }

            /// The first field of each request.
            fn plugin(&self) -> String {
                self.plugin.to_string()
            }
        }
    };
}
use adapter;

/// The error for an invalid answer.
fn invalid(plugin: &Name, reason: impl std::fmt::Display) -> Error {
    Error::new(Code::Internal, format!("plugin {plugin} returned an invalid answer: {reason}"))
}

fn item(plugin: &Name, json: Bytes) -> Result<Item> {
    Item::from_json(json).map_err(|error| invalid(plugin, error))
}

fn progress(
    plugin: &Name,
    progress: Option<proto::generated::OperationProgress>,
) -> Result<Progress> {
    progress.map(convert::progress).ok_or_else(|| invalid(plugin, "the progress is missing"))
}

#[cfg(test)]
mod tests;
