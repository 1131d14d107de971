use async_trait::async_trait;
use bowline_api::Backup;
use bowline_plugin::{Encoded, Item, ResourceSelector, Result};

use super::adapter;
use crate::convert::selector;
use crate::proto::generated;
use crate::status::to_error;

adapter! {
    /// A [`bowline_plugin::DeleteItemAction`].
    DeleteItemAction, generated::delete_item_action_client::DeleteItemActionClient
}

#[async_trait]
impl bowline_plugin::DeleteItemAction for DeleteItemAction {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        let request = generated::DeleteItemActionAppliesToRequest { plugin: self.plugin() };
        let answer = self.stub().applies_to(request).await.map_err(to_error)?.into_inner();
        Ok(selector(answer.resource_selector))
    }

    async fn execute(&self, item: &Item, backup: &Encoded<Backup>) -> Result<()> {
        let request = generated::DeleteItemActionExecuteRequest {
            plugin: self.plugin(),
            item: item.json().clone(),
            backup: backup.json(),
        };
        self.stub().execute(request).await.map_err(to_error)?;
        Ok(())
    }
}
