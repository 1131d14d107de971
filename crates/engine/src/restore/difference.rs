//! Whether an object in the cluster is the one in the backup, and how to make it so.
//!
//! Velero compares whole objects, in which everything that a server or controller ever wrote is a
//! difference, so that nearly every object "is different than the backed-up version". Here a
//! difference is one that somebody made.
//!
//! # What is compared
//! Everything but `apiVersion`, `kind`, `status`, and of the metadata all but labels and
//! annotations. Numbers are compared by their value; `null` is the same as nothing.
//!
//! A field that only one side has is no difference if its value says nothing:
//!
//! | where | says nothing |
//! |---|---|
//! | anywhere | `null` |
//! | Kubernetes' own kinds | what the API server fills in if a field is not set: `[]`, some `{}`, and the values listed in `known.rs`, also as an object of nothing else |
//! | the same, only in the cluster | fields that servers and controllers fill in, whatever is in them: the IP of a service, the volume of a claim |
//! | labels and annotations | those that servers and controllers write, and those of restores; they do not count if both sides have them either |
//! | keys that users choose (`data`, `nodeSelector`, …), custom resources | nothing but `null` |
//!
//! What goes with a choice that the backup has made otherwise always counts: an update strategy other than
//! `RollingUpdate` does not have its settings, also if these are the usual ones.
//!
//! The order of a list counts, unless the list is a set, as tolerations and the rules of roles are.
//! What the API server puts into the lists of every pod does not count.
//!
//! Some objects are the cluster's own, such as the CA in every namespace and the default roles: a
//! restore neither changes them nor calls them different.
//!
//! # What holds
//! With [`merge_patch`] applied to the cluster's object, [`differs`] finds nothing. A patch never
//! takes away what [`differs`] does not count.

mod known;
mod patch;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

pub use patch::{label_patch, merge_patch, service_account_patch};

/// How many differences are told.
const TOLD: usize = 20;
/// How many comparisons of values two objects are worth. Sets in sets could take for ever; what is
/// not compared by then is told as different.
const COMPARISONS: usize = 2_000_000;

/// Which fields of an object in the cluster differ from the object to be restored. None if it is
/// the same.
pub fn differs(ours: &Value, cluster: &Value) -> Option<Vec<String>> {
    let compared = Compared::new(ours, cluster)?;
    let mut found = Found { paths: Vec::new(), limit: TOLD };
    compared.root(ours, cluster, &mut found);
    (!found.paths.is_empty()).then_some(found.paths)
}

/// Differences, so far.
struct Found {
    paths: Vec<String>,
    limit: usize,
}

impl Found {
    fn is_full(&self) -> bool {
        self.paths.len() >= self.limit
    }

    fn add(&mut self, path: &str) {
        if !self.is_full() {
            self.paths.push(path.to_owned());
        }
    }
}

/// What rules hold for a part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Fields that Kubernetes knows.
    Known,
    /// Keys and values that only users know.
    Free,
    Labels,
    Annotations,
}

/// Which of two sides has a field that the other one lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Ours,
    Cluster,
}

/// Two objects of one kind that can be compared.
struct Compared<'a> {
    kind: &'a str,
    /// Whether Kubernetes itself defines the kind.
    is_known: bool,
    /// Fields of the object that are not compared.
    ignored: Vec<&'static str>,
    /// How many comparisons are left.
    left: Cell<usize>,
}

/// The parts of an object that are compared.
struct Parts {
    fields: Map<String, Value>,
    labels: Map<String, Value>,
    annotations: Map<String, Value>,
}

impl<'a> Compared<'a> {
    /// None if there is nothing to compare, since the object is the cluster's own.
    fn new(ours: &'a Value, cluster: &Value) -> Option<Self> {
        if known::is_clusters_own(cluster) {
            return None;
        }
        let text = |field: &str| ours.get(field).and_then(Value::as_str).unwrap_or_default();
        let mut ignored = vec!["apiVersion", "kind", "metadata", "status"];
        ignored.extend(known::filled_by_controllers(ours));
        let group = text("apiVersion").split_once('/').map_or("", |(group, _)| group);
        let left = Cell::new(COMPARISONS);
        Some(Self { kind: text("kind"), is_known: known::is_group(group), ignored, left })
    }

    fn root_place(&self) -> Place {
        if self.is_known { Place::Known } else { Place::Free }
    }

    /// The rules for a field's value.
    fn within(&self, place: Place, field: &str) -> Place {
        match (place, field) {
            (Place::Known, "labels" | "matchLabels") => Place::Labels,
            (Place::Known, "annotations") => Place::Annotations,
            (Place::Known, field) if !known::is_free(self.kind, field) => Place::Known,
            _ => Place::Free,
        }
    }

    /// Whether a field holds labels or annotations.
    fn is_labels(&self, place: Place, field: &str) -> bool {
        matches!(self.within(place, field), Place::Labels | Place::Annotations)
    }

    fn parts(&self, object: &Value) -> Parts {
        let fields =
            |value: Option<&Value>| value.and_then(Value::as_object).cloned().unwrap_or_default();
        let metadata = |field: &str| fields(object.get("metadata").and_then(|all| all.get(field)));
        let mut parts = Parts {
            fields: fields(Some(object)),
            labels: metadata("labels"),
            annotations: metadata("annotations"),
        };
        parts.fields.retain(|field, _| !self.ignored.contains(&field.as_str()));
        parts
    }

    fn root(&self, ours: &Value, cluster: &Value, found: &mut Found) {
        let (ours, cluster) = (self.parts(ours), self.parts(cluster));
        for (place, path, ours, cluster) in [
            (Place::Labels, "metadata.labels", &ours.labels, &cluster.labels),
            (Place::Annotations, "metadata.annotations", &ours.annotations, &cluster.annotations),
            (self.root_place(), "", &ours.fields, &cluster.fields),
        ] {
            self.fields(place, path, ours, cluster, found);
        }
    }

    fn fields(
        &self,
        place: Place,
        path: &str,
        ours: &Map<String, Value>,
        cluster: &Map<String, Value>,
        found: &mut Found,
    ) {
        for field in names(ours, cluster) {
            if found.is_full() {
                return;
            }
            if is_ignored(place, field) {
                continue;
            }
            let path = || join(path, field);
            match (value(ours, field), value(cluster, field)) {
                (Some(ours), Some(cluster)) => {
                    self.values(place, field, &path(), ours, cluster, found);
                }
                // Of labels each one counts or does not, also if the other side has none.
                (Some(Value::Object(ours)), None) if self.is_labels(place, field) => {
                    self.fields(self.within(place, field), &path(), ours, &Map::new(), found);
                }
                (None, Some(Value::Object(cluster))) if self.is_labels(place, field) => {
                    self.fields(self.within(place, field), &path(), &Map::new(), cluster, found);
                }
                (Some(ours), None) if self.says(place, field, ours, Side::Ours) => {
                    found.add(&path());
                }
                (None, Some(value))
                    if is_left_over(place, field, ours, cluster)
                        || self.says(place, field, value, Side::Cluster) =>
                {
                    found.add(&path());
                }
                _ => {}
            }
        }
    }

    fn values(
        &self,
        place: Place,
        field: &str,
        path: &str,
        ours: &Value,
        cluster: &Value,
        found: &mut Found,
    ) {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        match (ours, cluster) {
            _ if left == 0 => found.add(path),
            (Value::Object(ours), Value::Object(cluster)) => {
                self.fields(self.within(place, field), path, ours, cluster, found);
            }
            (Value::Array(ours), Value::Array(cluster)) => {
                self.lists(place, field, path, ours, cluster, found);
            }
            _ if is_equal(ours, cluster) => {}
            _ => found.add(path),
        }
    }

    fn lists(
        &self,
        place: Place,
        field: &str,
        path: &str,
        ours: &[Value],
        cluster: &[Value],
        found: &mut Found,
    ) {
        if ours == cluster {
            return;
        }
        let ours: Vec<&Value> = self.counted(place, field, ours).collect();
        let cluster: Vec<&Value> = self.counted(place, field, cluster).collect();
        if ours.len() != cluster.len() {
            found.add(path);
            return;
        }
        let is_set = place == Place::Known && known::is_set(field);
        let open = if is_set {
            self.unmatched(place, field, &ours, &cluster)
        } else {
            (0..ours.len()).collect()
        };
        for index in open {
            let (ours, cluster) = (ours[index], cluster[index]);
            let name = ours.get("name").and_then(Value::as_str);
            let path = match name {
                Some(name) => format!("{path}[{name}]"),
                None => format!("{path}[{index}]"),
            };
            let is_pair = name.is_some() && ours.get("name") == cluster.get("name");
            if is_pair || !is_set {
                self.values(place, field, &path, ours, cluster, found);
            } else {
                found.add(&path);
            }
        }
    }

    /// Which elements of a set have no counterpart in the cluster's, which is as large.
    fn unmatched(
        &self,
        place: Place,
        field: &str,
        ours: &[&Value],
        cluster: &[&Value],
    ) -> Vec<usize> {
        let is_same =
            |index: usize, other: usize| self.is_same(place, field, ours[index], cluster[other]);
        let mut open: Vec<usize> =
            (0..ours.len()).filter(|index| !is_same(*index, *index)).collect();
        let mut free = open.clone();
        open.retain(|index| {
            let partner = free.iter().position(|other| is_same(*index, *other));
            partner.map(|partner| free.swap_remove(partner)).is_none()
        });
        open
    }

    /// Whether two values are the same by all rules.
    fn is_same(&self, place: Place, field: &str, ours: &Value, cluster: &Value) -> bool {
        let mut found = Found { paths: Vec::new(), limit: 1 };
        self.values(place, field, "", ours, cluster, &mut found);
        found.paths.is_empty()
    }

    /// The elements of a list that count.
    fn counted<'v>(
        &self,
        place: Place,
        field: &str,
        list: &'v [Value],
    ) -> impl Iterator<Item = &'v Value> {
        list.iter().filter(move |element| !self.is_injected(place, field, element))
    }

    fn is_injected(&self, place: Place, field: &str, element: &Value) -> bool {
        self.kind == "Pod" && place == Place::Known && known::is_injected(field, element)
    }

    /// Whether a value that only one side has says anything.
    fn says(&self, place: Place, field: &str, value: &Value, side: Side) -> bool {
        let says_nothing = place == Place::Known
            && (known::is_default(self.kind, field, value)
                || (side == Side::Cluster && known::is_filled_in(self.kind, field)));
        !says_nothing
    }
}

/// Whether a label or annotation is not compared at all.
fn is_ignored(place: Place, key: &str) -> bool {
    match place {
        Place::Labels => known::is_system_label(key),
        Place::Annotations => known::is_system_annotation(key),
        Place::Known | Place::Free => false,
    }
}

/// Whether a field of the cluster's object goes with a choice that ours has made otherwise.
fn is_left_over(
    place: Place,
    field: &str,
    ours: &Map<String, Value>,
    cluster: &Map<String, Value>,
) -> bool {
    let choice = known::choice(field).filter(|_| place == Place::Known);
    let chosen = choice.and_then(|choice| value(ours, choice).zip(value(cluster, choice)));
    chosen.is_some_and(|(ours, cluster)| ours != cluster)
}

/// The names of the fields of both sides, each once.
fn names<'a>(ours: &'a Map<String, Value>, cluster: &'a Map<String, Value>) -> BTreeSet<&'a str> {
    ours.keys().chain(cluster.keys()).map(String::as_str).collect()
}

/// The value of a field. `null` is none.
fn value<'a>(fields: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    fields.get(field).filter(|value| !value.is_null())
}

/// Whether two values that are not both objects or both lists are the same.
fn is_equal(ours: &Value, cluster: &Value) -> bool {
    match (ours, cluster) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => {
            a.as_f64() == b.as_f64()
        }
        _ => ours == cluster,
    }
}

/// `spec.replicas`, `metadata.labels["example.io/a"]`
fn join(path: &str, field: &str) -> String {
    let is_plain = field.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    match (path, is_plain) {
        ("", true) => field.to_owned(),
        (_, true) => format!("{path}.{field}"),
        (_, false) => format!("{path}[{field:?}]"),
    }
}
