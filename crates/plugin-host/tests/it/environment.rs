//! Environment variables that a plugin process inherits.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use bowline_plugin_host::{Host, InheritedEnvironment, Options};

use crate::fixture::short_limits;

/// The names of the variables that a plugin has.
async fn variables_seen_by_plugin(inherited_environment: InheritedEnvironment) -> BTreeSet<String> {
    let folder = tempfile::tempdir().unwrap();
    let (plugin_dir, output_folder) = (folder.path().join("plugins"), folder.path().join("notes"));
    std::fs::create_dir(&plugin_dir).unwrap();
    // The plugin ends before its handshake, which is reported and affects no other.
    let script = format!("#!/bin/sh\nexport -p > '{}'\n", output_folder.display());
    let path = plugin_dir.join("teller");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    let environment = vec![("OWN".into(), "1".into())];
    let limits = short_limits();
    let options =
        Options { plugin_dir, inherited_environment, environment, limits, ..Options::default() };
    let host = Host::discover(options).await;
    assert_eq!(host.registry().problems().len(), 1);
    let text = std::fs::read_to_string(output_folder).unwrap();
    let names = text.lines().filter_map(|line| line.strip_prefix("export "));
    names.map(|line| line.split('=').next().unwrap().to_owned()).collect()
}

/// Cargo sets variables for this test that are none of a plugin's business.
#[tokio::test]
async fn plugins_see_only_the_variables_they_need() {
    let foreign = "CARGO_MANIFEST_DIR";
    assert!(std::env::var_os(foreign).is_some());
    let known = variables_seen_by_plugin(InheritedEnvironment::default()).await;
    for name in ["PATH", "VELERO_PLUGIN", "OWN"] {
        assert!(known.contains(name), "{name} is not in {known:?}");
    }
    assert!(!known.contains(foreign), "{known:?}");
    assert!(variables_seen_by_plugin(InheritedEnvironment::All).await.contains(foreign));
    let named = variables_seen_by_plugin(InheritedEnvironment::from_patterns(&[
        "CARGO_MANIFEST_*".to_owned(),
    ]))
    .await;
    assert!(named.contains(foreign) && !named.contains("CARGO_PKG_NAME"), "{named:?}");
}
