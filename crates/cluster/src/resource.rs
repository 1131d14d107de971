//! Resources that the API server serves.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Resource without its version, as users, plugins and archives name it: `deployments.apps`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupResource {
    /// API group; empty for the core group.
    pub group: String,
    /// Plural name of the resource.
    pub resource: String,
}

impl GroupResource {
    /// Resource of a group.
    pub fn new(group: impl Into<String>, resource: impl Into<String>) -> Self {
        Self { group: group.into(), resource: resource.into() }
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            f.write_str(&self.resource)
        } else {
            write!(f, "{}.{}", self.resource, self.group)
        }
    }
}

/// Resource that the API server serves, in one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Group and plural name.
    pub id: GroupResource,
    /// Version of the API: `v1`.
    pub version: String,
    /// Kind of its objects.
    pub kind: String,
    /// Singular name.
    pub singular: String,
    /// Short names.
    pub short_names: Vec<String>,
    /// True if namespaced, false if cluster-scoped.
    pub is_namespaced: bool,
    /// Supported verbs.
    pub verbs: Vec<String>,
}

impl Resource {
    /// `v1`, or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.id.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.id.group, self.version)
        }
    }

    /// True for this resource of the core group.
    pub fn is_core(&self, resource: &str) -> bool {
        self.id.group.is_empty() && self.id.resource == resource
    }

    fn has_name(&self, name: &str) -> bool {
        self.id.resource == name
            || self.singular == name
            || self.short_names.iter().any(|short| short == name)
    }
}

/// Resources that can be backed up and restored: each in the preferred version of the API server,
/// in the order of its groups.
#[derive(Clone, Debug, Default)]
pub struct Resources {
    all: Vec<Arc<Resource>>,
    by_id: HashMap<GroupResource, Arc<Resource>>,
}

impl Resources {
    /// Collects resources in order; of a resource in several versions the first counts.
    pub fn new(resources: impl IntoIterator<Item = Resource>) -> Self {
        let mut known = Self::default();
        for resource in resources {
            if !known.by_id.contains_key(&resource.id) {
                let resource = Arc::new(resource);
                known.by_id.insert(resource.id.clone(), Arc::clone(&resource));
                known.all.push(resource);
            }
        }
        known
    }

    /// All resources, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.all.iter()
    }

    /// Resource with this exact name.
    pub fn find(&self, id: &GroupResource) -> Option<&Arc<Resource>> {
        self.by_id.get(id)
    }

    /// Resource of the core group with this exact name.
    pub fn core(&self, resource: &str) -> Option<&Arc<Resource>> {
        self.find(&GroupResource::new("", resource))
    }

    /// Resource that a user means: by its plural, singular or short name, in upper or lower case,
    /// with its group, the beginning of it, or without it.
    pub fn resolve(&self, name: &str) -> Option<&Arc<Resource>> {
        let name = name.to_ascii_lowercase();
        let (resource, group) = name.split_once('.').unwrap_or((&name, ""));
        let in_group = |group: &str, exactly: bool| {
            self.all.iter().find(|known| {
                let fits = if exactly {
                    known.id.group == group
                } else {
                    known.id.group.starts_with(group)
                };
                fits && known.has_name(resource)
            })
        };
        in_group(group, true).or_else(|| in_group(group, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(group: &str, version: &str, plural: &str, short: &[&str]) -> Resource {
        Resource {
            id: GroupResource::new(group, plural),
            version: version.into(),
            kind: plural.trim_end_matches('s').into(),
            singular: plural.trim_end_matches('s').into(),
            short_names: short.iter().map(ToString::to_string).collect(),
            is_namespaced: true,
            verbs: Vec::new(),
        }
    }

    #[test]
    fn users_may_name_a_resource_in_many_ways() {
        let known = Resources::new([
            resource("", "v1", "pods", &["po"]),
            resource("", "v1", "events", &["ev"]),
            resource("apps", "v1", "deployments", &["deploy"]),
            resource("events.k8s.io", "v1", "events", &["ev"]),
            resource("example.io", "v2", "pods", &[]),
        ]);
        for (name, found) in [
            ("pods", Some("pods")),
            ("po", Some("pods")),
            ("Pod", Some("pods")),
            ("deploy", Some("deployments.apps")),
            ("deployments.apps", Some("deployments.apps")),
            ("deployment.app", Some("deployments.apps")),
            ("events", Some("events")),
            ("events.events.k8s.io", Some("events.events.k8s.io")),
            ("ev.events", Some("events.events.k8s.io")),
            ("pods.example.io", Some("pods.example.io")),
            ("nothing", None),
            ("pods.apps", None),
            ("*", None),
        ] {
            let resolved = known.resolve(name).map(|resource| resource.id.to_string());
            assert_eq!(resolved.as_deref(), found, "{name}");
        }
    }

    #[test]
    fn of_several_versions_the_first_counts() {
        let known = Resources::new([
            resource("apps", "v1", "deployments", &[]),
            resource("apps", "v1beta1", "deployments", &[]),
        ]);
        let id = GroupResource::new("apps", "deployments");
        assert_eq!(known.find(&id).map(|found| found.api_version()), Some("apps/v1".into()));
        assert_eq!(known.iter().count(), 1);
    }
}
