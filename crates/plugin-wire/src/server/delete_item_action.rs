use async_trait::async_trait;
use bowline_plugin::DeleteItemAction;
use tonic::{Request, Response, Status};

use super::registry::Registry;
use super::{item, resource};
use crate::convert::to_selector;
use crate::proto::generated::{
    self, DeleteItemActionAppliesToRequest, DeleteItemActionAppliesToResponse,
    DeleteItemActionExecuteRequest, Empty,
};

#[async_trait]
impl generated::delete_item_action_server::DeleteItemAction for Registry<dyn DeleteItemAction> {
    async fn applies_to(
        &self,
        request: Request<DeleteItemActionAppliesToRequest>,
    ) -> Result<Response<DeleteItemActionAppliesToResponse>, Status> {
        self.call(&request.into_inner().plugin, |action| async move {
            let resource_selector = to_selector(action.applies_to().await?);
            Ok(DeleteItemActionAppliesToResponse { resource_selector })
        })
        .await
    }

    async fn execute(
        &self,
        request: Request<DeleteItemActionExecuteRequest>,
    ) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        self.call(&request.plugin, |action| async move {
            action.execute(&item(request.item)?, &resource(request.backup)?).await?;
            Ok(Empty {})
        })
        .await
    }
}
