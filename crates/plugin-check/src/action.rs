//! An item action of any kind, called with an item, a Backup and a Restore.

use std::sync::Arc;

use bowline_api::{Backup, Restore};
use bowline_plugin::{
    BackupItemAction, DeleteItemAction, Encoded, Error, Item, ItemBlockAction, Kind, OperationId,
    Progress, ResourceIdentifier, ResourceSelector, RestoreItemAction, Result,
};
use bowline_plugin_host::Handle;

use super::{Input, sample};

/// An item action of any kind.
pub(super) enum AnyAction {
    Backup(Arc<dyn BackupItemAction>),
    Restore(Arc<dyn RestoreItemAction>),
    Delete(Arc<dyn DeleteItemAction>),
    Block(Arc<dyn ItemBlockAction>),
}

/// Input of an action.
pub(super) struct ActionInput {
    pub(super) item: Item,
    backup: Encoded<Backup>,
    restore: Encoded<Restore>,
}

/// Output of an action.
pub(super) struct ActionOutput {
    /// The item, if actions of its kind return one.
    pub(super) item: Option<Item>,
    /// The operation that the action started, if any.
    pub(super) operation: Option<OperationId>,
}

impl ActionInput {
    pub(super) fn new(input: &Input) -> Self {
        let (backup, restore) = (sample::backup(input), sample::restore(input));
        Self { item: input.item.clone(), backup, restore }
    }
}

impl AnyAction {
    /// The action behind a handle; `None` if the kind is not an action.
    pub(super) fn new(handle: Handle, kind: Kind) -> Option<Self> {
        match kind {
            Kind::BackupItemAction | Kind::BackupItemActionV2 => {
                Some(Self::Backup(Arc::new(handle)))
            }
            Kind::RestoreItemAction | Kind::RestoreItemActionV2 => {
                Some(Self::Restore(Arc::new(handle)))
            }
            Kind::DeleteItemAction => Some(Self::Delete(Arc::new(handle))),
            Kind::ItemBlockAction => Some(Self::Block(Arc::new(handle))),
            Kind::VolumeSnapshotter | Kind::VolumeSnapshotterV2 | Kind::ObjectStore => None,
        }
    }

    pub(super) async fn applies_to(&self) -> Result<ResourceSelector> {
        match self {
            Self::Backup(action) => action.applies_to().await,
            Self::Restore(action) => action.applies_to().await,
            Self::Delete(action) => action.applies_to().await,
            Self::Block(action) => action.applies_to().await,
        }
    }

    /// Calls the action for the item.
    pub(super) async fn execute(
        &self,
        ActionInput { item, backup, restore }: &ActionInput,
    ) -> Result<ActionOutput> {
        match self {
            Self::Backup(action) => {
                let output = action.execute(item, backup).await?;
                Ok(ActionOutput { item: Some(output.item), operation: output.operation })
            }
            Self::Restore(action) => {
                let output = action.execute(item, item, restore).await?;
                Ok(ActionOutput { item: Some(output.item), operation: output.operation })
            }
            Self::Delete(action) => {
                action.execute(item, backup).await?;
                Ok(ActionOutput { item: None, operation: None })
            }
            Self::Block(action) => {
                action.get_related_items(item, backup).await?;
                Ok(ActionOutput { item: None, operation: None })
            }
        }
    }

    pub(super) async fn progress(
        &self,
        operation: &OperationId,
        input: &ActionInput,
    ) -> Result<Progress> {
        match self {
            Self::Backup(action) => action.progress(operation, &input.backup).await,
            Self::Restore(action) => action.progress(operation, &input.restore).await,
            Self::Delete(_) | Self::Block(_) => Err(Error::not_asynchronous()),
        }
    }

    pub(super) async fn cancel(&self, operation: &OperationId, input: &ActionInput) -> Result<()> {
        match self {
            Self::Backup(action) => action.cancel(operation, &input.backup).await,
            Self::Restore(action) => action.cancel(operation, &input.restore).await,
            Self::Delete(_) | Self::Block(_) => Err(Error::not_asynchronous()),
        }
    }

    pub(super) async fn are_additional_items_ready(
        &self,
        items: &[ResourceIdentifier],
        input: &ActionInput,
    ) -> Result<bool> {
        match self {
            Self::Restore(action) => action.are_additional_items_ready(items, &input.restore).await,
            Self::Backup(_) | Self::Delete(_) | Self::Block(_) => Ok(true),
        }
    }
}
