//! Adoption of objects that a plugin has created for a run.
//!
//! A plugin that writes its own VolumePluginBackup or VolumePluginRestore need not know the labels by which commands
//! find it, nor can it know its owner. The server adds both, and changes nothing else.

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::patch;

/// Number of attempts for an adoption that conflicts with another writer's change.
const MAX_ATTEMPTS: u32 = 3;

/// Labels and owner reference of the objects of a run.
#[derive(Clone, Debug)]
pub(super) struct RunOwnership {
    pub(super) labels: Vec<(String, String)>,
    pub(super) owner: Option<OwnerReference>,
}

impl RunOwnership {
    /// Patch that makes an object belong to the run; none if it already does.
    pub(super) fn missing_metadata(&self, metadata: &ObjectMeta) -> Option<Value> {
        let labels = metadata.labels.as_ref();
        let lacking: Map<String, Value> = self
            .labels
            .iter()
            .filter(|(key, value)| labels.and_then(|labels| labels.get(key)) != Some(value))
            .map(|(key, value)| (key.clone(), value.as_str().into()))
            .collect();
        let mut owners = metadata.owner_references.clone().unwrap_or_default();
        let lacks_owner = match &self.owner {
            Some(owner) if !owners.iter().any(|other| other.uid == owner.uid) => {
                owners.push(owner.clone());
                true
            }
            Some(_) | None => false,
        };
        if lacking.is_empty() && !lacks_owner {
            return None;
        }
        let mut change = json!({"metadata": {}});
        if !lacking.is_empty() {
            change["metadata"]["labels"] = Value::Object(lacking);
        }
        if lacks_owner {
            change["metadata"]["ownerReferences"] = json!(owners);
        }
        Some(change)
    }

    /// Makes an object belong to the run. None if it is gone, or another object has its name by now.
    pub(super) async fn adopt<K>(&self, api: &Api<K>, object: K) -> kube::Result<Option<K>>
    where
        K: Resource + Clone + DeserializeOwned + Debug,
    {
        let (name, uid) = (object.name_any(), object.uid());
        let mut current = object;
        let mut attempts = 1;
        loop {
            let Some(change) = self.missing_metadata(current.meta()) else {
                return Ok(Some(current));
            };
            // With the resource version, because a patch replaces all owners.
            let version = current.resource_version();
            match patch::patch(api, &name, version.as_deref(), change).await {
                Ok(adopted) => {
                    tracing::info!(name, "labeled a resource that a plugin created for this run");
                    return Ok(Some(adopted));
                }
                Err(error) if patch::is_not_found(&error) => return Ok(None),
                Err(error) if patch::is_conflict(&error) && attempts < MAX_ATTEMPTS => {
                    attempts += 1;
                }
                Err(error) => return Err(error),
            }
            match api.get_opt(&name).await?.filter(|found| found.uid() == uid) {
                Some(found) => current = found,
                None => return Ok(None),
            }
        }
    }
}

/// True if another writer than this server has written the status of an object.
pub(super) fn has_other_writer(object: &impl Resource) -> bool {
    let entries = object.meta().managed_fields.iter().flatten();
    let mut others = entries.filter(|entry| entry.manager.as_deref() != Some(patch::FIELD_MANAGER));
    others.any(|entry| {
        let fields = entry.fields_v1.as_ref();
        fields.is_some_and(|fields| fields.0.get("f:status").is_some())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(uid: &str) -> OwnerReference {
        OwnerReference { uid: uid.to_owned(), ..OwnerReference::default() }
    }

    #[test]
    fn missing_metadata_is_added_and_existing_kept() {
        let labels = vec![("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())];
        let belonging = RunOwnership { labels, owner: Some(owner("run")) };
        let bare = belonging.missing_metadata(&ObjectMeta::default()).unwrap();
        assert_eq!(bare["metadata"]["labels"], json!({"a": "1", "b": "2"}));
        assert_eq!(bare["metadata"]["ownerReferences"][0]["uid"], "run");
        let half = ObjectMeta {
            labels: Some(
                [("a".to_owned(), "1".to_owned()), ("c".to_owned(), "3".to_owned())].into(),
            ),
            owner_references: Some(vec![owner("other")]),
            ..ObjectMeta::default()
        };
        let half = belonging.missing_metadata(&half).unwrap();
        assert_eq!(half["metadata"]["labels"], json!({"b": "2"}));
        let uids: Vec<_> = half["metadata"]["ownerReferences"].as_array().unwrap().iter().collect();
        assert_eq!((&uids[0]["uid"], &uids[1]["uid"]), (&json!("other"), &json!("run")));
        let whole = ObjectMeta {
            labels: Some(belonging.labels.iter().cloned().collect()),
            owner_references: Some(vec![owner("run")]),
            ..ObjectMeta::default()
        };
        assert_eq!(belonging.missing_metadata(&whole), None, "so that nothing is written again");
    }
}
