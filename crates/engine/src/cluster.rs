//! The port to the API server.

pub mod api_server;
pub mod drivers;
pub mod events;
pub mod fake;
mod list_splitter;
pub mod watch;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::Item;
use futures::stream::BoxStream;
use serde_json::Value;

pub use api_server::ApiServer;
pub use fake::Fake;

use crate::item::Object;
use crate::resource::Resource;

/// What the engine asks of a cluster.
#[async_trait]
pub trait Cluster: Send + Sync {
    /// What the API server serves, and which of its groups did not answer.
    async fn discover(&self) -> Result<Discovery>;

    /// Lists objects, one by one as they arrive. An error ends the stream, unless it is
    /// [`Error::Object`], which is about one object.
    fn list(&self, resource: &Arc<Resource>, query: Query) -> BoxStream<'static, Result<Object>>;

    /// The same, and says whenever a page begins how many objects are to come, with those of the page. Not all
    /// API servers know, and none does where labels or fields select.
    fn list_announced(
        &self,
        resource: &Arc<Resource>,
        query: Query,
        announce: Announce,
    ) -> BoxStream<'static, Result<Object>> {
        drop(announce);
        self.list(resource, query)
    }

    /// One object; none if it is not there.
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

    /// Changes an object, or a part of it that has a door of its own, by a merge patch.
    async fn patch(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
        subresource: Subresource,
        patch: &Value,
    ) -> Result<Object>;

    /// Deletes an object; if a uid is given, only the one that has it. What finalizers keep is there
    /// for a while after that.
    async fn delete(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> Result<()>;

    /// Follows objects: says that it has begun, then which are there, then each change as it comes. When
    /// the connection breaks it begins anew, and says so. An error ends the stream, unless it is
    /// [`Error::Object`], which is about one object.
    fn watch(
        &self,
        resource: &Arc<Resource>,
        query: Query,
    ) -> BoxStream<'static, Result<WatchEvent>>;

    /// Runs a command in a container and waits for its end, for a while. An error that
    /// [is out of reach](Error::is_unavailable) means that it may not have been started.
    async fn exec(&self, exec: &Exec) -> Result<ExecOutcome>;
}

/// Hears how many objects of a list are to come.
pub type Announce = Box<dyn Fn(u64) + Send + Sync>;

/// What somebody hears who follows objects.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    /// It has begun, maybe anew. What went away before is not told.
    Started,
    /// An object is there, and like this.
    Applied(Object),
    /// An object is gone, and was like this.
    Deleted(Object),
}

/// Which part of an object a patch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subresource {
    /// Everything but what has a door of its own.
    None,
    /// The status, where it is a subresource.
    Status,
}

/// What a call of a cluster returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the API server serves.
#[derive(Clone, Debug, Default)]
pub struct Discovery {
    /// Every resource in every version, preferred versions first within a group.
    pub resources: Vec<Resource>,
    /// The groups that did not answer, with the reason: `metrics.k8s.io/v1beta1: …`.
    pub failed: Vec<String>,
}

/// Which objects to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Only those of a namespace.
    pub namespace: Option<String>,
    /// Only those that a label selector fits, as Kubernetes writes it; empty for all.
    pub label_selector: String,
    /// Only those with these fields, as Kubernetes writes it: `metadata.name=a`; empty for all.
    pub field_selector: String,
}

/// A command to run in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    /// The namespace of the pod.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container.
    pub container: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How long to wait for its end, once the way to the container is open.
    pub timeout: Duration,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecOutcome {
    /// What it wrote, as far as it is kept.
    pub output: String,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

/// Why the cluster did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server answered with an error.
    #[error("the API server answered {code} ({reason}): {message}")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// One word for it.
        reason: String,
        /// What it says.
        message: String,
    },
    /// It could not be reached, or the connection broke.
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
    /// It did not answer in time.
    #[error("the API server did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// A list took longer than the API server remembers the past.
    #[error("the list took so long that the API server cannot continue it")]
    Expired {
        /// Where the rest of it starts, at a later point in time.
        next: Option<String>,
    },
    /// It answered with something that is no answer.
    #[error("the API server's answer cannot be read: {0}")]
    Unreadable(String),
    /// One object of a list cannot be read.
    #[error("an object of the list cannot be read: {0}")]
    Object(#[from] crate::item::InvalidObject),
    /// A command did not end in time.
    #[error("the command did not end within {} s; it may still be running in the container", .0.as_secs_f64())]
    ExecTimeout(Duration),
}

impl Error {
    /// Whether what was to be created is there already.
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Self::Refused { code: 409, reason, .. } if reason == "AlreadyExists")
    }

    /// Whether somebody else has changed it meanwhile, or it is not the one that was meant.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { code: 409, reason, .. } if reason == "Conflict")
    }

    /// Whether the API server has too much to do.
    pub fn is_throttled(&self) -> bool {
        matches!(self, Self::Refused { code: 429, .. })
    }

    /// Whether the API server, or the node behind it, was not there or had too much to do. Another try
    /// may end better.
    pub fn is_unavailable(&self) -> bool {
        matches!(
            self,
            Self::Unreachable(_) | Self::Timeout(_) | Self::Refused { code: 429 | 500..=599, .. }
        )
    }

    /// Whether what was asked for is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: 404, .. })
    }
}
