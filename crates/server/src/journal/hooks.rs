//! Hooks of a Backup, saved for as long as its journal exists.
//!
//! A Backup can be deleted, or can expire, while one of its pods is frozen and unreachable. A later
//! thaw needs the hooks, and hooks in the spec of the Backup are deleted with it. So they are saved
//! beside the journal, in a ConfigMap of the server's namespace, from before the first pod is
//! frozen until the journal is removed. They are used only if the Backup no longer exists.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline_api::backup::BackupHooks;
use bowline_api::label;
use bowline_store::name::RunUid;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DeleteParams;
use kube::{Api, Client};
use tokio::time::timeout;

use crate::patch;

/// Key of the hooks in the ConfigMap.
const KEY: &str = "hooks.json";
/// Label with the run of the hooks.
const LABEL: &str = "bowline.io/hooks-of";
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Reason why hooks could not be saved, read or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SavedHooksError {
    #[error("the hooks cannot be encoded")]
    Encode(#[source] serde_json::Error),
    #[error("the API server rejected the request")]
    Api(#[from] kube::Error),
    #[error("the API server does not answer")]
    Timeout,
    // The text may contain a password, and the error of the decoder may quote it.
    #[error("ConfigMap {0} contains no hooks")]
    Invalid(String),
}

/// Saved hooks of a run.
#[derive(Clone, Debug)]
pub(crate) struct SavedHooks {
    api: Api<ConfigMap>,
    run: RunUid,
}

impl SavedHooks {
    pub(crate) fn new(client: Client, namespace: &str, run: &RunUid) -> Self {
        Self { api: Api::namespaced(client, namespace), run: run.clone() }
    }

    /// True if there is a post-hook, which can thaw.
    pub(crate) fn has_post_hooks(hooks: &BackupHooks) -> bool {
        hooks.resources.iter().any(|hooks| !hooks.post.is_empty())
    }

    /// Saves hooks, unless they are saved already.
    pub(crate) async fn save(&self, hooks: &BackupHooks) -> Result<(), SavedHooksError> {
        let text = serde_json::to_string(hooks).map_err(SavedHooksError::Encode)?;
        let labels = [(LABEL, self.run.as_str()), (label::EXCLUDE_FROM_BACKUP, "true")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let config_map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(self.name()),
                labels: Some(labels.into()),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([(KEY.to_owned(), text)])),
            ..ConfigMap::default()
        };
        match timeout(REQUEST_TIMEOUT, self.api.create(&patch::post_params(), &config_map)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if patch::is_already_exists(&error) => Ok(()),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(SavedHooksError::Timeout),
        }
    }

    /// Saved hooks, if there are any.
    pub(crate) async fn read(&self) -> Result<Option<BackupHooks>, SavedHooksError> {
        let found = timeout(REQUEST_TIMEOUT, self.api.get_opt(&self.name())).await;
        let found = found.map_err(|_| SavedHooksError::Timeout)?;
        let Some(config_map) = found? else { return Ok(None) };
        let text = config_map.data.and_then(|mut data| data.remove(KEY)).unwrap_or_default();
        let read = serde_json::from_str(&text);
        read.map(Some).map_err(|_| SavedHooksError::Invalid(self.name()))
    }

    /// Removes the saved hooks.
    pub(crate) async fn remove(&self) -> Result<(), SavedHooksError> {
        match timeout(REQUEST_TIMEOUT, self.api.delete(&self.name(), &DeleteParams::default()))
            .await
        {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if patch::is_not_found(&error) => Ok(()),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(SavedHooksError::Timeout),
        }
    }

    fn name(&self) -> String {
        format!("bowline-hooks-{}", self.run)
    }
}
