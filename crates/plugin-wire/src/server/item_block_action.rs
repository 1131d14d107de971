use async_trait::async_trait;
use bowline_plugin::ItemBlockAction;
use tonic::{Request, Response, Status};

use super::registry::Registry;
use super::{item, resource};
use crate::convert::{to_identifiers, to_selector};
use crate::proto::v1::{
    self, ItemBlockActionAppliesToRequest, ItemBlockActionAppliesToResponse,
    ItemBlockActionGetRelatedItemsRequest, ItemBlockActionGetRelatedItemsResponse,
};

#[async_trait]
impl v1::item_block_action_server::ItemBlockAction for Registry<dyn ItemBlockAction> {
    async fn applies_to(
        &self,
        request: Request<ItemBlockActionAppliesToRequest>,
    ) -> Result<Response<ItemBlockActionAppliesToResponse>, Status> {
        self.call(&request.into_inner().plugin, |action| async move {
            let resource_selector = to_selector(action.applies_to().await?);
            Ok(ItemBlockActionAppliesToResponse { resource_selector })
        })
        .await
    }

    async fn get_related_items(
        &self,
        request: Request<ItemBlockActionGetRelatedItemsRequest>,
    ) -> Result<Response<ItemBlockActionGetRelatedItemsResponse>, Status> {
        let request = request.into_inner();
        self.call(&request.plugin, |action| async move {
            let (item, backup) = (item(request.item)?, resource(request.backup)?);
            let related_items = to_identifiers(action.get_related_items(&item, &backup).await?);
            Ok(ItemBlockActionGetRelatedItemsResponse { related_items })
        })
        .await
    }
}
