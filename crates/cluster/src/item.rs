//! One object of the cluster.
//!
//! Only the envelope of most objects is parsed; the rest stays as the bytes that the API server
//! sent.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_plugin::{InvalidItem, Item, ResourceIdentifier};
use bytes::Bytes;
use serde::Deserialize;

use crate::resource::Resource;

/// Object with its parsed envelope.
#[derive(Clone, Debug)]
pub struct Object {
    /// Resource of the object.
    pub resource: Arc<Resource>,
    /// Namespace; empty for a cluster-scoped object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Labels of the object.
    pub labels: BTreeMap<String, String>,
    /// True if the object has a deletion timestamp.
    pub is_being_deleted: bool,
    /// Object itself.
    pub item: Item,
}

/// Reason why bytes are not the expected object.
#[derive(Debug, thiserror::Error)]
pub enum InvalidObject {
    /// Invalid item.
    #[error(transparent)]
    Item(#[from] InvalidItem),
    /// Missing name.
    #[error("the object has no `metadata.name`")]
    NoName,
    /// Name that cannot be part of a path.
    #[error("invalid object name {0:?}")]
    Name(String),
    /// Namespaced object of a cluster-scoped resource, or the reverse.
    #[error("the namespace {0:?} is invalid for the kind of the object")]
    Namespace(String),
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    metadata: Metadata<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    namespace: Cow<'a, str>,
    labels: Option<BTreeMap<String, String>>,
    #[serde(borrow)]
    deletion_timestamp: Option<Cow<'a, str>>,
}

impl Object {
    /// Parses the envelope of an item.
    pub fn new(resource: &Arc<Resource>, item: Item) -> Result<Self, InvalidObject> {
        Self::from_json(resource, item.into_json())
    }

    /// Parses the envelope of JSON from the API server, in one pass.
    pub fn from_json(resource: &Arc<Resource>, json: Bytes) -> Result<Self, InvalidObject> {
        let envelope: Envelope<'_> = serde_json::from_slice(&json).map_err(InvalidItem::Json)?;
        let Envelope { kind, metadata } = envelope;
        let Metadata { name, namespace, labels, deletion_timestamp } = metadata;
        if name.is_empty() {
            return Err(InvalidObject::NoName);
        }
        for text in [&name, &namespace] {
            if !text.is_empty() && !is_name(text) {
                return Err(InvalidObject::Name(text.clone().into_owned()));
            }
        }
        if namespace.is_empty() == resource.is_namespaced {
            return Err(InvalidObject::Namespace(namespace.into_owned()));
        }
        let (kind, name, namespace) =
            (kind.into_owned(), name.into_owned(), namespace.into_owned());
        let is_being_deleted = deletion_timestamp.is_some();
        Ok(Self {
            resource: Arc::clone(resource),
            namespace,
            name,
            labels: labels.unwrap_or_default(),
            is_being_deleted,
            item: Item::from_read_json(json, &kind)?,
        })
    }

    /// Identifier for plugins and reports.
    pub fn id(&self) -> ResourceIdentifier {
        let id = &self.resource.id;
        ResourceIdentifier {
            group: id.group.clone(),
            resource: id.resource.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

/// True for a valid name of an object or namespace: one segment of a path.
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(['/', '\0', '\n']) && !matches!(text, "." | "..")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::GroupResource;

    fn read(is_namespaced: bool, metadata: &str) -> Result<Object, InvalidObject> {
        let resource = Resource {
            id: GroupResource::new("", "things"),
            version: "v1".into(),
            kind: "Thing".into(),
            singular: "thing".into(),
            short_names: Vec::new(),
            is_namespaced,
            verbs: Vec::new(),
        };
        let json = format!(r#"{{"kind":"Thing","metadata":{metadata},"spec":{{"a":[1]}}}}"#);
        Object::new(&Arc::new(resource), Item::from_json(json).unwrap())
    }

    #[test]
    fn the_envelope_is_read_and_nothing_else() {
        let metadata =
            r#"{"name":"a\u00e9","namespace":"n","labels":{"k":"v"},"deletionTimestamp":"x"}"#;
        let object = read(true, metadata).unwrap();
        assert_eq!(object.id().to_string(), "things/n/aé");
        assert_eq!(object.labels["k"], "v");
        assert!(object.is_being_deleted);
        let object = read(false, r#"{"name":"a","labels":null}"#).unwrap();
        assert!(object.labels.is_empty() && !object.is_being_deleted);
    }

    #[test]
    fn objects_with_inconsistent_name_or_scope_are_refused() {
        for (is_namespaced, metadata) in [
            (true, r#"{"name":"a"}"#),
            (false, r#"{"name":"a","namespace":"n"}"#),
            (true, r#"{"namespace":"n"}"#),
            (false, r#"{"name":".."}"#),
            (false, r#"{"name":"a/../../b"}"#),
            (true, r#"{"name":"a","namespace":".."}"#),
        ] {
            assert!(read(is_namespaced, metadata).is_err(), "{metadata}");
        }
    }
}
