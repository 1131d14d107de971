use std::path::Path;

use bowline_testbed::{Bed, ControlPlane, Options};

use crate::bowline::World;

/// The copy that people can look at, and apply without us.
const COPY: &str = "deploy/crds.yaml";

#[test]
fn the_checked_in_definitions_are_those_that_install_prints() {
    let ended = World::new().run(&["install", "--crds-only", "--dry-run", "-o", "yaml"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let copy = std::fs::read_to_string(root.join(COPY)).unwrap_or_default();
    assert!(
        ended.stdout == copy,
        "{COPY} is out of date; run `bowline install --crds-only --dry-run -o yaml > {COPY}`"
    );
}

#[test]
fn json_is_a_list_that_kubectl_understands() {
    let ended = World::new().run(&["install", "--crds-only", "--dry-run", "-o", "json"]);
    let list: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(list["kind"], "List");
    assert_eq!(list["items"].as_array().map(Vec::len), Some(15));
}

#[test]
fn definitions_are_created_once_and_a_newer_one_is_kept() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let bed = Bed::new().unwrap();
    let plane = runtime.block_on(ControlPlane::start(&bed, Options::default())).unwrap();
    let world = World::new();
    let install = |more: &[&str]| {
        let mut command = world.bowline(&["install", "--crds-only"]);
        let ended = World::end_of(command.args(more).env("KUBECONFIG", plane.kubeconfig()));
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stderr
    };
    let all = |said: &str, end: &str| {
        assert_eq!(said.lines().filter(|line| line.ends_with(end)).count(), 15, "{said}");
    };
    all(&install(&["--dry-run"]), ": would be created");
    all(&install(&[]), ": created");
    all(&install(&[]), ": up to date");

    // A newer Velero brings a field that we do not know.
    let field = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/future";
    let patch = format!(r#"[{{"op": "add", "path": "{field}", "value": {{"type": "string"}}}}]"#);
    let patched = runtime.block_on(async {
        let mut kubectl = plane.kubectl().await.unwrap();
        kubectl.args(["patch", "crd", "backups.velero.io", "--type=json", "-p", &patch]);
        kubectl.output().await.unwrap()
    });
    assert!(patched.status.success(), "{patched:?}");
    let said = install(&[]);
    let kept = "backups.velero.io: kept, it is newer than ours, which lacks v1:spec.future";
    assert!(said.contains(kept), "{said}");
    assert_eq!(said.lines().filter(|line| line.ends_with(": up to date")).count(), 14, "{said}");
}
