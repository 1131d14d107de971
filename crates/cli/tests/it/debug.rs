use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use bowline_api::{BackupStorageLocation, DownloadRequest};
use bowline_store::decode::{self, Limits};
use serde_json::{Value, json};

use crate::cluster::cluster;
use crate::fake_server::{FakeServer, packed, packed_json};
use crate::restore;
use crate::server_status::StatusServer;

/// A secret that must not appear anywhere.
const SECRET: &str = "s3cr3t-value";

fn bundle_files(bundle: &Path) -> BTreeMap<String, String> {
    let packed = std::fs::File::open(bundle).unwrap();
    let mut archive = tar::Archive::new(decode::gunzip(packed, Limits::ARCHIVE));
    let file = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (name, text)
    };
    archive.entries().unwrap().map(file).collect()
}

#[test]
fn bundle_has_all_files_and_no_secrets() {
    let env = cluster().test_env("debug");
    restore::put_completed_backup(&env, "one");
    let config = json!({"region": "x", "secretAccessKey": SECRET});
    let spec = json!({"provider": "aws", "config": config, "objectStorage": {"bucket": "b"}});
    env.apply_velero_object("BackupStorageLocation", "other", json!({"spec": spec}));
    let message = format!("denied: https://h/b?X-Amz-Signature={SECRET}");
    env.set_status::<BackupStorageLocation>("other", &json!({"message": message}));
    let target = json!({"kind": "BackupLog", "name": "one"});
    env.apply_velero_object("DownloadRequest", "left", json!({"spec": {"target": target}}));
    let link = format!("http://h/{SECRET}");
    env.set_status::<DownloadRequest>("left", &json!({"downloadURL": link}));
    cluster().apply(json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "cloud-credentials", "namespace": "debug"},
        "stringData": {"cloud": SECRET},
    }));
    let variables = json!([
        {"name": "AWS_SECRET_ACCESS_KEY", "value": SECRET}, {"name": "DSN", "value": SECRET},
    ]);
    cluster().apply(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "server-0", "namespace": "debug"},
        "spec": {
            "nodeName": "nowhere",
            "containers": [{"name": "bowline", "image": "i", "env": variables}],
        },
    }));
    // An application in the server's namespace is not part of the bundle.
    cluster().apply(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "shop-0", "namespace": "debug"},
        "spec": {"containers": [{"name": "shop", "image": "i"}]},
    }));
    let labels = json!({"app": "shop"});
    let template = json!({
        "metadata": {"labels": labels}, "spec": {"containers": [{"name": "shop", "image": "i"}]},
    });
    cluster().apply(json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "shop", "namespace": "debug"},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }));
    let _status = StatusServer::start(&env, "v0.1.0");
    let log = format!("level=info msg=\"all is well\"\nlevel=warning password={SECRET}\n");
    let _server = FakeServer::start(
        &env,
        [
            ("BackupLog", packed(&log)),
            ("BackupVolumeInfos", packed_json(&json!([]))),
            ("BackupResourceList", packed_json(&json!({"v1/Pod": ["web/a"]}))),
        ],
    );

    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("b.tar.gz");
    let path = bundle.to_str().unwrap();
    env.run_refused(&["debug", "--backup", "none", "--output", path], &["backup `none` not found"]);
    assert!(!bundle.exists());
    let ended = env.run(&["debug", "--backup", "one", "--output", path]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(bundle.metadata().unwrap().permissions().mode() & 0o077, 0);
    env.run_refused(&["debug", "--output", path], &["already exists", "--output"]);

    let files = bundle_files(&bundle);
    let get =
        |name: &str| files.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", files.keys()));
    for (name, text) in &files {
        assert!(!text.contains(SECRET), "{name}: {text}");
        assert!(!name.to_lowercase().contains("secret"), "{name}");
    }
    let versions: Value = serde_json::from_str(get("bundle/versions.json")).unwrap();
    assert_eq!(versions["server"]["serverVersion"], "v0.1.0");
    assert!(versions["kubernetes"].as_str().unwrap().starts_with('v'), "{versions}");
    let locations = get("bundle/objects/backupstoragelocations.json");
    assert!(locations.contains("\"region\": \"x\""), "{locations}");
    assert!(get("bundle/objects/backups.json").contains("\"one\""));
    assert!(get("bundle/server/pods.json").contains("AWS_SECRET_ACCESS_KEY"));
    for name in ["bundle/server/pods.json", "bundle/server/deployments.json"] {
        assert!(!get(name).contains("shop"), "{name}: {}", get(name));
    }
    let described = get("bundle/backup_describe_one.txt");
    assert!(described.contains("Resource List:\n  v1/Pod:\n    - web/a\n"), "{described}");
    let log = get("bundle/backup_one.log");
    assert_eq!(log, "level=info msg=\"all is well\"\nlevel=warning password=<redacted>\n");
    // The node of the pod is gone, and its log with it; both the bundle and the output report that.
    let problems = get("bundle/problems.txt");
    let lines: Vec<&str> = problems.lines().collect();
    assert!(lines.iter().any(|line| line.starts_with("logs/server-0/bowline.log: ")), "{lines:?}");
    for line in lines {
        let problem_line = format!("not collected: {line}");
        assert!(ended.stderr.lines().any(|one| one == problem_line), "{line}: {}", ended.stderr);
    }

    // Missing files are listed.
    restore::put_backup(&env, "two", &json!({"phase": "InProgress"}), &json!({}));
    let bundle = folder.path().join("c.tar.gz");
    let ended = env.run(&["debug", "--backup", "two", "--output", bundle.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("problems.txt"), "{}", ended.stderr);
    let problems = &self::bundle_files(&bundle)["bundle/problems.txt"];
    assert!(problems.contains("backup_two.log: the phase is InProgress"), "{problems}");
}

#[test]
fn bundle_reports_missing_files_without_a_server() {
    let env = cluster().test_env("debug-nobody");
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("b.tar.gz");
    let ended = env.run(&["debug", "--output", bundle.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let problems = &bundle_files(&bundle)["bundle/problems.txt"];
    for problem in ["versions.json, the server: ", "logs: no server pod found"] {
        assert!(problems.lines().any(|line| line.starts_with(problem)), "{problems}");
        assert!(ended.stderr.contains(&format!("not collected: {problem}")), "{}", ended.stderr);
    }
}
