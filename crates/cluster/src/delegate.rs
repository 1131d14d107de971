//! A cluster that passes calls on to another one, for fakes that change some of them.

use std::sync::Arc;

use async_trait::async_trait;
use bowline_plugin::Item;
use futures::stream::BoxStream;
use serde_json::Value;

use crate::{
    Cluster, Discovery, Exec, ExecOutcome, Object, Query, Resource, Result, Subresource, WatchEvent,
};

/// Calls of a cluster, passed on unless they are replaced. Each type with this trait is a [`Cluster`].
#[async_trait]
#[expect(missing_docs, reason = "the methods are those of `Cluster`")]
pub trait Delegate: Send + Sync {
    /// The cluster that gets the calls.
    fn inner(&self) -> &dyn Cluster;

    async fn discover(&self) -> Result<Discovery> {
        self.inner().discover().await
    }

    async fn get(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Object>> {
        self.inner().get(resource, namespace, name).await
    }

    async fn create(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        item: &Item,
    ) -> Result<Object> {
        self.inner().create(resource, namespace, item).await
    }

    async fn exec(&self, exec: &Exec) -> Result<ExecOutcome> {
        self.inner().exec(exec).await
    }
}

#[async_trait]
impl<T: Delegate> Cluster for T {
    async fn discover(&self) -> Result<Discovery> {
        Delegate::discover(self).await
    }

    fn list(&self, resource: &Arc<Resource>, query: Query) -> BoxStream<'static, Result<Object>> {
        self.inner().list(resource, query)
    }

    async fn get(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Object>> {
        Delegate::get(self, resource, namespace, name).await
    }

    async fn create(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        item: &Item,
    ) -> Result<Object> {
        Delegate::create(self, resource, namespace, item).await
    }

    async fn patch(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
        subresource: Subresource,
        patch: &Value,
    ) -> Result<Object> {
        self.inner().patch(resource, namespace, name, subresource, patch).await
    }

    async fn delete(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> Result<()> {
        self.inner().delete(resource, namespace, name, uid).await
    }

    fn watch(
        &self,
        resource: &Arc<Resource>,
        query: Query,
    ) -> BoxStream<'static, Result<WatchEvent>> {
        self.inner().watch(resource, query)
    }

    async fn exec(&self, exec: &Exec) -> Result<ExecOutcome> {
        Delegate::exec(self, exec).await
    }
}
