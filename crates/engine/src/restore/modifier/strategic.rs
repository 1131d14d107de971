//! Strategic merge patches, as implemented by `kubectl patch` and the API server.
//!
//! Fields are merged; lists of Kubernetes' own types are also merged, element by element, where their
//! [schema](super::schema) defines a merge key. Directives in a patch change that:
//!
//! | in a patch | effect |
//! |---|---|
//! | `$patch: replace` | the patch replaces the object or list |
//! | `$patch: delete` | the object is emptied, or the element of a list removed |
//! | `$retainKeys: [a]` | all other fields are removed |
//! | `$deleteFromPrimitiveList/x: [a]` | `a` is removed from the list `x` |
//! | `$setElementOrder/x: […]` | the order of the list `x` |
//!
//! In a merged list, new elements of the patch come before those that the patch does not name.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::schema::{self, MergeShape, Strategy};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

/// Why a patch does not apply.
#[derive(Debug, thiserror::Error)]
pub enum StrategicError {
    /// The merge strategy of the kind is unknown.
    #[error(
        "no kind {kind:?} is registered for version {api_version:?}: strategicPatches support only \
         kinds of core v1, apps v1, batch v1, CSI snapshots and Velero; use mergePatches"
    )]
    Kind {
        /// The API version.
        api_version: String,
        /// The kind.
        kind: String,
    },
    /// Unknown `$patch` directive.
    #[error("unknown patch type {0}: expected \"replace\" or \"delete\"")]
    Directive(Value),
    /// `$retainKeys` is not a list, or the patch sets a field that is not in it.
    #[error("invalid $retainKeys: it must be a list that names every field of the patch")]
    RetainKeys,
    /// A value that must be a list is not one.
    #[error("{0} must be a list")]
    NotAList(String),
    /// An element lacks its merge key.
    #[error("an element of {list} lacks the merge key {key:?}")]
    NoKey {
        /// The list.
        list: String,
        /// The missing field.
        key: &'static str,
    },
    /// A list contains elements of the wrong type.
    #[error("the elements of {0} are of several types")]
    Mixed(String),
}

/// Applies a patch to a Kubernetes object.
pub(super) fn apply(patch: &Map<String, Value>, object: &mut Value) -> Result<(), StrategicError> {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let unknown =
        || StrategicError::Kind { api_version: api_version.to_owned(), kind: kind.to_owned() };
    let shape = schema::of(api_version, kind).ok_or_else(unknown)?;
    match object {
        Value::Object(fields) => merge(fields, patch, shape),
        _ => Ok(()),
    }
}

fn merge(
    fields: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    shape: MergeShape,
) -> Result<(), StrategicError> {
    match patch.get(PATCH) {
        Some(Value::String(directive)) if directive == "replace" => {
            *fields = clean_fields(patch);
            return Ok(());
        }
        Some(Value::String(directive)) if directive == "delete" => {
            fields.clear();
            return Ok(());
        }
        Some(other) => return Err(StrategicError::Directive(other.clone())),
        None => {}
    }
    retain_keys(fields, patch)?;
    let orders = orders(fields, patch)?;
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix(DELETE_FROM) {
            delete_from(fields, list, value)?;
        }
    }
    for (key, value) in patch.iter().filter(|(key, _)| !is_directive(key)) {
        merge_field(fields, key, value, shape)?;
    }
    for Order { list, wanted, before } in orders {
        let by = match shape.field(list).1 {
            Strategy::ByKey(by) => Some(by),
            Strategy::Union | Strategy::Replace => None,
        };
        if let Some(Value::Array(elements)) = fields.get_mut(list) {
            *elements = ordered(std::mem::take(elements), wanted, &before, by);
        }
    }
    Ok(())
}

/// The order that a patch requests for a list, and the original list.
struct Order<'a> {
    list: &'a str,
    wanted: &'a [Value],
    before: Vec<Value>,
}

fn orders<'a>(
    fields: &Map<String, Value>,
    patch: &'a Map<String, Value>,
) -> Result<Vec<Order<'a>>, StrategicError> {
    let mut orders = Vec::new();
    for (key, wanted) in patch {
        let Some(list) = key.strip_prefix(SET_ORDER) else { continue };
        let wanted = wanted.as_array().ok_or_else(|| StrategicError::NotAList(key.clone()))?;
        let before = fields.get(list).and_then(Value::as_array).cloned().unwrap_or_default();
        orders.push(Order { list, wanted, before });
    }
    Ok(orders)
}

fn merge_field(
    fields: &mut Map<String, Value>,
    key: &str,
    value: &Value,
    shape: MergeShape,
) -> Result<(), StrategicError> {
    let (shape, strategy) = shape.field(key);
    match (fields.get_mut(key), value) {
        (_, Value::Null) => {
            fields.remove(key);
        }
        (Some(Value::Object(old)), Value::Object(new)) => merge(old, new, shape)?,
        (Some(Value::Array(old)), Value::Array(new)) => {
            let old_list = std::mem::take(old);
            *old = match strategy {
                Strategy::Replace => clean_list(new),
                Strategy::Union => union(key, &old_list, new)?,
                Strategy::ByKey(by) => merge_list(key, old_list, new, by, shape)?,
            };
        }
        _ => match clean(value) {
            Some(value) => {
                fields.insert(key.to_owned(), value);
            }
            None => {
                fields.remove(key);
            }
        },
    }
    Ok(())
}

fn retain_keys(
    fields: &mut Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<(), StrategicError> {
    let Some(retained) = patch.get(RETAIN_KEYS) else { return Ok(()) };
    let retained = retained.as_array().ok_or(StrategicError::RetainKeys)?;
    let retained: HashSet<&str> = retained.iter().filter_map(Value::as_str).collect();
    let is_set = |key: &str, value: &Value| !value.is_null() && !is_directive(key);
    if patch.iter().any(|(key, value)| is_set(key, value) && !retained.contains(key.as_str())) {
        return Err(StrategicError::RetainKeys);
    }
    fields.retain(|key, _| retained.contains(key.as_str()));
    Ok(())
}

fn delete_from(
    fields: &mut Map<String, Value>,
    list: &str,
    values: &Value,
) -> Result<(), StrategicError> {
    let values = values.as_array().ok_or_else(|| StrategicError::NotAList(list.to_owned()))?;
    if let Some(Value::Array(old)) = fields.get_mut(list) {
        old.retain(|value| !values.contains(value));
    }
    Ok(())
}

/// The values of both lists, without duplicates.
fn union(list: &str, old: &[Value], new: &[Value]) -> Result<Vec<Value>, StrategicError> {
    let is_nested = |value: &Value| value.is_object() || value.is_array();
    if old.iter().chain(new).any(is_nested) {
        return Err(StrategicError::Mixed(list.to_owned()));
    }
    let mut seen = HashSet::new();
    let both = old.iter().chain(new).filter(|value| seen.insert(*value)).cloned().collect();
    Ok(ordered(both, new, old, None))
}

/// Merges objects that have the same key.
fn merge_list(
    list: &str,
    mut old: Vec<Value>,
    patch: &[Value],
    by: &'static str,
    shape: MergeShape,
) -> Result<Vec<Value>, StrategicError> {
    let no_key = || StrategicError::NoKey { list: list.to_owned(), key: by };
    if old.iter().chain(patch).any(|element| !element.is_object()) {
        return Err(StrategicError::Mixed(list.to_owned()));
    }
    let (mut new, mut deleted) = (Vec::new(), HashSet::new());
    let mut replaces = false;
    for element in patch {
        match element.get(PATCH) {
            None => new.push(element.clone()),
            Some(Value::String(directive)) if directive == "replace" => replaces = true,
            Some(Value::String(directive)) if directive == "delete" => {
                deleted.insert(element.get(by).ok_or_else(no_key)?);
            }
            Some(other) => return Err(StrategicError::Directive(other.clone())),
        }
    }
    if replaces {
        return Ok(clean_list(&new));
    }
    old.retain(|element| element.get(by).is_none_or(|key| !deleted.contains(key)));
    if old.iter().chain(&new).any(|element| element.get(by).is_none()) {
        return Err(no_key());
    }
    let mut merged = old.clone();
    let mut places = positions(&old, Some(by));
    for element in &new {
        let place = places.get(key(element, Some(by))).and_then(|place| merged.get_mut(*place));
        let place = place.and_then(Value::as_object_mut);
        if let (Some(found), Some(element)) = (place, element.as_object()) {
            merge(found, element, shape)?;
        } else {
            places.insert(key(element, Some(by)), merged.len());
            merged.extend(clean(element));
        }
    }
    Ok(ordered(merged, &new, &old, Some(by)))
}

/// Sorts a list: elements that the patch names in the patch's order, the others in their original order, and both
/// relative to each other as before; new elements come as early as possible.
fn ordered(list: Vec<Value>, patch: &[Value], old: &[Value], by: Option<&str>) -> Vec<Value> {
    let (in_patch, in_old) = (positions(patch, by), positions(old, by));
    let place =
        |places: &HashMap<&Value, usize>, value: &Value| places.get(key(value, by)).copied();
    let (mut named, mut rest): (Vec<_>, Vec<_>) =
        list.into_iter().partition(|value| place(&in_patch, value).is_some());
    named.sort_by_key(|value| place(&in_patch, value));
    rest.sort_by_key(|value| place(&in_old, value));

    let mut sorted = Vec::with_capacity(named.len() + rest.len());
    let (mut named, mut rest) = (named.into_iter().peekable(), rest.into_iter().peekable());
    while let (Some(left), Some(right)) = (rest.peek(), named.peek()) {
        let was_before = match (place(&in_old, left), place(&in_old, right)) {
            (Some(left), Some(right)) => left < right,
            _ => false,
        };
        sorted.extend(if was_before { rest.next() } else { named.next() });
    }
    sorted.extend(rest);
    sorted.extend(named);
    sorted
}

/// First position of each key in a list.
fn positions<'a>(list: &'a [Value], by: Option<&str>) -> HashMap<&'a Value, usize> {
    let mut positions = HashMap::new();
    for (index, value) in list.iter().enumerate() {
        positions.entry(key(value, by)).or_insert(index);
    }
    positions
}

/// Identity of an element: one of its fields, or the element itself.
fn key<'a>(value: &'a Value, by: Option<&str>) -> &'a Value {
    match by {
        Some(by) => value.get(by).unwrap_or(&Value::Null),
        None => value,
    }
}

fn is_directive(key: &str) -> bool {
    matches!(key, PATCH | RETAIN_KEYS) || key.starts_with(DELETE_FROM) || key.starts_with(SET_ORDER)
}

/// The part of a patch that remains if there is nothing to merge with: values, without `null`s and directives. `None`
/// if it is only a directive.
fn clean(value: &Value) -> Option<Value> {
    match value {
        Value::Object(fields) if fields.contains_key(PATCH) => None,
        Value::Object(fields) => Some(Value::Object(clean_fields(fields))),
        Value::Array(list) => Some(Value::Array(clean_list(list))),
        other => Some(other.clone()),
    }
}

fn clean_fields(fields: &Map<String, Value>) -> Map<String, Value> {
    let is_value = |(key, value): &(&String, &Value)| !value.is_null() && !is_directive(key);
    let fields = fields.iter().filter(is_value);
    fields.filter_map(|(key, value)| Some((key.clone(), clean(value)?))).collect()
}

fn clean_list(list: &[Value]) -> Vec<Value> {
    list.iter().filter_map(clean).collect()
}
