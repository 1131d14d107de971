//! Cron expressions in Velero's dialect: that of the standard parser of Go's `robfig/cron`.
//!
//! Five fields (minute, hour, day of the month, month, day of the week), `@hourly` and its like,
//! `@every 1h30m`, and before any of them `CRON_TZ=Europe/Berlin ` or `TZ=…`. Differences from
//! other dialects:
//! - Sunday is 0 and not 7; there is no `L`, `W` or `#`; ranges do not wrap around.
//! - `5/15` means from 5 on; `?` means the same as `*`.
//! - If both days are restricted, a match of either is enough. `*/2` restricts, `*` and `*/1` do
//!   not.
//!
//! # Differences from `robfig/cron` and Velero
//! - A time is due whenever the wall clock shows it: twice when the clock is set back, not at all
//!   when it is skipped. `robfig/cron` intends the same, but loses whole days that start without a
//!   midnight.
//! - An expression that never matches, such as `0 0 30 2 *`, is refused. Velero considers it always
//!   due.

#[cfg(test)]
mod tests;

use bowline_api::duration;
use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp, ToSpan as _};

/// Number of days to search for a time. Any day comes within eight years: 1900 and 2100 are no leap
/// years.
const LOOK_AHEAD: usize = 9 * 366;

/// Prefixes of time zone names.
const ZONE_PREFIXES: [&str; 2] = ["CRON_TZ=", "TZ="];

/// Reason why a text is no cron expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Too few or too many fields.
    #[error(
        "expected 5 fields (minute, hour, day of the month, month, day of the week), found {0}"
    )]
    Fields(usize),
    /// Unknown descriptor after `@`.
    #[error(
        "unknown `{0}`: expected @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly, or \
         @every and a duration"
    )]
    Descriptor(String),
    /// No valid duration after `@every`.
    #[error("after `@every`: {0}")]
    Every(#[source] duration::Error),
    /// No expression after the time zone.
    #[error("the time zone must be followed by a space and the times")]
    NothingAfterZone,
    /// Unknown time zone.
    #[error("unknown time zone `{0}`: expected a name as in Europe/Berlin")]
    Zone(String),
    /// Not a number.
    #[error("`{0}` in `{1}` is not a number, nor a name that is allowed there")]
    Number(String, String),
    /// Too many parts in a range.
    #[error("`{0}` has too many `{1}`")]
    TooMany(String, char),
    /// Value out of range.
    #[error("{value} in `{text}` is out of range: the {field} is from {min} to {max}")]
    OutOfRange {
        /// Text of the expression.
        text: String,
        /// Value.
        value: u64,
        /// Name of the field.
        field: &'static str,
        /// Minimum.
        min: u8,
        /// Maximum.
        max: u8,
    },
    /// Range that ends before it starts.
    #[error("`{0}` ends before it begins")]
    Backwards(String),
    /// Range with a step of zero.
    #[error("the step in `{0}` must be at least 1")]
    Step(String),
    /// Expression that never matches.
    #[error("no such day or time exists, so the schedule would never run")]
    Never,
}

/// Parsed cron expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Cron(Times);

#[derive(Clone, Debug, PartialEq)]
enum Times {
    /// Fixed interval.
    Every(SignedDuration),
    /// Times on the wall clock.
    Wall { clock: Clock, zone: Option<TimeZone> },
}

/// Fields of a wall-clock expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Clock {
    minutes: Set,
    hours: Set,
    days: Set,
    months: Set,
    weekdays: Set,
}

/// Set of values of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Set {
    bits: u64,
    /// True if the field is unrestricted, so that of the two day fields only the other counts.
    is_any: bool,
}

impl Set {
    fn has(self, value: i8) -> bool {
        u32::try_from(value).is_ok_and(|value| self.bits >> value & 1 == 1)
    }

    fn values(self) -> impl Iterator<Item = i8> {
        (0..60).filter(move |value| self.has(*value))
    }
}

/// A field of an expression.
struct Field {
    name: &'static str,
    min: u8,
    max: u8,
    /// Names of values, starting with the minimum.
    names: &'static [&'static str],
}

const MINUTE: Field = Field { name: "minute", min: 0, max: 59, names: &[] };
const HOUR: Field = Field { name: "hour", min: 0, max: 23, names: &[] };
const DAY: Field = Field { name: "day of the month", min: 1, max: 31, names: &[] };
const MONTH: Field = Field {
    name: "month",
    min: 1,
    max: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAY: Field = Field {
    name: "day of the week",
    min: 0,
    max: 6,
    names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
};

impl std::str::FromStr for Cron {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (zone, rest) = zone(text)?;
        if rest.starts_with('@') {
            return descriptor(rest, zone);
        }
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            return Err(Error::Fields(fields.len()));
        };
        let clock = Clock {
            minutes: MINUTE.parse(minute)?,
            hours: HOUR.parse(hour)?,
            days: DAY.parse(day)?,
            months: MONTH.parse(month)?,
            weekdays: WEEKDAY.parse(weekday)?,
        };
        // The search starts in a leap year: a day that does not come now never does.
        clock.first_after(Timestamp::UNIX_EPOCH, &TimeZone::UTC).ok_or(Error::Never)?;
        Ok(Self(Times::Wall { clock, zone }))
    }
}

impl Cron {
    /// First time after a moment, in the zone `local` unless the expression names one. `None` if
    /// there is none for years.
    pub fn next(&self, after: Timestamp, local: &TimeZone) -> Option<Timestamp> {
        match &self.0 {
            Times::Every(pause) => whole_second(after).checked_add(*pause).ok(),
            Times::Wall { clock, zone } => clock.first_after(after, zone.as_ref().unwrap_or(local)),
        }
    }

    /// Last of the consecutive times that follow `after` and are before `now`. `None` if already
    /// the first is not before `now`.
    pub fn last_before(
        &self,
        now: Timestamp,
        after: Timestamp,
        local: &TimeZone,
    ) -> Option<Timestamp> {
        let first = self.next(after, local).filter(|first| *first < now)?;
        match &self.0 {
            Times::Every(pause) => {
                // Last whole interval that ends before now.
                let passed = now.duration_since(first).as_nanos() - 1;
                let pauses = i32::try_from(passed / pause.as_nanos()).unwrap_or(i32::MAX);
                Some(first.checked_add(*pause * pauses).unwrap_or(first))
            }
            Times::Wall { clock, zone } => {
                let zone = zone.as_ref().unwrap_or(local);
                Some(clock.last_before(now, first, zone).unwrap_or(first))
            }
        }
    }
}

impl Clock {
    fn first_after(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let offset = zone.to_offset(after);
        let shown = offset.to_datetime(after);
        let times =
            days_from(shown.date()).find_map(|day| self.times(day).find(|time| *time > shown));
        let found = offset.to_timestamp(times?).ok()?;
        match zone.following(after).next() {
            // Before a change of the offset, the clock runs without jumps.
            Some(change) if found >= change.timestamp() => self.first_over_change(after, zone),
            _ => Some(found),
        }
    }

    /// Like `first_after`, for a clock that may be changed before the next time.
    fn first_over_change(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let later = |moment: &Timestamp| *moment > after;
        // A clock that is set back over midnight shows the previous day once more.
        let before = zone.to_datetime(after).date().yesterday().ok()?;
        for day in days_from(before) {
            if let Some(found) = self.moments(day, zone).filter(later).min() {
                // For the same reason the next day may have started before.
                let next = self.moments(day.tomorrow().ok()?, zone).filter(later).min();
                return Some(next.map_or(found, |next| next.min(found)));
            }
        }
        None
    }

    /// Last moment in a span that includes its start and excludes its end.
    fn last_before(&self, end: Timestamp, begin: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let within = |moment: &Timestamp| begin <= *moment && *moment < end;
        let mut day = zone.to_datetime(end).date().tomorrow().ok()?;
        for _ in 0..LOOK_AHEAD {
            let yesterday = day.yesterday().ok()?;
            if let Some(found) = self.moments(day, zone).filter(within).max() {
                let before = self.moments(yesterday, zone).filter(within).max();
                return Some(before.map_or(found, |before| before.max(found)));
            }
            day = yesterday;
        }
        None
    }

    /// All moments of a day, unordered.
    fn moments(&self, day: Date, zone: &TimeZone) -> impl Iterator<Item = Timestamp> {
        self.times(day).flat_map(|time| moments(time, zone)).flatten()
    }

    /// All wall-clock times of a day, ignoring changes of the clock.
    fn times(&self, day: Date) -> impl Iterator<Item = DateTime> {
        let hours = self.has(day).then(|| self.hours.values()).into_iter().flatten();
        hours.flat_map(move |hour| {
            self.minutes.values().map(move |minute| day.at(hour, minute, 0, 0))
        })
    }

    fn has(&self, day: Date) -> bool {
        let is_day = self.days.has(day.day());
        let is_weekday = self.weekdays.has(day.weekday().to_sunday_zero_offset());
        let is_either = if self.days.is_any || self.weekdays.is_any {
            is_day && is_weekday
        } else {
            is_day || is_weekday
        };
        self.months.has(day.month()) && is_either
    }
}

/// Days to search, starting with `day`.
fn days_from(day: Date) -> impl Iterator<Item = Date> {
    day.series(1.day()).take(LOOK_AHEAD)
}

/// Moments at which a clock shows a time: usually one; none if it is skipped; two if the clock is
/// set back.
fn moments(time: DateTime, zone: &TimeZone) -> [Option<Timestamp>; 2] {
    match zone.to_ambiguous_timestamp(time).offset() {
        AmbiguousOffset::Unambiguous { offset } => [offset.to_timestamp(time).ok(), None],
        AmbiguousOffset::Gap { .. } => [None, None],
        AmbiguousOffset::Fold { before, after } => {
            [before, after].map(|offset| offset.to_timestamp(time).ok())
        }
    }
}

fn whole_second(moment: Timestamp) -> Timestamp {
    let second = Timestamp::from_second(moment.as_second()).unwrap_or(moment);
    // Rounded down, also before 1970.
    if second > moment { second - 1.second() } else { second }
}

/// Leading time zone, if there is one, and the rest of the text.
fn zone(text: &str) -> Result<(Option<TimeZone>, &str), Error> {
    let Some(named) = ZONE_PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix)) else {
        return Ok((None, text));
    };
    let (name, rest) = named.split_once(' ').ok_or(Error::NothingAfterZone)?;
    let zone = match name {
        "" | "UTC" => Some(TimeZone::UTC),
        // Time zone of the server, as if none were named.
        "Local" => None,
        name => {
            let found = TimeZone::get(name).ok();
            // In Go, zone names are file names, so their case matters.
            let is_it = |zone: &TimeZone| zone.iana_name() == Some(name);
            Some(found.filter(is_it).ok_or_else(|| Error::Zone(name.to_owned()))?)
        }
    };
    Ok((zone, rest.trim()))
}

fn descriptor(text: &str, zone: Option<TimeZone>) -> Result<Cron, Error> {
    let fields = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => {
            let every = text.strip_prefix("@every ");
            let every = every.ok_or_else(|| Error::Descriptor(text.to_owned()))?;
            let pause: bowline_api::Duration = every.parse().map_err(Error::Every)?;
            // Whole seconds, and at least one.
            let seconds = pause.nanoseconds() / 1_000_000_000;
            return Ok(Cron(Times::Every(SignedDuration::from_secs(seconds.max(1)))));
        }
    };
    let cron: Cron = fields.parse()?;
    Ok(match cron.0 {
        Times::Wall { clock, .. } => Cron(Times::Wall { clock, zone }),
        every @ Times::Every(_) => Cron(every),
    })
}

impl Field {
    /// Values of a comma-separated list.
    fn parse(&self, text: &str) -> Result<Set, Error> {
        let mut all = Set { bits: 0, is_any: false };
        for range in text.split(',').filter(|range| !range.is_empty()) {
            let Set { bits, is_any } = self.range(range)?;
            all = Set { bits: all.bits | bits, is_any: all.is_any || is_any };
        }
        Ok(all)
    }

    /// Values of a range: `*`, `5`, `1-5`, each with or without a step.
    fn range(&self, text: &str) -> Result<Set, Error> {
        let mut parts = text.split('/');
        let (range, step) = (parts.next().unwrap_or_default(), parts.next());
        if parts.next().is_some() {
            return Err(Error::TooMany(text.to_owned(), '/'));
        }
        let mut ends = range.split('-');
        let first = ends.next().unwrap_or_default();
        // The text after a star is ignored.
        let is_star = first == "*" || first == "?";
        let (begin, end) = if is_star {
            (self.min.into(), self.max.into())
        } else {
            let begin = self.value(first, text)?;
            let end = match (ends.next(), step) {
                (Some(end), _) => self.value(end, text)?,
                (None, Some(_)) => self.max.into(),
                (None, None) => begin,
            };
            if ends.next().is_some() {
                return Err(Error::TooMany(text.to_owned(), '-'));
            }
            (begin, end)
        };
        let step = match step {
            Some(step) => number(step, text)?,
            None => 1,
        };
        for value in [begin, end] {
            if !(self.min.into()..=self.max.into()).contains(&value) {
                let (field, min, max) = (self.name, self.min, self.max);
                return Err(Error::OutOfRange { text: text.to_owned(), value, field, min, max });
            }
        }
        if begin > end {
            return Err(Error::Backwards(text.to_owned()));
        }
        let stride = usize::try_from(step).unwrap_or(usize::MAX);
        if stride == 0 {
            return Err(Error::Step(text.to_owned()));
        }
        let bits = (begin..=end).step_by(stride).fold(0, |bits, value| bits | 1 << value);
        Ok(Set { bits, is_any: is_star && stride == 1 })
    }

    /// A number or a name.
    fn value(&self, text: &str, range: &str) -> Result<u64, Error> {
        let is_it = |name: &&str| name.eq_ignore_ascii_case(text);
        match (self.min.into()..).zip(self.names).find(|(_, name)| is_it(name)) {
            Some((value, _)) => Ok(value),
            None => number(text, range),
        }
    }
}

fn number(text: &str, range: &str) -> Result<u64, Error> {
    let number: Option<i64> = text.parse().ok();
    let number = number.and_then(|number| u64::try_from(number).ok());
    number.ok_or_else(|| Error::Number(text.to_owned(), range.to_owned()))
}
