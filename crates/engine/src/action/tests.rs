use std::time::Duration;

use bowline_api::Backup;
use bowline_plugin::{BackupOutput, Encoded, Item};
use serde_json::{Value, json};

use super::*;
use crate::cluster::fake::Fake;

fn backup() -> Encoded<Backup> {
    let mut backup = Backup::default();
    backup.metadata.name = Some("nightly".into());
    Encoded::new(backup)
}

fn item(object: &Value) -> Item {
    Item::from_object(object).unwrap()
}

fn texts(ids: &[ResourceIdentifier]) -> Vec<String> {
    ids.iter().map(ToString::to_string).collect()
}

/// Cluster with all actions.
struct ActionTest {
    fake: Arc<Fake>,
    backup_item: Vec<NamedAction<dyn BackupItemAction>>,
    item_block: Vec<NamedAction<dyn ItemBlockAction>>,
}

impl ActionTest {
    fn new(fake: Fake) -> Self {
        Self::limited(fake, &[])
    }

    fn limited(fake: Fake, namespaces: &[&str]) -> Self {
        let fake = Arc::new(fake);
        let cluster: Arc<dyn Cluster> = Arc::clone(&fake) as _;
        let resources = Arc::new(fake.resources());
        let namespaces = namespaces.iter().map(ToString::to_string).collect();
        let BuiltIn { backup_item_actions, item_block_actions, .. } =
            built_in(&cluster, &resources, namespaces, "group");
        Self { fake, backup_item: backup_item_actions, item_block: item_block_actions }
    }

    async fn execute(&self, name: &str, object: &Value) -> Result<BackupOutput> {
        let action = self.backup_item.iter().find(|action| action.name.as_str() == name).unwrap();
        action.plugin.execute(&item(object), &backup()).await
    }

    async fn related(&self, name: &str, object: &Value) -> Result<Vec<String>> {
        let action = self.item_block.iter().find(|action| action.name.as_str() == name).unwrap();
        let related = action.plugin.get_related_items(&item(object), &backup()).await?;
        Ok(texts(&related))
    }
}

fn pod(namespace: &str, name: &str, phase: &str, claims: &[&str]) -> Value {
    let volumes: Vec<_> = claims
        .iter()
        .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"volumes": volumes},
        "status": {"phase": phase},
    })
}

fn claim(name: &str, spec: &Value, labels: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": "shop", "name": name, "labels": labels},
        "spec": spec,
        "status": {"phase": "Bound"},
    })
}

fn bound(name: &str) -> Value {
    claim(name, &json!({"volumeName": format!("pv-{name}")}), &json!({}))
}

fn account(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"namespace": namespace, "name": name},
    })
}

fn binding(name: &str, role: &str, subjects: &Value) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": subjects,
    })
}

fn subject(kind: &str, namespace: &str, name: &str) -> Value {
    json!({"kind": kind, "namespace": namespace, "name": name})
}

#[tokio::test]
async fn all_actions_are_there_in_veleros_order_and_say_what_they_want() {
    let bench = ActionTest::new(Fake::usual());
    let mut found = Vec::new();
    for NamedAction { name, plugin, .. } in &bench.backup_item {
        found.push((name.to_string(), plugin.applies_to().await.unwrap().included_resources));
    }
    for NamedAction { name, plugin, .. } in bench.item_block.clone() {
        found.push((name.to_string(), plugin.applies_to().await.unwrap().included_resources));
    }
    let expected = [
        ("velero.io/pod", "pods"),
        ("velero.io/pv", "persistentvolumeclaims"),
        ("velero.io/service-account", "serviceaccounts"),
        ("velero.io/pod", "pods"),
        ("velero.io/pvc", "persistentvolumeclaims"),
        ("velero.io/service-account", "serviceaccounts"),
    ];
    let expected = expected.map(|(name, resource)| (name.to_owned(), vec![resource.to_owned()]));
    assert_eq!(found, expected);
}

#[tokio::test]
async fn a_pod_brings_its_priority_class_and_its_claims() {
    let bench = ActionTest::new(Fake::usual());
    let mut object = pod("shop", "db", "Running", &["data", "log"]);
    object["spec"]["priorityClassName"] = "high".into();
    let own = json!({"name": "tmp", "emptyDir": {}});
    object["spec"]["volumes"].as_array_mut().unwrap().insert(1, own);
    let expected = [
        "priorityclasses.scheduling.k8s.io/high",
        "persistentvolumeclaims/shop/data",
        "persistentvolumeclaims/shop/log",
    ];
    let output = bench.execute("velero.io/pod", &object).await.unwrap();
    assert_eq!(texts(&output.additional_items), expected);
    assert_eq!(output.item, item(&object));
    assert_eq!(bench.related("velero.io/pod", &object).await.unwrap(), expected);

    let mut without = pod("shop", "bare", "Running", &[]);
    without["spec"] = json!({"priorityClassName": "", "volumes": null});
    let output = bench.execute("velero.io/pod", &without).await.unwrap();
    assert_eq!(output, BackupOutput::unchanged(&item(&without)));
}

#[tokio::test]
async fn bound_claim_adds_its_volume_and_loses_stale_fields() {
    let bench = ActionTest::new(Fake::usual());
    let selector = json!({"matchLabels": {"velero.io/x": "1", "app": "db"}});
    let only_ours = json!({"matchLabels": {"velero.io/x": "1"}});
    for (what, spec, labels, expected_spec, expected_labels) in [
        (
            "a plain one stays as it is",
            json!({"volumeName": "pv", "storageClassName": "fast"}),
            json!({"app": "db"}),
            json!({"volumeName": "pv", "storageClassName": "fast"}),
            json!({"app": "db"}),
        ),
        (
            "where the data came from",
            json!({"volumeName": "pv", "dataSource": {"name": "s"}, "dataSourceRef": {"name": "s"}}),
            json!({"app": "db"}),
            json!({"volumeName": "pv"}),
            json!({"app": "db"}),
        ),
        (
            "a selector, if there is a class",
            json!({"volumeName": "pv", "storageClassName": "fast", "selector": selector}),
            json!({"app": "db"}),
            json!({"volumeName": "pv", "storageClassName": "fast"}),
            json!({"app": "db"}),
        ),
        (
            "a selector, if the class is the default one",
            json!({"volumeName": "pv", "selector": {"matchLabels": {"app": "db"}}}),
            json!({"app": "db"}),
            json!({"volumeName": "pv"}),
            json!({"app": "db"}),
        ),
        (
            "of a selector without a class, only what a restore has put there",
            json!({"volumeName": "pv", "storageClassName": "", "selector": selector}),
            json!({"app": "db"}),
            json!({"volumeName": "pv", "storageClassName": "",
                   "selector": {"matchLabels": {"app": "db"}}}),
            json!({"app": "db"}),
        ),
        (
            "and the map with it, if nothing is left",
            json!({"volumeName": "pv", "storageClassName": "", "selector": only_ours}),
            json!({"app": "db"}),
            json!({"volumeName": "pv", "storageClassName": "", "selector": {}}),
            json!({"app": "db"}),
        ),
        (
            "labels of restores, snapshots and other backups",
            json!({"volumeName": "pv"}),
            json!({"app": "db", "velero.io/restore-name": "r", "velero.io/backup-name": "weekly",
                   "velero.io/volume-snapshot-name": "s",
                   "backup.velero.io/must-include-additional-items": "true"}),
            json!({"volumeName": "pv"}),
            json!({"app": "db"}),
        ),
        (
            "but not the label of this backup, nor others of ours",
            json!({"volumeName": "pv"}),
            json!({"velero.io/backup-name": "nightly", "velero.io/exclude-from-backup": "false"}),
            json!({"volumeName": "pv"}),
            json!({"velero.io/backup-name": "nightly", "velero.io/exclude-from-backup": "false"}),
        ),
    ] {
        let before = claim("data", &spec, &labels);
        let output = bench.execute("velero.io/pv", &before).await.unwrap();
        assert_eq!(texts(&output.additional_items), ["persistentvolumes/pv"], "{what}");
        let after: Value = output.item.parse().unwrap();
        assert_eq!(after, claim("data", &expected_spec, &expected_labels), "{what}");
        if after == before {
            assert_eq!(output.item.json(), item(&before).json(), "{what}");
        }
    }
}

#[tokio::test]
async fn unbound_claim_is_unchanged() {
    let bench = ActionTest::new(Fake::usual().with(pod("shop", "db", "Running", &["data"])));
    for (phase, volume) in [("Pending", "pv"), ("Lost", "pv"), ("Bound", "")] {
        let mut object =
            claim("data", &json!({"volumeName": volume, "dataSource": {}}), &json!({}));
        object["status"]["phase"] = phase.into();
        let output = bench.execute("velero.io/pv", &object).await.unwrap();
        assert_eq!(output, BackupOutput::unchanged(&item(&object)), "{phase}");
        assert!(bench.related("velero.io/pvc", &object).await.unwrap().is_empty(), "{phase}");
    }
    assert!(bench.fake.lists().is_empty());
}

fn pods_and_claims() -> Fake {
    let mut ending = pod("shop", "ending", "Running", &["data"]);
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    Fake::usual()
        .with(pod("shop", "db-0", "Running", &["data", "log", "data"]))
        .with(pod("shop", "db-1", "Running", &["data"]))
        .with(pod("shop", "job", "Succeeded", &["data"]))
        .with(pod("blog", "db-0", "Running", &["data"]))
        .with(ending)
}

#[tokio::test]
async fn a_claim_belongs_with_its_volume_and_the_running_pods_that_mount_it() {
    let bench = ActionTest::new(pods_and_claims());
    for (name, expected) in [
        ("data", vec!["persistentvolumes/pv-data", "pods/shop/db-0", "pods/shop/db-1"]),
        ("log", vec!["persistentvolumes/pv-log", "pods/shop/db-0"]),
        ("lonely", vec!["persistentvolumes/pv-lonely"]),
    ] {
        assert_eq!(bench.related("velero.io/pvc", &bound(name)).await.unwrap(), expected);
    }
    // One list for all claims.
    assert_eq!(bench.fake.lists(), [("pods".to_owned(), Query::default())]);
}

#[tokio::test]
async fn pods_are_listed_by_namespace_if_the_run_is_limited_to_some() {
    let bench = ActionTest::limited(pods_and_claims(), &["shop", "empty"]);
    for _ in 0..2 {
        let related = bench.related("velero.io/pvc", &bound("log")).await.unwrap();
        assert_eq!(related, ["persistentvolumes/pv-log", "pods/shop/db-0"]);
    }
    let mut elsewhere = bound("data");
    elsewhere["metadata"]["namespace"] = "blog".into();
    let related = bench.related("velero.io/pvc", &elsewhere).await.unwrap();
    assert_eq!(related, ["persistentvolumes/pv-data"]);
    let query = Query { namespace: Some("shop".into()), ..Query::default() };
    assert_eq!(bench.fake.lists(), [("pods".to_owned(), query)]);
}

#[tokio::test]
async fn claims_of_one_volume_group_belong_together() {
    let grouped = |name: &str, group: &str| {
        let spec = json!({"volumeName": format!("pv-{name}")});
        claim(name, &spec, &json!({"group": group}))
    };
    let mut elsewhere = grouped("x", "one");
    elsewhere["metadata"]["namespace"] = "blog".into();
    let fake = Fake::usual()
        .with(grouped("a", "one"))
        .with(grouped("b", "one"))
        .with(grouped("c", "two"))
        .with(elsewhere);
    let bench = ActionTest::new(fake);
    for (name, group, expected) in [
        ("a", "one", vec!["persistentvolumes/pv-a", "persistentvolumeclaims/shop/b"]),
        ("b", "one", vec!["persistentvolumes/pv-b", "persistentvolumeclaims/shop/a"]),
        ("c", "two", vec!["persistentvolumes/pv-c"]),
        ("d", "", vec!["persistentvolumes/pv-d"]),
    ] {
        let found = bench.related("velero.io/pvc", &grouped(name, group)).await.unwrap();
        assert_eq!(found, expected, "{name}");
    }
    let lists = bench.fake.lists();
    let of_claims: Vec<_> =
        lists.iter().filter(|(resource, _)| resource == "persistentvolumeclaims").collect();
    assert_eq!(of_claims.len(), 2, "one list for each group: {lists:?}");
    assert_eq!(of_claims[0].1.label_selector, "group=one");
}

fn bindings() -> Fake {
    let both = json!([
        subject("ServiceAccount", "shop", "web"),
        subject("ServiceAccount", "shop", "web"),
        subject("ServiceAccount", "blog", "web"),
        subject("User", "shop", "admin"),
    ]);
    Fake::usual()
        .with(binding("b-view", "view", &both))
        .with(binding("a-view", "view", &json!([subject("ServiceAccount", "shop", "web")])))
        .with(binding("c-edit", "edit", &json!([subject("ServiceAccount", "shop", "web")])))
        .with(binding("nobody", "edit", &Value::Null))
}

#[tokio::test]
async fn a_service_account_brings_the_bindings_that_name_it_and_their_roles() {
    let bench = ActionTest::new(bindings());
    let rbac = "rbac.authorization.k8s.io";
    let names = |bindings: &[&str], roles: &[&str]| -> Vec<String> {
        let bindings = bindings.iter().map(|name| format!("clusterrolebindings.{rbac}/{name}"));
        bindings.chain(roles.iter().map(|name| format!("clusterroles.{rbac}/{name}"))).collect()
    };
    for (namespace, name, expected) in [
        ("shop", "web", names(&["a-view", "b-view", "c-edit"], &["edit", "view"])),
        ("blog", "web", names(&["b-view"], &["view"])),
        ("shop", "other", vec![]),
        ("shop", "admin", vec![]),
    ] {
        let object = account(namespace, name);
        let output = bench.execute("velero.io/service-account", &object).await.unwrap();
        assert_eq!(texts(&output.additional_items), expected, "{namespace}/{name}");
        assert_eq!(output.item, item(&object));
        let related = bench.related("velero.io/service-account", &object).await.unwrap();
        assert_eq!(related, expected, "{namespace}/{name}");
    }
    assert_eq!(bench.fake.lists().len(), 1, "one for both actions");
}

#[tokio::test]
async fn a_cluster_without_rbac_has_no_bindings() {
    let served = crate::cluster::fake::usual_resources();
    let bench =
        ActionTest::new(Fake::new(served.into_iter().filter(|served| served.id.group.is_empty())));
    let output = bench.execute("velero.io/service-account", &account("shop", "web")).await;
    assert!(output.unwrap().additional_items.is_empty());
}

#[tokio::test]
async fn failed_list_is_an_item_error_and_retries_are_limited() {
    let bench = ActionTest::new(bindings());
    bench.fake.fail_list("clusterrolebindings.rbac.authorization.k8s.io", 1, || {
        cluster::Error::Timeout(Duration::from_secs(9))
    });
    for _ in 0..10 {
        let error =
            bench.execute("velero.io/service-account", &account("shop", "web")).await.unwrap_err();
        assert_eq!(
            error.message(),
            "cannot list clusterrolebindings.rbac.authorization.k8s.io: the API server did not \
             answer within 9 s"
        );
        assert_eq!(error.code(), Code::Unavailable);
    }
    assert_eq!(bench.fake.lists().len(), 3);
}

#[tokio::test]
async fn list_that_failed_once_is_retried_next_time() {
    let bench = ActionTest::new(pods_and_claims());
    bench.fake.fail_list("pods", 1, || cluster::Error::Refused {
        code: 403,
        reason: "Forbidden".into(),
        message: "no".into(),
    });
    let error = bench.related("velero.io/pvc", &bound("data")).await.unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied);
    // The whole list again, with one broken object in it, which does not affect the others.
    bench.fake.fail_list("pods", 1, || cluster::Error::Object(crate::item::InvalidObject::NoName));
    let related = bench.related("velero.io/pvc", &bound("log")).await.unwrap();
    assert_eq!(related, ["persistentvolumes/pv-log", "pods/shop/db-0"]);
    assert_eq!(bench.fake.lists().len(), 2);
}

#[tokio::test]
async fn many_items_at_once_wait_for_one_list() {
    let bench = ActionTest::new(pods_and_claims());
    let claim = bound("data");
    let all = (0..20).map(|_| bench.related("velero.io/pvc", &claim));
    for related in futures::future::join_all(all).await {
        assert_eq!(related.unwrap().len(), 3);
    }
    assert_eq!(bench.fake.lists().len(), 1);
}
