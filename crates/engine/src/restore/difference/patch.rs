//! What must change for an object in the cluster to be the one in the backup.

use bowline_api::label;
use serde_json::{Map, Value, json};

use super::{Compared, Place, Side, is_equal, is_ignored, is_left_over, known, names, value};

/// The JSON merge patch (RFC 7386) that makes an object in the cluster like the one to be restored,
/// and labels it with the restore. An empty one if there is nothing to do.
///
/// Only what counts as a difference is changed. A list can only be replaced as a whole; elements
/// that were in it before keep what servers have filled in.
pub fn merge_patch(cluster: &Value, ours: &Value) -> Value {
    let Some(compared) = Compared::new(ours, cluster) else { return json!({}) };
    let (ours_parts, cluster_parts) = (compared.parts(ours), compared.parts(cluster));
    let mut patch =
        compared.patch(compared.root_place(), &cluster_parts.fields, &ours_parts.fields);
    let mut metadata = Map::new();
    for (name, place, cluster, ours) in [
        ("labels", Place::Labels, &cluster_parts.labels, &ours_parts.labels),
        ("annotations", Place::Annotations, &cluster_parts.annotations, &ours_parts.annotations),
    ] {
        insert_changes(&mut metadata, name, compared.patch(place, cluster, ours));
    }
    insert_changes(&mut patch, "metadata", metadata);
    let mut patch = Value::Object(patch);
    json_patch::merge(&mut patch, &label_patch(cluster, ours));
    patch
}

/// The merge patch that only labels an object in the cluster with the restore. Empty if it has the
/// labels, or is the cluster's own.
pub fn label_patch(cluster: &Value, ours: &Value) -> Value {
    let get = |object: &Value, key: &str| object.pointer("/metadata/labels")?.get(key).cloned();
    let mut labels = Map::new();
    for key in [label::BACKUP_NAME, label::RESTORE_NAME] {
        let wanted = get(ours, key).filter(|wanted| get(cluster, key).as_ref() != Some(wanted));
        labels.extend(wanted.map(|wanted| (key.to_owned(), wanted)));
    }
    if labels.is_empty() || known::is_clusters_own(cluster) {
        return json!({});
    }
    json!({"metadata": {"labels": labels}})
}

/// The merge patch that gives a ServiceAccount in the cluster what only the one to be restored has:
/// secrets, pull secrets, labels and annotations. What both have stays as it is in the cluster, as
/// does all that others rely on.
pub fn service_account_patch(cluster: &Value, ours: &Value) -> Value {
    let mut patch = Map::new();
    for field in ["secrets", "imagePullSecrets"] {
        let list = |object: &Value| {
            object.get(field).and_then(Value::as_array).cloned().unwrap_or_default()
        };
        let mut all = list(cluster);
        let before = all.len();
        for wanted in list(ours) {
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
        let mut missing = map(ours);
        missing.retain(|key, value| {
            let is_ours = [label::BACKUP_NAME, label::RESTORE_NAME].contains(&key.as_str());
            !is_ours && !value.is_null() && !have.contains_key(key)
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

impl Compared<'_> {
    fn patch(
        &self,
        place: Place,
        cluster: &Map<String, Value>,
        ours: &Map<String, Value>,
    ) -> Map<String, Value> {
        let mut patch = Map::new();
        for field in names(ours, cluster) {
            if is_ignored(place, field) {
                continue;
            }
            let change = match (value(cluster, field), value(ours, field)) {
                (Some(cluster), Some(ours)) => self.change(place, field, cluster, ours),
                (None, Some(ours)) if ours.is_object() && self.is_labels(place, field) => {
                    self.change(place, field, &json!({}), ours)
                }
                (Some(cluster), None) if cluster.is_object() && self.is_labels(place, field) => {
                    self.change(place, field, cluster, &json!({}))
                }
                (None, Some(ours)) => {
                    self.says(place, field, ours, Side::Ours).then(|| without_null(ours))
                }
                (Some(_), None) if is_left_over(place, field, ours, cluster) => Some(Value::Null),
                (Some(cluster), None) => {
                    self.says(place, field, cluster, Side::Cluster).then_some(Value::Null)
                }
                (None, None) => None,
            };
            if let Some(change) = change {
                patch.insert(field.to_owned(), change);
            }
        }
        patch
    }

    /// How a value changes, if it does.
    fn change(&self, place: Place, field: &str, cluster: &Value, ours: &Value) -> Option<Value> {
        match (cluster, ours) {
            (Value::Object(cluster), Value::Object(ours)) => {
                let changes = self.patch(self.within(place, field), cluster, ours);
                (!changes.is_empty()).then_some(Value::Object(changes))
            }
            (Value::Array(have), Value::Array(wanted)) => (!self
                .is_same(place, field, ours, cluster))
            .then(|| Value::Array(self.list(place, field, have, wanted))),
            _ => (!is_equal(ours, cluster)).then(|| without_null(ours)),
        }
    }

    /// A list as it is wanted, in which what was there keeps what servers have filled in.
    fn list(&self, place: Place, field: &str, have: &[Value], wanted: &[Value]) -> Vec<Value> {
        let key = known::key(field).filter(|_| place == Place::Known);
        let counted: Vec<&Value> = self.counted(place, field, have).collect();
        let merged = |(index, wanted): (usize, &Value)| {
            let partner = match key {
                Some(key) => counted.iter().find(|have| have.get(key) == wanted.get(key)),
                None => counted.get(index),
            };
            match partner {
                Some(have) if self.is_same(place, field, wanted, have) => (*have).clone(),
                Some(have) if key.is_some() => {
                    let mut merged = (*have).clone();
                    if let Some(change) = self.change(place, field, have, wanted) {
                        json_patch::merge(&mut merged, &change);
                    }
                    merged
                }
                _ => without_null(wanted),
            }
        };
        let is_injected = |element: &&Value| self.is_injected(place, field, element);
        let mut injected: Vec<&Value> = have.iter().filter(is_injected).collect();
        if injected.is_empty() {
            injected.extend(wanted.iter().filter(is_injected));
        }
        let wanted = self.counted(place, field, wanted).enumerate();
        wanted.map(merged).chain(injected.into_iter().cloned()).collect()
    }
}

/// A value as a merge patch can say it: in a patch, `null` is a word.
fn without_null(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, value)| !value.is_null());
            fields.map(|(field, value)| (field.clone(), without_null(value))).collect()
        }
        other => other.clone(),
    }
}
