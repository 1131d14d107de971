//! `restore create --dry-run`, on a real API server.

use bowline_api::{Backup, BackupStorageLocation, DownloadRequest, Restore};
use bowline_store::encode;
use bowline_testbed::eventually_blocking;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::bowline::{CommandResult, TIMEOUT, World};
use crate::cluster::{TestEnv, cluster};
use crate::fake_server::{Answer, FakeServer, packed_json};
use crate::restore::put_completed_backup;

/// An archive of objects, each with the folder of its kind.
fn archive(objects: &[(&str, Value)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(encode::gzip(Vec::new()));
    for (kind, object) in objects {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let folder = match text("namespace") {
            "" => "cluster".to_owned(),
            namespace => format!("namespaces/{namespace}"),
        };
        let path = format!("resources/{kind}/{folder}/{}.json", text("name"));
        let content = object.to_string();
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, path, content.as_bytes()).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap()
}

fn object(api_version: &str, kind: &str, namespace: &str, name: &str, rest: Value) -> Value {
    let mut object = rest;
    object["apiVersion"] = api_version.into();
    object["kind"] = kind.into();
    object["metadata"]["name"] = name.into();
    // As in any backup.
    object["metadata"]["uid"] = "11111111-2222-3333-4444-555555555555".into();
    object["metadata"]["resourceVersion"] = "1".into();
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    object
}

fn config_map(namespace: &str, name: &str, value: &str) -> Value {
    object("v1", "ConfigMap", namespace, name, json!({"data": {"key": value}}))
}

/// The object as created, without fields that only a backup has.
fn as_created(mut object: Value) -> Value {
    object["metadata"]
        .as_object_mut()
        .unwrap()
        .retain(|field, _| !["uid", "resourceVersion"].contains(&field.as_str()));
    object
}

fn deployment(namespace: &str, image: &str, app: &str) -> Value {
    let container = json!({"name": "web", "image": image});
    let template =
        json!({"metadata": {"labels": {"app": app}}, "spec": {"containers": [container]}});
    let spec = json!({"selector": {"matchLabels": {"app": app}}, "template": template});
    object("apps/v1", "Deployment", namespace, "web", json!({"spec": spec}))
}

fn definition(group: &str) -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({
        "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
    });
    let names = json!({"plural": "widgets", "kind": "Widget"});
    let spec =
        json!({"group": group, "scope": "Namespaced", "names": names, "versions": [version]});
    let kind = "CustomResourceDefinition";
    let name = format!("widgets.{group}");
    object("apiextensions.k8s.io/v1", kind, "", &name, json!({"spec": spec}))
}

/// Verdict and reason of a dry run for each object, by resource and name.
pub(crate) fn object_verdicts(document: &Value) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let verdict = |entry: &Value| {
        let namespace = text(&entry["namespace"]);
        let slash = if namespace.is_empty() { "" } else { "/" };
        let name =
            format!("{} {namespace}{slash}{}", text(&entry["resource"]), text(&entry["name"]));
        (name, text(&entry["verdict"]), text(&entry["reason"]))
    };
    document["objects"].as_array().unwrap().iter().map(verdict).collect()
}

/// The versions of everything in a namespace that a restore might touch.
fn versions(namespace: &str) -> Vec<String> {
    let client = &cluster().client;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let all = ListParams::default();
    let (maps, deployments) = cluster().runtime.block_on(async {
        (maps.list(&all).await.unwrap(), deployments.list(&all).await.unwrap())
    });
    // Controllers put one map into every namespace, and write the status of Deployments.
    let maps = maps.items.into_iter().map(|map| map.metadata);
    let maps = maps.filter(|map| map.name.as_deref() != Some("kube-root-ca.crt"));
    let maps = maps.map(|map| (map.name, map.uid, map.resource_version));
    let deployments = deployments.items.into_iter().map(|deployment| deployment.metadata);
    let deployments = deployments.map(|found| {
        (found.name, found.uid, found.generation.map(|generation| generation.to_string()))
    });
    maps.chain(deployments).map(|object| format!("{object:?}")).collect()
}

/// A cluster in which some objects of a backup are already, and a server with its archive.
struct DryRunFixture {
    env: TestEnv,
    shop: String,
    /// A namespace that is only in the backup.
    missing_namespace: String,
    /// A group of kinds that is only in the backup.
    group: String,
    versions_before: Vec<String>,
    _server: FakeServer,
}

impl DryRunFixture {
    fn set_up(name: &str) -> Self {
        let env = cluster().test_env(name);
        put_completed_backup(&env, "b");
        let shop = cluster().test_env(&format!("{name}-shop")).namespace;
        let missing_namespace = format!("{name}-gone");
        let group = format!("{name}.example.io");
        cluster().apply(as_created(config_map(&shop, "same", "a")));
        cluster().apply(as_created(config_map(&shop, "other", "b")));
        cluster().apply(as_created(deployment(&shop, "web:1", "web")));
        let widget = |group: &str| object(&format!("{group}/v1"), "Widget", &shop, "w", json!({}));
        let bad = json!({"spec": {"ports": [{"port": 99_999}]}});
        let done = json!({"status": {"phase": "Succeeded"}});
        let containers = json!([{"name": "c", "image": "i"}]);
        let pod = json!({"spec": {"serviceAccountName": "app", "containers": containers}});
        let archive = archive(&[
            ("namespaces", object("v1", "Namespace", "", &shop, json!({}))),
            ("namespaces", object("v1", "Namespace", "", &missing_namespace, json!({}))),
            ("configmaps", config_map(&shop, "new", "a")),
            ("configmaps", config_map(&shop, "same", "a")),
            ("configmaps", config_map(&shop, "other", "a")),
            ("configmaps", config_map(&missing_namespace, "lost", "a")),
            ("services", object("v1", "Service", &shop, "bad", bad)),
            ("deployments.apps", deployment(&shop, "web:2", "other")),
            (&format!("widgets.{group}"), widget(&group)),
            ("widgets.unknown.example.io", widget("unknown.example.io")),
            ("customresourcedefinitions.apiextensions.k8s.io", definition(&group)),
            ("pods", object("v1", "Pod", &shop, "done", done)),
            ("serviceaccounts", object("v1", "ServiceAccount", &shop, "app", json!({}))),
            ("pods", object("v1", "Pod", &shop, "needs-app", pod)),
        ]);
        let answers = [
            ("BackupContents", Answer::File(archive)),
            ("BackupVolumeInfos", Answer::Status("404 Not Found")),
            ("BackupVolumeSnapshots", packed_json(&json!([]))),
        ];
        let server = FakeServer::start(&env, answers);
        let versions_before = versions(&shop);
        Self { env, shop, missing_namespace, group, versions_before, _server: server }
    }

    fn plan(&self, more: &[&str]) -> CommandResult {
        let line = ["restore", "create", "r", "--from-backup", "b", "--dry-run"];
        self.env.run(&[&line[..], more].concat())
    }

    fn assert_unchanged(&self, namespaces: &[&str]) {
        assert_eq!(versions(&self.shop), self.versions_before);
        assert_eq!(self.env.names::<Restore>(), [] as [&str; 0]);
        assert_eq!(self.env.names::<DownloadRequest>(), [] as [&str; 0]);
        let api: Api<Namespace> = Api::all(cluster().client.clone());
        for namespace in namespaces {
            assert!(
                cluster().runtime.block_on(api.get_opt(namespace)).unwrap().is_none(),
                "{namespace}"
            );
        }
        let served = cluster().runtime.block_on(cluster().client.list_api_groups()).unwrap();
        assert!(served.groups.iter().all(|found| found.name != self.group));
    }
}

#[test]
fn each_object_gets_a_verdict_without_any_change() {
    let fixture = DryRunFixture::set_up("plan-verdict");
    let ended = fixture.plan(&["-o", "json"]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let verdicts = object_verdicts(&document);
    let find = |name: &str| {
        let found = verdicts.iter().find(|(found, ..)| found == name);
        let (_, verdict, reason) = found.unwrap_or_else(|| panic!("no {name} in {verdicts:#?}"));
        (verdict.as_str(), reason.as_str())
    };
    let DryRunFixture { shop, missing_namespace, group, .. } = &fixture;
    let at = |kind: &str, name: &str| find(&format!("{kind} {shop}/{name}"));
    assert_eq!(find(&format!("namespaces {shop}")), ("skip", "the namespace exists"));
    assert_eq!(find(&format!("namespaces {missing_namespace}")), ("create", ""));
    assert_eq!(at("configmaps", "new"), ("create", ""));
    assert_eq!(at("configmaps", "same"), ("skip", "the object exists and is identical"));
    let reason = "the object exists and would be kept, although it differs in data.key";
    assert_eq!(at("configmaps", "other"), ("skip", reason));
    let reason = format!("namespace {missing_namespace} does not exist yet");
    assert_eq!(
        find(&format!("configmaps {missing_namespace}/lost")),
        ("notValidated", reason.as_str())
    );
    let (verdict, reason) = at("services", "bad");
    assert!(verdict == "refuse" && reason.contains("spec.ports[0].port"), "{reason}");
    let (verdict, reason) = at("deployments.apps", "web");
    assert!(verdict == "skip" && reason.contains("spec.template"), "{reason}");
    let reason = "the kind is not served before its CustomResourceDefinition is restored";
    assert_eq!(at(&format!("widgets.{group}"), "w"), ("notValidated", reason));
    let (verdict, reason) = at("widgets.unknown.example.io", "w");
    assert!(verdict == "refuse" && reason.contains("does not serve widgets.unknown"), "{reason}");
    assert_eq!(at("pods", "done").0, "skip");
    assert_eq!(at("serviceaccounts", "app"), ("create", ""));
    let reason = format!("the service account {shop}/app does not exist yet");
    assert_eq!(at("pods", "needs-app"), ("notValidated", reason.as_str()));
    assert_eq!(verdicts.len(), 14, "{verdicts:#?}");
    assert_eq!((&document["counts"]["refuse"], &document["wouldFail"]), (&json!(2), &json!(true)));
    assert!(ended.stderr.ends_with("nothing was changed\n"), "{}", ended.stderr);
    fixture.assert_unchanged(&[missing_namespace]);
}

#[test]
fn policies_and_mappings_are_applied_without_any_change() {
    let fixture = DryRunFixture::set_up("plan-policy");
    let ended = fixture.plan(&["--existing-resource-policy", "update"]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let row = |name: &str| {
        let line = ended.stdout.lines().find(|line| line.contains(name));
        line.unwrap_or_else(|| panic!("no {name} in {}", ended.stdout)).to_owned()
    };
    let other = row("/other");
    assert!(other.starts_with("update ") && other.contains("differs in data.key"), "{other}");
    // The selector of a Deployment cannot be changed.
    let web = row("deployments.apps");
    assert!(web.starts_with("refuse ") && web.contains("field is immutable"), "{web}");

    // Nothing exists yet, so nothing can be refused.
    let (shop, copy) = (&fixture.shop, "plan-policy-copy");
    let mapping = format!("{shop}:{copy}");
    let include = format!("--include-namespaces={shop}");
    let maps = "--include-resources=configmaps";
    let ended = fixture.plan(&["--namespace-mappings", &mapping, &include, maps]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert!(lines[1].starts_with("create "), "{}", ended.stdout);
    assert!(lines[1].contains(&format!("{copy} (from {shop})")), "{}", ended.stdout);
    assert!(lines[2..].iter().all(|line| line.starts_with("not validated ")), "{}", ended.stdout);
    assert_eq!(lines.len(), 5, "{}", ended.stdout);
    fixture.assert_unchanged(&[copy, &fixture.missing_namespace]);
}

#[test]
fn modifiers_are_applied_with_the_rights_of_the_user() {
    let env = cluster().test_env("restore-modified");
    put_completed_backup(&env, "b");
    let shop = cluster().test_env("restore-modified-shop").namespace;
    cluster().apply(as_created(config_map(&shop, "a", "changed")));
    let rules = "version: v1\nresourceModifierRules:\n- conditions:\n    groupResource: configmaps\n  \
                 mergePatches:\n  - patchData: |\n      data: {key: changed}\n";
    let map = |rules: &str| {
        cluster().apply(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"rules.yaml": rules},
            "metadata": {"name": "rules", "namespace": env.namespace},
        }));
    };
    let _server = FakeServer::start(
        &env,
        [
            (
                "BackupContents",
                Answer::File(archive(&[("configmaps", config_map(&shop, "a", "a"))])),
            ),
            ("BackupVolumeInfos", packed_json(&json!([]))),
            ("BackupVolumeSnapshots", packed_json(&json!([]))),
        ],
    );
    let line = ["restore", "create", "--from-backup=b", "--dry-run", "-o=json"];
    let modified: Vec<&str> =
        line.iter().copied().chain(["--resource-modifier-configmap=rules"]).collect();
    let ended = env.run(&modified);
    assert_eq!(ended.code, Some(1), "{}", ended.stdout);
    assert!(ended.stdout.contains("failed to get resource modifiers"), "{}", ended.stdout);
    assert!(ended.stderr.contains("would fail validation and never run"), "{}", ended.stderr);
    map(rules);
    let document: Value = serde_json::from_str(&env.run_ok(&modified)).unwrap();
    assert_eq!(object_verdicts(&document)[0].2, "the object exists and is identical");
    let document: Value = serde_json::from_str(&env.run_ok(&line)).unwrap();
    assert!(object_verdicts(&document)[0].2.contains("differs in data.key"), "{document:#}");

    // A user who may only request downloads.
    let reader = |verbs: &[&str], group: &str, resources: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    let metadata = json!({"name": "reader", "namespace": env.namespace});
    cluster().apply(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata,
        "rules": [
            reader(&["get", "list"], "velero.io", &["backups", "backupstoragelocations"]),
            reader(&["get", "create", "delete"], "velero.io", &["downloadrequests"]),
        ],
    }));
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"});
    cluster().apply(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
        "roleRef": role,
    }));
    let kubeconfig = cluster().plane.kubeconfig_for("jane", "jane", None).unwrap();
    let mut command = env.bowline(&line);
    let ended = World::run_command(command.env("KUBECONFIG", kubeconfig));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let [(_, verdict, reason)] = <[_; 1]>::try_from(object_verdicts(&document)).unwrap();
    assert_eq!(verdict, "notValidated", "{reason}");
    assert!(reason.contains("your permissions are not sufficient"), "{reason}");
    assert!(ended.stderr.contains("warning: cannot list the PodVolumeBackups"), "{}", ended.stderr);
}

#[test]
fn dry_run_reports_archive_damage_and_missing_files() {
    let env = cluster().test_env("restore-broken");
    put_completed_backup(&env, "b");
    let line = ["restore", "create", "--from-backup=b", "--dry-run"];
    let volumes = || ("BackupVolumeInfos", packed_json(&json!([])));
    let snapshots = || ("BackupVolumeSnapshots", packed_json(&json!([])));
    {
        let server = [("BackupContents", Answer::Cut), volumes(), snapshots()];
        let _server = FakeServer::start(&env, server);
        env.run_refused(
            &line,
            &["cannot read the archive of backup `b`", "the download was interrupted"],
        );
    }
    {
        let content = archive(&[("configmaps", config_map("restore-broken", "a", "a"))]);
        let cut = content[..content.len() / 2].to_vec();
        let server = [("BackupContents", Answer::File(cut)), volumes(), snapshots()];
        let _server = FakeServer::start(&env, server);
        let ended = env.run(&line);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{}", ended.stderr);
        assert!(ended.stderr.contains("the archive of the backup is damaged"), "{}", ended.stderr);
        let ended = env.run(&[&line[..], &["--allow-damaged-archive"]].concat());
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        assert!(
            ended.stdout.contains("in the archive: the archive ends early"),
            "{}",
            ended.stdout
        );
    }
    env.set_status::<Backup>("b", &json!({"phase": "InProgress"}));
    let ended = env.run(&line);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    assert!(
        ended.stderr.contains("validation error: The backup b is still InProgress"),
        "{}",
        ended.stderr
    );
    env.set_status::<Backup>("b", &json!({"phase": "Completed"}));
    let location = env.api::<BackupStorageLocation>();
    cluster().runtime.block_on(location.delete("main", &DeleteParams::default())).unwrap();
    let ended = env.run(&line);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    assert!(ended.stderr.contains("validation error: Error retrieving backup"), "{}", ended.stderr);
    assert_eq!(env.names::<DownloadRequest>(), [] as [&str; 0]);
}

#[test]
fn an_interrupted_dry_run_leaves_no_request() {
    let env = cluster().test_env("restore-interrupt");
    put_completed_backup(&env, "b");
    let line = ["restore", "create", "--from-backup=b", "--dry-run"];
    let mut child = env.bowline(&line).spawn().unwrap();
    eventually_blocking("the server is asked", TIMEOUT, || {
        env.names::<DownloadRequest>().len() == 3
    });
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(env.names::<DownloadRequest>(), [] as [&str; 0]);
}
