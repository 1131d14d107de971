//! Item actions in a process.

use async_trait::async_trait;
use bowline_api::{Backup, Restore};
use bowline_plugin::{
    BackupItemAction, BackupOutput, DeleteItemAction, Encoded, Item, ItemBlockAction, Kind,
    OperationId, Progress, ResourceIdentifier, ResourceSelector, RestoreItemAction, RestoreOutput,
    Result,
};
use bowline_plugin_wire::{Connection, client};

use super::Handle;

impl Handle {
    fn backup_item_action(&self, connection: Connection) -> Box<dyn BackupItemAction> {
        match self.kind {
            Kind::BackupItemActionV2 => {
                Box::new(client::BackupItemActionV2::new(connection, self.name.clone()))
            }
            _ => Box::new(client::BackupItemActionV1::new(connection, self.name.clone())),
        }
    }

    fn restore_item_action(&self, connection: Connection) -> Box<dyn RestoreItemAction> {
        match self.kind {
            Kind::RestoreItemActionV2 => {
                Box::new(client::RestoreItemActionV2::new(connection, self.name.clone()))
            }
            _ => Box::new(client::RestoreItemActionV1::new(connection, self.name.clone())),
        }
    }
}

#[async_trait]
impl BackupItemAction for Handle {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        let call =
            |connection| async move { self.backup_item_action(connection).applies_to().await };
        self.slot.call(self.applies_to_call(), call).await
    }

    async fn execute(&self, item: &Item, backup: &Encoded<Backup>) -> Result<BackupOutput> {
        let call = |connection| async move {
            self.backup_item_action(connection).execute(item, backup).await
        };
        self.slot.call(self.execute_call("Execute"), call).await
    }

    async fn progress(
        &self,
        operation: &OperationId,
        backup: &Encoded<Backup>,
    ) -> Result<Progress> {
        let call = |connection| async move {
            self.backup_item_action(connection).progress(operation, backup).await
        };
        self.slot.call(self.metadata_call("Progress"), call).await
    }

    async fn cancel(&self, operation: &OperationId, backup: &Encoded<Backup>) -> Result<()> {
        let call = |connection| async move {
            self.backup_item_action(connection).cancel(operation, backup).await
        };
        self.slot.call(self.metadata_call("Cancel"), call).await
    }
}

#[async_trait]
impl RestoreItemAction for Handle {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        let call =
            |connection| async move { self.restore_item_action(connection).applies_to().await };
        self.slot.call(self.applies_to_call(), call).await
    }

    async fn execute(
        &self,
        item: &Item,
        item_from_backup: &Item,
        restore: &Encoded<Restore>,
    ) -> Result<RestoreOutput> {
        let call = |connection| async move {
            self.restore_item_action(connection).execute(item, item_from_backup, restore).await
        };
        self.slot.call(self.execute_call("Execute"), call).await
    }

    async fn progress(
        &self,
        operation: &OperationId,
        restore: &Encoded<Restore>,
    ) -> Result<Progress> {
        let call = |connection| async move {
            self.restore_item_action(connection).progress(operation, restore).await
        };
        self.slot.call(self.metadata_call("Progress"), call).await
    }

    async fn cancel(&self, operation: &OperationId, restore: &Encoded<Restore>) -> Result<()> {
        let call = |connection| async move {
            self.restore_item_action(connection).cancel(operation, restore).await
        };
        self.slot.call(self.metadata_call("Cancel"), call).await
    }

    async fn are_additional_items_ready(
        &self,
        items: &[ResourceIdentifier],
        restore: &Encoded<Restore>,
    ) -> Result<bool> {
        let call = |connection| async move {
            self.restore_item_action(connection).are_additional_items_ready(items, restore).await
        };
        self.slot.call(self.metadata_call("AreAdditionalItemsReady"), call).await
    }
}

#[async_trait]
impl DeleteItemAction for Handle {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        let call = |connection| async move {
            client::DeleteItemAction::new(connection, self.name.clone()).applies_to().await
        };
        self.slot.call(self.applies_to_call(), call).await
    }

    async fn execute(&self, item: &Item, backup: &Encoded<Backup>) -> Result<()> {
        let call = |connection| async move {
            client::DeleteItemAction::new(connection, self.name.clone()).execute(item, backup).await
        };
        self.slot.call(self.execute_call("Execute"), call).await
    }
}

#[async_trait]
impl ItemBlockAction for Handle {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        let call = |connection| async move {
            client::ItemBlockAction::new(connection, self.name.clone()).applies_to().await
        };
        self.slot.call(self.applies_to_call(), call).await
    }

    async fn get_related_items(
        &self,
        item: &Item,
        backup: &Encoded<Backup>,
    ) -> Result<Vec<ResourceIdentifier>> {
        let call = |connection| async move {
            let action = client::ItemBlockAction::new(connection, self.name.clone());
            action.get_related_items(item, backup).await
        };
        self.slot.call(self.execute_call("GetRelatedItems"), call).await
    }
}
