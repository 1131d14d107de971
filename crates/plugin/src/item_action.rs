//! Actions on items.

use std::time::Duration;

use async_trait::async_trait;
use bowline_api::{Backup, Restore};

use crate::id::id;
use crate::{Encoded, Error, Item, Progress, ResourceIdentifier, ResourceSelector, Result};

id! {
    /// The id of an operation that an action started, opaque to everything but the action.
    OperationId
}

/// Takes part in the backup of items.
#[async_trait]
pub trait BackupItemAction: Send + Sync {
    /// The items that the action applies to.
    async fn applies_to(&self) -> Result<ResourceSelector>;

    /// Called with an item before it is stored. Returns the item, changed or not, and its
    /// additional items.
    async fn execute(&self, item: &Item, backup: &Encoded<Backup>) -> Result<BackupOutput>;

    /// Progress of an operation that `execute` started, maybe in another process.
    async fn progress(
        &self,
        operation: &OperationId,
        backup: &Encoded<Backup>,
    ) -> Result<Progress> {
        let _ = (operation, backup);
        Err(Error::not_asynchronous())
    }

    /// Asks an operation to stop. Not an error if the operation has ended, or cannot be stopped.
    async fn cancel(&self, operation: &OperationId, backup: &Encoded<Backup>) -> Result<()> {
        let _ = (operation, backup);
        Ok(())
    }
}

/// Result of a [`BackupItemAction`] for an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupOutput {
    /// The item to store.
    pub item: Item,
    /// Items to back up before this one.
    pub additional_items: Vec<ResourceIdentifier>,
    /// The operation that was started, if one was.
    pub operation: Option<OperationId>,
    /// Items to fetch and store again once the operation has ended.
    pub post_operation_items: Vec<ResourceIdentifier>,
}

impl BackupOutput {
    /// The unchanged item and nothing else.
    pub fn unchanged(item: &Item) -> Self {
        Self {
            item: item.clone(),
            additional_items: Vec::new(),
            operation: None,
            post_operation_items: Vec::new(),
        }
    }
}

/// Takes part in the restore of items.
#[async_trait]
pub trait RestoreItemAction: Send + Sync {
    /// The items that the action applies to.
    async fn applies_to(&self) -> Result<ResourceSelector>;

    /// Called with an item before it is created, together with the item as it was backed up.
    async fn execute(
        &self,
        item: &Item,
        item_from_backup: &Item,
        restore: &Encoded<Restore>,
    ) -> Result<RestoreOutput>;

    /// Progress of an operation that `execute` started, maybe in another process.
    async fn progress(
        &self,
        operation: &OperationId,
        restore: &Encoded<Restore>,
    ) -> Result<Progress> {
        let _ = (operation, restore);
        Err(Error::not_asynchronous())
    }

    /// Asks an operation to stop. Not an error if the operation has ended, or cannot be stopped.
    async fn cancel(&self, operation: &OperationId, restore: &Encoded<Restore>) -> Result<()> {
        let _ = (operation, restore);
        Ok(())
    }

    /// True if the restored additional items are ready, so that the item itself can be restored.
    /// Polled after an output with [`RestoreOutput::wait`].
    async fn are_additional_items_ready(
        &self,
        items: &[ResourceIdentifier],
        restore: &Encoded<Restore>,
    ) -> Result<bool> {
        let _ = (items, restore);
        Ok(true)
    }
}

/// Result of a [`RestoreItemAction`] for an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreOutput {
    /// The item to create.
    pub item: Item,
    /// Items to restore before this one.
    pub additional_items: Vec<ResourceIdentifier>,
    /// True if the item must not be created.
    pub skip_restore: bool,
    /// The operation that was started, if any. It counts even if the item is skipped.
    pub operation: Option<OperationId>,
    /// Set if the item must wait until its additional items are ready.
    pub wait: Option<Wait>,
}

/// Wait of an item for its additional items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// The longest wait; the server's default if not given.
    pub timeout: Option<Duration>,
}

impl RestoreOutput {
    /// The unchanged item and nothing else.
    pub fn unchanged(item: &Item) -> Self {
        Self {
            item: item.clone(),
            additional_items: Vec::new(),
            skip_restore: false,
            operation: None,
            wait: None,
        }
    }

    /// Skips the restore of the item.
    pub fn skip(item: &Item) -> Self {
        Self { skip_restore: true, ..Self::unchanged(item) }
    }
}

/// Takes part in the deletion of a backup.
#[async_trait]
pub trait DeleteItemAction: Send + Sync {
    /// The items that the action applies to.
    async fn applies_to(&self) -> Result<ResourceSelector>;

    /// Called with an item whose backup is being deleted.
    async fn execute(&self, item: &Item, backup: &Encoded<Backup>) -> Result<()>;
}

/// Names the items that must be backed up together.
#[async_trait]
pub trait ItemBlockAction: Send + Sync {
    /// The items that the action applies to.
    async fn applies_to(&self) -> Result<ResourceSelector>;

    /// The items that must be in one block with this one.
    async fn get_related_items(
        &self,
        item: &Item,
        backup: &Encoded<Backup>,
    ) -> Result<Vec<ResourceIdentifier>>;
}
