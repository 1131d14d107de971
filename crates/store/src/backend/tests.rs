use super::*;
use bowline_api::backup_storage_location::ObjectStorageLocation;

fn location(config: &[(&str, &str)], bucket: &str, prefix: &str) -> BackupStorageLocationSpec {
    BackupStorageLocationSpec {
        config: config.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        object_storage: Some(ObjectStorageLocation {
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[test]
fn backend_gets_the_config_that_velero_gives_to_plugins() {
    let spec = location(&[("region", "x")], "b", "/p/q/");
    let config = location_config(&spec, Some("PEM"), Some(Path::new("/c"))).unwrap();
    let pairs: Vec<_> = config.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(
        pairs,
        [
            ("bucket", "b"),
            ("caCert", "PEM"),
            ("credentialsFile", "/c"),
            ("prefix", "p/q"),
            ("region", "x")
        ]
    );
    let config = location_config(&location(&[], "b", ""), None, None).unwrap();
    assert_eq!(config.get("prefix").map(String::as_str), Some(""));
    assert!(!config.contains_key("caCert") && !config.contains_key("credentialsFile"));
}

#[test]
fn location_cannot_name_files_of_the_server() {
    let spec = location(&[("credentialsFile", "/proc/1/environ")], "b", "");
    let error = location_config(&spec, None, Some(Path::new("/ours"))).unwrap_err();
    assert_eq!(error, InvalidLocation::CredentialsFile);
    assert!(error.to_string().contains("spec.credential"), "{error}");
}

#[test]
fn location_needs_one_bucket_and_a_prefix_inside_it() {
    let refused = |bucket: &str, prefix: &str| {
        location_config(&location(&[], bucket, prefix), None, None).unwrap_err()
    };
    assert_eq!(refused("", ""), InvalidLocation::NoBucket);
    assert_eq!(refused("/", ""), InvalidLocation::NoBucket);
    assert!(matches!(refused("a/b", ""), InvalidLocation::Bucket(_)));
    assert!(matches!(refused("b", "../c"), InvalidLocation::Prefix(_)));
    let none = BackupStorageLocationSpec::default();
    assert_eq!(location_config(&none, None, None).unwrap_err(), InvalidLocation::NoBucket);
}

#[tokio::test]
async fn unknown_provider_is_an_error_with_a_hint() {
    let built_in = BuiltIn::default();
    for (provider, hint) in [("azure", "install one"), ("filesystem", "--filesystem-root")] {
        let Err(error) = open(provider, &Config::new(), None, &built_in).await else {
            panic!("{provider} is not here")
        };
        assert!(error.message().contains(hint), "{error}");
    }
}
