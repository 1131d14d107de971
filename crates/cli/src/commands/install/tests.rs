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
    assert_eq!(names[0]["name"], "plugin-0-velero-plugin-for-aws");
    assert_eq!(names[1]["name"], "plugin-1-plugin");
    let server = &pod["containers"][0];
    assert_eq!(server["args"], json!(["server", "--concurrent-backups=8"]));
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
        (&["--secret-file=/nowhere/at/all", "--provider=a", "--bucket=b"], "cannot read the"),
        (&["--no-secret", "--no-default-backup-location", "--profile=admin"], "is no profile"),
        (
            &["--no-secret", "--no-default-backup-location", "--", "--concurrent-backup=8"],
            "the server does not take these flags",
        ),
    ] {
        let error = format!("{:#}", made(line).unwrap_err());
        assert!(error.contains(reason), "{line:?}: {error}");
    }
}
