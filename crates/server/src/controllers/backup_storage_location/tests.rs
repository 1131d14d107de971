use bowline_api::BackupStorageLocationStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;

const MINUTE: Duration = Duration::from_mins(1);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn location(name: &str, created: i64, default: bool) -> BackupStorageLocation {
    let mut location = BackupStorageLocation::default();
    location.metadata.name = Some(name.to_owned());
    location.metadata.creation_timestamp = Some(Time(at(created)));
    location.spec.default = default;
    location
}

fn checked_at(second: i64) -> BackupStorageLocation {
    let mut checked = location("a", 0, false);
    let last_validation_time = Some(Time(at(second)));
    checked.status =
        Some(BackupStorageLocationStatus { last_validation_time, ..Default::default() });
    checked
}

#[test]
fn location_is_checked_first_on_change_and_periodically() {
    let now = at(1000);
    let known = location("a", 0, false).spec;
    let mut other = known.clone();
    other.provider = "aws".to_owned();
    let frequency = |seconds, mut location: BackupStorageLocation| {
        location.spec.validation_frequency = Some(bowline_api::Duration::from_seconds(seconds));
        location
    };
    for (what, location, checked, expected) in [
        ("never checked", location("a", 0, false), None, Due::Now),
        ("checked by a server before us", checked_at(999), None, Due::Now),
        ("its spec changed", checked_at(999), Some(&other), Due::Now),
        ("checked a while ago", checked_at(970), Some(&known), Due::In(MINUTE / 2)),
        ("its time has come", checked_at(940), Some(&known), Due::Now),
        ("its status was lost", location("a", 0, false), Some(&known), Due::Now),
    ] {
        assert_eq!(due(&location, checked, MINUTE, now), expected, "{what}");
    }
    let once = frequency(0, checked_at(0));
    assert_eq!(due(&once, Some(&once.spec), MINUTE, now), Due::Never);
    assert_eq!(due(&once, None, MINUTE, now), Due::Now, "at least once");
    let seldom = frequency(600, checked_at(900));
    assert_eq!(due(&seldom, Some(&seldom.spec), MINUTE, now), Due::In(Duration::from_secs(500)));
    let unset = frequency(-1, checked_at(990));
    assert_eq!(due(&unset, Some(&unset.spec), MINUTE, now), Due::In(Duration::from_secs(50)));
}

#[test]
fn status_message_is_cleared_when_available() {
    let now = "2026-01-02T03:04:05.678Z".parse().unwrap();
    assert_eq!(
        status("a", Some("no bucket"), now),
        json!({
            "phase": "Unavailable",
            "message": "BackupStorageLocation \"a\" is unavailable: no bucket",
            "lastValidationTime": "2026-01-02T03:04:05Z",
        })
    );
    let expected = json!(
        {"phase": "Available", "message": null, "lastValidationTime": "2026-01-02T03:04:05Z"}
    );
    assert_eq!(status("a", None, now), expected);
}

#[test]
fn newest_default_location_wins() {
    let losers = |locations: &[(&str, i64, bool)]| {
        let all: Vec<_> = locations.iter().map(|l| Arc::new(location(l.0, l.1, l.2))).collect();
        let mut names: Vec<_> = surplus_defaults(&all).iter().map(|l| l.name_any()).collect();
        names.sort();
        names
    };
    assert_eq!(losers(&[]), Vec::<String>::new());
    assert_eq!(losers(&[("a", 1, true), ("b", 2, false)]), Vec::<String>::new());
    assert_eq!(losers(&[("a", 1, true), ("b", 2, true), ("c", 3, false)]), ["a"]);
    assert_eq!(losers(&[("a", 3, true), ("b", 2, true), ("c", 1, true)]), ["b", "c"]);
    assert_eq!(losers(&[("b", 1, true), ("a", 1, true)]), ["b"], "as old as each other");
}

#[test]
fn deleted_location_is_not_the_default() {
    let mut deleted = location("b", 2, true);
    deleted.metadata.deletion_timestamp = Some(Time(at(3)));
    let all = [Arc::new(location("a", 1, true)), Arc::new(deleted)];
    assert!(surplus_defaults(&all).is_empty());
}

#[test]
fn server_default_is_marked_only_without_another_default() {
    let named = location("default", 1, false);
    assert!(should_mark_default(std::slice::from_ref(&named), "default"));
    assert!(!should_mark_default(&[named.clone(), location("a", 1, true)], "default"));
    assert!(!should_mark_default(&[named], "other"));
}
