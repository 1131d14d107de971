//! Plugins of the server: init containers of its Deployment.

use k8s_openapi::api::apps::v1::Deployment;
use serde_json::json;

use crate::cluster::cluster;

#[test]
fn plugin_is_added_and_removed_without_other_changes() {
    let env = cluster().test_env("plugin-add");
    env.run_refused(
        &["plugin", "add", "x", "--confirm"],
        &["no server Deployment found", "--namespace"],
    );
    let context = json!({"allowPrivilegeEscalation": false});
    cluster().apply(json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "bowline", "namespace": "plugin-add"},
        "spec": {
            "replicas": 0, "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {
                    "containers": [
                        {"name": "side", "image": "side"},
                        {"name": "bowline", "image": "bowline", "securityContext": context,
                         "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]},
                    ],
                    "volumes": [{"name": "scratch", "emptyDir": {}}],
                    "initContainers": [{"name": "first", "image": "first:1"}],
                },
            },
        },
    }));
    env.run_refused(&["plugin", "add", "x.io/a/aws:1"], &["--confirm"]);
    env.run_ok(&["plugin", "add", "x.io/a/aws:1", "--confirm", "--image-pull-policy=Always"]);
    let pod = || env.get::<Deployment>("bowline").spec.unwrap().template.spec.unwrap();
    let names = || -> Vec<String> {
        pod().init_containers.unwrap_or_default().into_iter().map(|one| one.name).collect()
    };
    assert_eq!(names(), ["first", "a-aws"]);
    let added = pod();
    let plugin = &added.init_containers.as_ref().unwrap()[1];
    assert_eq!(plugin.image_pull_policy.as_deref(), Some("Always"));
    assert_eq!(json!(plugin.security_context), context);
    let server = added.containers.iter().find(|one| one.name == "bowline").unwrap();
    let mounts: Vec<&str> =
        server.volume_mounts.iter().flatten().map(|mount| mount.mount_path.as_str()).collect();
    assert!(mounts.contains(&"/plugins") && mounts.contains(&"/scratch"), "{mounts:?}");
    assert_eq!((added.containers.len(), added.volumes.unwrap().len()), (2, 2));
    env.run_refused(
        &["plugin", "add", "x.io/a/aws:1", "--confirm"],
        &["already present", "`a-aws`"],
    );

    env.run_refused(&["plugin", "remove", "none"], &["has no plugin `none`", "x.io/a/aws:1"]);
    env.run_ok(&["plugin", "remove", "x.io/a/aws:1"]);
    assert_eq!(names(), ["first"]);
    env.run_ok(&["plugin", "remove", "first"]);
    assert_eq!(names(), [""; 0]);
}
