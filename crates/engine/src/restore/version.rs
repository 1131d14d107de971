//! Choice of the API version in which an item is restored.
//!
//! From the versions in the backup and the versions that the cluster serves follows the resource to write to, or the
//! reason why there is none. An archive stores every item in the version that its cluster preferred, and some archives
//! store further ones. As in Velero, the stored preferred version is used wherever the cluster serves it. Otherwise
//! Velero tries that version anyway and fails item by item; here another common version is used, the one that the
//! cluster prefers most.

use std::collections::HashMap;
use std::sync::Arc;

use crate::resource::{GroupResource, Resource};
use crate::unpack::Kind;

/// Resources that the API server serves, in all versions.
#[derive(Clone, Debug, Default)]
pub struct Versions {
    by_id: HashMap<GroupResource, Vec<Arc<Resource>>>,
    /// By API version and kind.
    by_kind: HashMap<String, HashMap<String, Arc<Resource>>>,
}

/// The version in which the items of a kind are restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenVersion {
    /// The resource to write to.
    pub resource: Arc<Resource>,
    /// The stored version to read, as an argument of
    /// [`Contents::read`](crate::unpack::Contents::read). `None` is the preferred one.
    pub stored: Option<String>,
}

/// The cluster does not serve a required resource.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotServed {
    /// The resource is not served in any version.
    #[error("the cluster does not serve {0}; its CustomResourceDefinition may be missing")]
    Resource(GroupResource),
    /// The resource is not served in any of the stored versions.
    #[error(
        "the backup contains {resource} in {}, and the cluster serves it only in {}",
        stored.join(", "),
        served.join(", ")
    )]
    Version {
        /// The resource.
        resource: GroupResource,
        /// Versions in the backup.
        stored: Vec<String>,
        /// Versions that the cluster serves.
        served: Vec<String>,
    },
    /// No resource has this kind.
    #[error("the cluster does not serve the kind {kind} of {api_version}")]
    Kind {
        /// The API version.
        api_version: String,
        /// The kind.
        kind: String,
    },
}

impl Versions {
    /// Takes resources in all their versions, preferred versions first.
    pub fn new(resources: impl IntoIterator<Item = Resource>) -> Self {
        let mut versions = Self::default();
        for resource in resources {
            let resource = Arc::new(resource);
            let kinds = versions.by_kind.entry(resource.api_version()).or_default();
            // If several resources share a kind, the first one counts.
            kinds.entry(resource.kind.clone()).or_insert_with(|| Arc::clone(&resource));
            versions.by_id.entry(resource.id.clone()).or_default().push(resource);
        }
        versions
    }

    /// Chooses the version for the items of a kind. An old archive does not record the version of its items; there
    /// use [`find_exact`](Self::find_exact) for each item.
    pub fn choose(&self, id: &GroupResource, kind: &Kind) -> Result<ChosenVersion, NotServed> {
        let served = self.served(id)?;
        let Some(preferred) = &kind.preferred else {
            return Ok(ChosenVersion { resource: Arc::clone(&served[0]), stored: None });
        };
        if let Some(resource) = served.iter().find(|served| served.version == *preferred) {
            return Ok(ChosenVersion { resource: Arc::clone(resource), stored: None });
        }
        let stored: Vec<&str> = kind.versions().collect();
        let common = served.iter().find(|served| stored.contains(&served.version.as_str()));
        match common {
            Some(resource) => Ok(ChosenVersion {
                resource: Arc::clone(resource),
                stored: Some(resource.version.clone()),
            }),
            None => Err(not_served_in(id, stored.into_iter().map(str::to_owned).collect(), served)),
        }
    }

    /// The resource in the version of an item.
    pub fn find_exact(
        &self,
        id: &GroupResource,
        version: &str,
    ) -> Result<Arc<Resource>, NotServed> {
        let served = self.served(id)?;
        match served.iter().find(|served| served.version == version) {
            Some(resource) => Ok(Arc::clone(resource)),
            None => Err(not_served_in(id, vec![version.to_owned()], served)),
        }
    }

    /// The resource of an item that an action has changed.
    pub fn of_kind(&self, api_version: &str, kind: &str) -> Result<Arc<Resource>, NotServed> {
        let found = self.by_kind.get(api_version).and_then(|kinds| kinds.get(kind));
        found.cloned().ok_or_else(|| NotServed::Kind {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        })
    }

    fn served(&self, id: &GroupResource) -> Result<&[Arc<Resource>], NotServed> {
        match self.by_id.get(id) {
            Some(served) => Ok(served),
            None => Err(NotServed::Resource(id.clone())),
        }
    }
}

fn not_served_in(id: &GroupResource, stored: Vec<String>, served: &[Arc<Resource>]) -> NotServed {
    let served = served.iter().map(|served| served.version.clone()).collect();
    NotServed::Version { resource: id.clone(), stored, served }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unpack::{Contents, UnpackLimits, unpack};

    fn widgets() -> GroupResource {
        GroupResource::new("example.io", "widgets")
    }

    fn versions(served: &[&str]) -> Versions {
        Versions::new(served.iter().map(|version| Resource {
            id: widgets(),
            version: (*version).to_owned(),
            kind: "Widget".into(),
            singular: "widget".into(),
            short_names: Vec::new(),
            is_namespaced: true,
            verbs: Vec::new(),
        }))
    }

    /// An archive with one item in these folders; an empty name is the folder without a version.
    fn archive(folders: &[&str]) -> Contents {
        let mut builder = tar::Builder::new(Vec::new());
        for folder in folders {
            let folder = if folder.is_empty() { String::new() } else { format!("{folder}/") };
            let path = format!("resources/widgets.example.io/{folder}namespaces/a/x.json");
            let content = br#"{"kind":"Widget","metadata":{"name":"x","namespace":"a"}}"#;
            let mut header = tar::Header::new_ustar();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, path, &content[..]).unwrap();
        }
        let tar = builder.into_inner().unwrap();
        let gzip = flate2::read::GzEncoder::new(&tar[..], flate2::Compression::fast());
        unpack(gzip, tempfile::tempdir().unwrap().path(), UnpackLimits::default()).unwrap()
    }

    #[test]
    fn stored_version_is_used_where_it_is_served() {
        let plain = &["", "v1-preferredversion"][..];
        let several = &["", "v2-preferredversion", "v1", "v1beta1"][..];
        let old = &[""][..];
        for (folders, served, expected) in [
            (plain, &["v1"][..], Ok(("v1", None))),
            (plain, &["v2", "v1"], Ok(("v1", None))),
            (several, &["v3", "v2", "v1"], Ok(("v2", None))),
            // Not served: the cluster's preference among the others.
            (several, &["v1", "v1beta1"], Ok(("v1", Some("v1")))),
            (several, &["v3", "v1beta1", "v1"], Ok(("v1beta1", Some("v1beta1")))),
            (old, &["v2", "v1"], Ok(("v2", None))),
            (
                plain,
                &["v3", "v2"],
                Err(
                    "the backup contains widgets.example.io in v1, and the cluster serves it only in v3, v2",
                ),
            ),
            (
                plain,
                &[],
                Err("the cluster does not serve widgets.example.io; its CustomResourceDefinition \
                     may be missing"),
            ),
        ] {
            let contents = archive(folders);
            let kind = contents.kind(&widgets()).unwrap();
            let chosen = versions(served).choose(&widgets(), kind);
            let chosen =
                chosen.map(|ChosenVersion { resource, stored }| (resource.version.clone(), stored));
            let expected = expected
                .map(|(version, stored)| (version.to_owned(), stored.map(str::to_owned)))
                .map_err(str::to_owned);
            let chosen = chosen.map_err(|error| error.to_string());
            assert_eq!(chosen, expected, "{folders:?} {served:?}");
            if let Ok((_, stored)) = chosen {
                assert!(contents.read(&widgets(), stored.as_deref(), "a", "x").is_ok());
            }
        }
    }

    #[test]
    fn a_version_or_kind_is_found_exactly_or_refused() {
        let versions = versions(&["v2", "v1"]);
        let found = |version: &str| versions.find_exact(&widgets(), version).map(|_| ());
        assert_eq!(found("v1"), Ok(()));
        assert!(matches!(found("v3"), Err(NotServed::Version { .. })));
        let other = GroupResource::new("", "gadgets");
        assert_eq!(versions.find_exact(&other, "v1").map(|_| ()), Err(NotServed::Resource(other)));

        let of_kind = |api_version: &str, kind: &str| {
            versions.of_kind(api_version, kind).map(|found| found.api_version())
        };
        assert_eq!(of_kind("example.io/v1", "Widget"), Ok("example.io/v1".into()));
        for (api_version, kind) in
            [("example.io/v3", "Widget"), ("v1", "Widget"), ("example.io/v1", "Gadget")]
        {
            assert!(of_kind(api_version, kind).is_err(), "{api_version} {kind}");
        }
    }
}
