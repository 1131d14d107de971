use async_trait::async_trait;
use bowline_api::Backup;
use bowline_plugin::{
    BackupItemAction, BackupOutput, Encoded, Item, OperationId, Progress, ResourceSelector, Result,
};

use super::{adapter, item, progress};
use crate::convert::{identifiers, selector};
use crate::proto::{generated, v2};
use crate::status::to_error;

adapter! {
    /// A [`BackupItemAction`] of version 1. Such an action starts no operations, so `progress` is
    /// an error that says so, and `cancel` does nothing.
    BackupItemActionV1, generated::backup_item_action_client::BackupItemActionClient
}

adapter! {
    /// A [`BackupItemAction`] of version 2.
    BackupItemActionV2, v2::backup_item_action_client::BackupItemActionClient
}

#[async_trait]
impl BackupItemAction for BackupItemActionV1 {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        let request = generated::BackupItemActionAppliesToRequest { plugin: self.plugin() };
        let answer = self.stub().applies_to(request).await.map_err(to_error)?.into_inner();
        Ok(selector(answer.resource_selector))
    }

    async fn execute(&self, object: &Item, backup: &Encoded<Backup>) -> Result<BackupOutput> {
        let request = generated::ExecuteRequest {
            plugin: self.plugin(),
            item: object.json().clone(),
            backup: backup.json(),
        };
        let answer = self.stub().execute(request).await.map_err(to_error)?.into_inner();
        Ok(BackupOutput {
            item: item(&self.plugin, answer.item)?,
            additional_items: identifiers(answer.additional_items),
            operation: None,
            post_operation_items: Vec::new(),
        })
    }
}

#[async_trait]
impl BackupItemAction for BackupItemActionV2 {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        let request = v2::BackupItemActionAppliesToRequest { plugin: self.plugin() };
        let answer = self.stub().applies_to(request).await.map_err(to_error)?.into_inner();
        Ok(selector(answer.resource_selector))
    }

    async fn execute(&self, object: &Item, backup: &Encoded<Backup>) -> Result<BackupOutput> {
        let request = v2::ExecuteRequest {
            plugin: self.plugin(),
            item: object.json().clone(),
            backup: backup.json(),
        };
        let answer = self.stub().execute(request).await.map_err(to_error)?.into_inner();
        Ok(BackupOutput {
            item: item(&self.plugin, answer.item)?,
            additional_items: identifiers(answer.additional_items),
            operation: OperationId::new(answer.operation_id),
            post_operation_items: identifiers(answer.post_operation_items),
        })
    }

    async fn progress(
        &self,
        operation: &OperationId,
        backup: &Encoded<Backup>,
    ) -> Result<Progress> {
        let request = v2::BackupItemActionProgressRequest {
            plugin: self.plugin(),
            operation_id: operation.to_string(),
            backup: backup.json(),
        };
        let answer = self.stub().progress(request).await.map_err(to_error)?.into_inner();
        progress(&self.plugin, answer.progress)
    }

    async fn cancel(&self, operation: &OperationId, backup: &Encoded<Backup>) -> Result<()> {
        let request = v2::BackupItemActionCancelRequest {
            plugin: self.plugin(),
            operation_id: operation.to_string(),
            backup: backup.json(),
        };
        self.stub().cancel(request).await.map_err(to_error)?;
        Ok(())
    }
}
