//! Conditions of a location about its last sync, in `status.conditions`.
//!
//! | type | `True` | `False` |
//! |---|---|---|
//! | `Synced` | the location was listed, and its backups are in the cluster | the sync failed; the message says why |
//! | `Degraded` | some backups were not imported; the message names them | all backups were imported |
//! | `TLSVerified` | | the certificate of the server is not verified |
//!
//! The second and third are set once there is something to report.

use bowline_api::BackupStorageLocationSpec;
use bowline_api::condition::{DEGRADED, SYNCED, TLS_VERIFIED};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::error_text::truncate_text;
use crate::patch::truncate_to_second;

/// Maximum number of skipped backups in a message.
const MAX_NAMED_BACKUPS: usize = 5;
/// Setting that disables the verification of certificates.
const INSECURE_SETTING: &str = "insecureSkipTLSVerify";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SyncOutcome {
    /// All backups were checked. These were skipped, each with the reason.
    Done(Vec<(String, String)>),
    /// The location could not be checked, for this reason.
    Failed(String),
}

/// Conditions of a location after a sync; none if they are unchanged.
pub(super) fn conditions_after_sync(
    before: &[Condition],
    spec: &BackupStorageLocationSpec,
    outcome: &SyncOutcome,
    now: Timestamp,
) -> Option<Vec<Condition>> {
    let mut after = before.to_vec();
    match outcome {
        SyncOutcome::Failed(reason) => {
            set_condition(&mut after, SYNCED, false, "Failed", reason, now);
        }
        SyncOutcome::Done(skipped) => {
            set_condition(&mut after, SYNCED, true, "Synced", "", now);
            let was_degraded = before.iter().any(|condition| condition.type_ == DEGRADED);
            if skipped.is_empty() && was_degraded {
                set_condition(&mut after, DEGRADED, false, "Complete", "", now);
            } else if !skipped.is_empty() {
                set_condition(
                    &mut after,
                    DEGRADED,
                    true,
                    "BackupsLeftOut",
                    &skipped_message(skipped),
                    now,
                );
            }
        }
    }
    if spec.config.get(INSECURE_SETTING).is_some_and(|value| value == "true") {
        let message = "the certificate of the object store is not verified (insecureSkipTLSVerify): an \
             attacker on the network can read and change backups";
        set_condition(&mut after, TLS_VERIFIED, false, "InsecureSkipTLSVerify", message, now);
    } else {
        after.retain(|condition| condition.type_ != TLS_VERIFIED);
    }
    let is_news = after.len() != before.len()
        || after.iter().zip(before).any(|(after, before)| !is_equivalent(after, before));
    is_news.then_some(after)
}

/// Names the first few skipped backups, and the number of the others.
fn skipped_message(skipped: &[(String, String)]) -> String {
    let first: Vec<String> = skipped
        .iter()
        .take(MAX_NAMED_BACKUPS)
        .map(|(name, reason)| format!("{name}: {reason}"))
        .collect();
    let count = skipped.len();
    let more = match count.saturating_sub(MAX_NAMED_BACKUPS) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    let backups = if count == 1 { "backup is" } else { "backups are" };
    format!("{count} {backups} not synced into the cluster: {}{more}", first.join("; "))
}

fn set_condition(
    conditions: &mut Vec<Condition>,
    type_: &str,
    is_true: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let status = if is_true { "True" } else { "False" };
    let existing = conditions.iter_mut().find(|condition| condition.type_ == type_);
    let since = match &existing {
        Some(existing) if existing.status == status => existing.last_transition_time.clone(),
        _ => truncate_to_second(now),
    };
    let condition = Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: truncate_text(message.to_owned()),
        last_transition_time: since,
        observed_generation: None,
    };
    match existing {
        Some(existing) => *existing = condition,
        None => conditions.push(condition),
    }
}

/// True if two conditions are the same except for numbers: a different duration is not worth a write, since each write
/// triggers the next sync.
fn is_equivalent(one: &Condition, other: &Condition) -> bool {
    let words = |condition: &Condition| {
        condition.message.chars().filter(|c| !c.is_ascii_digit()).collect::<String>()
    };
    (&one.type_, &one.status, &one.reason) == (&other.type_, &other.status, &other.reason)
        && words(one) == words(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
        conditions.iter().find(|condition| condition.type_ == type_)
    }

    #[test]
    fn failed_sync_is_shown_until_it_succeeds() {
        let spec = BackupStorageLocationSpec::default();
        let failed = |text: &str| SyncOutcome::Failed(text.to_owned());
        let first =
            conditions_after_sync(&[], &spec, &failed("no answer in 12 ms"), at(1)).unwrap();
        let synced = find(&first, SYNCED).unwrap();
        assert_eq!(
            (synced.status.as_str(), synced.message.as_str()),
            ("False", "no answer in 12 ms")
        );
        // A change in numbers alone is not written.
        assert_eq!(
            conditions_after_sync(&first, &spec, &failed("no answer in 99 ms"), at(2)),
            None
        );
        let other = conditions_after_sync(&first, &spec, &failed("access denied"), at(3)).unwrap();
        let synced = find(&other, SYNCED).unwrap();
        assert_eq!(synced.last_transition_time.0, at(1), "it fails since then");
        let well =
            conditions_after_sync(&other, &spec, &SyncOutcome::Done(Vec::new()), at(4)).unwrap();
        let synced = find(&well, SYNCED).unwrap();
        assert_eq!((synced.status.as_str(), synced.last_transition_time.0), ("True", at(4)));
        assert_eq!(find(&well, DEGRADED), None, "there never was anything to say");
        assert_eq!(
            conditions_after_sync(&well, &spec, &SyncOutcome::Done(Vec::new()), at(5)),
            None
        );
    }

    #[test]
    fn skipped_backups_are_named() {
        let spec = BackupStorageLocationSpec::default();
        let skipped =
            |count: usize| (0..count).map(|n| (format!("b{n}"), "too large".to_owned())).collect();
        let seven =
            conditions_after_sync(&[], &spec, &SyncOutcome::Done(skipped(7)), at(1)).unwrap();
        let degraded = find(&seven, DEGRADED).unwrap();
        assert_eq!(degraded.status, "True");
        assert!(degraded.message.starts_with("7 backups are not synced"), "{}", degraded.message);
        assert!(degraded.message.contains("b0: too large; b1"), "{}", degraded.message);
        assert!(degraded.message.ends_with("and 2 more"), "{}", degraded.message);
        let none =
            conditions_after_sync(&seven, &spec, &SyncOutcome::Done(skipped(0)), at(2)).unwrap();
        assert_eq!(find(&none, DEGRADED).unwrap().status, "False");
    }

    #[test]
    fn unverified_tls_is_shown() {
        let mut spec = BackupStorageLocationSpec::default();
        spec.config.insert(INSECURE_SETTING.to_owned(), "true".to_owned());
        let done = SyncOutcome::Done(Vec::new());
        let conditions = conditions_after_sync(&[], &spec, &done, at(1)).unwrap();
        assert_eq!(find(&conditions, TLS_VERIFIED).unwrap().status, "False");
        let spec = BackupStorageLocationSpec::default();
        let mended = conditions_after_sync(&conditions, &spec, &done, at(2)).unwrap();
        assert_eq!(find(&mended, TLS_VERIFIED), None);
    }
}
