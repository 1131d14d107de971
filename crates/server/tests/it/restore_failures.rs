//! Restores with hostile archives, and into a cluster that rejects objects: failures are reported, the
//! rest is restored, and nothing is written elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bowline_api::{Restore, RestorePhase, RestoreStatus};
use bowline_store::file::Results;
use bowline_store::{BackupName, BackupStore};
use bowline_testbed::apply::apply;
use futures::stream;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ResourceQuota, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tar::EntryType;

use crate::bed::{World, eventually};
use crate::support::raw_tar::{RawTar, gzip};
use crate::support::runs::{back_up, is_over, list_of, results_of};
use crate::webhook::Webhook;

fn map(namespace: &str, name: &str, value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace}, "data": {"key": value},
    })
}

/// A world with a backup whose archive can be replaced.
struct ArchiveScenario {
    world: World,
    store: BackupStore,
    restores: usize,
}

impl ArchiveScenario {
    async fn prepare(name: &str, change: impl FnOnce(&mut bowline_server::Options)) -> Self {
        let world = World::start_with(name, change).await;
        let store = world.filesystem_location("default").await;
        back_up(&world, "b", &[name]).await;
        Self { world, store, restores: 0 }
    }

    /// Restores a different archive than the stored one.
    async fn restore(&mut self, archive: Vec<u8>) -> (RestoreStatus, Results) {
        self.restore_with(archive, json!({})).await
    }

    /// The same, of an archive that may be damaged.
    async fn restore_damaged(&mut self, archive: Vec<u8>) -> (RestoreStatus, Results) {
        self.restore_with(archive, json!({"bowline.io/allow-damaged-archive": "true"})).await
    }

    async fn restore_with(
        &mut self,
        archive: Vec<u8>,
        annotations: Value,
    ) -> (RestoreStatus, Results) {
        let backup = BackupName::new("b").unwrap();
        let archive = Box::pin(stream::iter([Ok(archive.into())]));
        self.store.put_contents(&backup, archive).await.unwrap();
        self.restores += 1;
        let name = format!("r{}", self.restores);
        let metadata = json!({"name": name, "annotations": annotations});
        let object = json!({"metadata": metadata, "spec": {"backupName": "b"}});
        self.world.create::<Restore>(object).await;
        let status = self.world.until::<Restore>(&name, is_over).await.status.unwrap();
        let results = results_of(&self.store, &name).await;
        (status, results)
    }

    /// Restores a damaged archive, of which nothing is restored.
    async fn assert_refused(&mut self, archive: Vec<u8>, app: &str) {
        let (status, results) = self.restore(archive).await;
        assert_eq!(status.phase, Some(RestorePhase::Failed), "{status:?}");
        assert!(status.failure_reason.contains("--allow-damaged-archive"), "{status:?}");
        assert_eq!(results.errors.velero, [status.failure_reason]);
        let namespaces: Api<Namespace> = Api::all(self.world.client.clone());
        let namespaces = namespaces.list(&ListParams::default()).await.unwrap().items;
        assert!(!is_there(&namespaces, app), "something was restored");
    }

    /// Values of the ConfigMaps in a namespace, without those of every namespace.
    async fn maps(&self, namespace: &str) -> BTreeMap<String, String> {
        let api: Api<ConfigMap> = Api::namespaced(self.world.client.clone(), namespace);
        let listed = api.list(&ListParams::default()).await.unwrap().items.into_iter();
        let own = listed.filter(|map| map.name_any() != "kube-root-ca.crt");
        own.map(|map| (map.name_any(), map.data.unwrap().remove("key").unwrap())).collect()
    }

    /// Files that were not there from the beginning.
    fn unexpected_files(&self) -> Vec<String> {
        let names = |folder: &str| {
            let entries = std::fs::read_dir(self.world.path(folder)).unwrap().flatten();
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        let mut strays = names("");
        strays.retain(|name| !["plugins", "root", "scratch"].contains(&name.as_str()));
        strays.extend(names("root").into_iter().filter(|name| name != "default"));
        // The server has a folder for credentials there, of which there are none: only its lock.
        let (own, more) = names("scratch")
            .into_iter()
            .partition::<Vec<_>, _>(|name| name.starts_with("bowline-"));
        strays.extend(more);
        let kept_files = own.iter().flat_map(|own| names(&format!("scratch/{own}")));
        strays.extend(kept_files.filter(|name| name != ".lock"));
        strays.extend(names("plugins"));
        strays
    }
}

fn is_there(namespaces: &[Namespace], name: &str) -> bool {
    namespaces.iter().any(|namespace| namespace.name_any() == name)
}

#[tokio::test]
async fn unreadable_archive_fails_the_restore() {
    let app = "unreadable-app";
    let mut stage = ArchiveScenario::prepare("unreadable", |_| {}).await;
    let mut tar = RawTar::default();
    tar.object("configmaps", &map(app, "m", "x"));
    let whole = tar.end();
    let bomb = {
        // In pieces, so that it need not be packed as a whole.
        let (count, piece) = (66_usize, vec![b' '; 1 << 20]);
        let mut tar = RawTar::default();
        tar.object("configmaps", &map(app, "m", "x"));
        let path = format!("resources/configmaps/namespaces/{app}/bomb.json");
        tar.header(&path, EntryType::Regular, "", count * piece.len());
        let mut bomb = gzip(&tar.0);
        bomb.extend(gzip(&piece).repeat(count));
        bomb.extend(gzip(&[0; 1024]));
        bomb
    };
    for (archive, words) in [
        (b"this is no archive".to_vec(), "the archive cannot be read"),
        (Vec::new(), "the archive cannot be read"),
        (gzip(b"this is no archive"), "the archive cannot be read"),
        (whole[..whole.len() / 2].to_vec(), "the archive cannot be read"),
        (bomb, "the archive expands to more than 500 times its size"),
    ] {
        let (status, results) = stage.restore(archive).await;
        assert_eq!(status.phase, Some(RestorePhase::Failed), "{status:?}");
        assert!(status.failure_reason.contains(words), "no {words:?} in {status:?}");
        assert_eq!(status.errors, 1, "{results:?}");
        assert_eq!(results.errors.velero, [status.failure_reason]);
        let namespaces: Api<Namespace> = Api::all(stage.world.client.clone());
        let namespaces = namespaces.list(&ListParams::default()).await.unwrap().items;
        assert!(!is_there(&namespaces, app), "something was restored");
    }
    assert_eq!(stage.unexpected_files(), [] as [&str; 0]);
    // The same archive, whole.
    let (status, results) = stage.restore(whole).await;
    assert_eq!(status.phase, Some(RestorePhase::Completed), "{results:?}");
    assert_eq!(stage.maps(app).await.len(), 1);
}

#[tokio::test]
async fn truncated_archive_is_refused_unless_damaged_restores_are_allowed() {
    let mut stage = ArchiveScenario::prepare("cut", |_| {}).await;
    let archive = |namespace: &str| {
        let mut tar = RawTar::default();
        // Names that do not compress, so that the middle is in the middle.
        for number in 0..40_u64 {
            let name = format!("m{:x}", (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            tar.object("configmaps", &map(namespace, &name, "x"));
        }
        tar.end()
    };
    for (app, keep) in [
        ("cut-middle", (|length| length / 2) as fn(usize) -> usize),
        ("cut-checksum", |length| length - 8),
        ("cut-byte", |length| length - 1),
    ] {
        let archive = archive(app);
        let cut = archive[..keep(archive.len())].to_vec();
        stage.assert_refused(cut.clone(), app).await;
        let (status, results) = stage.restore_damaged(cut).await;
        assert_eq!(status.phase, Some(RestorePhase::PartiallyFailed), "{app}: {status:?}");
        assert_eq!(status.errors, 1, "{app}: {results:?}");
        let error = &results.errors.velero[0];
        assert!(error.contains("in the archive: the archive ends early"), "{app}: {error}");
        let maps = stage.maps(app).await.len();
        let expected = if app == "cut-middle" { 5..35 } else { 40..41 };
        assert!(expected.contains(&maps), "{app}: {maps}");
        let progress = status.progress.unwrap();
        assert!(progress.items_restored < progress.total_items, "{app}: {progress:?}");
    }
    assert_eq!(stage.unexpected_files(), [] as [&str; 0]);
}

#[tokio::test]
async fn hostile_entries_are_errors_and_the_rest_is_restored_on_request() {
    let mut stage = ArchiveScenario::prepare("hostile", |_| {}).await;
    let app = "hostile-app";
    let folder = format!("resources/configmaps/namespaces/{app}");
    let away = stage.world.path("stray");
    let world = stage.world.path("");
    let mut tar = RawTar::default();
    tar.object("configmaps", &map(app, "first", "x"));

    // Paths and links, each reported with its path.
    let links = [
        (format!("{folder}/link.json"), EntryType::Symlink, world.to_str().unwrap()),
        (format!("{folder}/hard.json"), EntryType::Link, "/etc/passwd"),
        (format!("{folder}/fifo.json"), EntryType::Fifo, ""),
    ];
    let paths = [
        away.to_str().unwrap().to_owned(),
        "../stray".to_owned(),
        "../../stray".to_owned(),
        format!("{folder}/../../../../../stray"),
        format!("{folder}/link.json/stray"),
        "stray".to_owned(),
    ];
    for (path, kind, target) in &links {
        tar.header(path, *kind, target, 0);
    }
    for path in &paths {
        tar.file(path, "stray");
    }
    let twice = format!("{folder}/first.json");
    tar.file(&twice, map(app, "first", "the second one").to_string());
    let errors_by_path: Vec<String> =
        links.into_iter().map(|(path, ..)| path).chain(paths).chain([twice]).collect();

    // Objects, each reported with its name.
    let mut names = Vec::new();
    let mut bad = |name: &'static str, content: String| {
        tar.file(&format!("{folder}/{name}.json"), content);
        names.push(name);
    };
    bad("broken", "{\"kind\":".to_owned());
    bad("empty", String::new());
    bad("list", "[]".to_owned());
    bad("deep", format!("{}1{}", "{\"a\":".repeat(9000), "}".repeat(9000)));
    bad("strange", json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": 7}).to_string());
    bad("liar", map(app, "truth", "x").to_string());
    bad("moved", map("kube-system", "moved", "x").to_string());
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "disguised", "namespace": app},
    });
    bad("disguised", secret.to_string());
    bad("no_Name", map(app, "no_Name", "x").to_string());
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "hostile", "namespace": app},
    });
    tar.object("clusterroles.rbac.authorization.k8s.io", &role);
    let thing = json!({
        "apiVersion": "nowhere.example.io/v1", "kind": "Thing",
        "metadata": {"name": "unknown", "namespace": app},
    });
    tar.object("things.nowhere.example.io", &thing);
    tar.object("configmaps", &map(app, "last", "x"));

    let archive = tar.end();
    stage.assert_refused(archive.clone(), app).await;
    let (status, results) = stage.restore_damaged(archive).await;
    assert_eq!(status.phase, Some(RestorePhase::PartiallyFailed), "{status:?}");
    let whole = &results.errors.velero;
    assert_eq!(whole.len(), errors_by_path.len(), "{whole:#?}");
    for path in errors_by_path {
        assert!(
            whole.iter().any(|error| error.contains(&format!("{path:?}"))),
            "{path}: {whole:#?}"
        );
    }
    let items = &results.errors.namespaces[app];
    let is_reported =
        |what: &str| items.iter().any(|error| error.starts_with(&format!("{what}: ")));
    for name in &names {
        assert!(is_reported(&format!("configmaps/{name}")), "{name}: {items:#?}");
    }
    assert!(is_reported("clusterroles.rbac.authorization.k8s.io/hostile"), "{items:#?}");
    assert!(is_reported("things.nowhere.example.io/unknown"), "{items:#?}");
    assert_eq!(items.len(), names.len() + 2, "{items:#?}");
    assert_eq!(usize::try_from(status.errors).unwrap(), whole.len() + items.len());

    let maps = stage.maps(app).await;
    let restored: Vec<_> =
        maps.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(restored, [("first", "x"), ("last", "x")]);
    let secrets: Api<Secret> = Api::namespaced(stage.world.client.clone(), app);
    assert!(secrets.get_opt("disguised").await.unwrap().is_none());
    let elsewhere: Api<ConfigMap> = Api::namespaced(stage.world.client.clone(), "kube-system");
    assert!(elsewhere.get_opt("moved").await.unwrap().is_none());
    assert_eq!(stage.unexpected_files(), [] as [&str; 0]);
}

#[tokio::test]
async fn deeply_nested_object_is_restored() {
    let mut stage = ArchiveScenario::prepare("deep", |_| {}).await;
    let (app, levels) = ("deep-app", 400);
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.deep.example.io"},
        "spec": {
            "group": "deep.example.io", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
            }],
        },
    });
    let spec = (0..levels).fold(json!("core"), |inner, _| json!({ "a": inner }));
    let thing = json!({
        "apiVersion": "deep.example.io/v1", "kind": "Thing",
        "metadata": {"name": "t", "namespace": app}, "spec": spec,
    });
    let mut tar = RawTar::default();
    tar.object("customresourcedefinitions.apiextensions.k8s.io", &definition);
    tar.object("things.deep.example.io", &thing);
    let archive = tar.end();
    // Once into an empty namespace, and once over the result.
    for _ in 0..2 {
        let (status, results) = stage.restore(archive.clone()).await;
        assert_eq!(status.phase, Some(RestorePhase::Completed), "{results:?}");
        assert_eq!(results.warnings.count(), 0, "{results:?}");
    }
    // As text, because the client would not parse it.
    let path = format!("/apis/deep.example.io/v1/namespaces/{app}/things/t");
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    let text = stage.world.client.request_text(request).await.unwrap();
    assert!(text.contains(&thing["spec"].to_string()), "{text}");
}

/// Waits until the API server refuses what it should, because it reads policies with a delay.
async fn until_refused<K>(api: &Api<K>, object: Value, words: &str)
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let object: K = serde_json::from_value(object).unwrap();
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    eventually(&format!("refused with {words:?}"), async || {
        match api.create(&dry_run, &object).await {
            Err(error) if error.to_string().contains(words) => Ok(()),
            other => Err(other),
        }
    })
    .await;
}

async fn put_namespace(stage: &ArchiveScenario, name: &str, finalizers: &[&str]) {
    let metadata = json!({"name": name, "finalizers": finalizers});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
    apply(&stage.world.client, namespace).await.unwrap();
}

fn labelled(mut object: Value, day: &str) -> Value {
    object["metadata"]["labels"] = json!({"day": day});
    object
}

/// A namespace with webhooks: one rejects objects with the label `bad`, the one for `gone` does not answer.
async fn put_webhooks(stage: &ArchiveScenario, namespace: &str) {
    put_namespace(stage, namespace, &[]).await;
    let client = &stage.world.client;
    let webhook = Webhook::start("not on a bad day");
    let silent = {
        // The address no longer has a listener.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("https://127.0.0.1:{}/", listener.local_addr().unwrap().port())
    };
    let authority = ByteString(webhook.authority.clone().into_bytes());
    let one = |day: &str, url: &str| {
        json!({
            "name": format!("{day}.example.io"),
            "clientConfig": {"url": url, "caBundle": authority},
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["configmaps"],
            }],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "objectSelector": {"matchLabels": {"day": day}},
            "failurePolicy": "Fail", "sideEffects": "None", "timeoutSeconds": 5,
            "admissionReviewVersions": ["v1"],
        })
    };
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": namespace},
        "webhooks": [one("bad", &webhook.url()), one("gone", &silent)],
    });
    apply(client, configuration).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let probe = |day: &str| labelled(map(namespace, "probe", "x"), day);
    until_refused(&maps, probe("bad"), "not on a bad day").await;
    until_refused(&maps, probe("gone"), "failed calling webhook").await;
}

/// A namespace with room for two more config maps.
async fn put_quota(stage: &ArchiveScenario, namespace: &str) {
    put_namespace(stage, namespace, &[]).await;
    let hard = json!({"count/configmaps": "3", "count/secrets": "0"});
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "small", "namespace": namespace}, "spec": {"hard": hard},
    });
    apply(&stage.world.client, quota).await.unwrap();
    let quotas: Api<ResourceQuota> = Api::namespaced(stage.world.client.clone(), namespace);
    // Kubernetes creates one ConfigMap in each namespace.
    eventually("the quota counts one ConfigMap", async || {
        let status = quotas.get("small").await.unwrap().status.unwrap_or_default();
        let used = status.used.unwrap_or_default();
        let is_counted = used.get("count/configmaps").is_some_and(|count| count.0 == "1");
        if is_counted { Ok(()) } else { Err(used) }
    })
    .await;
    let secrets: Api<Secret> = Api::namespaced(stage.world.client.clone(), namespace);
    let secret = json!({"metadata": {"name": "probe", "namespace": namespace}});
    until_refused(&secrets, secret, "exceeded quota").await;
}

#[tokio::test]
async fn refused_objects_are_item_errors_and_the_rest_is_restored() {
    let limit = Duration::from_secs(2);
    let change =
        |options: &mut bowline_server::Options| options.terminating_resource_timeout = limit;
    let mut stage = ArchiveScenario::prepare("refusing", change).await;
    let [hook, quota, stuck, fine] =
        ["refusing-hook", "refusing-quota", "refusing-stuck", "refusing-fine"];
    put_webhooks(&stage, hook).await;
    put_quota(&stage, quota).await;
    put_namespace(&stage, stuck, &["example.io/never"]).await;
    let namespaces: Api<Namespace> = Api::all(stage.world.client.clone());
    namespaces.delete(stuck, &DeleteParams::default()).await.unwrap();

    let mut tar = RawTar::default();
    for namespace in [hook, quota, stuck, fine] {
        let metadata = json!({"name": namespace});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        tar.object("namespaces", &namespace);
    }
    for object in [
        map(hook, "a", "x"),
        labelled(map(hook, "refused", "x"), "bad"),
        labelled(map(hook, "lost", "x"), "gone"),
        map(hook, "b", "x"),
        map(stuck, "a", "x"),
        map(stuck, "b", "x"),
        map(fine, "a", "x"),
    ] {
        tar.object("configmaps", &object);
    }
    for number in 0..6 {
        tar.object("configmaps", &map(quota, &format!("m{number}"), "x"));
    }
    let archive = tar.end();
    // By default, a restore waits ten minutes for a namespace to be gone, which is longer than this
    // test waits for a restore.
    let (status, results) = stage.restore(archive.clone()).await;
    assert_eq!(status.phase, Some(RestorePhase::PartiallyFailed), "{status:?}");

    let assert_reported = |namespace: &str, item: &str, words: &str| {
        let errors = &results.errors.namespaces[namespace];
        let fits = |error: &&String| error.starts_with(item) && error.contains(words);
        errors.iter().filter(fits).count()
    };
    assert_eq!(
        assert_reported(hook, "configmaps/refused: ", "not on a bad day"),
        1,
        "{results:#?}"
    );
    assert_eq!(
        assert_reported(hook, "configmaps/lost: ", "failed calling webhook"),
        1,
        "{results:#?}"
    );
    assert_eq!(assert_reported(quota, "configmaps/m", "exceeded quota"), 4, "{results:#?}");
    let waited = "is still being deleted after 2 s";
    assert_eq!(assert_reported(stuck, "configmaps/a: ", waited), 1, "{results:#?}");
    assert_eq!(assert_reported(stuck, "configmaps/b: ", waited), 1, "{results:#?}");
    let cluster = &results.errors.cluster;
    assert_eq!(cluster.len(), 1, "{results:#?}");
    assert!(cluster[0].starts_with(&format!("namespaces/{stuck}: ")), "{cluster:?}");
    assert!(cluster[0].contains(waited), "{cluster:?}");
    assert_eq!(status.errors, 9, "{results:#?}");

    let restored: BTreeSet<String> = stage.maps(hook).await.into_keys().collect();
    assert_eq!(restored.into_iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(stage.maps(fine).await.len(), 1);
    assert_eq!(stage.maps(quota).await.len(), 2);
    let list = list_of(&stage.store, "r1").await.0;
    let maps = &list["v1/ConfigMap"];
    let count = |what: &str| maps.iter().filter(|item| item.ends_with(what)).count();
    assert_eq!((count("(created)"), count("(failed)")), (5, 8), "{maps:?}");

    // Existing objects are found, although the quota is full and answers first.
    let (_, results) = stage.restore(archive).await;
    let errors = &results.errors.namespaces[quota];
    assert_eq!(errors.len(), 4, "{errors:#?}");

    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(stage.world.client.clone());
    webhooks.delete(hook, &DeleteParams::default()).await.unwrap();
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    namespaces.patch(stuck, &PatchParams::default(), &free).await.unwrap();
}
