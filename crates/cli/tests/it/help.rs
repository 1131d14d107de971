//! What every command says about itself. A change shows up in review.

use crate::bowline::World;

#[test]
fn help_says_what_each_command_is_for() {
    let world = World::new();
    let mut all = String::new();
    for command in [
        &[][..],
        &["backup"],
        &["backup", "create"],
        &["backup", "get"],
        &["backup", "describe"],
        &["backup", "logs"],
        &["backup", "download"],
        &["backup", "delete"],
        &["restore"],
        &["restore", "create"],
        &["restore", "get"],
        &["restore", "describe"],
        &["restore", "logs"],
        &["restore", "delete"],
        &["backup-location"],
        &["backup-location", "create"],
        &["backup-location", "get"],
        &["backup-location", "set"],
        &["backup-location", "delete"],
        &["snapshot-location"],
        &["snapshot-location", "create"],
        &["snapshot-location", "get"],
        &["snapshot-location", "set"],
        &["snapshot-location", "delete"],
        &["install"],
        &["demo"],
        &["plugin"],
        &["plugin", "inspect"],
        &["plugin", "check"],
        &["server"],
        &["version"],
        &["completion"],
    ] {
        let mut arguments = command.to_vec();
        arguments.push("--help");
        // Help shows what these are set to.
        let mut command = world.bowline(&arguments);
        command.env_remove("VELERO_NAMESPACE").env_remove("VELERO_SCRATCH_DIR");
        let ended = World::end_of(&mut command);
        assert_eq!(ended.code, Some(0));
        all.extend(["$ bowline ", &arguments.join(" "), "\n", &ended.stdout, "\n"]);
    }
    insta::assert_snapshot!(all);
}

#[test]
fn version_is_that_of_the_crate() {
    let ended = World::new().run(&["version"]);
    assert_eq!(ended.stdout, concat!("bowline v", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn completion_knows_the_commands() {
    let ended = World::new().run(&["completion", "bash"]);
    assert_eq!(ended.code, Some(0));
    assert!(ended.stdout.contains("demo"));
}
