//! Help of every command. A change shows up in review.

use crate::bowline::World;

/// The commands below one, as its help lists them.
fn subcommands(help: &str) -> Vec<&str> {
    let list = help.split_once("\nCommands:\n").map_or("", |(_, list)| list);
    let list = list.split_once("\n\n").map_or(list, |(list, _)| list);
    // A continuation line has no name.
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect()
}

/// Collects the help of a command and of its subcommands.
fn append_help(world: &World, command: &[&str], all: &mut String) {
    let arguments = [command, &["--help"]].concat();
    // Help shows the values of these variables.
    let mut run = world.bowline(&arguments);
    run.env_remove("VELERO_NAMESPACE").env_remove("VELERO_SCRATCH_DIR").env_remove("POD_NAME");
    let ended = World::run_command(&mut run);
    assert_eq!(ended.code, Some(0), "{command:?}");
    all.extend(["$ bowline ", &arguments.join(" "), "\n", &ended.stdout, "\n"]);
    for name in subcommands(&ended.stdout) {
        append_help(world, &[command, &[name]].concat(), all);
    }
}

#[test]
fn help_says_what_each_command_is_for() {
    let mut all = String::new();
    append_help(&World::new(), &[], &mut all);
    for command in ["backup cancel", "schedule pause", "get backups", "client config set", "server"]
    {
        assert!(all.contains(&format!("$ bowline {command} --help\n")), "{command}");
    }
    insta::assert_snapshot!(all);
}

#[test]
fn version_is_that_of_the_crate() {
    let ended = World::new().run(&["--version"]);
    assert_eq!(ended.stdout, concat!("bowline v", env!("CARGO_PKG_VERSION"), "\n"));
}
