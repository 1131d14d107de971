use async_trait::async_trait;
use bowline_api::Restore;
use bowline_plugin::{
    Encoded, Item, OperationId, Progress, ResourceIdentifier, ResourceSelector, RestoreItemAction,
    RestoreOutput, Result, Wait,
};

use super::{adapter, item, progress};
use crate::convert::{identifiers, selector, to_identifiers, wait};
use crate::proto::{generated, v2};
use crate::status::to_error;

adapter! {
    /// A [`RestoreItemAction`] of version 1. Such an action starts no operations, so `progress` is
    /// an error that says so, and `cancel` does nothing; no item waits, and additional items are
    /// always ready.
    RestoreItemActionV1, generated::restore_item_action_client::RestoreItemActionClient
}

adapter! {
    /// A [`RestoreItemAction`] of version 2.
    RestoreItemActionV2, v2::restore_item_action_client::RestoreItemActionClient
}

#[async_trait]
impl RestoreItemAction for RestoreItemActionV1 {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        let request = generated::RestoreItemActionAppliesToRequest { plugin: self.plugin() };
        let answer = self.stub().applies_to(request).await.map_err(to_error)?.into_inner();
        Ok(selector(answer.resource_selector))
    }

    async fn execute(
        &self,
        object: &Item,
        item_from_backup: &Item,
        restore: &Encoded<Restore>,
    ) -> Result<RestoreOutput> {
        let request = generated::RestoreItemActionExecuteRequest {
            plugin: self.plugin(),
            item: object.json().clone(),
            restore: restore.json(),
            item_from_backup: item_from_backup.json().clone(),
        };
        let answer = self.stub().execute(request).await.map_err(to_error)?.into_inner();
        Ok(RestoreOutput {
            item: item(&self.plugin, answer.item)?,
            additional_items: identifiers(answer.additional_items),
            skip_restore: answer.skip_restore,
            operation: None,
            wait: None,
        })
    }
}

#[async_trait]
impl RestoreItemAction for RestoreItemActionV2 {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        let request = v2::RestoreItemActionAppliesToRequest { plugin: self.plugin() };
        let answer = self.stub().applies_to(request).await.map_err(to_error)?.into_inner();
        Ok(selector(answer.resource_selector))
    }

    async fn execute(
        &self,
        object: &Item,
        item_from_backup: &Item,
        restore: &Encoded<Restore>,
    ) -> Result<RestoreOutput> {
        let request = v2::RestoreItemActionExecuteRequest {
            plugin: self.plugin(),
            item: object.json().clone(),
            restore: restore.json(),
            item_from_backup: item_from_backup.json().clone(),
        };
        let answer = self.stub().execute(request).await.map_err(to_error)?.into_inner();
        let timeout = wait(answer.additional_items_ready_timeout);
        Ok(RestoreOutput {
            item: item(&self.plugin, answer.item)?,
            additional_items: identifiers(answer.additional_items),
            skip_restore: answer.skip_restore,
            operation: OperationId::new(answer.operation_id),
            wait: answer.wait_for_additional_items.then_some(Wait { timeout }),
        })
    }

    async fn progress(
        &self,
        operation: &OperationId,
        restore: &Encoded<Restore>,
    ) -> Result<Progress> {
        let request = v2::RestoreItemActionProgressRequest {
            plugin: self.plugin(),
            operation_id: operation.to_string(),
            restore: restore.json(),
        };
        let answer = self.stub().progress(request).await.map_err(to_error)?.into_inner();
        progress(&self.plugin, answer.progress)
    }

    async fn cancel(&self, operation: &OperationId, restore: &Encoded<Restore>) -> Result<()> {
        let request = v2::RestoreItemActionCancelRequest {
            plugin: self.plugin(),
            operation_id: operation.to_string(),
            restore: restore.json(),
        };
        self.stub().cancel(request).await.map_err(to_error)?;
        Ok(())
    }

    async fn are_additional_items_ready(
        &self,
        items: &[ResourceIdentifier],
        restore: &Encoded<Restore>,
    ) -> Result<bool> {
        let request = v2::RestoreItemActionItemsReadyRequest {
            plugin: self.plugin(),
            restore: restore.json(),
            additional_items: to_identifiers(items.to_vec()),
        };
        let answer = self.stub().are_additional_items_ready(request).await.map_err(to_error)?;
        Ok(answer.into_inner().ready)
    }
}
