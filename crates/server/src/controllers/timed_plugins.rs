//! Plugins that are called only behind the [fence](crate::fence), and whose calls are timed.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use bowline_api::{Backup, Restore};
use bowline_plugin::{
    BackupItemAction, BackupOutput, Code, DeleteItemAction, Encoded, Error, Item, ItemBlockAction,
    Name, OperationId, Progress, ResourceIdentifier, ResourceSelector, RestoreItemAction,
    RestoreOutput, Result,
};
use bowline_plugin_host::{self as plugin_host, Named};
use tracing::Instrument as _;

use crate::fence::Fence;
use crate::metrics::{CallOutcome, Method, Metrics};

/// Settings shared by all calls of plugins.
#[derive(Debug)]
pub(crate) struct PluginCalls {
    /// Metrics for the duration of calls.
    pub(crate) metrics: Arc<Metrics>,
    /// Fence that calls have to pass.
    pub(crate) fence: Fence,
}

/// A plugin whose calls are timed.
pub(crate) struct TimedPlugin<T: ?Sized> {
    pub(crate) plugin: Arc<T>,
    pub(crate) name: Name,
    pub(crate) calls: Arc<PluginCalls>,
}

impl<T: ?Sized> TimedPlugin<T> {
    fn new(named: &Named<T>, calls: &Arc<PluginCalls>) -> Self {
        let (plugin, name) = (Arc::clone(&named.plugin), named.name.clone());
        Self { plugin, name, calls: Arc::clone(calls) }
    }

    /// Makes a call if the fence allows it, and records its duration and result.
    pub(crate) async fn timed_call<R>(
        &self,
        method: Method,
        call: impl Future<Output = Result<R>>,
    ) -> Result<R> {
        let PluginCalls { metrics, fence } = &*self.calls;
        fence.check().map_err(|closed| Error::new(Code::Unavailable, closed.to_string()))?;
        let began = Instant::now();
        let span = tracing::info_span!(
            "plugin call",
            otel.name = format!("{} {}", self.name, method.as_str()),
        );
        let answer = call.instrument(span).await;
        let outcome = CallOutcome::of(&answer);
        metrics.observe_plugin_call(&self.name, method, outcome, began.elapsed());
        answer
    }
}

#[async_trait]
impl BackupItemAction for TimedPlugin<dyn BackupItemAction> {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        self.timed_call(Method::AppliesTo, self.plugin.applies_to()).await
    }

    async fn execute(&self, item: &Item, backup: &Encoded<Backup>) -> Result<BackupOutput> {
        self.timed_call(Method::Execute, self.plugin.execute(item, backup)).await
    }

    async fn progress(&self, id: &OperationId, backup: &Encoded<Backup>) -> Result<Progress> {
        self.timed_call(Method::Progress, self.plugin.progress(id, backup)).await
    }

    async fn cancel(&self, id: &OperationId, backup: &Encoded<Backup>) -> Result<()> {
        self.timed_call(Method::Cancel, self.plugin.cancel(id, backup)).await
    }
}

#[async_trait]
impl RestoreItemAction for TimedPlugin<dyn RestoreItemAction> {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        self.timed_call(Method::AppliesTo, self.plugin.applies_to()).await
    }

    async fn execute(
        &self,
        item: &Item,
        item_from_backup: &Item,
        restore: &Encoded<Restore>,
    ) -> Result<RestoreOutput> {
        let call = self.plugin.execute(item, item_from_backup, restore);
        self.timed_call(Method::Execute, call).await
    }

    async fn progress(&self, id: &OperationId, restore: &Encoded<Restore>) -> Result<Progress> {
        self.timed_call(Method::Progress, self.plugin.progress(id, restore)).await
    }

    async fn cancel(&self, id: &OperationId, restore: &Encoded<Restore>) -> Result<()> {
        self.timed_call(Method::Cancel, self.plugin.cancel(id, restore)).await
    }

    async fn are_additional_items_ready(
        &self,
        items: &[ResourceIdentifier],
        restore: &Encoded<Restore>,
    ) -> Result<bool> {
        let call = self.plugin.are_additional_items_ready(items, restore);
        self.timed_call(Method::AreAdditionalItemsReady, call).await
    }
}

#[async_trait]
impl DeleteItemAction for TimedPlugin<dyn DeleteItemAction> {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        self.timed_call(Method::AppliesTo, self.plugin.applies_to()).await
    }

    async fn execute(&self, item: &Item, backup: &Encoded<Backup>) -> Result<()> {
        self.timed_call(Method::Execute, self.plugin.execute(item, backup)).await
    }
}

#[async_trait]
impl ItemBlockAction for TimedPlugin<dyn ItemBlockAction> {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        self.timed_call(Method::AppliesTo, self.plugin.applies_to()).await
    }

    async fn get_related_items(
        &self,
        item: &Item,
        backup: &Encoded<Backup>,
    ) -> Result<Vec<ResourceIdentifier>> {
        self.timed_call(Method::GetRelatedItems, self.plugin.get_related_items(item, backup)).await
    }
}

/// Backup item actions of a run, timed.
pub(super) fn backup_item_actions(
    run: &plugin_host::PluginRun,
    calls: &Arc<PluginCalls>,
) -> Vec<Named<dyn BackupItemAction>> {
    let timed = |named: Named<dyn BackupItemAction>| {
        let plugin = Arc::new(TimedPlugin::new(&named, calls));
        Named { plugin: plugin as _, ..named }
    };
    run.backup_item_actions().into_iter().map(timed).collect()
}

/// Restore item actions of a run, timed.
pub(super) fn restore_item_actions(
    run: &plugin_host::PluginRun,
    calls: &Arc<PluginCalls>,
) -> Vec<Named<dyn RestoreItemAction>> {
    let timed = |named: Named<dyn RestoreItemAction>| {
        let plugin = Arc::new(TimedPlugin::new(&named, calls));
        Named { plugin: plugin as _, ..named }
    };
    run.restore_item_actions().into_iter().map(timed).collect()
}

/// Delete item actions of a run, timed.
pub(super) fn delete_item_actions(
    run: &plugin_host::PluginRun,
    calls: &Arc<PluginCalls>,
) -> Vec<Named<dyn DeleteItemAction>> {
    let timed = |named: Named<dyn DeleteItemAction>| {
        let plugin = Arc::new(TimedPlugin::new(&named, calls));
        Named { plugin: plugin as _, ..named }
    };
    run.delete_item_actions().into_iter().map(timed).collect()
}

/// Item block actions of a run, timed.
pub(super) fn item_block_actions(
    run: &plugin_host::PluginRun,
    calls: &Arc<PluginCalls>,
) -> Vec<Named<dyn ItemBlockAction>> {
    let timed = |named: Named<dyn ItemBlockAction>| {
        let plugin = Arc::new(TimedPlugin::new(&named, calls));
        Named { plugin: plugin as _, ..named }
    };
    run.item_block_actions().into_iter().map(timed).collect()
}
