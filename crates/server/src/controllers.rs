//! The controllers, one file for each kind of resource or task.
//!
//! Each controller has a function `run(context)` that works until [`Context::stop`](crate::Context)
//! is cancelled, and returns an error only if it cannot continue at all.

mod adoption;
pub mod backup;
pub mod backup_deletion;
pub mod backup_queue;
pub mod backup_storage_location;
pub mod backup_sync;
mod bucket_wait;
pub mod download_request;
pub mod gc;
mod lookup;
mod operations;
pub mod orphans;
mod period;
pub mod restore;
mod run;
mod run_resources;
pub mod schedule;
pub mod server_status_request;
mod staleness;
pub mod thawer;
mod timed_plugins;

pub(crate) use timed_plugins::{PluginCalls, TimedPlugin};
