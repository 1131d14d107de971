//! Controllers of `bowline server` and the code that starts and stops them.
//!
//! | module | contents |
//! |---|---|
//! | [`server`] | [`run`]: preflight, concurrent start of all tasks, ordered shutdown |
//! | [`options`] | configuration of a server |
//! | [`controllers`] | one file per kind of resource |
//! | [`watch`] | from watch events to reconcile calls: keyed, bounded, retried |
//! | [`queue`] | which backups may run, and which wait for which |
//! | [`journal`] | journals of runs, in ConfigMaps |
//! | [`patch`] | small patches to objects in the cluster |
//! | [`locations`] | from a BackupStorageLocation to its store |
//! | [`snapshotters`] | from a VolumeSnapshotLocation to its plugin |
//! | [`download`] | files of `filesystem` locations, over HTTP, for holders of a signed link |
//! | [`metrics`] | Prometheus metrics and health checks, over HTTP |
//! | [`events`] | Kubernetes Events of a run in progress, for `kubectl describe` |
//! | [`conditions`] | conditions for `kubectl wait` |
//! | [`run_state`] | outcome of a run, in the terms that metrics, Events and conditions share |
//! | [`log`] | the log of the server, and one log per run |
//! | [`fence`] | blocks every external change once the lease has ended |
//! | [`lease`] | one active server: who holds the lease, and when it is lost |
//! | [`preflight`] | requirements on the cluster, checked before anything starts |
//!
//! # Invariants
//! - **A controller that fails ends the server**, with its name and reason. A server that looks
//!   alive and does not work is the worst kind.
//! - **Every decision is a function of values**, tested as a table; the controllers around them
//!   fetch the values and carry out the verdict.
//! - **Secrets stay where they are**: in the Secret, in a private file for plugins, in memory.
//!   Errors and logs never contain them.

mod clock;
pub mod conditions;
pub mod controllers;
pub mod download;
mod error_text;
pub mod events;
pub mod fence;
pub mod journal;
pub mod lease;
mod list;
pub mod locations;
pub mod log;
pub mod metrics;
pub mod options;
pub mod patch;
pub mod preflight;
pub mod queue;
pub mod run_state;
mod runs;
pub mod server;
pub mod snapshotters;
mod supervisor;
mod unlisted_plugins;
pub mod watch;

pub use bowline_engine::restore::order::Priorities;
pub use error_text::error_chain;
pub use locations::Locations;
pub use options::Options;
pub use server::{Context, Error, run};
