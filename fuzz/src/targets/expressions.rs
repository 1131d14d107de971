//! Small languages: cron expressions, durations, selectors, patterns, priorities, names.

use std::collections::BTreeMap;

use bowline_api::duration::Duration;
use bowline_api::label;
use bowline_cluster::selector::Selector;
use bowline_engine::glob::{Glob, Globs};
use bowline_engine::restore::order::Priorities;
use bowline_engine::schedule;
use bowline_store::layout::{Layout, Prefix};
use bowline_store::name::BackupName;
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Longest value of a label.
const MAX_LABEL: usize = 63;

pub(super) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    cron(text);
    if let Ok(duration) = text.parse::<Duration>() {
        assert_eq!(duration.to_string().parse(), Ok(duration), "{text:?}");
    }
    if let Ok(selector) = Selector::parse(text) {
        for labels in [&[][..], &[("a", "b")], &[("app", "web"), ("tier", "1")]] {
            let owned = labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned()));
            let labels: BTreeMap<_, _> = owned.collect();
            assert!(!selector.is_everything() || selector.matches(&labels));
        }
    }
    let (pattern, subject) = text.split_once('\n').unwrap_or((text, "default"));
    if let Ok(glob) = Glob::new(pattern) {
        let is_match = glob.matches(subject);
        let globs = Globs::new([pattern]).expect("a valid pattern");
        assert_eq!(globs.matches(subject), is_match, "{pattern:?} {subject:?}");
        assert!(!glob.is_literal() || is_match == (pattern == subject));
    }
    if let Ok(priorities) = text.parse::<Priorities>() {
        assert_eq!(priorities.to_string().parse(), Ok(priorities), "{text:?}");
    }
    names(text);
}

fn cron(text: &str) {
    let Ok(cron) = schedule::parse(text) else { return };
    let now = Timestamp::from_second(1_800_000_000).expect("a time in range");
    let Some(first) = cron.next(now, &TimeZone::UTC) else { return };
    assert!(first > now, "{first}");
    let Some(second) = cron.next(first, &TimeZone::UTC) else { return };
    assert!(second > first, "{second}");
    if let Some(third) = cron.next(second, &TimeZone::UTC) {
        let last = cron.last_before(third, now, &TimeZone::UTC);
        assert_eq!(last, Some(second), "{text:?}");
    }
}

/// Names become labels and keys, and leave neither their length nor their folder.
fn names(text: &str) {
    let value = label::value(text);
    assert!(value.len() <= MAX_LABEL);
    let Ok(prefix) = Prefix::new(text) else { return };
    let layout = Layout::new(&prefix);
    let is_inside = |key: &str| key.split('/').all(|part| !matches!(part, "." | ".."));
    let backups = layout.backups();
    assert!(is_inside(&backups), "{backups}");
    if let Ok(name) = BackupName::new(text) {
        let folder = layout.backup_folder(&name);
        assert!(folder.starts_with(&backups) && is_inside(&folder), "{folder}");
    }
}
