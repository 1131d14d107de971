//! Small patches to objects in the cluster.
//!
//! All of them are merge patches: fields that a patch does not name keep their values, also those of
//! other writers. Velero's kinds have no status subresource, so the status is patched like any other field.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Field manager of the server's writes.
pub const FIELD_MANAGER: &str = "bowline";

/// Patches an object. With a resource version, the patch fails if the object was changed since; see
/// [`is_conflict`].
pub async fn patch<K>(
    api: &Api<K>,
    name: &str,
    resource_version: Option<&str>,
    mut change: Value,
) -> kube::Result<K>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    if let Some(version) = resource_version {
        change["metadata"]["resourceVersion"] = json!(version);
    }
    let params =
        PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    api.patch(name, &params, &Patch::Merge(change)).await
}

/// Patches fields of an object's status; `null` removes one. See [`patch`].
pub async fn patch_status<K>(
    api: &Api<K>,
    name: &str,
    resource_version: Option<&str>,
    status: Value,
) -> kube::Result<K>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    patch(api, name, resource_version, json!({ "status": status })).await
}

/// Patches fields of the status of the object with this uid. See [`patch_same`].
pub async fn patch_status_of<K>(api: &Api<K>, object: &K, status: Value) -> kube::Result<Option<K>>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    patch_same(api, object, json!({ "status": status })).await
}

/// Patches the object with this uid. `None` if it is deleted, or another object has its name by now.
pub async fn patch_same<K>(api: &Api<K>, object: &K, mut change: Value) -> kube::Result<Option<K>>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let (name, uid) = (object.meta().name.as_deref().unwrap_or_default(), &object.meta().uid);
    change["metadata"]["uid"] = json!(uid);
    let error = match patch(api, name, None, change).await {
        Ok(changed) => return Ok(Some(changed)),
        Err(error) if is_not_found(&error) => return Ok(None),
        Err(error) => error,
    };
    // API servers report a different uid with more than one status code.
    if matches!(&error, kube::Error::Api(status) if [409, 422].contains(&status.code)) {
        let found = api.get_opt(name).await?;
        if found.is_none_or(|found| found.meta().uid != *uid) {
            return Ok(None);
        }
    }
    Err(error)
}

/// Deletes the object with this uid and resource version. An object that is already deleted or
/// replaced is no error; one that was changed since is a conflict.
pub async fn delete_unchanged<K>(api: &Api<K>, object: &K) -> kube::Result<()>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let meta = object.meta();
    let preconditions =
        Preconditions { uid: meta.uid.clone(), resource_version: meta.resource_version.clone() };
    delete_if(api, meta.name.as_deref().unwrap_or_default(), preconditions).await
}

/// Deletes the object of this name, if it meets these conditions. An object that is already deleted
/// or replaced is no error; one that does not meet them is a conflict.
pub async fn delete_if<K>(
    api: &Api<K>,
    name: &str,
    preconditions: Preconditions,
) -> kube::Result<()>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(name, &params).await {
        Ok(_) => Ok(()),
        Err(error) if is_not_found(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Deletes the object with this uid, whatever changed in it since it was read. An object that is
/// already deleted or replaced is no error.
pub async fn delete_by_uid<K>(api: &Api<K>, object: &K) -> kube::Result<()>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let meta = object.meta();
    let preconditions = Preconditions { uid: meta.uid.clone(), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(meta.name.as_deref().unwrap_or_default(), &params).await {
        Ok(_) => Ok(()),
        // Only the uid can be in conflict.
        Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Parameters for the creation of objects.
pub fn post_params() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

/// True if another client changed the object meanwhile.
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "Conflict")
}

/// True if an object of this name exists already.
pub fn is_already_exists(error: &kube::Error) -> bool {
    matches!(
        error,
        kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists"
    )
}

/// True if the object, or its kind, does not exist.
pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// True if a retry cannot succeed without intervention: the API server was reachable, and rejected
/// the request.
pub fn is_permanent(error: &kube::Error) -> bool {
    // Authentication may work again soon, and a list that has expired between two pages starts from
    // the beginning; the other codes ask for a retry.
    let retryable_codes = [401, 408, 409, 410, 429];
    matches!(
        error,
        kube::Error::Api(status)
            if (400..500).contains(&status.code) && !retryable_codes.contains(&status.code)
    )
}

/// True if the server lacks the permission.
pub fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// Time as Velero writes it: to the second.
pub fn truncate_to_second(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unretryable_api_errors_are_permanent() {
        for (code, expected) in [
            (400, true),
            (401, false),
            (403, true),
            (404, true),
            (409, false),
            (410, false),
            (429, false),
            (500, false),
            (503, false),
        ] {
            let mut status = kube::core::Status::failure("no", "reason");
            status.code = code;
            assert_eq!(is_permanent(&kube::Error::Api(Box::new(status))), expected, "{code}");
        }
    }
}
