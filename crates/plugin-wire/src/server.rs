//! The plugin's side: implementations of the traits of [`bowline_plugin`], served over the wire.
//!
//! [`Plugins`] holds them by kind and name, [`Plugins::serve`] answers calls until it is stopped.
//! An SDK is built on this module: it binds no socket, prints nothing and ends no process.
//!
//! # Guarantees
//! - All services exist, also those of kinds without an implementation. A call for an unknown name
//!   is an error of code `Unknown` with Velero's message.
//! - Implementations receive only validated values: items with a kind, ids that are not empty.
//! - A panic in an implementation is answered with `Aborted`, and the others keep working. That
//!   needs `panic = "unwind"`, Rust's default.
//! - A call that the host gives up is dropped. The body of an object then ends with an error, never
//!   as if it were complete.

mod backup_item_action;
mod bridge;
mod cancel_aware;
mod delete_item_action;
mod item_block_action;
mod object_store;
mod plugins;
mod process;
mod registry;
mod restore_item_action;
mod volume_snapshotter;

use bowline_plugin::{Code, Encoded, Error, Item, OperationId, Result, SnapshotId, VolumeId};
use bytes::Bytes;

pub use bridge::v1_with_upload;
pub use plugins::{AlreadyRegistered, Plugins};

/// The error for an invalid request.
fn invalid(reason: impl std::fmt::Display) -> Error {
    Error::new(Code::InvalidArgument, reason.to_string())
}

fn item(json: Bytes) -> Result<Item> {
    Item::from_json(json).map_err(invalid)
}

/// A Backup or a Restore. Velero's plugins accept an empty message and `{}`, so both are an empty
/// resource.
fn resource<T: serde::de::DeserializeOwned>(json: Bytes) -> Result<Encoded<T>> {
    let json = match json.trim_ascii() {
        b"" | b"{}" => Bytes::from_static(br#"{"metadata":{},"spec":{}}"#),
        _ => json,
    };
    Encoded::from_json(json)
        .map_err(|error| invalid(format!("the backup or restore is not valid JSON: {error}")))
}

fn operation(id: String) -> Result<OperationId> {
    OperationId::new(id).ok_or_else(|| invalid("the id of the operation is empty"))
}

fn snapshot(id: String) -> Result<SnapshotId> {
    SnapshotId::new(id).ok_or_else(|| invalid("the id of the snapshot is empty"))
}

fn volume(id: String) -> Result<VolumeId> {
    VolumeId::new(id).ok_or_else(|| invalid("the id of the volume is empty"))
}

/// The error for an action whose result version 1 cannot represent. Omitting that part would lose
/// it.
fn needs_version_2(action_does: &str) -> Error {
    let text = format!("the action {action_does}, which v1 does not support: register it as v2");
    Error::new(Code::FailedPrecondition, text)
}

#[cfg(test)]
mod tests;
