use clap::Parser as _;
use serde_json::{Value, json};

use super::*;

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn made(line: &[&str]) -> anyhow::Result<Vec<Value>> {
    let words = ["install", "-n", "velero"].iter().chain(line);
    let args = Line::try_parse_from(words)?.args;
    Ok(objects::all(&wish(&args)?))
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or(&Value::Null)
}

const LEAST: &[&str] = &["--no-secret", "--no-default-backup-location"];

#[test]
fn the_least_that_is_installed_is_a_server_with_its_roles() {
    let objects = made(LEAST).unwrap();
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
            "Deployment bowline",
        ]
    );
    assert_eq!(objects[2]["metadata"]["labels"]["bowline.io/profile"], "backup-only");
    assert!(!serde_json::to_string(&objects).unwrap().contains("cluster-admin"));
}

#[test]
fn the_flags_of_velero_say_where_backups_go() {
    let file = std::env::temp_dir().join(format!("bowline-credentials-{}", std::process::id()));
    std::fs::write(&file, "key").unwrap();
    let secret = format!("--secret-file={}", file.display());
    let objects = made(&[
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
    assert_eq!(of_kind(&objects, "Secret")["data"], json!({"cloud": "a2V5"}));
    assert_eq!(
        of_kind(&objects, "BackupStorageLocation")["spec"],
        json!({
            "provider": "aws", "default": true, "config": {"region": "x"},
            "objectStorage": {"bucket": "b", "prefix": "p"},
        })
    );
    let spec = json!({"provider": "aws", "config": {"region": "y"}});
    assert_eq!(of_kind(&objects, "VolumeSnapshotLocation")["spec"], spec);
    let annotations = &of_kind(&objects, "ServiceAccount")["metadata"]["annotations"];
    assert_eq!(annotations, &json!({"role": "r"}));
    let template = &of_kind(&objects, "Deployment")["spec"]["template"];
    assert_eq!(template["metadata"]["labels"]["a"], "b");
    let pod = &template["spec"];
    let names: Vec<_> = pod["initContainers"].as_array().unwrap().iter().collect();
    assert_eq!(names[0]["name"], "velero-plugin-for-aws");
    assert_eq!(names[1]["name"], "other-plugin");
    let server = &pod["containers"][0];
    let flags = ["--garbage-collection-frequency=2h", "--schedule-skip-immediately=true"];
    assert_eq!(server["args"], json!(["server", flags[0], flags[1], "--concurrent-backups=8"]));
    assert_eq!(server["resources"]["limits"], json!({"memory": "512Mi"}));
    assert_eq!(server["resources"]["requests"], json!({"cpu": "500m", "memory": "128Mi"}));
}

#[test]
fn what_cannot_work_is_told_before_anything_is_done() {
    for (line, reason) in [
        (&[][..], "name the provider's credentials with --secret-file, or say --no-secret"),
        (&["--no-secret"], "say where backups go with --provider and --bucket"),
        (&["--no-secret", "--provider=aws"], "say where backups go with --provider and --bucket"),
        (&["--no-secret", "--provider=aws", "--bucket=b", "--prefix=../x"], ".."),
        (&["--no-secret", "--secret-file=x"], "cannot be used with"),
        (&["--secret-file=/nowhere/at/all", "--provider=aws", "--bucket=b"], "cannot read the"),
        (&["--no-secret", "--no-default-backup-location", "--profile=admin"], "is no profile"),
        (
            &["--no-secret", "--no-default-backup-location", "--", "--concurrent-backup=8"],
            "the server does not take these flags",
        ),
        (
            &["--no-secret", "--no-default-backup-location", "--", "--restore-only"],
            "`--restore-only` is not taken: let backup locations",
        ),
        (
            &[
                "--no-secret",
                "--no-default-backup-location",
                "--",
                "--leader-elect-renew-deadline=20s",
            ],
            "the server does not take these flags: a lease that is renewed each 2s, given up after 20s",
        ),
        (
            &["--no-secret", "--no-default-backup-location", "--", "--identity=a"],
            "take the Lease from each other; leave it out",
        ),
        (
            &["--no-secret", "--no-default-backup-location", "--", "--identity", "a"],
            "--identity is not for an installed server",
        ),
        (
            &["--no-secret", "--provider=gcp", "--bucket=b"],
            "--plugins, such as velero/velero-plugin-for-gcp;",
        ),
        (&["--no-secret", "--provider=azure", "--bucket=b"], "velero-plugin-for-microsoft-azure;"),
        (&["--no-secret", "--provider=filesystem", "--bucket=b"], "`-- --filesystem-root=FOLDER`"),
    ] {
        let error = format!("{:#}", made(line).unwrap_err());
        assert!(error.contains(reason), "{line:?}: {error}");
    }
}

#[test]
fn a_provider_is_served_by_what_is_built_in_or_by_a_plugin() {
    for line in [
        &["--provider=velero.io/aws"][..],
        &["--provider=gcp", "--plugins=velero/velero-plugin-for-gcp:v1"],
        &["--provider=filesystem", "--", "--filesystem-root=/backups"],
    ] {
        made(&[&["--no-secret", "--bucket=b"], line].concat()).unwrap();
    }
}

/// Every flag of `velero install` of Velero 1.18 that ours does not have as its own, with a value.
const OTHERS: &[&str] = &[
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
fn every_flag_of_velero_is_known() {
    for &flag in OTHERS {
        let line = ["install", "--no-secret", "--no-default-backup-location", flag];
        let is_of_agent = flag.contains("node-agent") || flag.contains("kubelet");
        match Line::try_parse_from(line) {
            Ok(Line { args }) => {
                let name = flag.split('=').next().unwrap();
                let is_handed_on = args.for_server.0.iter().any(|one| one.starts_with(name));
                let is_noted = args.unused.notes().iter().any(|one| one.contains(name));
                let is_done = ["--apply", "--features", "--uploader-type"].contains(&name);
                assert!(is_handed_on ^ is_noted ^ is_done, "{flag}");
                assert!(!is_of_agent, "{flag}");
            }
            Err(error) => {
                let refusal = Refusal::behind(&error).map(ToString::to_string);
                assert!(refusal.is_some(), "{error}");
                assert!(is_of_agent || flag == "--restore-only", "{flag}");
            }
        }
    }
}
