//! Compares an object in the cluster with the one in the backup, and builds the patch that makes them equal.
//!
//! Velero compares whole objects, so that everything that a server or controller ever wrote is a difference, and
//! nearly every object "is different than the backed-up version". Here only changes made by users count as
//! differences.
//!
//! # Scope of the comparison
//! Everything except `apiVersion`, `kind`, `status` and the metadata other than labels and annotations. Numbers are
//! compared by value; `null` equals a missing field.
//!
//! A field that only one side has is no difference if its value is insignificant:
//!
//! | where | insignificant |
//! |---|---|
//! | anywhere | `null` |
//! | Kubernetes' own kinds | defaults of the API server: `[]`, some `{}`, and the values listed in `known_fields.rs`, also as an object of nothing else |
//! | the same, only in the cluster | fields that servers and controllers fill in, whatever their value: the IP of a service, the volume of a claim |
//! | labels and annotations | those that servers and controllers write, and those of restores; they are ignored even if both sides have them |
//! | user-defined keys (`data`, `nodeSelector`, …), custom resources | only `null` |
//!
//! Fields that depend on a choice which the backup made differently always count: an update strategy other than
//! `RollingUpdate` does not have its settings, even if these are the defaults.
//!
//! The order of a list counts, unless the list is a set, such as tolerations and the rules of roles. Elements that
//! the API server adds to the lists of every pod are ignored.
//!
//! Some objects belong to the cluster, such as the CA in every namespace and the default roles: a restore neither
//! changes them nor reports them as different.
//!
//! # Guarantees
//! After [`merge_patch`] has been applied to the cluster's object, [`differs`] finds nothing. A patch never removes
//! anything that [`differs`] ignores.

mod known_fields;
mod patch;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

pub use patch::{label_patch, merge_patch, service_account_patch};

/// Maximum number of differences reported.
const MAX_REPORTED: usize = 20;
/// Maximum number of value comparisons per pair of objects. Nested sets could take forever; everything that is not
/// compared by then is reported as different.
const COMPARISONS: usize = 2_000_000;

/// Fields in which an object in the cluster differs from the object to be restored. `None` if they are equal.
pub fn differs(desired: &Value, cluster: &Value) -> Option<Vec<String>> {
    let comparison = Comparison::new(desired, cluster)?;
    let mut found = Differences { paths: Vec::new(), limit: MAX_REPORTED };
    comparison.compare_objects(desired, cluster, &mut found);
    (!found.paths.is_empty()).then_some(found.paths)
}

/// Differences found so far.
struct Differences {
    paths: Vec<String>,
    limit: usize,
}

impl Differences {
    fn is_full(&self) -> bool {
        self.paths.len() >= self.limit
    }

    fn add(&mut self, path: &str) {
        if !self.is_full() {
            self.paths.push(path.to_owned());
        }
    }
}

/// Comparison rules for a part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldRules {
    /// Fields of Kubernetes' API.
    Known,
    /// Keys and values that users define.
    UserDefined,
    Labels,
    Annotations,
}

/// The side that has a field which the other one lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Backup,
    Cluster,
}

/// Comparison of two objects of one kind.
struct Comparison<'a> {
    kind: &'a str,
    /// True if Kubernetes itself defines the kind.
    is_known: bool,
    /// Fields of the object that are not compared.
    ignored: Vec<&'static str>,
    /// Number of comparisons left.
    remaining_comparisons: Cell<usize>,
}

/// The parts of an object that are compared.
struct ObjectParts {
    fields: Map<String, Value>,
    labels: Map<String, Value>,
    annotations: Map<String, Value>,
}

impl<'a> Comparison<'a> {
    /// `None` if there is nothing to compare because the object belongs to the cluster.
    fn new(desired: &'a Value, cluster: &Value) -> Option<Self> {
        if known_fields::is_managed_by_cluster(cluster) {
            return None;
        }
        let text = |field: &str| desired.get(field).and_then(Value::as_str).unwrap_or_default();
        let mut ignored = vec!["apiVersion", "kind", "metadata", "status"];
        ignored.extend(known_fields::filled_by_controllers(desired));
        let group = text("apiVersion").split_once('/').map_or("", |(group, _)| group);
        let remaining_comparisons = Cell::new(COMPARISONS);
        Some(Self {
            kind: text("kind"),
            is_known: known_fields::is_builtin_group(group),
            ignored,
            remaining_comparisons,
        })
    }

    fn root_rules(&self) -> FieldRules {
        if self.is_known { FieldRules::Known } else { FieldRules::UserDefined }
    }

    /// Rules for the value of a field.
    fn rules_within(&self, rules: FieldRules, field: &str) -> FieldRules {
        match (rules, field) {
            (FieldRules::Known, "labels" | "matchLabels") => FieldRules::Labels,
            (FieldRules::Known, "annotations") => FieldRules::Annotations,
            (FieldRules::Known, field) if !known_fields::is_user_defined(self.kind, field) => {
                FieldRules::Known
            }
            _ => FieldRules::UserDefined,
        }
    }

    /// True if a field contains labels or annotations.
    fn is_labels(&self, rules: FieldRules, field: &str) -> bool {
        matches!(self.rules_within(rules, field), FieldRules::Labels | FieldRules::Annotations)
    }

    fn parts(&self, object: &Value) -> ObjectParts {
        let fields =
            |value: Option<&Value>| value.and_then(Value::as_object).cloned().unwrap_or_default();
        let metadata = |field: &str| fields(object.get("metadata").and_then(|all| all.get(field)));
        let mut parts = ObjectParts {
            fields: fields(Some(object)),
            labels: metadata("labels"),
            annotations: metadata("annotations"),
        };
        parts.fields.retain(|field, _| !self.ignored.contains(&field.as_str()));
        parts
    }

    fn compare_objects(&self, desired: &Value, cluster: &Value, found: &mut Differences) {
        let (desired, cluster) = (self.parts(desired), self.parts(cluster));
        for (rules, path, desired, cluster) in [
            (FieldRules::Labels, "metadata.labels", &desired.labels, &cluster.labels),
            (
                FieldRules::Annotations,
                "metadata.annotations",
                &desired.annotations,
                &cluster.annotations,
            ),
            (self.root_rules(), "", &desired.fields, &cluster.fields),
        ] {
            self.compare_fields(rules, path, desired, cluster, found);
        }
    }

    fn compare_fields(
        &self,
        rules: FieldRules,
        path: &str,
        desired: &Map<String, Value>,
        cluster: &Map<String, Value>,
        found: &mut Differences,
    ) {
        for field in names(desired, cluster) {
            if found.is_full() {
                return;
            }
            if is_ignored(rules, field) {
                continue;
            }
            let path = || join(path, field);
            match (value(desired, field), value(cluster, field)) {
                (Some(desired), Some(cluster)) => {
                    self.compare_values(rules, field, &path(), desired, cluster, found);
                }
                // Each label is judged separately, even if the other side has none.
                (Some(Value::Object(desired)), None) if self.is_labels(rules, field) => {
                    self.compare_fields(
                        self.rules_within(rules, field),
                        &path(),
                        desired,
                        &Map::new(),
                        found,
                    );
                }
                (None, Some(Value::Object(cluster))) if self.is_labels(rules, field) => {
                    self.compare_fields(
                        self.rules_within(rules, field),
                        &path(),
                        &Map::new(),
                        cluster,
                        found,
                    );
                }
                (Some(desired), None)
                    if self.is_significant(rules, field, desired, Side::Backup) =>
                {
                    found.add(&path());
                }
                (None, Some(value))
                    if belongs_to_another_choice(rules, field, desired, cluster)
                        || self.is_significant(rules, field, value, Side::Cluster) =>
                {
                    found.add(&path());
                }
                _ => {}
            }
        }
    }

    fn compare_values(
        &self,
        rules: FieldRules,
        field: &str,
        path: &str,
        desired: &Value,
        cluster: &Value,
        found: &mut Differences,
    ) {
        let remaining = self.remaining_comparisons.get();
        self.remaining_comparisons.set(remaining.saturating_sub(1));
        match (desired, cluster) {
            _ if remaining == 0 => found.add(path),
            (Value::Object(desired), Value::Object(cluster)) => {
                self.compare_fields(self.rules_within(rules, field), path, desired, cluster, found);
            }
            (Value::Array(desired), Value::Array(cluster)) => {
                self.compare_lists(rules, field, path, desired, cluster, found);
            }
            _ if is_equal(desired, cluster) => {}
            _ => found.add(path),
        }
    }

    fn compare_lists(
        &self,
        rules: FieldRules,
        field: &str,
        path: &str,
        desired: &[Value],
        cluster: &[Value],
        found: &mut Differences,
    ) {
        if desired == cluster {
            return;
        }
        let desired: Vec<&Value> = self.compared_elements(rules, field, desired).collect();
        let cluster: Vec<&Value> = self.compared_elements(rules, field, cluster).collect();
        if desired.len() != cluster.len() {
            found.add(path);
            return;
        }
        let is_set = rules == FieldRules::Known && known_fields::is_set(field);
        let unmatched = if is_set {
            self.unmatched(rules, field, &desired, &cluster)
        } else {
            (0..desired.len()).collect()
        };
        for index in unmatched {
            let (desired, cluster) = (desired[index], cluster[index]);
            let name = desired.get("name").and_then(Value::as_str);
            let path = match name {
                Some(name) => format!("{path}[{name}]"),
                None => format!("{path}[{index}]"),
            };
            let is_pair = name.is_some() && desired.get("name") == cluster.get("name");
            if is_pair || !is_set {
                self.compare_values(rules, field, &path, desired, cluster, found);
            } else {
                found.add(&path);
            }
        }
    }

    /// Elements of a set without a counterpart in the cluster's set, which has the same size.
    fn unmatched(
        &self,
        rules: FieldRules,
        field: &str,
        desired: &[&Value],
        cluster: &[&Value],
    ) -> Vec<usize> {
        let is_same =
            |index: usize, other: usize| self.is_same(rules, field, desired[index], cluster[other]);
        let mut unmatched: Vec<usize> =
            (0..desired.len()).filter(|index| !is_same(*index, *index)).collect();
        let mut candidates = unmatched.clone();
        unmatched.retain(|index| {
            let partner = candidates.iter().position(|other| is_same(*index, *other));
            partner.map(|partner| candidates.swap_remove(partner)).is_none()
        });
        unmatched
    }

    /// True if two values are equal under all rules.
    fn is_same(&self, rules: FieldRules, field: &str, desired: &Value, cluster: &Value) -> bool {
        let mut found = Differences { paths: Vec::new(), limit: 1 };
        self.compare_values(rules, field, "", desired, cluster, &mut found);
        found.paths.is_empty()
    }

    /// Elements of a list that are compared.
    fn compared_elements<'v>(
        &self,
        rules: FieldRules,
        field: &str,
        list: &'v [Value],
    ) -> impl Iterator<Item = &'v Value> {
        list.iter().filter(move |element| !self.is_injected(rules, field, element))
    }

    fn is_injected(&self, rules: FieldRules, field: &str, element: &Value) -> bool {
        self.kind == "Pod"
            && rules == FieldRules::Known
            && known_fields::is_injected(field, element)
    }

    /// True if a value that only one side has is significant.
    fn is_significant(&self, rules: FieldRules, field: &str, value: &Value, side: Side) -> bool {
        let is_injected = |list: &Vec<Value>| {
            !list.is_empty() && list.iter().all(|element| self.is_injected(rules, field, element))
        };
        let is_insignificant = rules == FieldRules::Known
            && (known_fields::is_default(self.kind, field, value)
                || value.as_array().is_some_and(is_injected)
                || (side == Side::Cluster && known_fields::is_filled_in(self.kind, field)));
        !is_insignificant
    }
}

/// True if a label or annotation is not compared at all.
fn is_ignored(rules: FieldRules, key: &str) -> bool {
    match rules {
        FieldRules::Labels => known_fields::is_system_label(key),
        FieldRules::Annotations => known_fields::is_system_annotation(key),
        FieldRules::Known | FieldRules::UserDefined => false,
    }
}

/// True if a field of the cluster's object depends on a choice that the backup made differently.
fn belongs_to_another_choice(
    rules: FieldRules,
    field: &str,
    desired: &Map<String, Value>,
    cluster: &Map<String, Value>,
) -> bool {
    let choice = known_fields::choice_field(field).filter(|_| rules == FieldRules::Known);
    let chosen = choice.and_then(|choice| value(desired, choice).zip(value(cluster, choice)));
    chosen.is_some_and(|(desired, cluster)| desired != cluster)
}

/// Field names of both sides, without duplicates.
fn names<'a>(
    desired: &'a Map<String, Value>,
    cluster: &'a Map<String, Value>,
) -> BTreeSet<&'a str> {
    desired.keys().chain(cluster.keys()).map(String::as_str).collect()
}

/// The value of a field; `None` for `null`.
fn value<'a>(fields: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    fields.get(field).filter(|value| !value.is_null())
}

/// True if two values that are not both objects or both lists are equal.
fn is_equal(desired: &Value, cluster: &Value) -> bool {
    match (desired, cluster) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => {
            a.as_f64() == b.as_f64()
        }
        _ => desired == cluster,
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
