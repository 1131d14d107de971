use clap::Parser as _;
use serde_json::{Value, json};

use super::*;
use crate::velero_flags::UnsupportedFlag;

#[derive(Debug, clap::Parser)]
struct TestCommand {
    #[command(flatten)]
    args: Args,
}

fn install_objects(line: &[&str]) -> anyhow::Result<Vec<Value>> {
    let words = ["install", "-n", "velero"].iter().chain(line);
    let args = TestCommand::try_parse_from(words)?.args;
    Ok(objects::all(&install_plan(&args)?))
}

fn find_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or(&Value::Null)
}

const MINIMAL_FLAGS: &[&str] = &["--no-secret", "--no-default-backup-location"];

#[test]
fn minimal_installation_is_a_server_with_its_roles() {
    let objects = install_objects(MINIMAL_FLAGS).unwrap();
    let titles: Vec<String> = objects.iter().map(objects::title).collect();
    assert_eq!(
        titles,
        [
            "Namespace velero",
            "ServiceAccount bowline",
            "ClusterRole bowline-velero",
            "ClusterRoleBinding bowline-velero",
            "Role bowline",
            "RoleBinding bowline",
            "PodDisruptionBudget bowline",
            "Deployment bowline",
        ]
    );
    assert_eq!(objects[2]["metadata"]["labels"]["bowline.io/profile"], "backup-only");
    assert!(!serde_json::to_string(&objects).unwrap().contains("cluster-admin"));
}

#[test]
fn velero_flags_set_the_backup_location() {
    let file = std::env::temp_dir().join(format!("bowline-credentials-{}", std::process::id()));
    std::fs::write(&file, "key").unwrap();
    let secret = format!("--secret-file={}", file.display());
    let objects = install_objects(&[
        &secret,
        "--provider=aws",
        "--bucket=b",
        "--prefix=p",
        "--backup-location-config=region=x",
        "--snapshot-location-config=region=y",
        "--plugins=example.io/velero-plugin-for-aws:v1.14.0,other/plugin@sha256:00",
        "--profile=full",
        "--pod-labels=a=b",
        "--velero-pod-cpu-limit=0",
        "--sa-annotations=role=r",
        "--schedule-skip-immediately",
        "--garbage-collection-frequency=2h",
        "--",
        "--concurrent-backups=8",
    ]);
    std::fs::remove_file(&file).unwrap();
    let objects = objects.unwrap();
    assert_eq!(find_kind(&objects, "Secret")["data"], json!({"cloud": "a2V5"}));
    assert_eq!(
        find_kind(&objects, "BackupStorageLocation")["spec"],
        json!({
            "provider": "aws", "default": true, "config": {"region": "x"},
            "objectStorage": {"bucket": "b", "prefix": "p"},
        })
    );
    let spec = json!({"provider": "aws", "config": {"region": "y"}});
    assert_eq!(find_kind(&objects, "VolumeSnapshotLocation")["spec"], spec);
    let annotations = &find_kind(&objects, "ServiceAccount")["metadata"]["annotations"];
    assert_eq!(annotations, &json!({"role": "r"}));
    let template = &find_kind(&objects, "Deployment")["spec"]["template"];
    assert_eq!(template["metadata"]["labels"]["a"], "b");
    let pod = &template["spec"];
    let names: Vec<_> = pod["initContainers"].as_array().unwrap().iter().collect();
    assert_eq!(names[0]["name"], "velero-plugin-for-aws");
    assert_eq!(names[1]["name"], "other-plugin");
    let server = &pod["containers"][0];
    let flags = ["--garbage-collection-frequency=2h", "--schedule-skip-immediately=true"];
    assert_eq!(server["args"], json!(["server", flags[0], flags[1], "--concurrent-backups=8"]));
    let limits = json!({"memory": "512Mi", "ephemeral-storage": "13Gi"});
    assert_eq!(server["resources"]["limits"], limits);
    let requests = json!({"cpu": "500m", "memory": "128Mi", "ephemeral-storage": "256Mi"});
    assert_eq!(server["resources"]["requests"], requests);
}

#[test]
fn invalid_installation_is_refused_before_any_change() {
    for (line, reason) in [
        (&[][..], "provider credentials are missing; add --secret-file, or --no-secret"),
        (&["--no-secret"], "backup storage is missing; add --provider and --bucket"),
        (
            &["--no-secret", "--provider=aws"],
            "backup storage is missing; add --provider and --bucket",
        ),
        (&["--no-secret", "--provider=aws", "--bucket=b", "--prefix=../x"], ".."),
        (&["--no-secret", "--secret-file=x"], "cannot be used with"),
        (&["--secret-file=/nowhere/at/all", "--provider=aws", "--bucket=b"], "cannot read the"),
        (
            &["--no-secret", "--no-default-backup-location", "--profile=admin"],
            "invalid profile `admin`",
        ),
        (
            &["--no-secret", "--no-default-backup-location", "--", "--concurrent-backup=8"],
            "server flags are not valid",
        ),
        (
            &["--no-secret", "--no-default-backup-location", "--", "--restore-only"],
            "`--restore-only` is not supported: make backup locations",
        ),
        (
            &[
                "--no-secret",
                "--no-default-backup-location",
                "--",
                "--leader-elect-renew-deadline=20s",
            ],
            "server flags are not valid: invalid Lease times: retry period 2s, renew deadline 20s",
        ),
        (
            &["--no-secret", "--no-default-backup-location", "--", "--identity=a"],
            "take the Lease from each other; omit it",
        ),
        (
            &["--no-secret", "--no-default-backup-location", "--", "--identity", "a"],
            "--identity is not supported for an installed server",
        ),
        (
            &["--no-secret", "--provider=gcp", "--bucket=b"],
            "--plugins, such as velero/velero-plugin-for-gcp;",
        ),
        (&["--no-secret", "--provider=azure", "--bucket=b"], "velero-plugin-for-microsoft-azure;"),
        (&["--no-secret", "--provider=filesystem", "--bucket=b"], "`-- --filesystem-root=DIR`"),
    ] {
        let error = format!("{:#}", install_objects(line).unwrap_err());
        assert!(error.contains(reason), "{line:?}: {error}");
    }
}

#[test]
fn provider_must_be_built_in_or_have_a_plugin() {
    for line in [
        &["--provider=velero.io/aws"][..],
        &["--provider=gcp", "--plugins=velero/velero-plugin-for-gcp:v1"],
        &["--provider=filesystem", "--", "--filesystem-root=/backups"],
    ] {
        install_objects(&[&["--no-secret", "--bucket=b"], line].concat()).unwrap();
    }
}

/// Every flag of `velero install` of Velero 1.18 that Bowline lacks, with a value.
const OTHER_VELERO_FLAGS: &[&str] = &[
    "--apply",
    "--node-agent-pod-cpu-request=1",
    "--node-agent-pod-mem-request=1",
    "--node-agent-pod-cpu-limit=1",
    "--node-agent-pod-mem-limit=1",
    "--kubelet-root-dir=/k",
    "--restore-only",
    "--use-node-agent",
    "--use-node-agent-windows",
    "--privileged-node-agent",
    "--default-repo-maintain-frequency=1h",
    "--garbage-collection-frequency=1h",
    "--pod-volume-operation-timeout=1h",
    "--features=EnableCSI",
    "--default-volumes-to-fs-backup",
    "--uploader-type=kopia",
    "--default-snapshot-move-data",
    "--csi-snapshot-early-frequent-polling",
    "--disable-informer-cache",
    "--schedule-skip-immediately",
    "--node-agent-disable-host-path",
    "--keep-latest-maintenance-jobs=3",
    "--maintenance-job-cpu-request=1",
    "--maintenance-job-mem-request=1",
    "--maintenance-job-cpu-limit=1",
    "--maintenance-job-mem-limit=1",
    "--backup-repository-configmap=c",
    "--repo-maintenance-job-configmap=c",
    "--node-agent-configmap=c",
    "--item-block-worker-count=2",
    "--concurrent-backups=2",
    "--node-agent-priority-class-name=p",
];

#[test]
fn every_velero_install_flag_is_known() {
    for &flag in OTHER_VELERO_FLAGS {
        let line = ["install", "--no-secret", "--no-default-backup-location", flag];
        let is_node_agent_flag = flag.contains("node-agent") || flag.contains("kubelet");
        match TestCommand::try_parse_from(line) {
            Ok(TestCommand { args }) => {
                let name = flag.split('=').next().unwrap();
                let is_forwarded = args.for_server.0.iter().any(|one| one.starts_with(name));
                let is_ignored = args.ignored.warnings().iter().any(|one| one.contains(name));
                let is_done = ["--apply", "--features", "--uploader-type"].contains(&name);
                assert!(is_forwarded ^ is_ignored ^ is_done, "{flag}");
                assert!(!is_node_agent_flag, "{flag}");
            }
            Err(error) => {
                let refusal = UnsupportedFlag::find_in(&error).map(ToString::to_string);
                assert!(refusal.is_some(), "{error}");
                assert!(is_node_agent_flag || flag == "--restore-only", "{flag}");
            }
        }
    }
}

#[test]
fn credentials_secret_is_excluded_from_backups() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("credentials");
    std::fs::write(&file, "key").unwrap();
    let secret = format!("--secret-file={}", file.display());
    let objects = install_objects(&[&secret, "--no-default-backup-location"]).unwrap();
    let labels = &find_kind(&objects, "Secret")["metadata"]["labels"];
    assert_eq!(labels["velero.io/exclude-from-backup"], "true");
}

/// Init containers have third-party images; the token of a powerful account is not for them.
#[test]
fn token_is_mounted_only_into_the_server_container() {
    let objects = install_objects(&[MINIMAL_FLAGS, &["--plugins=x.io/a/aws:1"]].concat()).unwrap();
    let pod = &find_kind(&objects, "Deployment")["spec"]["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["enableServiceLinks"], false);
    let mounts = |container: &Value| -> Vec<(String, bool)> {
        let mounts = container["volumeMounts"].as_array().unwrap().iter();
        mounts
            .map(|one| (one["name"].as_str().unwrap().to_owned(), one["readOnly"] == true))
            .collect()
    };
    let mounted = |container: &Value, name: &str| {
        mounts(container).into_iter().find(|(mounted, _)| mounted == name)
    };
    assert_eq!(mounts(&pod["initContainers"][0]), [("plugins".to_owned(), false)]);
    let server = &pod["containers"][0];
    assert_eq!(mounted(server, "token"), Some(("token".to_owned(), true)));
    assert_eq!(mounted(server, "plugins"), Some(("plugins".to_owned(), true)));
    let volumes = pod["volumes"].as_array().unwrap();
    let volume = |name: &str| volumes.iter().find(|volume| volume["name"] == name).unwrap();
    let sources = volume("token")["projected"]["sources"].as_array().unwrap();
    assert_eq!(sources[0]["serviceAccountToken"]["path"], "token");
    assert_eq!(sources[1]["configMap"]["items"][0]["path"], "ca.crt");
    assert_eq!(sources[2]["downwardAPI"]["items"][0]["path"], "namespace");
}

#[test]
fn every_empty_dir_has_a_size_limit_unless_disabled() {
    let folders = |line: &[&str]| -> Vec<Value> {
        let objects = install_objects(&[MINIMAL_FLAGS, line].concat()).unwrap();
        let pod = &find_kind(&objects, "Deployment")["spec"]["template"]["spec"];
        let volumes = pod["volumes"].as_array().unwrap().iter();
        let limits = pod["containers"][0]["resources"]["limits"]["ephemeral-storage"].clone();
        let sizes = volumes.filter_map(|one| one.get("emptyDir"));
        sizes.map(|one| one["sizeLimit"].clone()).chain([limits]).collect()
    };
    assert_eq!(folders(&[]), [json!("2Gi"), json!("10Gi"), json!("13Gi")]);
    assert_eq!(folders(&["--scratch-size-limit=40Gi"])[1..], [json!("40Gi"), json!("43Gi")]);
    assert_eq!(folders(&["--scratch-size-limit=0"])[1..], [Value::Null, Value::Null]);
    for wrong in ["10", "1.5Gi", "10G", "-1Gi", ""] {
        let flag = format!("--scratch-size-limit={wrong}");
        install_objects(&[MINIMAL_FLAGS, &[&flag]].concat()).unwrap_err();
    }
}

/// A drain of nodes must leave one of two servers, and not be blocked by a single one.
#[test]
fn disruption_budget_evicts_one_server_at_a_time() {
    let objects = install_objects(MINIMAL_FLAGS).unwrap();
    let budget = &find_kind(&objects, "PodDisruptionBudget")["spec"];
    assert_eq!(budget["maxUnavailable"], 1);
    let pods = &find_kind(&objects, "Deployment")["spec"]["template"]["metadata"]["labels"];
    let selected = budget["selector"]["matchLabels"].as_object().unwrap();
    assert!(!selected.is_empty() && selected.iter().all(|(key, value)| pods[key] == *value));
}

/// The shipped policy must select the installed pods.
#[test]
fn the_network_policy_selects_the_server_and_its_metrics() {
    use k8s_openapi::api::networking::v1::NetworkPolicy;

    let policies = include_str!("../../../../../deploy/network-policy.yaml");
    let policies: Vec<NetworkPolicy> =
        policies.split("\n---\n").map(|policy| serde_saphyr::from_str(policy).unwrap()).collect();
    let objects = install_objects(MINIMAL_FLAGS).unwrap();
    let template = &find_kind(&objects, "Deployment")["spec"]["template"];
    for policy in &policies {
        let selector = policy.spec.as_ref().unwrap().pod_selector.clone().unwrap_or_default();
        let labels = selector.match_labels.unwrap();
        let pods = &template["metadata"]["labels"];
        assert!(labels.iter().all(|(key, value)| pods[key] == value.as_str()), "{labels:?}");
    }
    let spec = policies[0].spec.as_ref().unwrap();
    let port = &spec.ingress.as_ref().unwrap()[0].ports.as_ref().unwrap()[0];
    let served = &template["spec"]["containers"][0]["ports"][0]["containerPort"];
    assert_eq!(serde_json::to_value(&port.port).unwrap(), *served);
    assert_eq!(policies.len(), 2);
}
