//! Velero's plugin protocol, for the host and for plugins.
//!
//! A plugin is a process that prints one line, the [`handshake`], and then answers gRPC calls on a
//! unix socket. The host reaches it with a [`Connection`] and the adapters of [`client`], which are
//! the traits of [`bowline_plugin`] over the wire. A plugin answers with [`server`], which takes
//! implementations of the same traits.
//!
//! Only values of [`bowline_plugin`] cross the border of this crate; protobuf types stay inside.
//! Messages from the other side are validated here, once: neither side trusts the other.
//!
//! The `.proto` files are in `proto/`. They have the packages, services and numbers of Velero's,
//! plus the second version of the VolumeSnapshotter and its uploads, which Velero does not have.
//! The generated code is checked in; after a change to the files, regenerate it:
//!
//! ```text
//! cargo run --manifest-path crates/plugin-wire/codegen/Cargo.toml
//! ```

mod chunk;
pub mod client;
mod connection;
mod convert;
pub mod handshake;
mod proto;
pub mod server;
mod status;

pub use connection::Connection;
