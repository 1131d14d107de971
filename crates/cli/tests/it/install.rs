use std::path::Path;
use std::time::Duration;

use bowline_api::annotation::finalizer;
use bowline_api::{BackupStorageLocation, Restore};
use bowline_testbed::{Bed, ControlPlane, Options, eventually_blocking};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::bowline::{TIMEOUT, World};

/// The copy in the repository, for reading and for `kubectl apply`.
const CRDS_FILE: &str = "deploy/crds.yaml";

#[test]
fn checked_in_definitions_equal_install_output() {
    let ended = World::new().run(&["install", "--crds-only", "--dry-run", "-o", "yaml"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let copy = std::fs::read_to_string(root.join(CRDS_FILE)).unwrap_or_default();
    assert!(
        ended.stdout == copy,
        "{CRDS_FILE} is out of date; run `bowline install --crds-only --dry-run -o yaml > {CRDS_FILE}`"
    );
}

#[test]
fn checked_in_server_manifests_equal_install_output() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    for profile in ["backup-only", "full"] {
        let flag = format!("--profile={profile}");
        let line = ["install", &flag, "--no-secret", "--no-default-backup-location", "--dry-run"];
        let ended = World::new().run(&[&line[..], &["-o", "yaml"]].concat());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let path = format!("deploy/{profile}/server.yaml");
        // Printed after the definitions, which are a file of their own.
        assert!(
            ended.stdout.strip_prefix(&read(CRDS_FILE)) == Some(&read(&path)),
            "{path} is out of date: it is what `bowline {}` prints after {CRDS_FILE}",
            line.join(" ")
        );
    }
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
        let ended = World::run_command(command.args(more).env("KUBECONFIG", plane.kubeconfig()));
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stderr
    };
    let all = |stderr: &str, end: &str| {
        assert_eq!(stderr.lines().filter(|line| line.ends_with(end)).count(), 15, "{stderr}");
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
    let stderr = install(&[]);
    let message = "backups.velero.io: kept, because it is newer than this program's, which lacks \
                   v1:spec.future";
    assert!(stderr.contains(message), "{stderr}");
    assert_eq!(
        stderr.lines().filter(|line| line.ends_with(": up to date")).count(),
        14,
        "{stderr}"
    );
}

/// A control plane, and `bowline` commands that talk to it.
pub(crate) struct Installed {
    pub(crate) runtime: Runtime,
    pub(crate) plane: ControlPlane,
    world: World,
    pub(crate) client: Client,
    _bed: Bed,
}

impl Installed {
    pub(crate) fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let bed = Bed::new().unwrap();
        let plane = runtime.block_on(ControlPlane::start(&bed, Options::default())).unwrap();
        let client = runtime.block_on(plane.client()).unwrap();
        Self { runtime, plane, world: World::new(), client, _bed: bed }
    }

    /// Runs a command. Returns its exit code, standard error and standard output.
    fn run(&self, line: &[&str]) -> (Option<i32>, String, String) {
        let mut command = self.world.bowline(line);
        let ended = World::run_command(command.env("KUBECONFIG", self.plane.kubeconfig()));
        (ended.code, ended.stderr, ended.stdout)
    }

    pub(crate) fn install(&self, profile: &str) -> String {
        let profile = format!("--profile={profile}");
        let line = ["install", &profile, "--no-secret", "--no-default-backup-location"];
        let (code, stderr, _) = self.run(&line);
        assert_eq!(code, Some(0), "{stderr}");
        stderr
    }

    /// True if the server's account has a permission, in a namespace if one is given.
    fn may_access(&self, verb: &str, resource: &str, namespace: &str) -> bool {
        let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
        let (resource, below) = resource.split_once('/').unwrap_or((resource, ""));
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: text("system:serviceaccount:velero:bowline"),
                groups: Some(vec![
                    "system:serviceaccounts".to_owned(),
                    "system:authenticated".to_owned(),
                ]),
                resource_attributes: Some(ResourceAttributes {
                    group: text(group),
                    resource: text(resource),
                    subresource: text(below),
                    namespace: text(namespace),
                    verb: text(verb),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = self.runtime.block_on(api.create(&PostParams::default(), &review)).unwrap();
        answer.status.unwrap().allowed
    }
}

/// Permissions of the server with either profile: verb, resource, namespace.
const ALWAYS: &[(&str, &str, &str)] = &[
    ("list", "secrets", "shop"),
    ("watch", "things.example.io", "shop"),
    ("get", "clusterroles.rbac.authorization.k8s.io", ""),
    ("create", "pods/exec", "shop"),
    ("create", "volumesnapshots.snapshot.storage.k8s.io", "shop"),
    ("delete", "volumesnapshotcontents.snapshot.storage.k8s.io", ""),
    ("patch", "backups.velero.io", "velero"),
    ("delete", "volumepluginbackups.velero.io", "velero"),
    ("create", "configmaps", "velero"),
    ("update", "leases.coordination.k8s.io", "velero"),
    ("create", "events.events.k8s.io", "velero"),
];
/// Permissions with the full profile only.
const FOR_RESTORES: &[(&str, &str, &str)] = &[
    ("create", "namespaces", ""),
    ("create", "secrets", "shop"),
    ("patch", "deployments.apps", "shop"),
    ("update", "things.example.io", "shop"),
    ("create", "clusterrolebindings.rbac.authorization.k8s.io", ""),
    ("escalate", "clusterroles.rbac.authorization.k8s.io", ""),
    ("bind", "clusterroles.rbac.authorization.k8s.io", ""),
];
/// Permissions that the server never has.
const NEVER: &[(&str, &str, &str)] = &[
    ("delete", "namespaces", ""),
    ("delete", "pods", "shop"),
    ("delete", "secrets", "velero"),
    ("deletecollection", "configmaps", "shop"),
    ("delete", "persistentvolumes", ""),
    ("delete", "customresourcedefinitions.apiextensions.k8s.io", ""),
    ("impersonate", "users", ""),
    ("approve", "signers.certificates.k8s.io", ""),
];

#[test]
fn server_has_exactly_the_documented_rights() {
    let installed = Installed::start();
    for profile in ["backup-only", "full"] {
        installed.install(profile);
        for &(verb, resource, namespace) in ALWAYS {
            assert!(
                installed.may_access(verb, resource, namespace),
                "{profile}: {verb} {resource}"
            );
        }
        for &(verb, resource, namespace) in FOR_RESTORES {
            let may = installed.may_access(verb, resource, namespace);
            assert_eq!(may, profile == "full", "{profile}: {verb} {resource}");
        }
        for &(verb, resource, namespace) in NEVER {
            assert!(
                !installed.may_access(verb, resource, namespace),
                "{profile}: {verb} {resource}"
            );
        }
    }
    let bindings: Api<ClusterRoleBinding> = Api::all(installed.client.clone());
    let bindings = installed.runtime.block_on(bindings.list(&ListParams::default())).unwrap();
    let of_admin = bindings.items.iter().filter(|one| one.role_ref.name == "cluster-admin");
    assert!(
        of_admin.flat_map(|one| one.subjects.iter().flatten()).all(|one| one.name != "bowline")
    );
}

#[test]
fn installation_is_complete_repeatable_and_removable() {
    let installed = Installed::start();
    let Installed { runtime, client, .. } = &installed;
    let dry = ["install", "--no-secret", "--no-default-backup-location", "--dry-run"];
    let (code, stderr, _) = installed.run(&dry);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("Deployment bowline: would be created"), "{stderr}");
    assert!(installed.install("full").contains("Deployment bowline: created"));
    assert!(installed.install("full").contains("Deployment bowline: up to date"));

    // The pods are let in where only restricted ones are.
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "velero");
    let deployment = runtime.block_on(deployments.get("bowline")).unwrap();
    let template = deployment.spec.unwrap().template;
    let mut pod = Pod { metadata: template.metadata.unwrap(), spec: template.spec, status: None };
    pod.metadata.name = Some("probe".to_owned());
    let pods: Api<Pod> = Api::namespaced(client.clone(), "velero");
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    runtime.block_on(pods.create(&dry, &pod)).unwrap();
    pod.spec.as_mut().unwrap().host_network = Some(true);
    runtime.block_on(pods.create(&dry, &pod)).unwrap_err();

    let (code, stderr, _) = installed.run(&["uninstall"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("standard input is not a terminal"), "{stderr}");
    let (code, stderr, _) = installed.run(&["uninstall", "--force"]);
    assert_eq!(code, Some(0), "{stderr}");
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    let remaining = runtime.block_on(bindings.list(&ListParams::default())).unwrap();
    assert!(remaining.items.iter().all(|one| one.name_any() != "bowline-velero"));
    let namespaces: Api<Namespace> = Api::all(client.clone());
    assert!(runtime.block_on(namespaces.get_opt("velero")).unwrap().is_some());
    assert_eq!(runtime.block_on(deployments.get_opt("bowline")).unwrap(), None);
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), "velero");
    assert_eq!(runtime.block_on(budgets.get_opt("bowline")).unwrap(), None);
}

/// The patch of docs/local-volume.md makes a consistent pod, and the next installation leaves it alone.
#[test]
fn local_volume_patch_survives_reinstallation() {
    let installed = Installed::start();
    let Installed { runtime, client, .. } = &installed;
    installed.install("backup-only");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/local-volume.md")).unwrap();
    let (_, patch) = page.split_once("```yaml\n# local-volume-patch.yaml\n").unwrap();
    let (patch, _) = patch.split_once("```").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("patch.yaml");
    std::fs::write(&file, patch).unwrap();
    let kubectl = |arguments: &[&str]| {
        let ended = runtime.block_on(async {
            let mut kubectl = installed.plane.kubectl().await.unwrap();
            kubectl.args(["-n", "velero"]).args(arguments).output().await.unwrap()
        });
        assert!(ended.status.success(), "{arguments:?}: {ended:?}");
    };
    let enforce = "pod-security.kubernetes.io/enforce=privileged";
    kubectl(&["label", "namespace", "velero", "--overwrite", enforce]);
    let from = format!("--patch-file={}", file.display());
    kubectl(&["patch", "deployment", "bowline", &from]);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "velero");
    let template = || runtime.block_on(deployments.get("bowline")).unwrap().spec.unwrap().template;
    let patched = template();
    let stderr = installed.install("backup-only");
    assert!(stderr.contains("Deployment bowline: up to date"), "{stderr}");
    assert_eq!(template(), patched);

    // As for the kubelet, the container's setting takes precedence over the pod's.
    let pod = patched.spec.clone().unwrap();
    let [server] = pod.containers.as_slice() else { panic!("{:?}", pod.containers) };
    let own = server.security_context.clone().unwrap();
    assert_eq!((own.run_as_user, own.run_as_non_root), (Some(0), Some(false)));
    let capabilities = own.capabilities.unwrap();
    assert_eq!(capabilities.drop, Some(vec!["ALL".to_owned()]));
    assert!(capabilities.add.unwrap().contains(&"CHOWN".to_owned()));
    let mount = server.volume_mounts.iter().flatten().find(|one| one.mount_path == "/mnt/disks");
    let volume = pod.volumes.iter().flatten().find(|one| one.name == mount.unwrap().name).unwrap();
    assert_eq!(volume.host_path.as_ref().unwrap().path, "/mnt/disks");
    // The API server takes such a pod.
    let mut pod = Pod { metadata: patched.metadata.unwrap(), spec: patched.spec, status: None };
    pod.metadata.name = Some("probe".to_owned());
    let pods: Api<Pod> = Api::namespaced(client.clone(), "velero");
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    runtime.block_on(pods.create(&dry, &pod)).unwrap();
}

#[test]
fn existing_velero_objects_are_kept_and_used() {
    let installed = Installed::start();
    let Installed { runtime, client, .. } = &installed;
    let enforce = "pod-security.kubernetes.io/enforce";
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let privileged = serde_json::json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "velero", "labels": {enforce: "privileged"}},
    });
    let params = PatchParams::apply("velero");
    runtime.block_on(namespaces.patch("velero", &params, &Patch::Apply(&privileged))).unwrap();
    let mounted = || {
        let api: Api<Deployment> = Api::namespaced(client.clone(), "velero");
        let pod = runtime.block_on(api.get("bowline")).unwrap().spec.unwrap().template.spec;
        let names = pod.unwrap().volumes.into_iter().flatten().map(|volume| volume.name);
        names.collect::<Vec<_>>().contains(&"credentials".to_owned())
    };

    let stderr = installed.install("full");
    let message = "Namespace velero: kept unchanged, so its pods are not restricted to the Pod \
                   Security level `restricted`";
    assert!(stderr.lines().any(|line| line == message), "{stderr}");
    let labels = runtime.block_on(namespaces.get("velero")).unwrap().metadata.labels.unwrap();
    assert_eq!(labels[enforce], "privileged");
    let of_ours = |name: &String| name.contains("audit") || name.contains("managed-by");
    assert!(!labels.keys().any(of_ours), "{labels:?}");
    assert!(!mounted(), "there are no credentials yet");

    let secrets: Api<Secret> = Api::namespaced(client.clone(), "velero");
    let secret = serde_json::json!({
        "metadata": {"name": "cloud-credentials"}, "stringData": {"cloud": "s3cr3t"},
    });
    let secret = serde_json::from_value(secret).unwrap();
    runtime.block_on(secrets.create(&PostParams::default(), &secret)).unwrap();
    let stderr = installed.install("full");
    assert!(stderr.contains("Secret cloud-credentials: kept, the server uses"), "{stderr}");
    assert!(!stderr.contains("s3cr3t"), "{stderr}");
    assert!(mounted(), "{stderr}");

    // A hint appears until they are in a recovery file, and again after a change.
    let due = "hint: backups exclude credentials (Secret cloud-credentials)";
    assert!(stderr.contains(due) && stderr.contains("`bowline recovery export FILE`"), "{stderr}");
    let folder = tempfile::tempdir().unwrap();
    let recipient = "age1munncrq6tvthy5t8wgcmhay78vu3lfzew3g23w68mt74maaghp6sy3st6k";
    let file = folder.path().join("recovery.age").display().to_string();
    let (code, stderr, _) = installed.run(&["recovery", "export", &file, "--recipient", recipient]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(!stderr.contains("s3cr3t"), "{stderr}");
    let stderr = installed.install("full");
    assert!(!stderr.contains("recovery export"), "{stderr}");
    let changed = Patch::Merge(json!({"stringData": {"cloud": "changed"}}));
    let merge = PatchParams::default();
    runtime.block_on(secrets.patch("cloud-credentials", &merge, &changed)).unwrap();
    let stderr = installed.install("full");
    assert!(stderr.contains("have changed since the recovery export of"), "{stderr}");

    // A location that differs is reported, with the command that changes it.
    let location = serde_json::json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
        "metadata": {"name": "default", "namespace": "velero"},
        "spec": {"provider": "aws", "objectStorage": {"bucket": "theirs"}},
    });
    let locations: Api<BackupStorageLocation> = Api::namespaced(client.clone(), "velero");
    runtime.block_on(locations.patch("default", &params, &Patch::Apply(&location))).unwrap();
    let (code, stderr, _) =
        installed.run(&["install", "--no-secret", "--provider=aws", "--bucket=ours"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("`kubectl edit BackupStorageLocation default -n velero`"), "{stderr}");
    assert!(!stderr.contains("delete it"), "{stderr}");
}

/// A Deployment with one container.
fn deployment(name: &str, replicas: i32, container: &Value) -> Deployment {
    let labels = json!({"deploy": name});
    let deployment = json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    });
    serde_json::from_value(deployment).unwrap()
}

#[test]
fn installation_is_refused_whole_or_reports_partial_progress() {
    let installed = Installed::start();
    let Installed { runtime, client, .. } = &installed;
    let line = ["install", "--no-secret", "--no-default-backup-location"];
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let (code, stderr, _) = installed.run(&["uninstall", "--force"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("nothing is installed in namespace `velero`"), "{stderr}");

    // Two objects conflict. Both are reported, and nothing is changed.
    let role = json!({
        "metadata": {"name": "bowline-velero", "labels": {"app.kubernetes.io/managed-by": "Helm"}},
    });
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let role = serde_json::from_value(role).unwrap();
    runtime.block_on(roles.create(&PostParams::default(), &role)).unwrap();
    let binding = json!({
        "metadata": {"name": "bowline-velero"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "x"},
    });
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    let binding = serde_json::from_value(binding).unwrap();
    runtime.block_on(bindings.create(&PostParams::default(), &binding)).unwrap();
    for more in [&["--dry-run"][..], &[]] {
        let (code, stderr, _) = installed.run(&[&line[..], more].concat());
        assert_eq!(code, Some(2), "{stderr}");
        assert!(
            stderr.contains("ClusterRole bowline-velero exists but was not created by"),
            "{stderr}"
        );
        assert!(stderr.contains("(managed by `Helm`)"), "{stderr}");
        assert!(stderr.contains("ClusterRoleBinding bowline-velero exists"), "{stderr}");
        assert!(stderr.contains("nothing was changed"), "{stderr}");
    }
    assert_eq!(runtime.block_on(definitions.get_opt("backups.velero.io")).unwrap(), None);
    assert_eq!(runtime.block_on(namespaces.get_opt("velero")).unwrap(), None);
    let delete = DeleteParams::default();
    runtime.block_on(roles.delete("bowline-velero", &delete)).unwrap();
    runtime.block_on(bindings.delete("bowline-velero", &delete)).unwrap();

    // The cluster rejects an object that it accepted in the dry run.
    let creations = json!({
        "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"],
        "resources": ["deployments"],
    });
    let not_tried = "has(request.dryRun) && request.dryRun";
    let policy = json!({
        "metadata": {"name": "none-today"},
        "spec": {
            "matchConstraints": {"resourceRules": [creations]},
            "validations": [{"expression": not_tried, "message": "no Deployments today"}],
        },
    });
    let binding = json!({
        "metadata": {"name": "none-today"},
        "spec": {"policyName": "none-today", "validationActions": ["Deny"]},
    });
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let policy = serde_json::from_value(policy).unwrap();
    runtime.block_on(policies.create(&PostParams::default(), &policy)).unwrap();
    let bound: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let binding = serde_json::from_value(binding).unwrap();
    runtime.block_on(bound.create(&PostParams::default(), &binding)).unwrap();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let is_let_in = || {
        let probe = deployment("probe", 0, &json!({"name": "x", "image": "x"}));
        let created = runtime.block_on(deployments.create(&PostParams::default(), &probe)).is_ok();
        if created {
            runtime.block_on(deployments.delete("probe", &delete)).unwrap();
        }
        created
    };
    eventually_blocking("the policy is in force", TIMEOUT, || !is_let_in());
    let (code, stderr, _) = installed.run(&line);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("no Deployments today"), "{stderr}");
    let message = "already applied: the custom resource definitions, Namespace velero, ServiceAccount bowline,";
    assert!(stderr.contains(message) && stderr.contains("run the same command again"), "{stderr}");
    assert!(runtime.block_on(namespaces.get_opt("velero")).unwrap().is_some());
    runtime.block_on(bound.delete("none-today", &delete)).unwrap();
    eventually_blocking("the policy is no longer in force", TIMEOUT, is_let_in);
    let (code, stderr, _) = installed.run(&line);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("Role bowline: up to date"), "{stderr}");
    assert!(stderr.contains("Deployment bowline: created"), "{stderr}");
    let (_, said, _) = installed.run(&[&line[..], &["--dry-run", "--replicas=3"]].concat());
    assert!(said.contains("Role bowline: up to date"), "{said}");
    assert!(said.contains("Deployment bowline: would be updated"), "{said}");
}

#[test]
fn foreign_objects_are_detected_and_kept() {
    let installed = Installed::start();
    let Installed { runtime, client, .. } = &installed;
    for name in ["velero", "other"] {
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        let namespaces: Api<Namespace> = Api::all(client.clone());
        runtime.block_on(namespaces.create(&PostParams::default(), &namespace)).unwrap();
    }
    // A running Velero is refused, also in another namespace, unless a flag allows it.
    let container = json!({"name": "velero", "image": "velero/velero:v1.18.3", "args": ["server"]});
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "velero");
    // A release of the chart may give it any name.
    let velero = deployment("backups-velero", 1, &container);
    runtime.block_on(deployments.create(&PostParams::default(), &velero)).unwrap();
    let line = ["install", "--no-secret", "--no-default-backup-location", "-n"];
    let install =
        |namespace: &str, more: &[&str]| installed.run(&[&line[..], &[namespace], more].concat());
    for more in [&[][..], &["--dry-run"], &["--beside-velero"]] {
        let (code, stderr, _) = install("velero", more);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("`bowline migrate check -n velero`"), "{stderr}");
    }
    let (code, stderr, _) = install("other", &[]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(
        stderr.contains("namespace `velero`") && stderr.contains("--beside-velero"),
        "{stderr}"
    );
    assert_eq!(install("other", &["--beside-velero"]).0, Some(0));
    // Bowline is in the other namespace. Without --namespace, Velero is not removed.
    let (code, stderr, _) = installed.run(&["uninstall", "--force"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("nothing is installed") && !stderr.contains("--purge"), "{stderr}");
    let (code, stderr, _) = installed.run(&["uninstall", "--purge", "--force"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(
        stderr.contains("Velero runs in namespace `velero` as Deployment `backups-velero`"),
        "{stderr}"
    );
    assert!(runtime.block_on(deployments.get_opt("backups-velero")).unwrap().is_some());
    let (params, none) = (PatchParams::default(), Patch::Merge(json!({"spec": {"replicas": 0}})));
    runtime.block_on(deployments.patch("backups-velero", &params, &none)).unwrap();
    let (code, said, _) = install("velero", &[]);
    assert_eq!(code, Some(0), "{said}");

    // A plugin has one container, whatever registry its next version comes from.
    let plugins = || -> Vec<(String, String)> {
        let pod = runtime.block_on(deployments.get("bowline")).unwrap().spec.unwrap().template.spec;
        let containers = pod.unwrap().init_containers.into_iter().flatten();
        containers.map(|one| (one.name, one.image.unwrap_or_default())).collect()
    };
    let plugin = |version: u8| ("a-aws".to_owned(), format!("x.io/a/aws:{version}"));
    let (code, stderr, _) = installed.run(&["plugin", "add", "x.io/a/aws:1", "--confirm"]);
    assert_eq!((code, plugins()), (Some(0), vec![plugin(1)]), "{stderr}");
    let (code, said, _) = install("velero", &["--plugins=x.io/a/aws:2"]);
    assert_eq!((code, plugins()), (Some(0), vec![plugin(2)]), "{said}");
    let (code, said, _) = installed.run(&["plugin", "add", "x.io/a/aws:3", "--confirm"]);
    assert_eq!((code, plugins()), (Some(0), vec![plugin(3)]), "{said}");

    // A server that was started manually is active in the namespace, and stays active.
    let leases: Api<Lease> = Api::namespaced(client.clone(), "velero");
    let lease = json!({
        "metadata": {"name": "bowline-server"},
        "spec": {"holderIdentity": "by-hand", "leaseDurationSeconds": 60, "leaseTransitions": 0},
    });
    let lease = serde_json::from_value(lease).unwrap();
    runtime.block_on(leases.create(&PostParams::default(), &lease)).unwrap();
    let renewed = leases.clone();
    let renewing = runtime.spawn(async move {
        for number in 0.. {
            let change = Patch::Merge(json!({"spec": {"leaseTransitions": number}}));
            renewed.patch("bowline-server", &PatchParams::default(), &change).await.unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    let (code, stderr, _) = installed.run(&["uninstall", "--purge", "--confirm"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("server `by-hand`") && stderr.contains("is still active"), "{stderr}");
    assert!(!stderr.contains("removed"), "{stderr}");
    let (code, stderr, _) = installed.run(&["uninstall", "--force"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("Deployment bowline: removed"), "{stderr}");
    assert!(
        stderr.contains("Lease bowline-server: kept, because it is held by server `by-hand`"),
        "{stderr}"
    );
    let (code, stderr, _) = installed.run(&["uninstall", "--force"]);
    assert_eq!(code, Some(2), "{stderr}");
    renewing.abort();
    assert!(runtime.block_on(leases.get_opt("bowline-server")).unwrap().is_some());

    // A Lease without a holder is removed with the installation.
    assert_eq!(install("velero", &[]).0, Some(0));
    let free = Patch::Merge(json!({"spec": {"holderIdentity": ""}}));
    runtime.block_on(leases.patch("bowline-server", &params, &free)).unwrap();
    let (code, said, _) = installed.run(&["uninstall", "--force"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(runtime.block_on(leases.get_opt("bowline-server")).unwrap(), None);
}

/// A restore that holds its namespace back until a server has deleted its files.
fn put_restore(installed: &Installed, namespace: &str) {
    let restore = serde_json::json!({
        "metadata": {"name": "one", "finalizers": [finalizer::RESTORE]},
        "spec": {"backupName": "b"}, "status": {"phase": "Completed"},
    });
    let api: Api<Restore> = Api::namespaced(installed.client.clone(), namespace);
    let restore = serde_json::from_value(restore).unwrap();
    installed.runtime.block_on(api.create(&PostParams::default(), &restore)).unwrap();
}

#[test]
fn purge_works_without_a_server_and_keeps_shared_definitions() {
    let installed = Installed::start();
    let Installed { runtime, client, .. } = &installed;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let is_there =
        |namespace: &str| runtime.block_on(namespaces.get_opt(namespace)).unwrap().is_some();
    installed.install("full");
    // The other namespace has resources and no server, and no object of `bowline install`.
    let other = serde_json::from_value(serde_json::json!({"metadata": {"name": "archive"}}));
    runtime.block_on(namespaces.create(&PostParams::default(), &other.unwrap())).unwrap();
    put_restore(&installed, "archive");
    put_restore(&installed, "velero");

    let (code, stderr, _) = installed.run(&["uninstall", "--purge", "--force"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(!is_there("velero"));
    assert!(
        stderr.contains("the custom resource definitions are kept: ")
            && stderr.contains("`archive`")
    );
    let restores: Api<Restore> = Api::namespaced(client.clone(), "archive");
    let remaining = runtime.block_on(restores.get("one")).unwrap();
    assert_eq!(remaining.metadata.deletion_timestamp, None);
    assert_eq!(remaining.metadata.finalizers, Some(vec![finalizer::RESTORE.to_owned()]));

    // Objects that `bowline install` did not create are removed only with --force.
    let (code, said, _) = installed.run(&["uninstall", "--purge", "--confirm", "-n", "archive"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("--force removes this one") && is_there("archive"), "{said}");

    // No other namespace needs the definitions once the last resources are removed.
    let (code, stderr, _) = installed.run(&["uninstall", "--purge", "--force", "-n", "archive"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(!is_there("archive"));
    assert_eq!(runtime.block_on(definitions.get_opt("restores.velero.io")).unwrap(), None);
}

#[test]
fn migrate_check_reports_what_does_not_carry_over() {
    let installed = Installed::start();
    installed.install("backup-only");
    let (code, stderr, _) = installed.run(&["migrate", "check"]);
    assert_eq!(code, Some(2), "{stderr}");
    let nothing = "no Velero found in namespace `velero`: nothing to switch; hint: ";
    assert!(stderr.contains(nothing), "{stderr}");

    // Resources of Velero can be checked without its Deployment.
    let location = ["backup-location", "create", "main", "--provider=aws", "--bucket=b"];
    let (code, said, _) = installed.run(&location);
    assert_eq!(code, Some(0), "{said}");
    let (code, said, text) = installed.run(&["migrate", "check"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(text.contains("no Deployment `velero`") && !text.contains("To switch"), "{text}");
    assert!(said.contains(nothing), "{said}");

    let deployment = serde_json::json!({
        "metadata": {"name": "velero"},
        "spec": {
            "selector": {"matchLabels": {"deploy": "velero"}},
            "template": {
                "metadata": {"labels": {"deploy": "velero"}},
                "spec": {
                    "initContainers": [{"name": "p", "image": "velero/velero-plugin-for-aws:v1"}],
                    "containers": [{
                        "name": "velero", "image": "velero/velero:v1.18.3",
                        "args": ["server", "--default-snapshot-move-data", "--teleport"],
                    }],
                },
            },
        },
    });
    let api: Api<Deployment> = Api::namespaced(installed.client.clone(), "velero");
    let deployment = serde_json::from_value(deployment).unwrap();
    installed.runtime.block_on(api.create(&PostParams::default(), &deployment)).unwrap();
    let (code, said, text) = installed.run(&["migrate", "check", "-o", "json"]);
    assert_eq!(code, Some(1), "{said}");
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["ready"], false);
    let verdict_of = |what: &str| {
        let findings = document["findings"].as_array().unwrap();
        let found = findings.iter().find(|finding| finding["what"] == what);
        found.unwrap_or_else(|| panic!("{what}: {text}"))["verdict"].clone()
    };
    assert_eq!(verdict_of("plugin velero/velero-plugin-for-aws:v1"), "carries");
    assert_eq!(verdict_of("server flag --teleport"), "stays");
    assert_eq!(verdict_of("the default --default-snapshot-move-data"), "stays");

    let (code, _, text) = installed.run(&["migrate", "check", "--back"]);
    assert_eq!(code, Some(1), "both are wanted");
    assert!(text.contains("both servers are scaled up"), "{text}");
}
