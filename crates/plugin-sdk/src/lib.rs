//! Write plugins for Bowline and Velero in Rust.
//!
//! A plugin is a struct, an `impl` of one of the traits here, and three lines of `main`. The binary
//! runs under Bowline and, unchanged, under Velero: both start it as a separate process and call it
//! over a socket. You need not know about that, nor about gRPC.
//!
//! ```no_run
//! use bowline_plugin_sdk::{
//!     Backup, BackupItemAction, BackupOutput, Encoded, Item, Plugin, ResourceSelector, Result,
//!     async_trait, tracing,
//! };
//!
//! struct Greeter;
//!
//! #[async_trait]
//! impl BackupItemAction for Greeter {
//!     async fn applies_to(&self) -> Result<ResourceSelector> {
//!         Ok(ResourceSelector::resources(["configmaps"]))
//!     }
//!
//!     async fn execute(&self, item: &Item, _: &Encoded<Backup>) -> Result<BackupOutput> {
//!         tracing::info!("hello"); // appears in the log of the backup
//!         Ok(BackupOutput::unchanged(item))
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     Plugin::new().backup_item_action("example.io/greeter", Greeter).serve()
//! }
//! ```
//!
//! # Get started
//! The crate is not published yet; use it from a clone of the project:
//!
//! ```toml
//! [dependencies]
//! bowline-plugin-sdk = { path = "../bowline/crates/plugin-sdk" }
//! ```
//! `cargo install --path crates/cli` in that clone installs the `bowline` command that is used
//! below.
//!
//! # Write
//! Choose the trait by its purpose: see the table in [`bowline_plugin`]. Copy
//! `examples/template.rs` of this crate: a complete plugin with an operation that runs in the
//! background. Everything you need beside your own libraries is re-exported here, including
//! [`futures_util`] for the streams of an [`ObjectStore`], so that this crate is the only
//! dependency that you must have. One binary may contain many plugins, of all kinds.
//!
//! A plugin name is a DNS name of yours, a slash, and a word: `example.io/greeter`. Users write it
//! in their locations, and backups store it, so do not change it later.
//!
//! # Build and try
//! ```text
//! rustup target add x86_64-unknown-linux-musl
//! cargo build --release --target x86_64-unknown-linux-musl
//! bowline plugin inspect target/x86_64-unknown-linux-musl/release/greeter
//! bowline plugin check   target/x86_64-unknown-linux-musl/release/greeter
//! ```
//! `inspect` starts the binary and lists its plugins; `check` drives each plugin through its
//! contract and reports the rules that it breaks. Link the binary statically, as here: it runs in
//! the server's container, which has few libraries. Keep `panic = "unwind"`, which is the default.
//!
//! # Install
//! A Bowline or Velero server runs the binaries in its plugin folder, `/plugins`. An image that
//! copies your binary there when it starts installs it:
//!
//! ```text
//! FROM busybox
//! COPY greeter /plugins/greeter
//! USER 65532:65532
//! ENTRYPOINT ["/bin/sh", "-c", "cp /plugins/* /target/"]
//! ```
//! `bowline plugin add IMAGE`, or `velero plugin add IMAGE`, adds such an image to the server as an
//! init container. docs/plugins.md shows every step from an empty folder to a server that runs the
//! plugin.
//!
//! # Rules
//! - **Calls are concurrent**, for different items and on several threads. Shared state needs a
//!   lock or an atomic, and calls must not block: use the `async` functions of [`tokio`], and
//!   `tokio::task::spawn_blocking` for everything else.
//! - **Long work is an operation.** `execute` starts it and returns its id at once; the server then
//!   calls `progress` every few seconds, until the operation has ended. The server may call
//!   *another process*, hours later: keep nothing in memory that `progress` and `cancel` need. Put
//!   it in the id, in the cluster or in the system that does the work.
//! - **Processes come and go.** One is started per backup or restore, others for a single question,
//!   and a server that restarts starts all of them again. Stores and snapshotters get `init` each
//!   time, and again when their configuration changes; the last one counts.
//! - **The same call may come twice**, after a crash or a lost answer. Derive ids from the
//!   arguments (the item, the backup) instead of generating random ones, and look for what already
//!   exists. Deleting something that is gone is not an error; neither is cancelling something that
//!   has ended.
//! - **A call that the server gives up is dropped** at its next `.await`. Work that must continue
//!   belongs in its own task: `tokio::spawn`.
//! - **Errors reach the user as you write them**: an [`Error`] has a text and a [`Code`], and its
//!   [`Class`] decides whether the call is retried. A panic is an error as well, of this call only.
//! - **Logs are events of [`tracing`]**, with the fields of their spans. They appear in the log of
//!   the backup or restore, starting at the server's log level (`--log-level`, default `info`).
//!   Printed output is logged as debug text; printing before [`Plugin::serve`] is an error, since
//!   the first line is the handshake with the server.
//! - **Progress of snapshots is visible in the cluster** as a VolumePluginBackup for each snapshot
//!   and a VolumePluginRestore for each volume that is created from one. The server writes them
//!   from the results of `progress`, in the `units` that you give. If you have a client for the API
//!   server anyway, you can write your own: create one with the name of the snapshot before
//!   `create_snapshot` returns, in the namespace of the server, and update its status. The server
//!   adds labels and owner. The phases `Completed`, `Failed` and `Canceled` always end it; every
//!   other phase means that it is still running. Silence decides nothing until the operation times
//!   out. The types are [`api::VolumePluginBackup`] and [`api::VolumePluginRestore`]; all rules are
//!   in docs/plugins.md, "Show progress in the cluster".
//! - **Velero knows all kinds but one**: version 2 of the [`VolumeSnapshotter`]. It is served to
//!   Velero as version 1, which uploads within `create_snapshot`: see
//!   [`Plugin::volume_snapshotter`].

mod arguments;
mod log;
mod plugin;
mod process;
mod socket;
mod usage;

pub use async_trait::async_trait;
pub use bowline_api::{self as api, Backup, Restore};
pub use bowline_plugin::*;
pub use plugin::Plugin;

pub use {bytes, futures_util, jiff, serde_json, tokio, tracing};
