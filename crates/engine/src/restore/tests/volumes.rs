use super::*;

fn volume(source: &str, policy: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"},
        "spec": {
            source: {"path": "/"}, "persistentVolumeReclaimPolicy": policy,
            "claimRef": {"namespace": "shop", "name": "data"},
        },
    })
}

fn claim() -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": "shop", "name": "data"},
        "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"},
    })
}

fn entries(volume: &Value) -> Vec<Entry> {
    vec![entry("persistentvolumes", volume), entry("persistentvolumeclaims", &claim())]
}

#[tokio::test]
async fn claim_keeps_its_volume_if_volumes_are_excluded() {
    for (spec, volume_name) in [
        (json!({"excludedResources": ["persistentvolumes"]}), json!("pv")),
        (json!({"includedResources": ["persistentvolumeclaims"]}), json!("pv")),
        (json!({"includeClusterResources": false}), json!("pv")),
        // If the volume is restored too, and its data is not in the backup, the claim gets a new one.
        (json!({}), Value::Null),
    ] {
        let mut fixture = RestoreFixture::new(&entries(&volume("nfs", "Delete")));
        fixture.spec = spec.clone();
        let (errors, warnings) = messages(&fixture.run().await);
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(warnings.len(), usize::from(volume_name.is_null()), "{spec}: {warnings:?}");
        let restored = fixture.object("persistentvolumeclaims", "shop", "data").unwrap();
        assert_eq!(restored["spec"]["volumeName"], volume_name, "{spec}");
    }
}

#[tokio::test]
async fn node_path_volume_is_not_created_as_additional_item() {
    for source in ["hostPath", "local"] {
        let restore = async |source: &str, spec: Value| {
            let mut fixture = RestoreFixture::new(&entries(&volume(source, "Retain")));
            fixture.spec = spec;
            let (errors, _) = messages(&fixture.run().await);
            (fixture.object("persistentvolumes", "", "pv").is_some(), errors)
        };
        let (is_there, errors) = restore(source, json!({"includedNamespaces": ["shop"]})).await;
        assert!(!is_there, "{source}");
        assert!(
            errors.len() == 1 && errors[0].contains("--include-cluster-resources"),
            "{errors:?}"
        );
        // Explicitly requested volumes are restored; other types are harmless.
        for (source, spec) in [
            (source, json!({})),
            (source, json!({"includedNamespaces": ["shop"], "includeClusterResources": true})),
            (source, json!({"includedNamespaces": ["shop"], "includedResources": ["pv", "pvc"]})),
            ("nfs", json!({"includedNamespaces": ["shop"]})),
        ] {
            let (is_there, errors) = restore(source, spec.clone()).await;
            assert!(is_there && errors.is_empty(), "{source} {spec}: {errors:?}");
        }
    }
}
