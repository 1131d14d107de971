//! Discovery of the resources that the API server serves.
//!
//! Input: aggregated discovery, or from older API servers one answer per group version. Output: one
//! list, and the groups that did not answer. A group whose own API server is unavailable must not
//! hide the others.

use kube::core::discovery::v2::{APIGroupDiscovery, APIGroupDiscoveryList};

use super::super::{Discovery, Error, Result};
use super::retry::FailedAttempt;
use super::{ApiServer, with_timeout};
use crate::resource::{GroupResource, Resource};

impl ApiServer {
    /// One attempt at discovery.
    pub(super) async fn discover_once(&self) -> Result<Discovery, FailedAttempt> {
        let core: APIGroupDiscoveryList =
            with_timeout(self.client.list_core_api_versions_aggregated()).await?;
        if core.items.is_empty() {
            return self.discover_one_by_one().await;
        }
        let groups = with_timeout(self.client.list_api_groups_aggregated()).await?;
        let mut discovery = Discovery::default();
        for group in core.items.into_iter().chain(groups.items) {
            add_group(&mut discovery, group);
        }
        Ok(discovery)
    }

    /// Discovery by one request per group version, for API servers before Kubernetes 1.27.
    async fn discover_one_by_one(&self) -> Result<Discovery, FailedAttempt> {
        let mut discovery = Discovery::default();
        let core = with_timeout(self.client.list_core_api_versions()).await?;
        let groups = with_timeout(self.client.list_api_groups()).await?;
        let mut group_versions: Vec<(String, String)> =
            core.versions.into_iter().map(|version| (String::new(), version)).collect();
        for group in groups.groups {
            let preferred = group.preferred_version.map(|preferred| preferred.version);
            let mut versions: Vec<String> =
                group.versions.into_iter().map(|version| version.version).collect();
            // Stable sort: the preferred version first, the others in their order.
            versions.sort_by_key(|version| Some(version) != preferred.as_ref());
            group_versions
                .extend(versions.into_iter().map(|version| (group.name.clone(), version)));
        }
        for (group, version) in group_versions {
            let listed = if group.is_empty() {
                with_timeout(self.client.list_core_api_resources(&version)).await
            } else {
                let name = format!("{group}/{version}");
                with_timeout(self.client.list_api_group_resources(&name)).await
            };
            match listed {
                Ok(list) => {
                    discovery.resources.extend(list.resources.into_iter().map(|found| Resource {
                        id: GroupResource::new(&group, found.name),
                        version: version.clone(),
                        kind: found.kind,
                        singular: found.singular_name,
                        short_names: found.short_names.unwrap_or_default(),
                        is_namespaced: found.namespaced,
                        verbs: found.verbs,
                    }));
                }
                // The API server itself is unreachable, not one of those behind it.
                Err(error @ Error::Unreachable(_)) => return Err(error.into()),
                Err(error) => discovery.failed.push(format!("{group}/{version}: {error}")),
            }
        }
        Ok(discovery)
    }
}

fn add_group(discovery: &mut Discovery, group: APIGroupDiscovery) {
    let name = group.metadata.and_then(|metadata| metadata.name).unwrap_or_default();
    for version in group.versions {
        let version_name = version.version.unwrap_or_default();
        if version.freshness.as_deref() == Some("Stale") {
            let reason = "the extension API server does not answer";
            discovery.failed.push(format!("{name}/{version_name}: {reason}"));
            continue;
        }
        for found in version.resources {
            let kind = found.response_kind.and_then(|kind| kind.kind).unwrap_or_default();
            discovery.resources.push(Resource {
                id: GroupResource::new(&name, found.resource.unwrap_or_default()),
                version: version_name.clone(),
                kind,
                singular: found.singular_resource.unwrap_or_default(),
                short_names: found.short_names,
                is_namespaced: found.scope.as_deref() == Some("Namespaced"),
                verbs: found.verbs,
            });
        }
    }
}
