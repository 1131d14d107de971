//! The port to the API server.
//!
//! | module | contents |
//! |---|---|
//! | [`Cluster`] | the port: what others need of a cluster |
//! | [`api_server`] | its real implementation |
//! | `fake`, `delegate` | a cluster in memory, and changes of its calls, with the feature `testing` |
//! | [`resource`], [`item`] | resources that the API server serves, and one object of them |
//! | [`selector`] | label selectors, compiled once |
//! | [`watch`] | state that follows objects, and waiting for them |
//! | [`events`], [`drivers`] | warnings about objects, installed CSI drivers |

pub mod api_server;
#[cfg(feature = "testing")]
mod delegate;
pub mod drivers;
pub mod events;
#[cfg(feature = "testing")]
pub mod fake;
pub mod item;
mod list_splitter;
pub mod resource;
pub mod selector;
pub mod watch;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::Item;
use futures::stream::BoxStream;
use serde_json::Value;

pub use api_server::ApiServer;
#[cfg(feature = "testing")]
pub use delegate::Delegate;
#[cfg(feature = "testing")]
pub use fake::Fake;
pub use item::Object;
#[cfg(feature = "testing")]
pub use list_splitter::split_pieces;
pub use resource::{GroupResource, Resource, Resources};

/// Operations of a cluster that the engine needs.
#[async_trait]
pub trait Cluster: Send + Sync {
    /// Resources that the API server serves, and the API groups that did not answer.
    async fn discover(&self) -> Result<Discovery>;

    /// Lists objects, one by one as they arrive. An error ends the stream, except
    /// [`Error::Object`], which concerns a single object.
    fn list(&self, resource: &Arc<Resource>, query: Query) -> BoxStream<'static, Result<Object>>;

    /// Like [`list`](Self::list), and announces at the start of each page the number of objects
    /// still to come, including those of the page. Not every API server reports this number, and
    /// none does for a label or field selector.
    fn list_announced(
        &self,
        resource: &Arc<Resource>,
        query: Query,
        announce: Announce,
    ) -> BoxStream<'static, Result<Object>> {
        drop(announce);
        self.list(resource, query)
    }

    /// Gets one object; `None` if it does not exist.
    async fn get(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Object>>;

    /// Creates an object and returns it as stored.
    async fn create(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        item: &Item,
    ) -> Result<Object>;

    /// Changes an object, or a subresource of it, by a merge patch.
    async fn patch(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
        subresource: Subresource,
        patch: &Value,
    ) -> Result<Object>;

    /// Deletes an object; with a uid, only the object that has this uid. An object with finalizers
    /// still exists for a while afterwards.
    async fn delete(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> Result<()>;

    /// Watches objects: reports the start, then the existing objects, then each change. The watch
    /// restarts when the connection breaks, and reports that as well. An error ends the stream,
    /// except [`Error::Object`], which concerns a single object.
    fn watch(
        &self,
        resource: &Arc<Resource>,
        query: Query,
    ) -> BoxStream<'static, Result<WatchEvent>>;

    /// Runs a command in a container and waits for its end, up to the timeout. An error that [is
    /// unavailable](Error::is_unavailable) means that the command may not have been started.
    async fn exec(&self, exec: &Exec) -> Result<ExecOutcome>;
}

/// Callback for the number of objects of a list that are still to come.
pub type Announce = Box<dyn Fn(u64) + Send + Sync>;

/// Event of a watch.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    /// The watch has started or restarted. Objects deleted before that are not reported.
    Started,
    /// Existing object in its current state.
    Applied(Object),
    /// Deleted object in its last state.
    Deleted(Object),
}

/// Part of an object that a patch applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subresource {
    /// The object without its subresources.
    None,
    /// The status, where it is a subresource.
    Status,
}

/// Result of a call to a cluster.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Resources that the API server serves.
#[derive(Clone, Debug, Default)]
pub struct Discovery {
    /// Every resource in every version, preferred versions first within a group.
    pub resources: Vec<Resource>,
    /// API groups that did not answer, with the reason: `metrics.k8s.io/v1beta1: …`.
    pub failed: Vec<String>,
}

/// Filter of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Namespace; `None` for all.
    pub namespace: Option<String>,
    /// Label selector in Kubernetes syntax; empty for all.
    pub label_selector: String,
    /// Field selector in Kubernetes syntax, such as `metadata.name=a`; empty for all.
    pub field_selector: String,
}

/// A command to run in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Name of the container.
    pub container: String,
    /// Program and its arguments.
    pub command: Vec<String>,
    /// Time for the command to end, counted from the moment the connection to the container is
    /// open.
    pub timeout: Duration,
}

/// Outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecOutcome {
    /// Output of the command, possibly truncated.
    pub output: String,
    /// Reason of the failure, if the command failed.
    pub failure: Option<String>,
}

/// Reason why a call to the cluster failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server answered with an error.
    #[error("the API server answered {code} ({reason}): {message}")]
    Refused {
        /// HTTP status.
        code: u16,
        /// Machine-readable reason, one word.
        reason: String,
        /// Message of the API server.
        message: String,
    },
    /// The API server could not be reached, or the connection broke.
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
    /// The API server did not answer in time.
    #[error("the API server did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// A list took longer than the API server keeps old versions.
    #[error("the list took too long: its continue token has expired")]
    Expired {
        /// Continue token for the rest of the list, at a later resource version.
        next: Option<String>,
    },
    /// The answer of the API server could not be parsed.
    #[error("the API server's answer cannot be read: {0}")]
    Unreadable(String),
    /// One object of a list cannot be parsed.
    #[error("an object of the list cannot be read: {0}")]
    Object(#[from] crate::item::InvalidObject),
    /// A command did not end in time.
    #[error("the command did not end within {} s; it may still be running in the container", .0.as_secs_f64())]
    ExecTimeout(Duration),
}

impl Error {
    /// True if the object to create exists already.
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Self::Refused { code: 409, reason, .. } if reason == "AlreadyExists")
    }

    /// True if another client has changed the object meanwhile, or the object has another uid than
    /// expected.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { code: 409, reason, .. } if reason == "Conflict")
    }

    /// True if the API server is overloaded.
    pub fn is_throttled(&self) -> bool {
        matches!(self, Self::Refused { code: 429, .. })
    }

    /// True if the API server, or the node behind it, was unreachable or overloaded. A retry may
    /// succeed.
    pub fn is_unavailable(&self) -> bool {
        matches!(
            self,
            Self::Unreachable(_) | Self::Timeout(_) | Self::Refused { code: 429 | 500..=599, .. }
        )
    }

    /// True if the object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: 404, .. })
    }
}
