//! Finds, starts, supervises and restarts plugin processes, and hands them out as trait objects.
//!
//! [`Host::discover`] asks every binary of the plugin folder what it has. From then on plugins are
//! [`bowline_plugin`] trait objects: item actions through a [`PluginRun`], stores and snapshotters for a
//! configuration. Behind each is a process that is started when it is first called, restarted when
//! it dies and ended when nobody needs it.
//!
//! # What a caller can rely on
//! - Every call ends: with an answer, with the plugin's own error, or with one of ours that says
//!   which plugin died, hung or broke its contract, and in which method.
//! - A broken binary is told by name and reason and does not keep the others from working.
//! - No plugin process outlives this one, even if it is killed.
//!
//! The files, from the outside in: `host` (which process serves whom), `handle` (traits), `slot`
//! (one supervised process), `process` (start, handshake, end), `spawn`; beside them `list`, which asks
//! binaries what they have, and `discover`, `registry` and `log`, which decide and do nothing. For authors and operators, [`inspect`] tells
//! what one binary has and [`check`] whether it keeps the rules.

pub mod check;
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
pub use host::{Host, Named, PluginRun};
pub use options::{Limits, Options};
pub use registry::{Family, ListedEntry, Plugin, Problem, Registry};
