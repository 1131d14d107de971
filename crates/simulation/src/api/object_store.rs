//! Objects of the simulated cluster, with what an API server and its controllers do at each write.

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_cluster::selector::Selector;
use serde_json::{Map, Value, json};

use super::controllers;
use super::kind::{self, Kind};
use crate::os;

/// Identity of an object: the place of its kind, namespace and name.
pub(crate) type Key = (usize, String, String);

/// Refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into() }
    }

    pub(crate) fn not_found(what: &str) -> Self {
        Self::new(404, "NotFound", format!("{what} not found"))
    }

    fn conflict(what: &str) -> Self {
        Self::new(409, "Conflict", format!("{what}: the object has been modified"))
    }

    pub(crate) fn status(&self) -> Value {
        let Self { code, reason, message } = self;
        json!({
            "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code,
        })
    }
}

/// Change of an object.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) kind: usize,
    /// Before and after; at least one of them exists.
    pub(crate) before: Option<Arc<Value>>,
    pub(crate) after: Option<Arc<Value>>,
}

/// Conditions of a deletion.
#[derive(Clone, Debug, Default)]
pub(crate) struct Preconditions {
    pub(crate) uid: Option<String>,
    pub(crate) version: Option<String>,
}

/// Selection of objects of a kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    pub(crate) namespace: Option<String>,
    pub(crate) labels: Option<Selector>,
    /// Paths and values: `metadata.name=x`.
    pub(crate) fields: Vec<(String, String)>,
}

impl Selection {
    pub(crate) fn matches(&self, object: &Value) -> bool {
        let meta = &object["metadata"];
        if self.namespace.as_ref().is_some_and(|namespace| meta["namespace"] != *namespace) {
            return false;
        }
        let has_fields = self.fields.iter().all(|(path, value)| {
            let pointer = format!("/{}", path.replace('.', "/"));
            object.pointer(&pointer).and_then(Value::as_str).unwrap_or_default() == value
        });
        let labels = || -> BTreeMap<String, String> {
            let labels = meta["labels"].as_object().into_iter().flatten();
            labels
                .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
                .collect()
        };
        has_fields && self.labels.as_ref().is_none_or(|selector| selector.matches(&labels()))
    }
}

/// All objects, and all changes to them.
#[derive(Debug)]
pub(crate) struct ObjectStore {
    pub(crate) kinds: Vec<Kind>,
    objects: BTreeMap<Key, Arc<Value>>,
    pub(crate) changes: Vec<Change>,
    version: u64,
    uids: u64,
    /// Now, in seconds since the begin of the simulation, and as the API server writes it.
    seconds: u64,
    time: String,
}

impl ObjectStore {
    pub(crate) fn new() -> Self {
        Self {
            kinds: kind::all(),
            objects: BTreeMap::new(),
            changes: Vec::new(),
            version: 1,
            uids: 0,
            seconds: u64::MAX,
            time: String::new(),
        }
    }

    /// Sets the time at which objects are written.
    pub(crate) fn set_time(&mut self, seconds: u64) {
        if self.seconds != seconds {
            self.seconds = seconds;
            let now = os::BEGIN + i64::try_from(seconds).unwrap_or_default();
            let time = jiff::Timestamp::from_second(now);
            self.time = time.map(|time| time.to_string()).unwrap_or_default();
        }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Place of a kind by its group and plural.
    pub(crate) fn place(&self, group: &str, plural: &str) -> Option<usize> {
        self.kinds.iter().position(|kind| kind.group == group && kind.plural == plural)
    }

    /// Place of a kind by its name.
    pub(crate) fn place_of_kind(&self, name: &str) -> Option<usize> {
        self.kinds.iter().position(|kind| kind.name == name)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.objects.get(key).cloned()
    }

    /// Objects of a kind, in the order of their names.
    pub(crate) fn of_kind(&self, place: usize) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        let from = (place, String::new(), String::new());
        let to = (place + 1, String::new(), String::new());
        self.objects.range(from..to)
    }

    /// Objects of a kind, by its name.
    pub(crate) fn list(&self, kind: &str) -> Vec<Arc<Value>> {
        let Some(place) = self.place_of_kind(kind) else { return Vec::new() };
        self.of_kind(place).map(|(_, object)| Arc::clone(object)).collect()
    }

    /// Creates an object.
    pub(crate) fn create(
        &mut self,
        place: usize,
        namespace: &str,
        mut object: Value,
        is_dry_run: bool,
    ) -> Result<Arc<Value>, Refusal> {
        let kind = self.kinds[place].clone();
        let uid = self.next_uid();
        if !object["metadata"].is_object() {
            object["metadata"] = json!({});
        }
        let meta = object["metadata"].as_object_mut().ok_or_else(bad_metadata)?;
        let given = meta.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
        let name = match (given, meta.get("generateName").and_then(Value::as_str)) {
            (Some(name), _) => name.to_owned(),
            (None, Some(prefix)) => format!("{prefix}{:05}", self.uids),
            (None, None) => {
                return Err(Refusal::new(422, "Invalid", "name or generateName is required"));
            }
        };
        if kind.is_namespaced {
            let parent = self.place_of_kind("Namespace").unwrap_or_default();
            let found = self.get(&(parent, String::new(), namespace.to_owned()));
            let found =
                found.ok_or_else(|| Refusal::not_found(&format!("namespaces {namespace:?}")))?;
            if !found["metadata"]["deletionTimestamp"].is_null() {
                let message = format!("namespace {namespace} is being terminated");
                return Err(Refusal::new(403, "Forbidden", message));
            }
            meta.insert("namespace".into(), json!(namespace));
        }
        let key = (place, namespace.to_owned(), name.clone());
        if self.objects.contains_key(&key) {
            let message = format!("{} {name:?} already exists", kind.plural);
            return Err(Refusal::new(409, "AlreadyExists", message));
        }
        meta.insert("name".into(), json!(name));
        meta.insert("uid".into(), json!(uid));
        meta.insert("creationTimestamp".into(), json!(self.time));
        meta.insert("generation".into(), json!(1));
        meta.remove("deletionTimestamp");
        object["apiVersion"] = json!(kind.api_version());
        object["kind"] = json!(kind.name);
        controllers::admit(&mut object);
        if is_dry_run {
            return Ok(Arc::new(object));
        }
        Ok(self.store(&key, object))
    }

    /// Applies a merge patch to an object.
    pub(crate) fn patch(
        &mut self,
        key: &Key,
        mut patch: Value,
        is_dry_run: bool,
    ) -> Result<Arc<Value>, Refusal> {
        let what = self.describe(key);
        let current = self.get(key).ok_or_else(|| Refusal::not_found(&what))?;
        if let Some(meta) = patch.get_mut("metadata").and_then(Value::as_object_mut) {
            for (field, is_immutable) in [("resourceVersion", false), ("uid", true)] {
                let expected = meta.remove(field).unwrap_or_default();
                if !expected.is_null() && expected != current["metadata"][field] {
                    let refusal = Refusal::conflict(&what);
                    let message = if is_immutable { "the uid differs" } else { &refusal.message };
                    return Err(Refusal { message: message.to_owned(), ..refusal });
                }
            }
        }
        let mut changed = (*current).clone();
        json_patch::merge(&mut changed, &patch);
        self.replace_checked(key, &current, changed, is_dry_run)
    }

    /// Replaces an object.
    pub(crate) fn replace(
        &mut self,
        key: &Key,
        object: Value,
        is_dry_run: bool,
    ) -> Result<Arc<Value>, Refusal> {
        let what = self.describe(key);
        let current = self.get(key).ok_or_else(|| Refusal::not_found(&what))?;
        let expected = &object["metadata"]["resourceVersion"];
        if !expected.is_null() && *expected != current["metadata"]["resourceVersion"] {
            return Err(Refusal::conflict(&what));
        }
        self.replace_checked(key, &current, object, is_dry_run)
    }

    fn replace_checked(
        &mut self,
        key: &Key,
        current: &Value,
        mut changed: Value,
        is_dry_run: bool,
    ) -> Result<Arc<Value>, Refusal> {
        let meta = changed["metadata"].as_object_mut().ok_or_else(bad_metadata)?;
        for field in ["name", "namespace", "uid", "creationTimestamp", "resourceVersion"] {
            match &current["metadata"][field] {
                Value::Null => meta.remove(field),
                value => meta.insert(field.to_owned(), value.clone()),
            };
        }
        let is_finalized = !meta.get("deletionTimestamp").unwrap_or(&Value::Null).is_null()
            && meta.get("finalizers").and_then(Value::as_array).is_none_or(Vec::is_empty);
        if is_dry_run {
            return Ok(Arc::new(changed));
        }
        if changed == *current {
            return Ok(Arc::new(changed));
        }
        let stored = self.store(key, changed);
        if is_finalized {
            self.remove(key);
        }
        Ok(stored)
    }

    /// Deletes an object, or begins to if it has finalizers.
    pub(crate) fn delete(
        &mut self,
        key: &Key,
        preconditions: &Preconditions,
        is_dry_run: bool,
    ) -> Result<Arc<Value>, Refusal> {
        let what = self.describe(key);
        let current = self.get(key).ok_or_else(|| Refusal::not_found(&what))?;
        let differs = |expected: &Option<String>, field: &str| {
            expected.as_ref().is_some_and(|expected| current["metadata"][field] != **expected)
        };
        if differs(&preconditions.uid, "uid") || differs(&preconditions.version, "resourceVersion")
        {
            return Err(Refusal::conflict(&what));
        }
        if is_dry_run {
            return Ok(current);
        }
        let has_finalizers =
            current["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        if !has_finalizers {
            self.remove(key);
        } else if current["metadata"]["deletionTimestamp"].is_null() {
            let mut doomed = (*current).clone();
            doomed["metadata"]["deletionTimestamp"] = json!(self.time);
            return Ok(self.store(key, doomed));
        }
        Ok(current)
    }

    /// Writes an object as a user or another controller does: no questions asked.
    pub(crate) fn force(&mut self, key: &Key, change: impl FnOnce(&mut Value)) {
        let Some(current) = self.get(key) else { return };
        let mut changed = (*current).clone();
        change(&mut changed);
        if changed != *current {
            self.store(key, changed);
        }
    }

    fn store(&mut self, key: &Key, mut object: Value) -> Arc<Value> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let object = Arc::new(object);
        let before = self.objects.insert(key.clone(), Arc::clone(&object));
        let after = Some(Arc::clone(&object));
        self.changes.push(Change { version: self.version, kind: key.0, before, after });
        controllers::react(self, key);
        self.get(key).unwrap_or(object)
    }

    /// Removes an object, and those that it owns or contains.
    fn remove(&mut self, key: &Key) {
        let Some(removed) = self.objects.remove(key) else { return };
        self.version += 1;
        let mut last = (*removed).clone();
        last["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let before = Some(Arc::new(last));
        self.changes.push(Change { version: self.version, kind: key.0, before, after: None });
        let is_namespace = self.kinds[key.0].name == "Namespace";
        let uid = removed["metadata"]["uid"].clone();
        let dependents: Vec<Key> = self
            .objects
            .iter()
            .filter(|(other, object)| {
                is_namespace && other.1 == key.2 || is_owned_by_only(object, &uid)
            })
            .map(|(other, _)| other.clone())
            .collect();
        for dependent in dependents {
            let _ = self.delete(&dependent, &Preconditions::default(), false);
        }
        controllers::after_removal(self, key, &removed);
    }

    fn describe(&self, key: &Key) -> String {
        format!("{} {:?}", self.kinds[key.0].plural, key.2)
    }

    fn next_uid(&mut self) -> String {
        self.uids += 1;
        format!("00000000-0000-4000-8000-{:012}", self.uids)
    }
}

fn bad_metadata() -> Refusal {
    Refusal::new(400, "BadRequest", "the metadata is not an object")
}

fn is_owned_by_only(object: &Value, uid: &Value) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners.is_some_and(|owners| owners.len() == 1 && owners[0]["uid"] == *uid)
}

/// Metadata alone, as a client may ask for it.
pub(crate) fn metadata_only(object: &Value) -> Value {
    let mut meta = Map::new();
    meta.insert("apiVersion".into(), json!("meta.k8s.io/v1"));
    meta.insert("kind".into(), json!("PartialObjectMetadata"));
    meta.insert("metadata".into(), object["metadata"].clone());
    Value::Object(meta)
}
