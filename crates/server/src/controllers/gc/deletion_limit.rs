//! Limits how many expired backups are deleted within an hour.
//!
//! Backups expire about as often as they are created. If many expire suddenly, a clock may be wrong, or the backups
//! were planted. The limit gives operators time to notice.
//!
//! The count is kept in the ConfigMap [`NAME`], so that it survives a restart of the server and is shared with the
//! server that becomes active next. Deleting the ConfigMap starts a new count.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use serde_json::json;
use tokio::sync::Mutex;

use crate::patch;

/// ConfigMap with the count, in the namespace of the server.
const NAME: &str = "bowline-retention";
/// Key in the ConfigMap. The value has one line for each minute: the time, and the number of requested deletions.
const KEY: &str = "deletions";
/// Time for which a refusal holds without another look at the count: after a restart of the server, thousands of expired
/// backups may ask at once.
const REFUSAL_TTL: Duration = Duration::from_mins(1);
/// The limit applies to any span of this length.
const WINDOW: SignedDuration = SignedDuration::from_hours(1);
const MINUTE: i64 = 60;

/// Reason why the count cannot be read or written. Without it nothing is deleted.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot read ConfigMap {NAME}")]
    Read(#[source] kube::Error),
    #[error("cannot write ConfigMap {NAME}")]
    Write(#[source] kube::Error),
    #[error(
        "ConfigMap {NAME}: `{line}` is not a time and a number; delete the ConfigMap to start a new count"
    )]
    Unreadable { line: String },
}

/// Number of requested deletions, by minute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Deletions(BTreeMap<Timestamp, usize>);

impl Deletions {
    fn parse(text: &str) -> Result<Self, Error> {
        let parse_line = |line: &str| {
            let (at, count) = line.split_once(' ')?;
            Some((at.parse::<Timestamp>().ok()?, count.parse::<usize>().ok()?))
        };
        let lines = text.lines().filter(|line| !line.is_empty()).map(|line| {
            parse_line(line)
                .ok_or_else(|| Error::Unreadable { line: line.chars().take(80).collect() })
        });
        lines.collect::<Result<_, _>>().map(Self)
    }

    fn to_text(&self) -> String {
        self.0.iter().fold(String::new(), |text, (at, count)| text + &format!("{at} {count}\n"))
    }

    /// Counts one more deletion, or returns the pause before it may be requested.
    fn admit(mut self, limit: usize, now: Timestamp) -> Result<Self, Duration> {
        // Times in the future were written by a clock that was ahead; they cannot delay deletions for longer than a
        // window.
        self.0.retain(|at, _| now.duration_since(*at).abs() < WINDOW);
        let total = self.0.values().fold(0_usize, |sum, count| sum.saturating_add(*count));
        if total >= limit {
            let oldest = self.0.keys().next().copied().unwrap_or(now).min(now);
            let wait = WINDOW.saturating_sub(now.duration_since(oldest));
            return Err(wait.unsigned_abs());
        }
        let second = now.as_second() - now.as_second().rem_euclid(MINUTE);
        *self.0.entry(Timestamp::from_second(second).unwrap_or(now)).or_default() += 1;
        Ok(self)
    }
}

pub(super) struct DeletionLimit {
    /// Deletions per window; none is unlimited.
    limit: Option<usize>,
    config_maps: Api<ConfigMap>,
    /// Held while the count is read and written.
    one_at_a_time: Mutex<()>,
    /// The last refusal.
    refusal: parking_lot::Mutex<Option<Refusal>>,
}

/// Refusal of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal {
    at: Timestamp,
    pause: Duration,
}

impl Refusal {
    /// Remaining pause, if the refusal still holds.
    fn remaining(self, now: Timestamp) -> Option<Duration> {
        // An age below zero was measured by a clock that was ahead.
        let age = Duration::try_from(now.duration_since(self.at)).ok()?;
        self.pause.checked_sub(age).filter(|rest| age < REFUSAL_TTL && !rest.is_zero())
    }
}

impl DeletionLimit {
    /// Zero is unlimited.
    pub(super) fn new(limit: usize, config_maps: Api<ConfigMap>) -> Self {
        Self {
            limit: (limit > 0).then_some(limit),
            config_maps,
            one_at_a_time: Mutex::default(),
            refusal: parking_lot::Mutex::default(),
        }
    }

    /// Pause before a deletion may be requested, if another one has just been refused.
    pub(super) fn recent_refusal(&self, now: Timestamp) -> Option<Duration> {
        (*self.refusal.lock())?.remaining(now)
    }

    /// Counts one deletion that is about to be requested, or returns the pause before it may be. `backups` is the
    /// number of Backups in the cluster: a tenth of them may be deleted if that is more than the limit.
    pub(super) async fn admit(
        &self,
        backups: usize,
        now: Timestamp,
    ) -> Result<Result<(), Duration>, Error> {
        let Some(limit) = self.limit else { return Ok(Ok(())) };
        let _one = self.one_at_a_time.lock().await;
        let stored = self.config_maps.get_opt(NAME).await.map_err(Error::Read)?;
        let text = stored.as_ref().and_then(|stored| stored.data.as_ref()?.get(KEY));
        let deletions = Deletions::parse(text.map_or("", String::as_str))?;
        let data = match deletions.admit(limit.max(backups / 10), now) {
            Ok(deletions) => BTreeMap::from([(KEY.to_owned(), deletions.to_text())]),
            Err(pause) => {
                *self.refusal.lock() = Some(Refusal { at: now, pause });
                return Ok(Err(pause));
            }
        };
        match stored {
            None => {
                let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
                let config_map = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
                self.config_maps.create(&patch::post_params(), &config_map).await
            }
            Some(stored) => {
                let version = stored.metadata.resource_version.as_deref();
                patch::patch(&self.config_maps, NAME, version, json!({ "data": data })).await
            }
        }
        .map_err(Error::Write)?;
        Ok(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_holds_for_a_minute_at_most() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let refusal = |pause| Refusal { at: at(1000), pause: Duration::from_secs(pause) };
        for (pause, now, expected) in [
            (1800, 1000, Some(1800)),
            (1800, 1059, Some(1741)),
            (1800, 1060, None),
            (30, 1029, Some(1)),
            (30, 1030, None),
            (1800, 999, None),
        ] {
            let rest = refusal(pause).remaining(at(now));
            assert_eq!(rest, expected.map(Duration::from_secs), "{pause} s at {now}");
        }
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn deletions(text: &str) -> Deletions {
        Deletions::parse(text).unwrap()
    }

    #[test]
    fn a_window_admits_as_many_deletions_as_the_limit() {
        let mut counted = Deletions::default();
        for _ in 0..3 {
            counted = counted.admit(3, at("2026-01-01T00:00:10Z")).unwrap();
        }
        assert_eq!(counted.to_text(), "2026-01-01T00:00:00Z 3\n");
        let later = counted.clone().admit(3, at("2026-01-01T00:10:00Z"));
        assert_eq!(later, Err(Duration::from_mins(50)));
        let next = counted.admit(3, at("2026-01-01T01:00:00Z")).unwrap();
        assert_eq!(next.to_text(), "2026-01-01T01:00:00Z 1\n");
    }

    #[test]
    fn times_in_the_future_hold_up_deletions_for_at_most_a_window() {
        let ahead = deletions("2026-01-01T00:30:00Z 3\n");
        let wait = ahead.admit(3, at("2026-01-01T00:00:00Z")).unwrap_err();
        assert_eq!(wait, Duration::from_hours(1));
        let far_ahead = deletions("2030-01-01T00:00:00Z 3\n");
        assert!(far_ahead.admit(3, at("2026-01-01T00:00:00Z")).is_ok());
    }

    #[test]
    fn an_unreadable_count_is_refused_with_the_line() {
        for text in ["x", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z -1", "today 3"] {
            let Err(Error::Unreadable { line }) = Deletions::parse(text) else {
                panic!("{text} was read");
            };
            assert_eq!(line, text);
        }
        assert_eq!(deletions(""), Deletions::default());
    }
}
