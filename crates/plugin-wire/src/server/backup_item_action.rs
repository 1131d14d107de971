use async_trait::async_trait;
use bowline_plugin::BackupItemAction;
use tonic::{Request, Response, Status};

use super::registry::Registry;
use super::{item, needs_version_2, operation, resource};
use crate::convert::{to_identifiers, to_progress, to_selector};
use crate::proto::{generated, v2};

type Answer<T> = Result<Response<T>, Status>;

#[async_trait]
impl generated::backup_item_action_server::BackupItemAction for Registry<dyn BackupItemAction> {
    async fn applies_to(
        &self,
        request: Request<generated::BackupItemActionAppliesToRequest>,
    ) -> Answer<generated::BackupItemActionAppliesToResponse> {
        self.call(&request.into_inner().plugin, |action| async move {
            let resource_selector = to_selector(action.applies_to().await?);
            Ok(generated::BackupItemActionAppliesToResponse { resource_selector })
        })
        .await
    }

    async fn execute(
        &self,
        request: Request<generated::ExecuteRequest>,
    ) -> Answer<generated::ExecuteResponse> {
        let request = request.into_inner();
        self.call(&request.plugin, |action| async move {
            let (item, backup) = (item(request.item)?, resource(request.backup)?);
            let output = action.execute(&item, &backup).await?;
            if output.operation.is_some() {
                return Err(needs_version_2("started an operation"));
            }
            Ok(generated::ExecuteResponse {
                item: output.item.json().clone(),
                additional_items: to_identifiers(output.additional_items),
            })
        })
        .await
    }
}

#[async_trait]
impl v2::backup_item_action_server::BackupItemAction for Registry<dyn BackupItemAction> {
    async fn applies_to(
        &self,
        request: Request<v2::BackupItemActionAppliesToRequest>,
    ) -> Answer<v2::BackupItemActionAppliesToResponse> {
        self.call(&request.into_inner().plugin, |action| async move {
            let resource_selector = to_selector(action.applies_to().await?);
            Ok(v2::BackupItemActionAppliesToResponse { resource_selector })
        })
        .await
    }

    async fn execute(&self, request: Request<v2::ExecuteRequest>) -> Answer<v2::ExecuteResponse> {
        let request = request.into_inner();
        self.call(&request.plugin, |action| async move {
            let (item, backup) = (item(request.item)?, resource(request.backup)?);
            let output = action.execute(&item, &backup).await?;
            Ok(v2::ExecuteResponse {
                item: output.item.json().clone(),
                additional_items: to_identifiers(output.additional_items),
                operation_id: output.operation.map(|id| id.to_string()).unwrap_or_default(),
                post_operation_items: to_identifiers(output.post_operation_items),
            })
        })
        .await
    }

    async fn progress(
        &self,
        request: Request<v2::BackupItemActionProgressRequest>,
    ) -> Answer<v2::BackupItemActionProgressResponse> {
        let request = request.into_inner();
        self.call(&request.plugin, |action| async move {
            let (id, backup) = (operation(request.operation_id)?, resource(request.backup)?);
            let progress = to_progress(action.progress(&id, &backup).await?);
            Ok(v2::BackupItemActionProgressResponse { progress })
        })
        .await
    }

    async fn cancel(&self, request: Request<v2::BackupItemActionCancelRequest>) -> Answer<()> {
        let request = request.into_inner();
        self.call(&request.plugin, |action| async move {
            let (id, backup) = (operation(request.operation_id)?, resource(request.backup)?);
            action.cancel(&id, &backup).await
        })
        .await
    }
}
