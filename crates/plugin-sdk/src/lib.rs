//! Write plugins for Bowline and Velero in Rust.
//!
//! A plugin is a struct, an `impl` of one of the traits here, and three lines of `main`. The binary
//! runs under Bowline and, unchanged, under Velero: both start it as a process of its own and call it
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
//! # Begin
//! The crate is not published yet; take it from a clone of the project:
//!
//! ```toml
//! [dependencies]
//! bowline-plugin-sdk = { path = "../bowline/crates/plugin-sdk" }
//! ```
//! `cargo install --path crates/cli` in that clone gives you the `bowline` command that is used
//! below.
//!
//! # Write
//! Pick the trait by what you want to be asked for: see the table in [`bowline_plugin`]. Copy
//! `examples/template.rs` of this crate: a complete plugin with an operation that goes on in the
//! background. Whatever you need beside your own libraries is re-exported here, [`futures_util`] for
//! the streams of an [`ObjectStore`] among it, so that this crate is the only dependency that you
//! must have. One binary may hold many plugins, of all kinds.
//!
//! A name is a DNS name of yours, a slash, and a word: `example.io/greeter`. Users write it in their
//! locations, and it is stored in backups, so choose it once.
//!
//! # Build and try
//! ```text
//! rustup target add x86_64-unknown-linux-musl
//! cargo build --release --target x86_64-unknown-linux-musl
//! bowline plugin inspect target/x86_64-unknown-linux-musl/release/greeter
//! bowline plugin check   target/x86_64-unknown-linux-musl/release/greeter
//! ```
//! `inspect` starts the binary and lists what it holds; `check` drives each plugin through its
//! contract and says which rule it breaks. Link it statically, as here: it runs in the server's
//! container, which has few libraries. Keep `panic = "unwind"`, which is the default.
//!
//! # Install
//! A server of Bowline's or of Velero's runs what lies in its plugin folder, `/plugins`. It gets there
//! from an image that copies it when it is started:
//!
//! ```text
//! FROM busybox
//! COPY greeter /plugins/greeter
//! USER 65532:65532
//! ENTRYPOINT ["/bin/sh", "-c", "cp /plugins/* /target/"]
//! ```
//! `bowline plugin add IMAGE`, or `velero plugin add IMAGE`, adds such an image to the server as an init
//! container. From an empty folder to a server that runs it, step by step: see docs/plugins.md.
//!
//! # What to know
//! - **Calls come at the same time**, for different items and on several threads. What they share
//!   needs a lock or an atomic, and they must not block: use what is `async` in [`tokio`], and
//!   `tokio::task::spawn_blocking` for what is not.
//! - **Long work is an operation.** `execute` starts it and returns its id at once; the server then
//!   asks for `progress` every few seconds, until it has ended. The server may ask *another process*,
//!   hours later: keep nothing in memory that `progress` and `cancel` need. Put it in the id, in the
//!   cluster or in the system that does the work.
//! - **Processes come and go.** One is started per backup or restore, others for a question, and a
//!   server that is restarted starts all anew. Stores and snapshotters get `init` each time, and
//!   again when their configuration changes; the last one counts.
//! - **The same call may come twice**, after a crash or a lost answer. Derive ids from what you are
//!   given (the item, the backup) instead of drawing them, and look for what exists already. To delete
//!   what is gone is no error; neither is to cancel what has ended.
//! - **A call that is given up is dropped** at its next `.await`. What must go on then belongs in a
//!   task of its own: `tokio::spawn`.
//! - **Errors reach the user as you write them**: an [`Error`] has a text and a [`Code`], and its
//!   [`Class`] decides whether the call is tried again. A panic is an error as well, of this call
//!   only.
//! - **Logs are events of [`tracing`]**, with the fields of their spans. They go to the log of the
//!   backup or restore, from the level on that the server was started with (`--log-level`, else
//!   `info`). What you print is logged as debug text; to print before [`Plugin::serve`] is an error,
//!   since the first line belongs to the server.
//! - **Progress of snapshots is shown in the cluster** by a VolumePluginBackup for each snapshot and a
//!   VolumePluginRestore for each volume that is made from one. The server writes them from what
//!   `progress` answers, in the `units` that you give. If you have a client for the API server anyway, you
//!   can write your own: create one that is called as the snapshot before `create_snapshot` returns,
//!   in the namespace of the server, and update its status. Labels and owner are added for you. The phases
//!   `Completed`, `Failed` and `Canceled` end it, in any case; every other word goes on. Silence decides
//!   nothing until the operation times out. The types are [`api::VolumePluginBackup`] and
//!   [`api::VolumePluginRestore`]; all rules are in docs/plugins.md, "Show progress in the cluster".
//! - **Velero knows all kinds but one**: version 2 of the [`VolumeSnapshotter`]. It is served to
//!   Velero as version 1, which uploads within `create_snapshot`: see [`Plugin::volume_snapshotter`].

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
