//! CustomResourceDefinitions of snapshots, as the external-snapshotter project publishes them.

use std::time::Duration;

use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::apply::apply;
use crate::{Error, program};

const GROUP_SNAPSHOT_API_GROUP: &str = "groupsnapshot.storage.k8s.io";

/// Longest wait until the resource of a definition is served.
const SERVED_TIMEOUT: Duration = Duration::from_secs(30);

/// Installs the definitions, those of group snapshots only if `groups`, and waits until all are served.
pub(super) async fn install(client: &Client, groups: bool) -> Result<(), Error> {
    let folder = program::snapshot_definitions().await?;
    let mut resources = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(Error::io("list", &folder))? {
        let path = entry.map_err(Error::io("list", &folder))?.path();
        let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        let object: Value = serde_saphyr::from_str(&text)
            .map_err(|error| Error::io("read", &path)(std::io::Error::other(error.to_string())))?;
        // The folder contains more than definitions.
        let is_definition = object["kind"] == "CustomResourceDefinition";
        let is_of_groups = object["spec"]["group"] == GROUP_SNAPSHOT_API_GROUP;
        if is_definition && (groups || !is_of_groups) {
            let object = if is_of_groups { without_webhook(object) } else { object };
            resources.extend(storage_version(&object));
            apply(client, object).await?;
        }
    }
    for resource in resources {
        wait_until_served(client, &resource).await?;
    }
    Ok(())
}

/// The published definitions of groups convert between versions with a webhook, which does not exist here. The
/// controllers write `v1beta1`: stored as that version, nothing is lost.
fn without_webhook(mut definition: Value) -> Value {
    let spec = &mut definition["spec"];
    spec["conversion"] = json!({"strategy": "None"});
    for version in spec["versions"].as_array_mut().into_iter().flatten() {
        version["storage"] = json!(version["name"] == "v1beta1");
    }
    definition
}

/// Resource in its storage version.
fn storage_version(definition: &Value) -> Option<ApiResource> {
    let spec = &definition["spec"];
    let version = spec["versions"].as_array()?.iter().find(|version| version["storage"] == true)?;
    let kind = GroupVersionKind::gvk(
        spec["group"].as_str()?,
        version["name"].as_str()?,
        spec["names"]["kind"].as_str()?,
    );
    Some(ApiResource::from_gvk_with_plural(&kind, spec["names"]["plural"].as_str()?))
}

/// Waits until the resource can be listed. The controllers would wait too, but for seconds after each failed attempt.
async fn wait_until_served(client: &Client, resource: &ApiResource) -> Result<(), Error> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), resource);
    let deadline = Instant::now() + SERVED_TIMEOUT;
    loop {
        match api.list(&ListParams::default().limit(1)).await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() >= deadline => {
                return Err(Error::api(format!("list {}", resource.plural))(error));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_snapshots_are_stored_in_the_controllers_version() {
        let published = json!({"spec": {
            "group": GROUP_SNAPSHOT_API_GROUP,
            "names": {"kind": "VolumeGroupSnapshot", "plural": "volumegroupsnapshots"},
            "conversion": {"strategy": "Webhook", "webhook": {}},
            "versions": [
                {"name": "v1beta1", "served": true, "storage": false},
                {"name": "v1beta2", "served": true, "storage": true},
            ],
        }});
        let installed = without_webhook(published);
        assert_eq!(installed["spec"]["conversion"], json!({"strategy": "None"}));
        assert_eq!(installed["spec"]["versions"][1]["storage"], false);
        let resource = storage_version(&installed).unwrap();
        assert_eq!(resource.api_version, "groupsnapshot.storage.k8s.io/v1beta1");
        assert_eq!(resource.plural, "volumegroupsnapshots");
    }
}
