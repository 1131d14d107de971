//! Reading and editing JSON of unknown structure. Values that are missing, or of another type, are ignored.

use serde_json::{Map, Value};

/// The string at a pointer; empty if there is none.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The value of an annotation. A pointer does not work, since the key may contain slashes.
pub(crate) fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.pointer("/metadata/annotations")?.get(key)?.as_str()
}

/// The map at a pointer.
pub(crate) fn map<'a>(object: &'a mut Value, pointer: &str) -> Option<&'a mut Map<String, Value>> {
    object.pointer_mut(pointer)?.as_object_mut()
}

/// The elements of a list.
pub(crate) fn elements<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// The elements of a list, to be edited.
pub(crate) fn elements_mut<'a>(
    object: &'a mut Value,
    pointer: &str,
) -> impl Iterator<Item = &'a mut Value> {
    object.pointer_mut(pointer).and_then(Value::as_array_mut).into_iter().flatten()
}

/// Removes fields of the map at a pointer. Returns true if any existed.
pub(crate) fn remove(object: &mut Value, pointer: &str, keys: &[&str]) -> bool {
    let Some(map) = map(object, pointer) else { return false };
    let before = map.len();
    map.retain(|key, _| !keys.contains(&key.as_str()));
    map.len() < before
}

/// Removes entries of a map in a field of the map at a pointer, and the field if the map becomes empty, as the API
/// server would. Returns true if any existed.
pub(crate) fn remove_entries(
    object: &mut Value,
    pointer: &str,
    field: &str,
    keys: &[&str],
) -> bool {
    let Some(parent) = map(object, pointer) else { return false };
    let Some(entries) = parent.get_mut(field) else { return false };
    let changed = remove(entries, "", keys);
    if changed && entries.as_object().is_some_and(Map::is_empty) {
        parent.remove(field);
    }
    changed
}

/// Removes elements of a list in a field of the map at a pointer, and the field if the list becomes empty. Returns
/// true if any existed.
pub(crate) fn remove_elements(
    object: &mut Value,
    pointer: &str,
    field: &str,
    unwanted: impl Fn(&Value) -> bool,
) -> bool {
    let Some(parent) = map(object, pointer) else { return false };
    let Some(list) = parent.get_mut(field).and_then(Value::as_array_mut) else { return false };
    let before = list.len();
    list.retain(|element| !unwanted(element));
    let changed = list.len() < before;
    if list.is_empty() && changed {
        parent.remove(field);
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn emptied_field_is_removed_and_empty_field_is_kept() {
        let mut object = json!({"a": {"b": {"x": 1, "y": 2}, "c": [1, 2], "d": {}, "e": []}});
        assert!(remove_entries(&mut object, "/a", "b", &["x", "z"]));
        assert!(remove_elements(&mut object, "/a", "c", |element| *element == 1));
        assert_eq!(object, json!({"a": {"b": {"y": 2}, "c": [2], "d": {}, "e": []}}));
        assert!(remove_entries(&mut object, "/a", "b", &["y"]));
        assert!(remove_elements(&mut object, "/a", "c", |_| true));
        assert!(!remove_entries(&mut object, "/a", "d", &["y"]));
        assert!(!remove_elements(&mut object, "/a", "e", |_| true));
        assert_eq!(object, json!({"a": {"d": {}, "e": []}}));
        assert!(remove(&mut object, "/a", &["d", "nothing", "e"]));
        assert_eq!(object, json!({"a": {}}));
    }

    #[test]
    fn missing_or_mistyped_value_is_unchanged() {
        for strange in [json!(null), json!("a"), json!([1]), json!({"a": "b"}), json!({"a": null})]
        {
            let mut object = strange.clone();
            assert_eq!(text(&object, "/a/b"), "");
            assert_eq!(annotation(&object, "b"), None);
            assert_eq!(elements(&object, "/a").count(), 0);
            assert_eq!(elements_mut(&mut object, "/a").count(), 0);
            assert!(!remove(&mut object, "/a", &["b"]));
            assert!(!remove_entries(&mut object, "", "a", &["b"]));
            assert!(!remove_elements(&mut object, "", "a", |_| true));
            assert_eq!(object, strange);
        }
    }
}
