use std::os::unix::fs::PermissionsExt as _;

use crate::bowline::{CommandResult, World};

#[test]
fn settings_of_velero_are_kept() {
    let world = World::new();
    let home = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| -> CommandResult {
        let line = [&["client", "config"], arguments].concat();
        World::run_command(world.bowline(&line).env("HOME", home.path()))
    };
    assert_eq!(run(&["get"]).stdout, "");
    assert_eq!(run(&["get", "namespace"]).stdout, "namespace: <NOT SET>\n");
    let ended = run(&["set", "namespace=backups", "features=EnableCSI", "cacert=/ca=1"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(run(&["get"]).stdout, "cacert: /ca=1\nfeatures: EnableCSI\nnamespace: backups\n");
    let file = home.path().join(".config/velero/config.json");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let mut command = world.bowline(&["backup", "create", "b", "-o", "json"]);
    let ended = World::run_command(command.env("HOME", home.path()).env_remove("VELERO_NAMESPACE"));
    assert!(ended.stdout.contains("\"namespace\": \"backups\""), "{}", ended.stdout);

    assert_eq!(run(&["set", "cacert="]).code, Some(0));
    assert_eq!(
        run(&["get", "features", "cacert"]).stdout,
        "features: EnableCSI\ncacert: <NOT SET>\n"
    );
    for (line, word) in [
        (&["set", "namespace"][..], "expected KEY=VALUE, not `namespace`"),
        (&["set", "namespace=A/B"], "not a valid namespace name"),
        (&["set"], "client config set --help"),
    ] {
        let ended = run(line);
        assert_eq!(ended.code, Some(2), "{line:?}");
        assert!(ended.stderr.contains(word), "{}", ended.stderr);
    }
    assert_eq!(run(&["get", "namespace"]).stdout, "namespace: backups\n");
    std::fs::write(&file, "[]").unwrap();
    let ended = run(&["set", "a=b"]);
    assert!(ended.stderr.contains("fix or remove"), "{}", ended.stderr);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "[]", "nothing is lost");
}
