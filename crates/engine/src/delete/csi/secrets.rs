//! Secrets for the deletion of CSI snapshots.
//!
//! The archive names the Secret in annotations of the VolumeSnapshotContent. They are not trusted: anyone with write
//! access to the bucket could choose a Secret of this cluster to be passed to a driver. So the Secret comes from the
//! VolumeSnapshotClasses of this cluster, as it does when a snapshot is taken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::StreamExt as _;
use serde_json::Value;

use super::{DeletableCsiSnapshot, Objection};
use crate::cluster::{self, Cluster, Query};
use crate::csi::{
    CLASSES, DELETION_SECRET, GROUP_CLASSES, GROUP_DELETION_SECRET, group_resource, resource,
};
use crate::json::text;
use crate::resource::{Resource, Resources};

/// Parameters of a class that name its Secret: name and namespace.
const PARAMETERS: [&str; 2] = [
    "csi.storage.k8s.io/snapshotter-secret-name",
    "csi.storage.k8s.io/snapshotter-secret-namespace",
];
/// The same for a VolumeGroupSnapshotClass.
const GROUP_PARAMETERS: [&str; 2] = [
    "csi.storage.k8s.io/group-snapshotter-secret-name",
    "csi.storage.k8s.io/group-snapshotter-secret-namespace",
];

/// A class of this cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SecretClass {
    name: String,
    driver: String,
    /// Name and namespace of its Secret, if any; either may be a template.
    secret: Option<[String; 2]>,
}

/// The classes of this cluster.
#[derive(Debug, Default)]
pub(super) struct SecretClasses {
    snapshots: Vec<SecretClass>,
    groups: Vec<SecretClass>,
}

impl SecretClasses {
    /// Reads the classes. A kind that is not served has none.
    pub(super) async fn read(
        cluster: &dyn Cluster,
        resources: &Resources,
    ) -> cluster::Result<Self> {
        let snapshots = resources.find(&resource(CLASSES));
        let groups = resources.find(&group_resource(GROUP_CLASSES));
        Ok(Self {
            snapshots: read(cluster, snapshots, PARAMETERS).await?,
            groups: read(cluster, groups, GROUP_PARAMETERS).await?,
        })
    }

    /// Sets the annotations that the deletion of each content needs, or returns the contents that cannot be deleted.
    pub(super) fn resolve_secrets(&self, contents: &mut [DeletableCsiSnapshot]) -> Vec<Objection> {
        // Many snapshots of a driver lead to the same message, which is reported once.
        let mut objections = BTreeMap::new();
        for content in contents {
            let (classes, keys) = if content.group.is_empty() {
                (&self.snapshots, DELETION_SECRET)
            } else {
                (&self.groups, GROUP_DELETION_SECRET)
            };
            match secret(content, classes) {
                Ok(None) => content.annotations = BTreeMap::new(),
                Ok(Some(secret)) => {
                    let pairs = keys.into_iter().map(str::to_owned).zip(secret);
                    content.annotations = pairs.collect();
                }
                Err(objection) => drop(objections.insert(objection.to_string(), objection)),
            }
        }
        objections.into_values().collect()
    }
}

async fn read(
    cluster: &dyn Cluster,
    resource: Option<&Arc<Resource>>,
    [name, namespace]: [&str; 2],
) -> cluster::Result<Vec<SecretClass>> {
    let Some(resource) = resource else { return Ok(Vec::new()) };
    let mut listed = cluster.list(resource, Query::default());
    let mut classes = Vec::new();
    while let Some(object) = listed.next().await {
        let object = object?;
        let Ok(class) = object.item.parse::<Value>() else { continue };
        let parameter = |key: &str| {
            let parameters = class.get("parameters")?;
            parameters.get(key)?.as_str().filter(|value| !value.is_empty()).map(str::to_owned)
        };
        classes.push(SecretClass {
            name: text(&class, "/metadata/name").to_owned(),
            driver: text(&class, "/driver").to_owned(),
            secret: parameter(name).zip(parameter(namespace)).map(|(a, b)| [a, b]),
        });
    }
    Ok(classes)
}

/// Name and namespace of the Secret for the deletion of a snapshot.
fn secret(
    content: &DeletableCsiSnapshot,
    classes: &[SecretClass],
) -> Result<Option<[String; 2]>, Objection> {
    let driver = content.driver.clone();
    let of_driver: Vec<&SecretClass> =
        classes.iter().filter(|class| class.driver == driver).collect();
    let named = of_driver.iter().find(|class| class.name == content.class);
    let secrets: BTreeSet<Option<&[String; 2]>> = match named {
        Some(class) => [class.secret.as_ref()].into(),
        None => of_driver.iter().map(|class| class.secret.as_ref()).collect(),
    };
    let mut secrets = secrets.into_iter();
    let chosen = match (secrets.next(), secrets.next()) {
        (Some(secret), None) => secret,
        (None, _) | (Some(_), Some(_)) if !content.needs_secret => None,
        (None, _) => return Err(Objection::NoSecretClass { driver }),
        (Some(_), Some(_)) => {
            return Err(Objection::SeveralSecrets { driver, class: content.class.clone() });
        }
    };
    let Some(templates) = chosen else { return Ok(None) };
    let [name, namespace] =
        templates.each_ref().map(|template| resolve_template(template, content));
    Ok(Some([name?, namespace?]))
}

/// Resolves a template of a class for a snapshot.
fn resolve_template(template: &str, content: &DeletableCsiSnapshot) -> Result<String, Objection> {
    let (namespace, snapshot) = &content.snapshot;
    let values = [
        ("${volumesnapshotcontent.name}", &content.name),
        ("${volumesnapshot.namespace}", namespace),
        ("${volumesnapshot.name}", snapshot),
    ];
    let mut resolved = template.to_owned();
    for (key, value) in values {
        if !resolved.contains(key) {
            continue;
        }
        if value.is_empty() {
            return Err(Objection::UnnamedSecret { handle: content.handle.clone() });
        }
        resolved = resolved.replace(key, value);
    }
    Ok(resolved)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, secret: Option<[&str; 2]>) -> SecretClass {
        let secret = secret.map(|secret| secret.map(str::to_owned));
        SecretClass { name: name.into(), driver: "d".into(), secret }
    }

    fn content(class: &str, needs_secret: bool) -> DeletableCsiSnapshot {
        DeletableCsiSnapshot {
            name: "vsc".into(),
            driver: "d".into(),
            handle: "h".into(),
            class: class.into(),
            snapshot: ("shop".into(), "vs".into()),
            needs_secret,
            ..DeletableCsiSnapshot::default()
        }
    }

    #[test]
    fn deletion_secrets_come_from_the_classes_of_this_cluster() {
        let (a, b) = (Some(["key", "csi"]), Some(["other", "csi"]));
        let template = Some(["key-${volumesnapshot.name}", "${volumesnapshot.namespace}"]);
        for (classes, of, expected) in [
            (vec![class("a", a), class("b", b)], "a", Ok(a)),
            (vec![class("a", a), class("b", b)], "b", Ok(b)),
            (vec![class("a", a), class("c", a)], "gone", Ok(a)),
            (vec![class("a", None)], "a", Ok(None)),
            (vec![class("a", template)], "a", Ok(Some(["key-vs", "shop"]))),
            (vec![], "a", Err("create the class of this driver")),
            (vec![class("a", a), class("b", b)], "gone", Err("name several")),
        ] {
            match (secret(&content(of, true), &classes), expected) {
                (Ok(found), Ok(expected)) => {
                    assert_eq!(found, expected.map(|one| one.map(str::to_owned)), "{classes:?}");
                }
                (Err(objection), Err(part)) => {
                    assert!(objection.to_string().contains(part), "{objection}");
                }
                (found, _) => panic!("{classes:?}: {found:?}"),
            }
        }
        // A snapshot that was taken without a Secret needs none, whatever classes there are.
        assert_eq!(secret(&content("a", false), &[]).unwrap(), None);
        assert_eq!(secret(&content("x", false), &[class("a", a), class("b", b)]).unwrap(), None);
    }

    #[test]
    fn secret_named_by_the_archive_is_ignored() {
        let classes = SecretClasses { snapshots: vec![class("a", None)], groups: Vec::new() };
        let stolen = [(DELETION_SECRET[0].to_owned(), "of-kube-system".to_owned())];
        let mut contents =
            [DeletableCsiSnapshot { annotations: stolen.into(), ..content("a", true) }];
        assert!(classes.resolve_secrets(&mut contents).is_empty());
        assert!(contents[0].annotations.is_empty(), "{:?}", contents[0].annotations);
    }

    #[test]
    fn group_secret_comes_from_the_group_class() {
        let groups = vec![class("g", Some(["key", "csi"]))];
        let classes = SecretClasses { snapshots: Vec::new(), groups };
        let mut contents = [DeletableCsiSnapshot { group: "g1".into(), ..content("a", true) }];
        assert!(classes.resolve_secrets(&mut contents).is_empty());
        assert_eq!(contents[0].annotations[GROUP_DELETION_SECRET[0]], "key");
        assert_eq!(contents[0].annotations[GROUP_DELETION_SECRET[1]], "csi");
    }
}
