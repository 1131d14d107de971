use async_trait::async_trait;
use bowline_api::Backup;
use bowline_plugin::{Encoded, Item, ResourceIdentifier, ResourceSelector, Result};

use super::adapter;
use crate::convert::{identifiers, selector};
use crate::proto::v1;
use crate::status::to_error;

adapter! {
    /// A [`bowline_plugin::ItemBlockAction`].
    ItemBlockAction, v1::item_block_action_client::ItemBlockActionClient
}

#[async_trait]
impl bowline_plugin::ItemBlockAction for ItemBlockAction {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        let request = v1::ItemBlockActionAppliesToRequest { plugin: self.plugin() };
        let answer = self.stub().applies_to(request).await.map_err(to_error)?.into_inner();
        Ok(selector(answer.resource_selector))
    }

    async fn get_related_items(
        &self,
        item: &Item,
        backup: &Encoded<Backup>,
    ) -> Result<Vec<ResourceIdentifier>> {
        let request = v1::ItemBlockActionGetRelatedItemsRequest {
            plugin: self.plugin(),
            item: item.json().clone(),
            backup: backup.json(),
        };
        let answer = self.stub().get_related_items(request).await.map_err(to_error)?.into_inner();
        Ok(identifiers(answer.related_items))
    }
}
