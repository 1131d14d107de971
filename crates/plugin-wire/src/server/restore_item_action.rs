use async_trait::async_trait;
use bowline_plugin::RestoreItemAction;
use tonic::{Request, Response, Status};

use super::registry::Registry;
use super::{item, needs_version_2, operation, resource};
use crate::convert::{identifiers, to_identifiers, to_progress, to_selector, to_wait};
use crate::proto::{generated, v2};

type Answer<T> = Result<Response<T>, Status>;

#[async_trait]
impl generated::restore_item_action_server::RestoreItemAction for Registry<dyn RestoreItemAction> {
    async fn applies_to(
        &self,
        request: Request<generated::RestoreItemActionAppliesToRequest>,
    ) -> Answer<generated::RestoreItemActionAppliesToResponse> {
        self.call(&request.into_inner().plugin, |action| async move {
            let resource_selector = to_selector(action.applies_to().await?);
            Ok(generated::RestoreItemActionAppliesToResponse { resource_selector })
        })
        .await
    }

    async fn execute(
        &self,
        request: Request<generated::RestoreItemActionExecuteRequest>,
    ) -> Answer<generated::RestoreItemActionExecuteResponse> {
        let request = request.into_inner();
        self.call(&request.plugin, |action| async move {
            let (current, original) = (item(request.item)?, item(request.item_from_backup)?);
            let output = action.execute(&current, &original, &resource(request.restore)?).await?;
            if output.operation.is_some() {
                return Err(needs_version_2("started an operation"));
            }
            if output.wait.is_some() {
                return Err(needs_version_2("waits for additional items"));
            }
            Ok(generated::RestoreItemActionExecuteResponse {
                item: output.item.json().clone(),
                additional_items: to_identifiers(output.additional_items),
                skip_restore: output.skip_restore,
            })
        })
        .await
    }
}

#[async_trait]
impl v2::restore_item_action_server::RestoreItemAction for Registry<dyn RestoreItemAction> {
    async fn applies_to(
        &self,
        request: Request<v2::RestoreItemActionAppliesToRequest>,
    ) -> Answer<v2::RestoreItemActionAppliesToResponse> {
        self.call(&request.into_inner().plugin, |action| async move {
            let resource_selector = to_selector(action.applies_to().await?);
            Ok(v2::RestoreItemActionAppliesToResponse { resource_selector })
        })
        .await
    }

    async fn execute(
        &self,
        request: Request<v2::RestoreItemActionExecuteRequest>,
    ) -> Answer<v2::RestoreItemActionExecuteResponse> {
        let request = request.into_inner();
        self.call(&request.plugin, |action| async move {
            let (current, original) = (item(request.item)?, item(request.item_from_backup)?);
            let output = action.execute(&current, &original, &resource(request.restore)?).await?;
            Ok(v2::RestoreItemActionExecuteResponse {
                item: output.item.json().clone(),
                additional_items: to_identifiers(output.additional_items),
                skip_restore: output.skip_restore,
                operation_id: output.operation.map(|id| id.to_string()).unwrap_or_default(),
                wait_for_additional_items: output.wait.is_some(),
                additional_items_ready_timeout: to_wait(output.wait.and_then(|wait| wait.timeout)),
            })
        })
        .await
    }

    async fn progress(
        &self,
        request: Request<v2::RestoreItemActionProgressRequest>,
    ) -> Answer<v2::RestoreItemActionProgressResponse> {
        let request = request.into_inner();
        self.call(&request.plugin, |action| async move {
            let (id, restore) = (operation(request.operation_id)?, resource(request.restore)?);
            let progress = to_progress(action.progress(&id, &restore).await?);
            Ok(v2::RestoreItemActionProgressResponse { progress })
        })
        .await
    }

    async fn cancel(&self, request: Request<v2::RestoreItemActionCancelRequest>) -> Answer<()> {
        let request = request.into_inner();
        self.call(&request.plugin, |action| async move {
            let (id, restore) = (operation(request.operation_id)?, resource(request.restore)?);
            action.cancel(&id, &restore).await
        })
        .await
    }

    async fn are_additional_items_ready(
        &self,
        request: Request<v2::RestoreItemActionItemsReadyRequest>,
    ) -> Answer<v2::RestoreItemActionItemsReadyResponse> {
        let request = request.into_inner();
        self.call(&request.plugin, |action| async move {
            let items = identifiers(request.additional_items);
            let restore = resource(request.restore)?;
            let ready = action.are_additional_items_ready(&items, &restore).await?;
            Ok(v2::RestoreItemActionItemsReadyResponse { ready })
        })
        .await
    }
}
