//! Other users of the custom resource definitions: without them, all of their objects are deleted.

use std::collections::BTreeSet;

use bowline_api::crds;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, ResourceExt};

use crate::installation::{Installation, is_unknown_kind};
use crate::server_deployment::{self, is_server};

/// Objects of a kind that are read: one is enough to decide, the others only add names.
const PAGE_SIZE: u32 = 100;

/// Other namespaces that contain an object of any of the definitions, or a server.
pub(super) async fn find(installation: &Installation) -> anyhow::Result<BTreeSet<String>> {
    let elsewhere = format!("metadata.namespace!={}", installation.namespace());
    let mut namespaces = BTreeSet::new();
    for definition in crds::all() {
        let names = &definition.spec.names;
        for version in definition.spec.versions.iter().filter(|version| version.storage) {
            let kind = GroupVersionKind::gvk(&definition.spec.group, &version.name, &names.kind);
            let resource = ApiResource::from_gvk_with_plural(&kind, &names.plural);
            let api: Api<DynamicObject> = Api::all_with(installation.client(), &resource);
            let params = ListParams::default().fields(&elsewhere).limit(PAGE_SIZE);
            let request = async {
                match api.list_metadata(&params).await {
                    Err(error) if is_unknown_kind(&error) => Ok(Vec::new()),
                    listed => listed.map(|listed| listed.items),
                }
            };
            let doing = format!("list {} in other namespaces", names.plural);
            let found = installation.call_api(&doing, request).await?;
            namespaces.extend(found.iter().filter_map(ResourceExt::namespace));
        }
    }
    let (all, doing) = (installation.cluster_api(), "list other servers");
    let servers = server_deployment::list(installation, &all, doing, &elsewhere, is_server).await?;
    namespaces.extend(servers.iter().filter_map(ResourceExt::namespace));
    Ok(namespaces)
}
