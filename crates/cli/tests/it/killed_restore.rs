//! A server that is killed during a restore, and the server that resumes the restore.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::process::{Child, Stdio};
use std::time::Duration;

use bowline_api::{Backup, BackupPhase, BackupStorageLocation, Restore, RestorePhase};
use bowline_store::backend::{self, BuiltIn, filesystem};
use bowline_store::file::{ResourceList, Results};
use bowline_store::{BackupName, BackupStore, Prefix, RestoreName};
use bowline_testbed::{eventually_blocking, fixture};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cluster::{TestEnv, cluster};

/// Time limit of a step. The machine may be busy with a compiler.
const TIMEOUT: Duration = Duration::from_mins(3);
/// Number of ConfigMaps.
const CONFIG_MAPS: usize = 300;
/// File with which the plugin reports that additional items are ready.
const READY: &str = "fixture.bowline.io/ready-after-ms";
/// Kinds that are stored, and never restored.
const EVENTS: [&str; 2] = ["v1/Event", "events.k8s.io/v1/Event"];

/// A server as a process. It is killed when this is dropped.
struct Server(Child);

impl Server {
    fn start(env: &TestEnv, folder: &std::path::Path) -> Self {
        let at = |flag: &str, name: &str| format!("--{flag}={}", folder.join(name).display());
        let mut command = env.server(&["--log-level=debug"]);
        command.args([at("plugin-dir", "plugins"), at("filesystem-root", "root")]);
        let log = File::options().create(true).append(true).open(folder.join("log")).unwrap();
        Self(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    /// Kills it, as nothing in it can notice.
    fn kill(mut self) {
        assert_eq!(self.0.try_wait().unwrap(), None, "it has ended by itself");
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Objects of a kind in a namespace, without those of every namespace.
fn objects_in<K>(namespace: &str) -> BTreeMap<String, K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(cluster().client.clone(), namespace);
    let listed = cluster().runtime.block_on(api.list(&ListParams::default())).unwrap().items;
    let own = listed.into_iter().filter(|object| object.name_any() != "kube-root-ca.crt");
    own.map(|object| (object.name_any(), object)).collect()
}

/// Uid and version of each object.
fn versions<K: Resource>(objects: &BTreeMap<String, K>) -> BTreeMap<String, (String, String)> {
    let version = |object: &K| (object.uid().unwrap(), object.resource_version().unwrap());
    objects.iter().map(|(name, object)| (name.clone(), version(object))).collect()
}

/// An application with many config maps, and a pod that is restored last: an action lets it wait.
fn application(namespace: &str) {
    let metadata = |name: &str| json!({"name": name, "namespace": namespace});
    cluster().apply(json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace},
    }));
    // Created, not applied: who owns their fields is not written back, so that each is written once.
    let maps: Api<ConfigMap> = Api::namespaced(cluster().client.clone(), namespace);
    for number in 0..CONFIG_MAPS {
        let metadata = metadata(&format!("m{number}"));
        let map = json!({"metadata": metadata, "data": {"number": number.to_string()}});
        let map: ConfigMap = serde_json::from_value(map).unwrap();
        cluster().runtime.block_on(maps.create(&PostParams::default(), &map)).unwrap();
    }
    let container = json!({"name": "main", "image": "example.io/none:1"});
    let mut pod = metadata("waits");
    pod["annotations"] = json!({
        "fixture.bowline.io/do": "wait=170000",
        "fixture.bowline.io/additional": format!("configmaps/{namespace}/m0"),
    });
    let labels = json!({"app": "web"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [container]}});
    let objects = [
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": pod,
            "spec": {"containers": [container]},
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata("web"),
            "spec": {"ports": [{"port": 80}], "selector": labels, "type": "NodePort"},
        }),
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata("web"),
            "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
        }),
    ];
    for object in objects {
        cluster().apply(object);
    }
}

fn phase(restore: &Restore) -> Option<&RestorePhase> {
    restore.status.as_ref().and_then(|status| status.phase.as_ref())
}

fn patch_restore(env: &TestEnv, change: &Value) {
    let patch = env.api::<Restore>();
    let params = PatchParams::default();
    cluster().runtime.block_on(patch.patch("r", &params, &Patch::Merge(change))).unwrap();
}

fn store(folder: &std::path::Path) -> BackupStore {
    let options = filesystem::Options { root: folder.join("root"), downloads: None };
    let built_in = BuiltIn { filesystem: Some(options), ..BuiltIn::default() };
    let none = BTreeMap::default();
    let opened = cluster().runtime.block_on(backend::open("filesystem", &none, None, &built_in));
    BackupStore::new(opened.unwrap(), "bucket", &Prefix::default())
}

/// Names of the objects in a list by kind, each with its outcome.
fn outcomes_by_kind(list: &ResourceList) -> BTreeMap<String, Vec<(String, String)>> {
    let split = |item: &String| {
        let (name, what) = item.strip_suffix(')').unwrap().rsplit_once('(').unwrap();
        (name.to_owned(), what.to_owned())
    };
    list.0.iter().map(|(kind, items)| (kind.clone(), items.iter().map(split).collect())).collect()
}

/// The restore's list names every object of the backup once, in the copy of its namespace.
fn assert_every_object_listed_once(store: &BackupStore, (app, copy): (&str, &str)) {
    let runtime = &cluster().runtime;
    let list: ResourceList =
        runtime.block_on(store.get_restore_file(&RestoreName::new("r").unwrap())).unwrap().unwrap();
    let list = outcomes_by_kind(&list);
    let backup = BackupName::new("b").unwrap();
    let stored: ResourceList = runtime.block_on(store.get(&backup)).unwrap().unwrap();
    for (kind, items) in stored.0.iter().filter(|(kind, _)| !EVENTS.contains(&kind.as_str())) {
        let expected: BTreeSet<String> = items
            .iter()
            .map(|name| name.replacen(&format!("{app}/"), &format!("{copy}/"), 1))
            .map(|name| if name == app { copy.to_owned() } else { name })
            .collect();
        let Some(found) = list.get(kind) else { panic!("no {kind} in {list:?}") };
        let names: BTreeSet<String> = found.iter().map(|(name, _)| name.clone()).collect();
        assert_eq!(names, expected, "{kind}");
        assert_eq!(names.len(), found.len(), "some are there twice: {found:?}");
    }
    // A controller creates this ConfigMap in the namespace, before or after the restore reaches it.
    let is_restored = |(name, what): &&(String, String)| {
        what == "created" && !name.ends_with("/kube-root-ca.crt")
    };
    let created = |kind: &str| list[kind].iter().filter(is_restored).count();
    assert_eq!(created("v1/ConfigMap"), CONFIG_MAPS);
    assert_eq!((created("v1/Pod"), created("v1/Service")), (1, 1));
    assert_eq!(created("apps/v1/Deployment"), 1);
}

#[test]
fn killed_restore_is_resumed_with_every_object_once() {
    let (app, copy) = ("app-killed", "app-killed-copy");
    let env = cluster().test_env("killed");
    let folder = tempfile::tempdir().unwrap();
    let runtime = &cluster().runtime;
    for name in ["plugins", "root/bucket"] {
        std::fs::create_dir_all(folder.path().join(name)).unwrap();
    }
    let plugin = runtime.block_on(fixture::rust_plugins()).unwrap();
    std::os::unix::fs::symlink(plugin, folder.path().join("plugins/fixture")).unwrap();
    let spec = json!({"provider": "filesystem", "objectStorage": {"bucket": "bucket"}});
    env.apply_velero_object("BackupStorageLocation", "default", json!({"spec": spec}));
    application(app);

    let server = Server::start(&env, folder.path());
    eventually_blocking("the location is available", TIMEOUT, || {
        let status = env.get::<BackupStorageLocation>("default").status?;
        (status.phase?.as_str() == "Available").then_some(())
    });
    env.apply_velero_object("Backup", "b", json!({"spec": {"includedNamespaces": [app]}}));
    eventually_blocking("the backup has ended", TIMEOUT, || {
        let status = env.get::<Backup>("b").status?;
        let phase = status.phase.clone().filter(BackupPhase::is_terminal)?;
        assert_eq!(phase, BackupPhase::Completed, "{status:?}");
        Some(())
    });

    // The additional item of the pod is never ready, so the restore cannot end. The policy changes existing objects:
    // objects of this restore must not count as existing.
    let never = json!({READY: "never"});
    let spec = json!({
        "backupName": "b", "namespaceMapping": {app: copy}, "existingResourcePolicy": "update",
    });
    env.apply_velero_object(
        "Restore",
        "r",
        json!({"metadata": {"annotations": never}, "spec": spec}),
    );
    eventually_blocking("something is restored", TIMEOUT, || {
        (!objects_in::<ConfigMap>(copy).is_empty()).then_some(())
    });
    server.kill();
    assert_eq!(phase(&env.get("r")), Some(&RestorePhase::InProgress));
    let of_first = versions(&objects_in::<ConfigMap>(copy));
    assert!(!of_first.is_empty() && objects_in::<Pod>(copy).is_empty());

    // The next server resumes the restore, and is killed as well.
    let server = Server::start(&env, folder.path());
    eventually_blocking("all config maps are restored", TIMEOUT, || {
        (objects_in::<ConfigMap>(copy).len() == CONFIG_MAPS).then_some(())
    });
    eventually_blocking("the pod waits", TIMEOUT, || {
        let progress = env.get::<Restore>("r").status?.progress?;
        assert!(progress.items_restored < progress.total_items, "{progress:?}");
        (progress.items_restored > i64::try_from(CONFIG_MAPS).unwrap()).then_some(())
    });
    server.kill();
    assert_eq!(phase(&env.get("r")), Some(&RestorePhase::InProgress));
    assert!(objects_in::<Pod>(copy).is_empty());
    let of_second = versions(&objects_in::<ConfigMap>(copy));

    patch_restore(&env, &json!({"metadata": {"annotations": {READY: null}}}));
    let server = Server::start(&env, folder.path());
    let restore = eventually_blocking("the restore has ended", TIMEOUT, || {
        let restore = env.get::<Restore>("r");
        phase(&restore).is_some_and(RestorePhase::is_terminal).then_some(restore)
    });
    let store = store(folder.path());
    let name = RestoreName::new("r").unwrap();
    let results: Option<Results> = runtime.block_on(store.get_restore_file(&name)).unwrap();
    let status = restore.status.unwrap();
    assert_eq!(status.phase, Some(RestorePhase::Completed), "{status:?} {results:?}");
    assert_eq!(status.errors, 0, "{results:?}");
    // The action was processing the pod when a server was killed, and was called again, which is reported.
    let warnings = results.unwrap().warnings;
    let of_app = warnings.namespaces.get(app).cloned().unwrap_or_default();
    assert!(!of_app.is_empty() && of_app.len() == warnings.count(), "{warnings:?}");
    for warning in of_app {
        assert!(
            warning.starts_with("pods/waits: ") && warning.contains("may be left over"),
            "{warning}"
        );
    }

    // Every object exists, and is the one that was created first.
    let maps = objects_in::<ConfigMap>(copy);
    let data = |maps: &BTreeMap<String, ConfigMap>| -> BTreeMap<String, _> {
        maps.iter().map(|(name, map)| (name.clone(), map.data.clone())).collect()
    };
    assert_eq!(data(&maps), data(&objects_in(app)));
    let now = versions(&maps);
    for (before, when) in [(of_first, "first"), (of_second, "second")] {
        for (name, version) in before {
            assert_eq!(now[&name], version, "{name} of the {when} server");
        }
    }
    assert_eq!(objects_in::<Pod>(copy).into_keys().collect::<Vec<_>>(), ["waits"]);
    assert_eq!(objects_in::<Service>(copy).into_keys().collect::<Vec<_>>(), ["web"]);
    assert_eq!(objects_in::<Deployment>(copy).into_keys().collect::<Vec<_>>(), ["web"]);

    assert_every_object_listed_once(&store, (app, copy));

    // Plugins have died with their servers.
    server.kill();
    eventually_blocking("no process is left", TIMEOUT, || {
        let leftovers = env.world.leftovers();
        leftovers.iter().all(|leftovers| leftovers.starts_with("file ")).then_some(())
    });
}
