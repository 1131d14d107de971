//! Finds, starts, supervises and restarts plugin processes, and provides them as trait objects.
//!
//! [`Host::discover`] asks every binary in the plugin folder for its plugins. From then on plugins
//! are [`bowline_plugin`] trait objects: item actions through a [`PluginRun`], stores and
//! snapshotters for a configuration. Behind each is a process that is started at its first call,
//! restarted when it dies and ended when it is no longer needed.
//!
//! # Guarantees
//! - Every call ends: with an answer, with the plugin's own error, or with an error of the host
//!   that says which plugin died, hung or broke its contract, and in which method.
//! - A broken binary is reported by name and reason and does not keep the others from working.
//! - No plugin process outlives this one, even if this one is killed.
//!
//! The files, from the outside in: `host` (assigns processes to callers), `handle` (traits), `slot`
//! (one supervised process), `process` (start, handshake, end), `spawn`; beside them `list`, which
//! asks binaries for their plugins, and `discover`, `registry` and `log`, which decide and have no
//! side effects. For authors and operators, [`inspect`] shows the plugins of one binary.
//! `bowline-plugin-check` verifies that a binary keeps the rules; for it, the parts that start and
//! supervise one process are public.

mod discover;
mod environment;
mod handle;
mod host;
pub mod inspect;
mod list;
mod log;
mod options;
mod process;
mod registry;
mod slot;
mod spawn;
mod warm_up;

pub use environment::InheritedEnvironment;
pub use handle::Handle;
#[cfg(feature = "testing")]
pub use host::in_process::InProcess;
pub use host::{Host, Named, PluginRun};
pub use list::{ListingFailure, list_plugins_of};
pub use options::{Limits, Options};
pub use process::{Process, StartError};
pub use registry::{Family, ListedEntry, Plugin, Problem, Registry};
pub use slot::{Purpose, Slot};
