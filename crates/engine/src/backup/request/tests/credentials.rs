use super::*;

/// Locations of a kind, each with the Secret that holds its credential.
fn locations<T: serde::de::DeserializeOwned>(secrets: &[Option<&str>]) -> Vec<T> {
    let location = |secret: Option<&str>| {
        let mut location = json!({
            "metadata": {"name": "x"},
            "spec": {"provider": "p", "objectStorage": {"bucket": "b"}},
        });
        if let Some(secret) = secret {
            location["spec"]["credential"] = json!({"name": secret, "key": "k"});
        }
        serde_json::from_value(location).unwrap()
    };
    secrets.iter().copied().map(location).collect()
}

fn excluded_secrets(
    annotation: Option<&str>,
    facts: &Facts,
) -> Result<Vec<String>, ValidationErrors> {
    let mut backup = backup(json!({}));
    let annotations = backup.metadata.annotations.get_or_insert_default();
    let key = "bowline.io/include-credentials".to_owned();
    annotations.extend(annotation.map(|value| (key, value.to_owned())));
    let request = prepare(&backup, facts, &Defaults::default(), now()).outcome?;
    assert_eq!(request.filter.credentials.namespace, "velero");
    Ok(request.filter.credentials.secrets.into_iter().collect())
}

#[test]
fn secrets_of_locations_are_excluded_unless_requested() {
    let facts = Facts {
        storage_locations: Ok(locations(&[Some("main"), None, Some("cloud-credentials")])),
        snapshot_locations: Ok(locations(&[Some("snapshots")])),
        ..facts()
    };
    let all = ["cloud-credentials", "local-volume", "main", "snapshots", "velero-repo-credentials"];
    assert_eq!(excluded_secrets(None, &facts).unwrap(), all);
    assert_eq!(excluded_secrets(Some("false"), &facts).unwrap(), all);
    assert_eq!(excluded_secrets(Some("true"), &facts).unwrap(), [""; 0]);
    let errors = excluded_secrets(Some("yes"), &facts).unwrap_err();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("bowline.io/include-credentials"), "{errors:?}");
}

#[test]
fn a_backup_that_cannot_know_the_credentials_is_refused() {
    let facts = Facts { storage_locations: Err("no route".into()), ..facts() };
    let errors = excluded_secrets(None, &facts).unwrap_err();
    assert_eq!(errors.0, ["error listing backup storage locations: no route"]);
    assert_eq!(excluded_secrets(Some("true"), &facts).unwrap(), [""; 0]);
}
