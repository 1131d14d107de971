use bowline_api::{Backup, Schedule};
use serde_json::{Value, json};

use crate::bowline::World;
use crate::cluster::cluster;

#[test]
fn what_is_wrong_with_a_command_line_is_told_in_one_line() {
    let world = World::new();
    for (line, words) in [
        (&["create", "s"][..], &["--schedule", "schedule create --help"][..]),
        (&["create", "s", "--schedule=* * *"], &["invalid schedule", "found 3"]),
        (&["create", "s", "--schedule=@often"], &["@often", "@daily"]),
        (&["create", "S", "--schedule=@daily"], &["\"S\" is not a name"]),
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
    let place = cluster().place("schedule-life");
    let create = ["schedule", "create", "one", "--schedule=@every 1h", "--labels=of=test"];
    let said = place.run(&create).stderr;
    assert!(said.contains("schedule `one` created; see `bowline schedule get one`"), "{said}");
    place.refused(&create, &["schedule `one` already exists"]);
    place.refused(
        &["schedule", "create", "x", "--schedule=@daily", "--storage-location=none"],
        &["backup location `none` not found"],
    );
    place.ok(&["create", "schedule", "two", "--schedule=@daily", "--skip-immediately"]);
    assert_eq!(place.get::<Schedule>("two").spec.skip_immediately, Some(true));

    // What the server would do.
    let status = json!({"phase": "FailedValidation", "validationErrors": ["invalid schedule: x"]});
    place.set_status::<Schedule>("two", &status);
    let ended = place.run(&["get", "schedules"]);
    let words: Vec<Vec<&str>> =
        ended.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0].last(), Some(&"NEXT"));
    assert_eq!((words[1][0], words[1][1]), ("one", "New"));
    // An hour after it was created, which is a moment ago.
    assert!(words[1].last().unwrap().ends_with('m'), "{}", ended.stdout);
    assert!(words[1].contains(&"<default>"), "{}", ended.stdout);
    assert_eq!((words[2][0], words[2][words[2].len() - 2]), ("two", "false"));
    assert_eq!(ended.stderr, "schedule `two`: invalid schedule: x\n");
    let described = place.ok(&["schedule", "describe", "one"]);
    assert!(described.contains("\nBackup Template:\n  Namespaces:\n"), "{described}");
    assert!(described.contains("\nNext Backup:  20"), "{described}");
    assert!(!described.contains("TTL:  0s"), "{described}");
    let described = place.ok(&["describe", "schedules", "two", "-o", "json"]);
    let described: Value = serde_json::from_str(&described).unwrap();
    assert_eq!(described["validationErrors"], json!(["invalid schedule: x"]));
    place.refused(
        &["schedule", "describe", "none"],
        &["schedule `none` not found", "schedule get`"],
    );

    let said = place.run(&["schedule", "pause", "one", "two"]).stderr;
    assert_eq!(said, "schedule `one` is paused\nschedule `two` is paused\n");
    let two: Schedule = place.get("two");
    assert_eq!((two.spec.paused, two.spec.skip_immediately), (true, None));
    let said = place.run(&["schedule", "pause", "--all"]).stderr;
    assert_eq!(said.matches("is already paused").count(), 2, "{said}");
    place.ok(&["schedule", "unpause", "-l", "of=test", "--skip-immediately=false"]);
    let one: Schedule = place.get("one");
    assert_eq!((one.spec.paused, one.spec.skip_immediately), (false, Some(false)));
    assert!(place.get::<Schedule>("two").spec.paused);

    place.ok(&["backup", "create", "--from-schedule", "one"]);
    let [backup] = place.names::<Backup>().try_into().unwrap();
    assert!(backup.starts_with("one-"), "{backup}");

    // A variable that is not set must not mean everything.
    place.refused(&["schedule", "delete", "-l", "", "--confirm"], &["selector is empty", "--all"]);
    place.refused(&["schedule", "delete", "one"], &["--confirm"]);
    place.ok(&["delete", "schedules", "--all", "--confirm"]);
    assert_eq!(place.names::<Schedule>(), [""; 0]);
    let ended = place.run(&["schedule", "pause", "--all"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), "no schedules found\n"));
}
