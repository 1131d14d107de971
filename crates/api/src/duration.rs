//! Durations in Go's format.
//!
//! The format is that of Go's `time.Duration`: `4h0m0s`, `1.5s`, `-1m0s`. kube has a type for it,
//! but that type prints `14400s` for four hours, accepts fractions that Go refuses, and panics on
//! numbers that are too large. Ours agrees with Go on every row of `tests/golden/durations.json`,
//! which a Go program has written.

use std::{borrow::Cow, fmt, str::FromStr, time};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// Absolute value of the most negative duration, which is one more than the largest positive one.
const MAX_MAGNITUDE: u64 = i64::MIN.unsigned_abs();

/// A signed duration in nanoseconds, of at most about 292 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(i64);

/// Reason why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A number is missing.
    #[error("invalid duration {0:?}: expected a number and a unit, as in 1h30m")]
    Invalid(String),
    /// A number has no unit.
    #[error("missing unit in duration {0:?}: expected one of ns, us, ms, s, m, h")]
    MissingUnit(String),
    /// A number has an unknown unit.
    #[error("unknown unit {unit:?} in duration {text:?}: expected one of ns, us, ms, s, m, h")]
    UnknownUnit {
        /// The whole text.
        text: String,
        /// The unknown unit.
        unit: String,
    },
    /// The duration does not fit into 64 bits of nanoseconds.
    #[error("duration {0:?} is too long")]
    TooLong(String),
}

impl Duration {
    /// Zero, which usually means "not set" in Velero's fields.
    pub const ZERO: Self = Self(0);

    /// A duration of this many nanoseconds.
    pub const fn from_nanoseconds(nanoseconds: i64) -> Self {
        Self(nanoseconds)
    }

    /// A duration of this many seconds, limited to the longest one.
    pub const fn from_seconds(seconds: i64) -> Self {
        Self(seconds.saturating_mul(SECOND.cast_signed()))
    }

    /// Number of nanoseconds.
    pub const fn nanoseconds(self) -> i64 {
        self.0
    }

    /// True if the duration is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// As a standard duration; none if negative.
    pub fn to_std(self) -> Option<time::Duration> {
        u64::try_from(self.0).ok().map(time::Duration::from_nanos)
    }
}

/// From a standard duration, limited to the longest one.
impl From<time::Duration> for Duration {
    fn from(duration: time::Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magnitude = self.0.unsigned_abs();
        let sign = if self.0 < 0 { "-" } else { "" };
        let text = match magnitude {
            0 => "0s".to_owned(),
            // Below a second Go uses the one unit that leaves a digit before the point.
            1..MICROSECOND => format!("{sign}{magnitude}ns"),
            MICROSECOND..MILLISECOND => format!("{sign}{}µs", decimal(magnitude, MICROSECOND)),
            MILLISECOND..SECOND => format!("{sign}{}ms", decimal(magnitude, MILLISECOND)),
            SECOND..MINUTE => format!("{sign}{}s", decimal(magnitude, SECOND)),
            MINUTE..HOUR => {
                let (minutes, rest) = (magnitude / MINUTE, magnitude % MINUTE);
                format!("{sign}{minutes}m{}s", decimal(rest, SECOND))
            }
            HOUR.. => {
                let (hours, rest) = (magnitude / HOUR, magnitude % HOUR);
                let (minutes, rest) = (rest / MINUTE, rest % MINUTE);
                format!("{sign}{hours}h{minutes}m{}s", decimal(rest, SECOND))
            }
        };
        f.pad(&text)
    }
}

/// `value / unit` with the necessary number of decimal places; `unit` is a power of ten.
fn decimal(value: u64, unit: u64) -> String {
    let (whole, fraction) = (value / unit, value % unit);
    if fraction == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    format!("{whole}.{}", format!("{fraction:0width$}").trim_end_matches('0'))
}

impl FromStr for Duration {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || Error::Invalid(text.to_owned());
        let too_long = || Error::TooLong(text.to_owned());
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if unsigned == "0" {
            return Ok(Self::ZERO);
        }
        if unsigned.is_empty() {
            return Err(invalid());
        }

        let mut rest = unsigned;
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let whole = take_while(&mut rest, |c| c.is_ascii_digit());
            let fraction = rest.strip_prefix('.').map(|after| {
                rest = after;
                take_while(&mut rest, |c| c.is_ascii_digit())
            });
            if whole.is_empty() && fraction.is_none_or(str::is_empty) {
                return Err(invalid());
            }
            let unit = take_while(&mut rest, |c| c != '.' && !c.is_ascii_digit());
            let unit = match unit {
                "" => return Err(Error::MissingUnit(text.to_owned())),
                "ns" => 1,
                // The second is the micro sign, the third the Greek letter mu.
                "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
                "ms" => MILLISECOND,
                "s" => SECOND,
                "m" => MINUTE,
                "h" => HOUR,
                unit => {
                    let (text, unit) = (text.to_owned(), unit.to_owned());
                    return Err(Error::UnknownUnit { text, unit });
                }
            };
            let whole = if whole.is_empty() { Some(0) } else { whole.parse::<u64>().ok() };
            total = whole
                .and_then(|whole| whole.checked_mul(unit))
                .and_then(|length| {
                    length.checked_add(fraction_of_unit(unit, fraction.unwrap_or("")))
                })
                .and_then(|length| length.checked_add(total))
                .filter(|total| *total <= MAX_MAGNITUDE)
                .ok_or_else(too_long)?;
        }
        if negative {
            Ok(Self(0_i64.wrapping_sub_unsigned(total)))
        } else {
            i64::try_from(total).map(Self).map_err(|_| too_long())
        }
    }
}

/// Cuts the longest prefix of such characters off `rest`.
fn take_while<'a>(rest: &mut &'a str, is_wanted: impl Fn(char) -> bool) -> &'a str {
    let end = rest.find(|c| !is_wanted(c)).unwrap_or(rest.len());
    let (prefix, remainder) = rest.split_at(end);
    *rest = remainder;
    prefix
}

/// The fraction `0.<digits>` of a unit in whole nanoseconds, computed in floating point, since
/// Go does: an exact result would differ from Go's in the last nanosecond.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the same roundings as Go's"
)]
fn fraction_of_unit(unit: u64, digits: &str) -> u64 {
    let (mut value, mut scale) = (0_u64, 1.0_f64);
    for digit in digits.bytes() {
        // Go ignores the digits that no longer fit into 63 bits.
        if value > (MAX_MAGNITUDE - 1) / 10 {
            break;
        }
        value = value * 10 + u64::from(digit - b'0');
        scale *= 10.0;
    }
    (value as f64 * (unit as f64 / scale)) as u64
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<str>::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Duration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Row {
        nanoseconds: i64,
        text: String,
    }

    #[derive(Deserialize)]
    struct Golden {
        printed: Vec<Row>,
        read: Vec<Row>,
        refused: Vec<String>,
    }

    fn golden() -> Golden {
        serde_json::from_str(include_str!("../tests/golden/durations.json")).unwrap()
    }

    #[test]
    fn printing_agrees_with_go_and_reads_back() {
        for row in golden().printed {
            let duration = Duration::from_nanoseconds(row.nanoseconds);
            assert_eq!(duration.to_string(), row.text);
            assert_eq!(row.text.parse(), Ok(duration), "{}", row.text);
        }
    }

    #[test]
    fn reading_agrees_with_go() {
        for row in golden().read {
            let read = row.text.parse().map(Duration::nanoseconds);
            assert_eq!(read, Ok(row.nanoseconds), "{}", row.text);
        }
    }

    #[test]
    fn text_refused_by_go_is_an_error() {
        for text in golden().refused {
            assert!(text.parse::<Duration>().is_err(), "{text}");
        }
    }

    #[test]
    fn errors_name_the_problem() {
        for (text, message) in [
            ("5", "missing unit in duration \"5\": expected one of ns, us, ms, s, m, h"),
            ("1d", "unknown unit \"d\" in duration \"1d\": expected one of ns, us, ms, s, m, h"),
            ("soon", "invalid duration \"soon\": expected a number and a unit, as in 1h30m"),
            ("3000000h", "duration \"3000000h\" is too long"),
        ] {
            assert_eq!(text.parse::<Duration>().unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn conversions_saturate_instead_of_wrapping() {
        assert_eq!(Duration::from_seconds(i64::MAX).nanoseconds(), i64::MAX);
        assert_eq!(Duration::from(time::Duration::MAX).nanoseconds(), i64::MAX);
        assert_eq!(Duration::from_seconds(-1).to_std(), None);
        assert_eq!(Duration::from_seconds(2).to_std(), Some(time::Duration::from_secs(2)));
    }
}
