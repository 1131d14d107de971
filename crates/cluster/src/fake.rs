//! In-memory cluster, for tests.
//!
//! The fake holds the objects that a test adds, lists them in the order of a real API server,
//! answers commands from a script, records all requests, and fails on demand.
//!
//! A mistake of the test itself, such as an object of a kind that is not served, panics.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use bowline_plugin::{Item, ResourceIdentifier};
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::broadcast;

use super::{
    Announce, Cluster, Discovery, Error, Exec, ExecOutcome, Query, Result, Subresource, WatchEvent,
};
use crate::item::{InvalidObject, Object};
use crate::resource::{GroupResource, Resource, Resources};
use crate::selector::Selector;

/// In-memory cluster.
pub struct Fake {
    resources: Vec<Resource>,
    failed_groups: Vec<String>,
    script: Option<Box<Script>>,
    state: Mutex<State>,
    /// Objects after each change; null if deleted.
    changes: broadcast::Sender<WatchMessage>,
}

/// Message to all open watches.
#[derive(Clone)]
enum WatchMessage {
    /// An object has changed; true if it exists.
    Changed(Key, Value, bool),
    /// The watch ends, possibly with an error.
    End(Option<Fault>),
}

/// Maximum number of changes that a watch may lag behind.
const CHANGE_CAPACITY: usize = 1024;

#[derive(Default)]
struct State {
    objects: BTreeMap<Key, Value>,
    list_faults: HashMap<String, (usize, Fault)>,
    get_faults: HashMap<Key, Fault>,
    /// Number of writes that are still to fail, and their error.
    write_faults: HashMap<String, (usize, Fault)>,
    creations: Vec<ResourceIdentifier>,
    deletions: Vec<ResourceIdentifier>,
    lists: Vec<(String, Query)>,
    gets: Vec<ResourceIdentifier>,
    execs: Vec<Exec>,
}

impl State {
    /// Error for the next write to a resource, if it is to fail.
    fn write_fault(&mut self, plural: &str) -> Option<Error> {
        let (count, fault) = self.write_faults.get_mut(plural)?;
        *count = count.checked_sub(1)?;
        Some(fault())
    }
}

/// Resource as users write it, namespace and name.
type Key = (String, String, String);

type Script = dyn Fn(&Exec) -> Result<ExecOutcome> + Send + Sync;

/// Errors cannot be cloned, so each failure creates its own.
type Fault = Arc<dyn Fn() -> Error + Send + Sync>;

/// Resources of [`Fake::usual`]: group, version, kind, plural, short name, true if namespaced.
const USUAL: [(&str, &str, &str, &str, &str, bool); 17] = [
    ("", "v1", "Pod", "pods", "po", true),
    ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", "pvc", true),
    ("", "v1", "PersistentVolume", "persistentvolumes", "pv", false),
    ("", "v1", "Namespace", "namespaces", "ns", false),
    ("", "v1", "ConfigMap", "configmaps", "cm", true),
    ("", "v1", "Secret", "secrets", "", true),
    ("", "v1", "ServiceAccount", "serviceaccounts", "sa", true),
    ("", "v1", "Service", "services", "svc", true),
    ("", "v1", "Event", "events", "ev", true),
    ("apps", "v1", "Deployment", "deployments", "deploy", true),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", "", false),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", "", false),
    ("rbac.authorization.k8s.io", "v1", "Role", "roles", "", true),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", "", true),
    ("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", "pc", false),
    ("storage.k8s.io", "v1", "StorageClass", "storageclasses", "sc", false),
    (
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        "crd",
        false,
    ),
];

const VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

impl Fake {
    /// Empty cluster that serves these resources.
    pub fn new(resources: impl IntoIterator<Item = Resource>) -> Self {
        Self {
            resources: resources.into_iter().collect(),
            failed_groups: Vec::new(),
            script: None,
            state: Mutex::default(),
            changes: broadcast::Sender::new(CHANGE_CAPACITY),
        }
    }

    /// Empty cluster that serves the resources that most tests need.
    pub fn usual() -> Self {
        Self::new(usual_resources())
    }

    /// Adds an object.
    #[must_use]
    pub fn with(self, object: Value) -> Self {
        self.put(object);
        self
    }

    /// Adds a group that does not answer: `metrics.k8s.io/v1beta1: …`.
    #[must_use]
    pub fn with_failed_group(mut self, failed: impl Into<String>) -> Self {
        self.failed_groups.push(failed.into());
        self
    }

    /// Sets the script that answers commands. Without one, every command in an existing pod
    /// succeeds.
    #[must_use]
    pub fn with_exec_script(
        mut self,
        script: impl Fn(&Exec) -> Result<ExecOutcome> + Send + Sync + 'static,
    ) -> Self {
        self.script = Some(Box::new(script));
        self
    }

    /// Adds an object, or replaces the one of the same name.
    #[expect(clippy::panic, reason = "the test is wrong, and should hear of it at once")]
    pub fn put(&self, object: Value) {
        let served = self.resources.iter().find(|resource| {
            object["apiVersion"] == resource.api_version() && object["kind"] == resource.kind
        });
        let Some(resource) = served else { panic!("this kind is not served: {object}") };
        let read = match read(&Arc::new(resource.clone()), &object) {
            Ok(read) => read,
            Err(error) => panic!("{error}: {object}"),
        };
        let key = (resource.id.to_string(), read.namespace, read.name);
        self.state.lock().objects.insert(key.clone(), object.clone());
        self.notify(WatchMessage::Changed(key, object, true));
    }

    /// Removes an object, if it exists.
    pub fn remove(&self, resource: &str, namespace: &str, name: &str) {
        let key = key(resource, namespace, name);
        let removed = self.state.lock().objects.remove(&key);
        if let Some(removed) = removed {
            self.notify(WatchMessage::Changed(key, removed, false));
        }
    }

    /// Ends the open watches, as an API server does from time to time.
    pub fn end_watches(&self) {
        self.notify(WatchMessage::End(None));
    }

    /// Makes the open watches fail.
    pub fn fail_watches(&self, error: impl Fn() -> Error + Send + Sync + 'static) {
        self.notify(WatchMessage::End(Some(Arc::new(error))));
    }

    /// Sends a message to the watches, if there are any.
    fn notify(&self, message: WatchMessage) {
        let _ = self.changes.send(message);
    }

    /// Deleted objects so far, in order.
    pub fn deletions(&self) -> Vec<ResourceIdentifier> {
        self.state.lock().deletions.clone()
    }

    /// Makes every list of a resource (`pods`, `deployments.apps`) fail after this many objects. An
    /// [`Error::Object`] stands for one more object; every other error ends the list.
    pub fn fail_list(
        &self,
        resource: &str,
        after: usize,
        error: impl Fn() -> Error + Send + Sync + 'static,
    ) {
        self.state.lock().list_faults.insert(resource.to_owned(), (after, Arc::new(error)));
    }

    /// Makes every get of an object fail.
    pub fn fail_get(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        error: impl Fn() -> Error + Send + Sync + 'static,
    ) {
        self.state.lock().get_faults.insert(key(resource, namespace, name), Arc::new(error));
    }

    /// Makes every write to a resource fail.
    pub fn fail_write(&self, resource: &str, error: impl Fn() -> Error + Send + Sync + 'static) {
        self.fail_some_writes(resource, usize::MAX, error);
    }

    /// Makes this many writes to a resource fail from now on.
    pub fn fail_some_writes(
        &self,
        resource: &str,
        count: usize,
        error: impl Fn() -> Error + Send + Sync + 'static,
    ) {
        self.state.lock().write_faults.insert(resource.to_owned(), (count, Arc::new(error)));
    }

    /// Created objects so far, in order.
    pub fn creations(&self) -> Vec<ResourceIdentifier> {
        self.state.lock().creations.clone()
    }

    /// Current state of an object.
    pub fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        self.state.lock().objects.get(&key(resource, namespace, name)).cloned()
    }

    /// Served resources.
    pub fn resources(&self) -> Resources {
        Resources::new(self.resources.iter().cloned())
    }

    /// Requested lists so far, in order.
    pub fn lists(&self) -> Vec<(String, Query)> {
        self.state.lock().lists.clone()
    }

    /// Objects requested by get so far, in order.
    pub fn gets(&self) -> Vec<ResourceIdentifier> {
        self.state.lock().gets.clone()
    }

    /// Executed commands so far, in order.
    pub fn execs(&self) -> Vec<Exec> {
        self.state.lock().execs.clone()
    }

    fn serves(&self, resource: &Resource) -> bool {
        self.resources
            .iter()
            .any(|served| served.id == resource.id && served.version == resource.version)
    }

    /// Whole list at once, as results.
    fn list_results(&self, resource: &Arc<Resource>, query: &Query) -> Result<Vec<Result<Object>>> {
        if !self.serves(resource) {
            return Err(refused(404, "NotFound", "the server could not find the resource"));
        }
        let selector = Selector::parse(&query.label_selector)
            .map_err(|error| refused(400, "BadRequest", &error.to_string()))?;
        let plural = resource.id.to_string();
        let state = self.state.lock();
        let mut found = Vec::new();
        for ((of, namespace, _), object) in &state.objects {
            if *of != plural || query.namespace.as_ref().is_some_and(|wanted| wanted != namespace) {
                continue;
            }
            if !has_fields(object, &query.field_selector) {
                continue;
            }
            let object = read(resource, object)?;
            if selector.matches(&object.labels) {
                found.push(Ok(object));
            }
        }
        if let Some((after, fault)) = state.list_faults.get(&plural) {
            let error = fault();
            let at = (*after).min(found.len());
            if !matches!(error, Error::Object(_)) {
                found.truncate(at);
            }
            found.insert(at, Err(error));
        }
        Ok(found)
    }
}

#[async_trait]
impl Cluster for Fake {
    async fn discover(&self) -> Result<Discovery> {
        Ok(Discovery { resources: self.resources.clone(), failed: self.failed_groups.clone() })
    }

    fn list(&self, resource: &Arc<Resource>, query: Query) -> BoxStream<'static, Result<Object>> {
        let listed = self.list_results(resource, &query).unwrap_or_else(|error| vec![Err(error)]);
        self.state.lock().lists.push((resource.id.to_string(), query));
        stream::iter(listed).boxed()
    }

    fn list_announced(
        &self,
        resource: &Arc<Resource>,
        query: Query,
        announce: Announce,
    ) -> BoxStream<'static, Result<Object>> {
        let is_selected = !query.label_selector.is_empty() || !query.field_selector.is_empty();
        let count = self.list_results(resource, &query).map_or(0, |listed| listed.len());
        let listed = self.list(resource, query);
        // Like a real API server, with the first object.
        let mut announce = Some(announce).filter(|_| !is_selected);
        let announced = listed.inspect(move |_| {
            if let Some(announce) = announce.take() {
                announce(count as u64);
            }
        });
        announced.boxed()
    }

    async fn get(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Object>> {
        let mut state = self.state.lock();
        let GroupResource { group, resource: plural } = resource.id.clone();
        let (requested_namespace, requested_name) = (namespace.to_owned(), name.to_owned());
        let id = ResourceIdentifier {
            group,
            resource: plural,
            namespace: requested_namespace,
            name: requested_name,
        };
        state.gets.push(id);
        let key = key(&resource.id.to_string(), namespace, name);
        if let Some(fault) = state.get_faults.get(&key) {
            return Err(fault());
        }
        match state.objects.get(&key) {
            Some(object) if self.serves(resource) => Ok(Some(read(resource, object)?)),
            _ => Ok(None),
        }
    }

    async fn create(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        item: &Item,
    ) -> Result<Object> {
        let mut created: Value = item.parse().map_err(InvalidObject::Item)?;
        if !namespace.is_empty() {
            created["metadata"]["namespace"] = namespace.into();
        }
        let object = read(resource, &created)?;
        let plural = resource.id.to_string();
        let mut state = self.state.lock();
        if let Some(error) = state.write_fault(&plural) {
            return Err(error);
        }
        let key = key(&plural, &object.namespace, &object.name);
        if state.objects.contains_key(&key) {
            let text = format!("{plural} {:?} already exists", object.name);
            return Err(refused(409, "AlreadyExists", &text));
        }
        state.creations.push(object.id());
        let number = state.creations.len();
        created["metadata"]["uid"] = format!("made-{number}").into();
        created["metadata"]["resourceVersion"] = number.to_string().into();
        let object = read(resource, &created)?;
        state.objects.insert(key.clone(), created.clone());
        drop(state);
        self.notify(WatchMessage::Changed(key, created, true));
        Ok(object)
    }

    async fn patch(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
        _subresource: Subresource,
        patch: &Value,
    ) -> Result<Object> {
        let plural = resource.id.to_string();
        let mut state = self.state.lock();
        if let Some(error) = state.write_fault(&plural) {
            return Err(error);
        }
        let key = key(&plural, namespace, name);
        let Some(object) = state.objects.get_mut(&key) else {
            return Err(refused(404, "NotFound", &format!("{plural} {name:?} not found")));
        };
        merge(object, patch);
        let changed = object.clone();
        let remains = !is_released(&changed);
        if !remains {
            state.objects.remove(&key);
        }
        drop(state);
        let object = read(resource, &changed)?;
        self.notify(WatchMessage::Changed(key, changed, remains));
        Ok(object)
    }

    async fn delete(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> Result<()> {
        let plural = resource.id.to_string();
        let key = key(&plural, namespace, name);
        let mut state = self.state.lock();
        if let Some(error) = state.write_fault(&plural) {
            return Err(error);
        }
        let Some(object) = state.objects.get_mut(&key) else {
            return Err(refused(404, "NotFound", &format!("{plural} {name:?} not found")));
        };
        if uid.is_some_and(|uid| object["metadata"]["uid"] != uid) {
            return Err(refused(409, "Conflict", &format!("{plural} {name:?} is another one")));
        }
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        let deleted = object.clone();
        let remains = !is_released(&deleted);
        if !remains {
            state.objects.remove(&key);
        }
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let GroupResource { group, resource } = resource.id.clone();
        state.deletions.push(ResourceIdentifier { group, resource, namespace, name });
        drop(state);
        self.notify(WatchMessage::Changed(key, deleted, remains));
        Ok(())
    }

    fn watch(
        &self,
        resource: &Arc<Resource>,
        query: Query,
    ) -> BoxStream<'static, Result<WatchEvent>> {
        let changes = self.changes.subscribe();
        let listed = self.list_results(resource, &query).unwrap_or_else(|error| vec![Err(error)]);
        let is_refused = listed.iter().any(Result::is_err);
        let first = stream::iter([Ok(WatchEvent::Started)])
            .chain(stream::iter(listed.into_iter().map(|found| found.map(WatchEvent::Applied))));
        if is_refused {
            return first.boxed();
        }
        let (resource, plural) = (Arc::clone(resource), resource.id.to_string());
        let selector = Selector::parse(&query.label_selector).ok();
        let later = stream::unfold(Some(changes), async |changes| {
            let mut changes = changes?;
            // A watch that lags this far behind is a mistake of the test.
            match changes.recv().await.ok()? {
                WatchMessage::Changed(key, object, is_there) => {
                    Some((Ok((key, object, is_there)), Some(changes)))
                }
                WatchMessage::End(error) => Some((Err(error?()), None)),
            }
        });
        let later = later.filter_map(move |change| {
            let ((of, namespace, _), object, is_there) = match change {
                Ok(change) => change,
                Err(error) => return std::future::ready(Some(Err(error))),
            };
            let is_selected = of == plural
                && query.namespace.as_ref().is_none_or(|n| *n == namespace)
                && has_fields(&object, &query.field_selector);
            let read = is_selected.then(|| read(&resource, &object)).and_then(Result::ok);
            let read = read.filter(|object| {
                selector.as_ref().is_none_or(|selector| selector.matches(&object.labels))
            });
            let change = if is_there { WatchEvent::Applied } else { WatchEvent::Deleted };
            std::future::ready(read.map(|object| Ok(change(object))))
        });
        first.chain(later).boxed()
    }

    async fn exec(&self, exec: &Exec) -> Result<ExecOutcome> {
        let pod = key("pods", &exec.namespace, &exec.pod);
        let is_there = {
            let mut state = self.state.lock();
            state.execs.push(exec.clone());
            state.objects.contains_key(&pod)
        };
        match &self.script {
            Some(script) => script(exec),
            None if is_there => Ok(ExecOutcome { output: String::new(), failure: None }),
            None => Err(refused(404, "NotFound", &format!("pods {:?} not found", exec.pod))),
        }
    }
}

/// Resources that [`Fake::usual`] serves.
pub fn usual_resources() -> Vec<Resource> {
    USUAL
        .iter()
        .map(|(group, version, kind, plural, short, is_namespaced)| Resource {
            id: GroupResource::new(*group, *plural),
            version: (*version).to_owned(),
            kind: (*kind).to_owned(),
            singular: kind.to_ascii_lowercase(),
            short_names: Some(*short)
                .filter(|short| !short.is_empty())
                .map(Into::into)
                .into_iter()
                .collect(),
            is_namespaced: *is_namespaced,
            verbs: VERBS.iter().map(ToString::to_string).collect(),
        })
        .collect()
}

/// Object in the requested version.
fn read(resource: &Arc<Resource>, object: &Value) -> Result<Object, InvalidObject> {
    let mut object = object.clone();
    object["apiVersion"] = resource.api_version().into();
    Object::new(resource, Item::from_object(&object)?)
}

/// True if an object has the exact field values of a selector.
fn has_fields(object: &Value, selector: &str) -> bool {
    selector.split(',').filter(|one| !one.is_empty()).all(|one| {
        let (path, value) = one.split_once('=').unwrap_or((one, ""));
        let pointer = format!("/{}", path.replace('.', "/"));
        object.pointer(&pointer).and_then(Value::as_str).unwrap_or_default() == value
    })
}

/// True if an object that is being deleted has no finalizers.
fn is_released(object: &Value) -> bool {
    let finalizers = object["metadata"]["finalizers"].as_array();
    object["metadata"]["deletionTimestamp"].is_string() && finalizers.is_none_or(Vec::is_empty)
}

fn key(resource: &str, namespace: &str, name: &str) -> Key {
    (resource.to_owned(), namespace.to_owned(), name.to_owned())
}

fn refused(code: u16, reason: &str, message: &str) -> Error {
    Error::Refused { code, reason: reason.to_owned(), message: message.to_owned() }
}

/// Applies a merge patch.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    for (name, value) in fields {
        if value.is_null() {
            if let Some(target) = target.as_object_mut() {
                target.remove(name);
            }
        } else {
            merge(&mut target[name.as_str()], value);
        }
    }
}
