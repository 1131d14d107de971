//! Rules of the cluster port that the engine relies on. The fake and a real API server follow the same rules.

use std::sync::Arc;
use std::time::Duration;

use bowline_cluster::{
    self as cluster, ApiServer, Cluster, Exec, Fake, Object, Query, Resource, Resources,
    Subresource, WatchEvent,
};
use bowline_plugin::Item;
use bowline_testbed::apply::apply;
use bowline_testbed::{Bed, ControlPlane, Node, Options, node};
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::{Value, json};

fn config_map(name: &str, app: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": name, "namespace": "shop", "labels": { "app": app } },
        "data": { "text": "\"} ], \\ é\n" },
    })
}

fn objects() -> Vec<Value> {
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop" },
    });
    let maps = (0..10).map(|n| config_map(&format!("m{n}"), if n < 3 { "a" } else { "b" }));
    std::iter::once(namespace).chain(maps).collect()
}

async fn names(cluster: &dyn Cluster, resource: &Arc<Resource>, query: Query) -> Vec<String> {
    let listed: Vec<Object> = cluster.list(resource, query).try_collect().await.unwrap();
    listed.into_iter().map(|object| object.name).filter(|name| name.starts_with('m')).collect()
}

/// The rules, over a cluster that holds [`objects`].
async fn check_conformance(cluster: &dyn Cluster) {
    let discovery = cluster.discover().await.unwrap();
    let resources = Resources::new(discovery.resources);
    let maps = resources.core("configmaps").expect("config maps are served");
    assert_eq!((maps.kind.as_str(), maps.is_namespaced), ("ConfigMap", true));
    assert!(maps.short_names.contains(&"cm".to_owned()));
    assert_eq!(resources.resolve("deploy").unwrap().api_version(), "apps/v1");

    let in_shop = |label_selector: &str| Query {
        namespace: Some("shop".into()),
        label_selector: label_selector.into(),
        ..Query::default()
    };
    let all: Vec<String> = (0..10).map(|n| format!("m{n}")).collect();
    assert_eq!(names(cluster, maps, Query::default()).await, all);
    assert_eq!(names(cluster, maps, in_shop("")).await, all);
    assert_eq!(names(cluster, maps, in_shop("app in (a,c)")).await, ["m0", "m1", "m2"]);
    let m4 = Query { field_selector: "metadata.name=m4".into(), ..in_shop("") };
    assert_eq!(names(cluster, maps, m4).await, ["m4"]);
    let nowhere = Query { namespace: Some("nowhere".into()), ..Query::default() };
    assert!(names(cluster, maps, nowhere).await.is_empty());

    let listed = cluster.list(maps, in_shop("")).filter(|object| {
        std::future::ready(object.as_ref().is_ok_and(|object| object.name == "m4"))
    });
    let listed = listed.boxed().next().await.unwrap().unwrap();
    let got = cluster.get(maps, "shop", "m4").await.unwrap().unwrap();
    let [listed, got] = [listed, got].map(|object| object.item.parse::<Value>().unwrap());
    assert_eq!(listed, got, "a listed object is the whole object");
    assert_eq!(got["kind"], "ConfigMap");
    assert_eq!(got["data"]["text"], "\"} ], \\ é\n");
    assert!(cluster.get(maps, "shop", "none").await.unwrap().is_none());

    let unserved = Resource { version: "v9".into(), ..(**maps).clone() };
    let listed = cluster.list(&Arc::new(unserved), Query::default()).try_collect::<Vec<_>>().await;
    assert!(listed.unwrap_err().is_not_found());
    let bad = cluster.list(maps, in_shop("a==b==c")).try_collect::<Vec<_>>().await;
    assert!(bad.unwrap_err().to_string().contains("400"));
    check_watch(cluster, maps, in_shop("app=a")).await;
}

/// The next event of a watch.
async fn next(changes: &mut BoxStream<'static, cluster::Result<WatchEvent>>) -> String {
    let change = tokio::time::timeout(Duration::from_secs(30), changes.next()).await;
    match change.expect("something is heard in time").expect("it goes on").unwrap() {
        WatchEvent::Started => "began".to_owned(),
        WatchEvent::Applied(object) => {
            let value: Value = object.item.parse().unwrap();
            format!("{} {}", object.name, value["data"]["n"].as_str().unwrap_or_default())
        }
        WatchEvent::Deleted(object) => format!("{} is gone", object.name),
    }
}

/// The rules for changes, with some objects of a label there.
async fn check_watch(cluster: &dyn Cluster, maps: &Arc<Resource>, query: Query) {
    let mut changes = cluster.watch(maps, query);
    assert_eq!(next(&mut changes).await, "began");
    let mut there = Vec::new();
    for _ in 0..3 {
        there.push(next(&mut changes).await);
    }
    there.sort();
    assert_eq!(there, ["m0 ", "m1 ", "m2 "]);

    let mut created = config_map("new", "a");
    created["data"] = json!({"n": "1"});
    let item = Item::from_object(&created).unwrap();
    let created = cluster.create(maps, "shop", &item).await.unwrap();
    assert_eq!(next(&mut changes).await, "new 1");
    let patch = json!({"data": {"n": "2"}});
    cluster.patch(maps, "shop", "m5", Subresource::None, &patch).await.unwrap();
    cluster.patch(maps, "shop", "new", Subresource::None, &patch).await.unwrap();
    assert_eq!(next(&mut changes).await, "new 2", "and nothing of others");

    let created: Value = created.item.parse().unwrap();
    let uid = created["metadata"]["uid"].as_str();
    let error = cluster.delete(maps, "shop", "new", Some("of another")).await.unwrap_err();
    assert!(error.is_conflict(), "{error}");
    cluster.delete(maps, "shop", "new", uid).await.unwrap();
    assert_eq!(next(&mut changes).await, "new is gone");
    let error = cluster.delete(maps, "shop", "new", None).await.unwrap_err();
    assert!(error.is_not_found(), "{error}");
    let unserved = Resource { version: "v9".into(), ..(**maps).clone() };
    let mut refused = cluster.watch(&Arc::new(unserved), Query::default());
    let error = loop {
        match refused.next().await.expect("it says why") {
            Err(error) => break error,
            Ok(WatchEvent::Started) => {}
            Ok(change) => panic!("{change:?}"),
        }
    };
    assert!(error.is_not_found(), "{error}");
}

#[tokio::test]
async fn fake_cluster_conforms() {
    let fake = objects().into_iter().fold(Fake::usual(), Fake::with);
    check_conformance(&fake).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn api_server_conforms() {
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
    let client = plane.client().await.unwrap();
    for object in objects() {
        apply(&client, object).await.unwrap();
    }
    // Pages that do not come out even, one page, and no pages.
    for page_size in [3, 500, 0] {
        check_conformance(&ApiServer::new(client.clone(), page_size)).await;
    }
    drop(plane);
    drop(bed);
    let gone = ApiServer::new(client, 500).without_outage_retries().discover().await.unwrap_err();
    assert!(gone.to_string().contains("cannot be reached"), "{gone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_node_has_not_started_the_command_and_the_error_omits_it() {
    let bed = Bed::new().unwrap();
    let plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
    let client = plane.client().await.unwrap();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "away"}});
    apply(&client, node).await.unwrap();
    // The port has no listener.
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}},
    }});
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(client.clone());
    let params = kube::api::PatchParams::default();
    nodes.patch_status("away", &params, &kube::api::Patch::Merge(status)).await.unwrap();
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "box", "namespace": "default" },
        "spec": {
            "nodeName": "away",
            "containers": [{ "name": "main", "image": node::IMAGE }],
        },
    });
    apply(&client, pod).await.unwrap();
    let cluster = ApiServer::new(client, 500);
    let exec = |pod: &str| Exec {
        namespace: "default".into(),
        pod: pod.into(),
        container: "main".into(),
        command: vec!["mysql".into(), "-psecret".into()],
        timeout: Duration::from_secs(30),
    };
    let error = cluster.exec(&exec("box")).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
    let error = cluster.exec(&exec("gone")).await.unwrap_err();
    assert!(error.is_not_found() && !error.is_unavailable(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_run_in_real_containers() {
    if !node::require_for_test("commands_run_in_real_containers") {
        return;
    }
    let bed = Bed::isolated().unwrap();
    let plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
    let _node = Node::start(&plane).await.unwrap();
    let client = plane.client().await.unwrap();
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "box", "namespace": "default" },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main",
                "image": node::IMAGE,
                "imagePullPolicy": "Never",
                "command": ["sleep", "1000"],
            }],
        },
    });
    apply(&client, pod).await.unwrap();
    let pods: kube::Api<k8s_openapi::api::core::v1::Pod> =
        kube::Api::namespaced(client.clone(), "default");
    let running = kube::runtime::wait::await_condition(
        pods,
        "box",
        kube::runtime::conditions::is_pod_running(),
    );
    tokio::time::timeout(Duration::from_mins(2), running).await.unwrap().unwrap();

    let cluster = ApiServer::new(client, 500);
    let exec = |container: &str, script: &str, timeout| Exec {
        namespace: "default".into(),
        pod: "box".into(),
        container: container.into(),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        timeout,
    };
    let long = Duration::from_secs(30);
    let done = cluster.exec(&exec("main", "echo out; echo err >&2", long)).await.unwrap();
    assert_eq!((done.output.as_str(), done.failure), ("out\nerr", None));
    let failed = cluster.exec(&exec("main", "echo no >&2; exit 7", long)).await.unwrap();
    assert!(failed.failure.unwrap().contains("exit code 7") && failed.output == "no");
    // More than is kept, and more than the pipe holds.
    let noisy = cluster.exec(&exec("main", "seq 1 100000", long)).await.unwrap();
    assert!(noisy.output.ends_with("100000") && noisy.output.len() < 10_000);
    let hung = cluster.exec(&exec("main", "sleep 100", Duration::from_millis(300))).await;
    assert!(hung.unwrap_err().to_string().contains("did not end within 0.3 s"));
    let missing = cluster.exec(&exec("other", "true", long)).await.unwrap_err();
    assert!(missing.to_string().contains("other"), "{missing}");
}
