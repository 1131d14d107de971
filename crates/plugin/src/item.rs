//! Kubernetes objects exchanged with plugins.

use std::ops::Deref;
use std::sync::OnceLock;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::nesting;

/// A Kubernetes object of any kind, as JSON.
///
/// The original bytes are kept: most items pass through untouched, and the others are parsed into
/// the type that their reader needs, with [`parse`](Self::parse). The bytes are known to be a JSON
/// object with a `kind`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    json: Bytes,
}

/// Reasons why bytes are not a Kubernetes object.
#[derive(Debug, thiserror::Error)]
pub enum InvalidItem {
    /// No content.
    #[error("the item is empty")]
    Empty,
    /// Not JSON, or not of the expected type.
    #[error("the item is no valid JSON of its kind: {0}")]
    Json(#[from] serde_json::Error),
    /// JSON, but not an object.
    #[error("the item is no JSON object")]
    NotAnObject,
    /// No `kind`.
    #[error("the item has no `kind`")]
    NoKind,
    /// Nested too deeply to be parsed, here or by the API server.
    #[error("the item is nested {0} levels deep, which is more than can be read")]
    TooDeep(usize),
}

impl Item {
    /// Takes JSON unchanged, after checking its form.
    pub fn from_json(json: impl Into<Bytes>) -> Result<Self, InvalidItem> {
        #[derive(Deserialize)]
        struct Envelope<'a> {
            #[serde(borrow)]
            kind: Option<std::borrow::Cow<'a, str>>,
        }
        let json = json.into();
        check_json_object(&json)?;
        let envelope: Envelope<'_> = serde_json::from_slice(&json)?;
        let kind = envelope.kind.unwrap_or_default();
        Self::from_read_json(json.clone(), &kind)
    }

    /// Takes JSON that the caller has already parsed, with the kind found in it. For callers that
    /// read many items, so that each is parsed only once.
    pub fn from_read_json(json: Bytes, kind: &str) -> Result<Self, InvalidItem> {
        check_json_object(&json)?;
        if kind.is_empty() { Err(InvalidItem::NoKind) } else { Ok(Self { json }) }
    }

    /// Writes an object as JSON. The object must have its `apiVersion` and `kind`.
    pub fn from_object(object: &impl Serialize) -> Result<Self, InvalidItem> {
        Self::from_json(serde_json::to_vec(object)?)
    }

    /// Like [`Item::from_object`], for an object that is JSON already: its kind is looked up instead of parsed.
    pub fn from_value(object: &Value) -> Result<Self, InvalidItem> {
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
        Self::from_read_json(serde_json::to_vec(object)?.into(), kind)
    }

    /// Parses the item into a type: one of Kubernetes' own, or `serde_json::Value`. A deeply nested
    /// item is parsed only if the stack has room for working with the result ([`nesting`]).
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, InvalidItem> {
        match serde_json::from_slice(&self.json) {
            Err(error)
                if error.is_syntax()
                    && nesting::count_levels(&self.json) > nesting::SERDE_MAX_LEVELS =>
            {
                nesting::read(&self.json)
            }
            read => Ok(read?),
        }
    }

    /// The JSON, consuming the item.
    pub fn into_json(self) -> Bytes {
        self.json
    }

    /// The JSON.
    pub fn json(&self) -> &Bytes {
        &self.json
    }
}

/// A Backup or Restore together with its JSON, which is encoded once and serves all calls of a run.
#[derive(Debug)]
pub struct Encoded<T> {
    value: T,
    json: OnceLock<Bytes>,
}

impl<T: Serialize> Encoded<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Self { value, json: OnceLock::new() }
    }

    /// The JSON of the value.
    pub fn json(&self) -> Bytes {
        // The API resources have string keys and no fallible parts, so encoding cannot fail.
        let encode = || serde_json::to_vec(&self.value).unwrap_or_default().into();
        self.json.get_or_init(encode).clone()
    }
}

impl<T: DeserializeOwned> Encoded<T> {
    /// Parses a value from JSON, and keeps the JSON unchanged.
    pub fn from_json(json: Bytes) -> Result<Self, serde_json::Error> {
        Ok(Self { value: serde_json::from_slice(&json)?, json: OnceLock::from(json) })
    }
}

impl<T> Deref for Encoded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// Checks that the JSON can be an object at all. Serde would also read the fields of a struct from
/// an array.
fn check_json_object(json: &Bytes) -> Result<(), InvalidItem> {
    match json.trim_ascii_start().first() {
        Some(b'{') => Ok(()),
        Some(_) => Err(InvalidItem::NotAnObject),
        None => Err(InvalidItem::Empty),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_with_a_kind_is_an_item() {
        for value in [
            serde_json::json!({"kind": "Pod", "metadata": {"name": "a"}}),
            serde_json::json!({"kind": ""}),
            serde_json::json!({"kind": 1}),
            serde_json::json!({}),
            serde_json::json!(["kind"]),
        ] {
            match (Item::from_value(&value), Item::from_object(&value)) {
                (Ok(item), Ok(expected)) => assert_eq!(item, expected),
                (Err(_), Err(_)) => {}
                differing => panic!("{value}: {differing:?}"),
            }
        }
    }

    #[test]
    fn item_is_an_object_with_a_kind() {
        for (json, expected) in [
            (r#"{"kind":"Pod"}"#, Ok(())),
            (r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}"#, Ok(())),
            ("", Err("the item is empty")),
            (r#"{"apiVersion":"v1"}"#, Err("the item has no `kind`")),
            (r#"{"kind":""}"#, Err("the item has no `kind`")),
            ("[]", Err("no JSON object")),
            (r#"["Pod"]"#, Err("no JSON object")),
            (" \n", Err("the item is empty")),
            (r#"{"kind":"Pod""#, Err("EOF")),
            ("\u{0}", Err("no JSON object")),
            (r#"{"kind":"Pod"} x"#, Err("trailing characters")),
        ] {
            match (Item::from_json(json.as_bytes().to_vec()), expected) {
                (Ok(item), Ok(())) => assert_eq!(item.json(), json.as_bytes()),
                (Err(error), Err(expected_text)) => {
                    assert!(error.to_string().contains(expected_text), "{json}: {error}");
                }
                (got, _) => panic!("{json}: {got:?}"),
            }
        }
    }

    #[test]
    fn bytes_pass_through_unchanged() {
        let json = r#"{ "kind":"X", "big":12345678901234567890, "b":1, "a":[1.50] }"#;
        assert_eq!(Item::from_json(json.as_bytes().to_vec()).unwrap().json(), json.as_bytes());
    }

    #[test]
    fn encoded_backup_keeps_its_original_bytes() {
        let json = Bytes::from_static(br#"{"metadata":{"name":"b"},"spec":{"ttl":"720h0m0s"}}"#);
        let backup: Encoded<bowline_api::Backup> = Encoded::from_json(json.clone()).unwrap();
        assert_eq!(backup.spec.ttl.to_string(), "720h0m0s");
        assert_eq!(backup.json(), json);
    }
}
