//! Patches that make an object in the cluster match the backup.

use bowline_api::label;
use serde_json::{Map, Value, json};

use super::{
    Comparison, FieldRules, Side, belongs_to_another_choice, is_equal, is_ignored, known_fields,
    names, value,
};

/// The JSON merge patch (RFC 7386) that makes an object in the cluster match the one to be restored, and labels it with
/// the restore. Empty if there is nothing to do.
///
/// Only differences are changed. A list can only be replaced as a whole; elements that it already contained keep the
/// values that servers have filled in.
pub fn merge_patch(cluster: &Value, desired: &Value) -> Value {
    let Some(comparison) = Comparison::new(desired, cluster) else { return json!({}) };
    let (ours_parts, cluster_parts) = (comparison.parts(desired), comparison.parts(cluster));
    let mut patch =
        comparison.patch(comparison.root_rules(), &cluster_parts.fields, &ours_parts.fields);
    let mut metadata = Map::new();
    for (name, rules, cluster, desired) in [
        ("labels", FieldRules::Labels, &cluster_parts.labels, &ours_parts.labels),
        (
            "annotations",
            FieldRules::Annotations,
            &cluster_parts.annotations,
            &ours_parts.annotations,
        ),
    ] {
        insert_changes(&mut metadata, name, comparison.patch(rules, cluster, desired));
    }
    insert_changes(&mut patch, "metadata", metadata);
    let mut patch = Value::Object(patch);
    json_patch::merge(&mut patch, &label_patch(cluster, desired));
    patch
}

/// The merge patch that only labels an object in the cluster with the restore. Empty if the object has the labels, or
/// belongs to the cluster.
pub fn label_patch(cluster: &Value, desired: &Value) -> Value {
    let get = |object: &Value, key: &str| object.pointer("/metadata/labels")?.get(key).cloned();
    let mut labels = Map::new();
    for key in [label::BACKUP_NAME, label::RESTORE_NAME] {
        let wanted = get(desired, key).filter(|wanted| get(cluster, key).as_ref() != Some(wanted));
        labels.extend(wanted.map(|wanted| (key.to_owned(), wanted)));
    }
    if labels.is_empty() || known_fields::is_managed_by_cluster(cluster) {
        return json!({});
    }
    json!({"metadata": {"labels": labels}})
}

/// The merge patch that adds to a ServiceAccount in the cluster what only the backup has: secrets, pull secrets, labels
/// and annotations. Values that both have stay as they are in the cluster, as does everything that others rely on.
pub fn service_account_patch(cluster: &Value, desired: &Value) -> Value {
    let mut patch = Map::new();
    for field in ["secrets", "imagePullSecrets"] {
        let list = |object: &Value| {
            object.get(field).and_then(Value::as_array).cloned().unwrap_or_default()
        };
        let mut all = list(cluster);
        let before = all.len();
        for wanted in list(desired) {
            if !all.iter().any(|have| have.get("name") == wanted.get("name")) {
                all.push(wanted);
            }
        }
        if all.len() > before {
            patch.insert(field.to_owned(), Value::Array(all));
        }
    }
    let mut metadata = Map::new();
    for name in ["labels", "annotations"] {
        let map = |object: &Value| {
            let found = object.get("metadata").and_then(|metadata| metadata.get(name));
            found.and_then(Value::as_object).cloned().unwrap_or_default()
        };
        let have = map(cluster);
        let mut missing = map(desired);
        missing.retain(|key, value| {
            let is_restore_label =
                [label::BACKUP_NAME, label::RESTORE_NAME].contains(&key.as_str());
            !is_restore_label && !value.is_null() && !have.contains_key(key)
        });
        insert_changes(&mut metadata, name, missing);
    }
    insert_changes(&mut patch, "metadata", metadata);
    Value::Object(patch)
}

fn insert_changes(into: &mut Map<String, Value>, field: &str, changes: Map<String, Value>) {
    if !changes.is_empty() {
        into.insert(field.to_owned(), Value::Object(changes));
    }
}

impl Comparison<'_> {
    fn patch(
        &self,
        rules: FieldRules,
        cluster: &Map<String, Value>,
        desired: &Map<String, Value>,
    ) -> Map<String, Value> {
        let mut patch = Map::new();
        for field in names(desired, cluster) {
            if is_ignored(rules, field) {
                continue;
            }
            let change = match (value(cluster, field), value(desired, field)) {
                (Some(cluster), Some(desired)) => self.change(rules, field, cluster, desired),
                (None, Some(desired)) if desired.is_object() && self.is_labels(rules, field) => {
                    self.change(rules, field, &json!({}), desired)
                }
                (Some(cluster), None) if cluster.is_object() && self.is_labels(rules, field) => {
                    self.change(rules, field, cluster, &json!({}))
                }
                (None, Some(desired)) => self
                    .is_significant(rules, field, desired, Side::Backup)
                    .then(|| without_null(desired)),
                (Some(_), None) if belongs_to_another_choice(rules, field, desired, cluster) => {
                    Some(Value::Null)
                }
                (Some(cluster), None) => {
                    self.is_significant(rules, field, cluster, Side::Cluster).then_some(Value::Null)
                }
                (None, None) => None,
            };
            if let Some(change) = change {
                patch.insert(field.to_owned(), change);
            }
        }
        patch
    }

    /// The patch for a value, if it changes.
    fn change(
        &self,
        rules: FieldRules,
        field: &str,
        cluster: &Value,
        desired: &Value,
    ) -> Option<Value> {
        match (cluster, desired) {
            (Value::Object(cluster), Value::Object(desired)) => {
                let changes = self.patch(self.rules_within(rules, field), cluster, desired);
                (!changes.is_empty()).then_some(Value::Object(changes))
            }
            (Value::Array(have), Value::Array(wanted)) => (!self
                .is_same(rules, field, desired, cluster))
            .then(|| Value::Array(self.merge_list(rules, field, have, wanted))),
            _ => (!is_equal(desired, cluster)).then(|| without_null(desired)),
        }
    }

    /// The desired list, in which existing elements keep the values that servers have filled in.
    fn merge_list(
        &self,
        rules: FieldRules,
        field: &str,
        have: &[Value],
        wanted: &[Value],
    ) -> Vec<Value> {
        let key = known_fields::merge_key(field).filter(|_| rules == FieldRules::Known);
        let elements: Vec<&Value> = self.compared_elements(rules, field, have).collect();
        let merged = |(index, wanted): (usize, &Value)| {
            let partner = match key {
                Some(key) => elements.iter().find(|have| have.get(key) == wanted.get(key)),
                None => elements.get(index),
            };
            match partner {
                Some(have) if self.is_same(rules, field, wanted, have) => (*have).clone(),
                Some(have) if key.is_some() => {
                    let mut merged = (*have).clone();
                    if let Some(change) = self.change(rules, field, have, wanted) {
                        json_patch::merge(&mut merged, &change);
                    }
                    merged
                }
                _ => without_null(wanted),
            }
        };
        let is_injected = |element: &&Value| self.is_injected(rules, field, element);
        let mut injected: Vec<&Value> = have.iter().filter(is_injected).collect();
        if injected.is_empty() {
            injected.extend(wanted.iter().filter(is_injected));
        }
        let wanted = self.compared_elements(rules, field, wanted).enumerate();
        wanted.map(merged).chain(injected.into_iter().cloned()).collect()
    }
}

/// A value in the form of a merge patch, in which `null` would mean removal.
fn without_null(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, value)| !value.is_null());
            fields.map(|(field, value)| (field.clone(), without_null(value))).collect()
        }
        other => other.clone(),
    }
}
