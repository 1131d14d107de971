use bowline_api::{Backup, Schedule};
use serde_json::{Value, json};

use crate::bowline::World;
use crate::cluster::cluster;

#[test]
fn usage_error_is_one_line() {
    let world = World::new();
    for (line, words) in [
        (&["create", "s"][..], &["--schedule", "schedule create --help"][..]),
        (&["create", "s", "--schedule=* * *"], &["invalid schedule", "found 3"]),
        (&["create", "s", "--schedule=@often"], &["@often", "@daily"]),
        (&["create", "S", "--schedule=@daily"], &["invalid name \"S\""]),
        (&["create", "s", "--schedule=@daily", "--ttl=1d"], &["--ttl", "unknown unit"]),
        (&["pause"], &["not provided", "<NAMES"]),
        (&["unpause", "s", "--all"], &["--all"]),
        (&["delete", "--all", "-l", "a=b"], &["--all"]),
    ] {
        let arguments: Vec<&str> = ["schedule"].iter().chain(line).copied().collect();
        let ended = world.run(&arguments);
        assert_eq!(ended.code, Some(2), "{line:?}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        for word in words {
            assert!(ended.stderr.contains(word), "no {word:?} in {:?}", ended.stderr);
        }
    }
}

#[test]
fn a_schedule_is_printed_without_a_cluster() {
    let ended = World::new().run(&[
        "schedule",
        "create",
        "nightly",
        "--schedule=0 3 * * *",
        "--include-namespaces=web",
        "--ttl=48h",
        "--snapshot-type=local",
        "--paused",
        "-n=somewhere",
        "-o=yaml",
    ]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    insta::assert_snapshot!(ended.stdout);
}

#[test]
fn a_schedule_is_created_paused_and_deleted() {
    let env = cluster().test_env("schedule-life");
    let create = ["schedule", "create", "one", "--schedule=@every 1h", "--labels=of=test"];
    let stderr = env.run(&create).stderr;
    assert!(stderr.contains("schedule `one` created; see `bowline schedule get one`"), "{stderr}");
    env.run_refused(&create, &["schedule `one` already exists"]);
    env.run_refused(
        &["schedule", "create", "x", "--schedule=@daily", "--storage-location=none"],
        &["backup location `none` not found"],
    );
    env.run_ok(&["create", "schedule", "two", "--schedule=@daily", "--skip-immediately"]);
    assert_eq!(env.get::<Schedule>("two").spec.skip_immediately, Some(true));

    // Status as a server would set it.
    let status = json!({"phase": "FailedValidation", "validationErrors": ["invalid schedule: x"]});
    env.set_status::<Schedule>("two", &status);
    let ended = env.run(&["get", "schedules"]);
    let words: Vec<Vec<&str>> =
        ended.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0].last(), Some(&"NEXT"));
    assert_eq!((words[1][0], words[1][1]), ("one", "New"));
    // An hour after it was created, which is a moment ago.
    assert!(words[1].last().unwrap().ends_with('m'), "{}", ended.stdout);
    assert!(words[1].contains(&"<default>"), "{}", ended.stdout);
    assert_eq!((words[2][0], words[2][words[2].len() - 2]), ("two", "false"));
    assert_eq!(ended.stderr, "schedule `two`: invalid schedule: x\n");
    let described = env.run_ok(&["schedule", "describe", "one"]);
    assert!(described.contains("\nBackup Template:\n  Namespaces:\n"), "{described}");
    assert!(described.contains("\nNext Backup:  20"), "{described}");
    assert!(!described.contains("TTL:  0s"), "{described}");
    let described = env.run_ok(&["describe", "schedules", "two", "-o", "json"]);
    let described: Value = serde_json::from_str(&described).unwrap();
    assert_eq!(described["validationErrors"], json!(["invalid schedule: x"]));
    env.run_refused(
        &["schedule", "describe", "none"],
        &["schedule `none` not found", "schedule get`"],
    );

    let stderr = env.run(&["schedule", "pause", "one", "two"]).stderr;
    assert_eq!(stderr, "schedule `one` is paused\nschedule `two` is paused\n");
    let two: Schedule = env.get("two");
    assert_eq!((two.spec.paused, two.spec.skip_immediately), (true, None));
    let stderr = env.run(&["schedule", "pause", "--all"]).stderr;
    assert_eq!(stderr.matches("is already paused").count(), 2, "{stderr}");
    env.run_ok(&["schedule", "unpause", "-l", "of=test", "--skip-immediately=false"]);
    let one: Schedule = env.get("one");
    assert_eq!((one.spec.paused, one.spec.skip_immediately), (false, Some(false)));
    assert!(env.get::<Schedule>("two").spec.paused);

    env.run_ok(&["backup", "create", "--from-schedule", "one"]);
    let [backup] = env.names::<Backup>().try_into().unwrap();
    assert!(backup.starts_with("one-"), "{backup}");

    // A variable that is not set must not mean everything.
    env.run_refused(
        &["schedule", "delete", "-l", "", "--confirm"],
        &["selector is empty", "--all"],
    );
    env.run_refused(&["schedule", "delete", "one"], &["--confirm"]);
    env.run_refused(
        &["schedule", "delete", "one", "none", "--confirm"],
        &["schedule `none` not found", "; nothing was deleted"],
    );
    env.run_ok(&["delete", "schedules", "--all", "--confirm"]);
    assert_eq!(env.names::<Schedule>(), [""; 0]);
    let ended = env.run(&["schedule", "pause", "--all"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), "no schedules found\n"));
}
