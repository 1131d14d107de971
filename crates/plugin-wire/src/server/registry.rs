//! Implementations by name.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bowline_plugin::{Code, Error, Kind, Name, Result};
use futures_util::FutureExt as _;
use tonic::{Response, Status};

use super::AlreadyRegistered;
use crate::status::from_error;

/// The implementations of one kind. Also the gRPC service of that kind.
pub(crate) struct Registry<T: ?Sized> {
    kind: Kind,
    plugins: BTreeMap<Name, Arc<T>>,
}

impl<T: ?Sized> Registry<T> {
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, plugins: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, name: Name, plugin: Arc<T>) -> Result<(), AlreadyRegistered> {
        if self.plugins.contains_key(&name) {
            return Err(AlreadyRegistered { kind: self.kind, name });
        }
        self.plugins.insert(name, plugin);
        Ok(())
    }

    /// The plugins, ordered by name.
    pub(crate) fn list(&self) -> impl Iterator<Item = (Kind, &Name)> {
        self.plugins.keys().map(|name| (self.kind, name))
    }

    /// Calls the plugin of this name, and catches its panics.
    pub(crate) async fn call<R, F>(
        &self,
        name: &str,
        work: impl FnOnce(Arc<T>) -> F + Send,
    ) -> Result<Response<R>, Status>
    where
        T: Send + Sync,
        F: Future<Output = Result<R>> + Send,
    {
        let plugin = self.find(name).map_err(from_error)?;
        let work = AssertUnwindSafe(async { work(plugin).await }).catch_unwind();
        let result = work.await.unwrap_or_else(|panic| Err(panic_error(&*panic)));
        result.map(Response::new).map_err(from_error)
    }

    fn find(&self, name: &str) -> Result<Arc<T>> {
        let known = name.parse().ok().and_then(|name: Name| self.plugins.get(&name));
        let unknown = || {
            let kind = self.kind;
            Error::unknown(format!("{kind} plugin: {name} was not found or has an invalid name"))
        };
        known.cloned().ok_or_else(unknown)
    }
}

/// The error of Velero's framework for a panic.
pub(crate) fn panic_error(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error::new(Code::Aborted, format!("plugin panicked: {}", text.unwrap_or("no message")))
}
