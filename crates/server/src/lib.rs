//! Controllers and their wiring: what `bowline server` runs.
//!
//! | module | what it is |
//! |---|---|
//! | [`server`] | [`run`]: checks the cluster, starts everything side by side, ends it in order |
//! | [`options`] | what a server is told |
//! | [`controllers`] | one file per kind of resource that is worked on |
//! | [`watch`] | from changes of objects to work on them: keyed, bounded, tried again |
//! | [`queue`] | which backups may run, and which wait for which |
//! | [`journal`] | what runs must not forget, in ConfigMaps |
//! | [`patch`] | small changes to objects in the cluster |
//! | [`locations`] | from a BackupStorageLocation to the store that it names |
//! | [`snapshotters`] | from a VolumeSnapshotLocation to the plugin that it names |
//! | [`download`] | what folders hold, over HTTP, for whoever has a signed link |
//! | [`metrics`] | what Prometheus is told, and whether the server is well, over HTTP |
//! | [`events`] | what `kubectl describe` shows of a run while it goes on |
//! | [`conditions`] | what `kubectl wait` can wait for |
//! | [`run_state`] | how a run ended, in the words that the last three share |
//! | [`log`] | the server's log, and one for each run |
//! | [`fence`] | lets nothing be changed outside once the lease is over |
//! | [`lease`] | one active server: who has the lease, and when it is lost |
//! | [`preflight`] | what a cluster must have before anything is started |
//!
//! # What holds
//! - **A controller that fails ends the server**, with its name and reason. A server that looks
//!   alive and does not work is the worst kind.
//! - **Every decision is a function of values**, tested as a table; the controllers around them
//!   fetch the values and carry out the verdict.
//! - **Secrets stay where they are**: in the Secret, in a private file for plugins, in memory.
//!   Neither errors nor logs have them.

mod clock;
pub mod conditions;
pub mod controllers;
pub mod download;
mod error_text;
pub mod events;
pub mod fence;
pub mod journal;
pub mod lease;
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
