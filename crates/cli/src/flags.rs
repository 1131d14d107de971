//! Parsers for the values of flags: they accept what Velero accepts, so that its command lines work here.

mod error;

use std::collections::BTreeMap;
use std::time;

use anyhow::bail;
use bowline_api::Duration;
use bowline_api::snapshot_type::SnapshotType;
use clap::builder::{
    NonEmptyStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser,
};
pub(crate) use error::InvalidValue;
use k8s_openapi::api::core::v1::SecretKeySelector;

/// Non-negative duration in Go's spelling, such as `720h` or `1h30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, InvalidValue> {
    let duration: Duration = text.parse().map_err(|error| match days(text) {
        Some(days) => InvalidValue::Days { error, days },
        None => InvalidValue::Duration(error),
    })?;
    if duration < Duration::ZERO {
        return Err(InvalidValue::Negative);
    }
    Ok(duration)
}

/// Number of days in a text, for which Go's spelling has no unit.
fn days(text: &str) -> Option<u64> {
    text.strip_suffix('d')?.parse().ok()
}

/// Timeout: more than zero.
pub(crate) fn timeout(text: &str) -> Result<time::Duration, InvalidValue> {
    let timeout = duration(text)?.to_std().unwrap_or_default();
    if timeout.is_zero() {
        return Err(InvalidValue::ZeroTimeout);
    }
    Ok(timeout)
}

/// Boolean, in any of the spellings that Go accepts.
pub(crate) fn boolean(text: &str) -> Result<bool, InvalidValue> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(InvalidValue::Boolean),
    }
}

/// Type of a snapshot, which decides what becomes of it.
pub(crate) fn snapshot_type() -> impl TypedValueParser<Value = SnapshotType> {
    let value = |one: SnapshotType| {
        PossibleValue::new(one.as_str()).help(match one {
            SnapshotType::Auto => "Upload if the plugin supports it",
            SnapshotType::Cloud => "Upload, with a warning if the plugin does not support it",
            SnapshotType::Local => "Never upload: keep the snapshot where it was taken",
        })
    };
    PossibleValuesParser::new(SnapshotType::ALL.map(value))
        .try_map(|text| text.parse::<SnapshotType>())
}

/// One key of a Secret: `SECRET=KEY`.
pub(crate) fn credential(text: &str) -> Result<SecretKeySelector, InvalidValue> {
    match text.split_once('=') {
        Some((secret, key)) if !secret.is_empty() && !key.is_empty() && !key.contains(',') => {
            Ok(SecretKeySelector { name: secret.to_owned(), key: key.to_owned(), optional: None })
        }
        _ => Err(InvalidValue::Credential),
    }
}

/// Pairs of keys and values from one use of a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pairs(Vec<(String, String)>);

/// Element of a list.
pub(crate) fn non_empty_string() -> NonEmptyStringValueParser {
    NonEmptyStringValueParser::new()
}

/// Namespaces to include; all if none is named.
pub(crate) fn namespaces(included: &[String], excluded: &[String]) -> anyhow::Result<Vec<String>> {
    if excluded.iter().any(|name| name == "*") {
        bail!("--exclude-namespaces cannot contain `*`, which would exclude everything");
    }
    if included.len() > 1 && included.iter().any(|name| name == "*") {
        bail!("--include-namespaces contains `*` (all) and other names; use either");
    }
    if let Some(both) = included.iter().find(|name| excluded.contains(name)) {
        bail!("namespace `{both}` is both included and excluded");
    }
    // Velero's command line writes the star as well.
    Ok(if included.is_empty() { vec!["*".to_owned()] } else { included.to_vec() })
}

/// `a=b,c=d`. A pair with a comma in its value is put in double quotes, as in a line of CSV:
/// `"a=b,c",d=e`.
pub(crate) fn pairs(text: &str) -> Result<Pairs, InvalidValue> {
    let pair = |field: String| match field.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(InvalidValue::Pair(field)),
    };
    csv(text)?.into_iter().map(pair).collect::<Result<_, _>>().map(Pairs)
}

/// `a:b,c:d`, a mapping of names to names.
pub(crate) fn mappings(text: &str) -> Result<Pairs, InvalidValue> {
    let pair = |field: &str| match field.split_once(':') {
        Some((from, to)) if !from.is_empty() && !to.is_empty() && !to.contains(':') => {
            Ok((from.to_owned(), to.to_owned()))
        }
        _ => Err(InvalidValue::Mapping(field.to_owned())),
    };
    text.split(',').map(pair).collect::<Result<_, _>>().map(Pairs)
}

/// Pairs of all uses of a flag in which a key may have one value only.
pub(crate) fn distinct(flag: &str, uses: &[Pairs]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for (key, value) in uses.iter().flat_map(|Pairs(pairs)| pairs) {
        match all.insert(key.clone(), value.clone()) {
            Some(other) if other != *value => {
                bail!("{flag} maps `{key}` to both `{other}` and `{value}`; choose one")
            }
            _ => {}
        }
    }
    Ok(all)
}

/// Pairs of all uses of a flag; a later one wins.
pub(crate) fn merged(uses: &[Pairs]) -> BTreeMap<String, String> {
    uses.iter().flat_map(|Pairs(pairs)| pairs.iter().cloned()).collect()
}

/// Fields of a line of comma-separated values.
fn csv(line: &str) -> Result<Vec<String>, InvalidValue> {
    let mut fields = Vec::new();
    let mut rest = line;
    loop {
        let field;
        if let Some(quoted) = rest.strip_prefix('"') {
            (field, rest) = read_quoted_field(quoted).ok_or(InvalidValue::UnclosedQuote)?;
            if !rest.is_empty() && !rest.starts_with(',') {
                return Err(InvalidValue::TextAfterQuote);
            }
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            field = rest[..end].to_owned();
            rest = &rest[end..];
        }
        fields.push(field);
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => return Ok(fields),
        }
    }
}

/// Text before the closing quote, with two quotes read as one, and the text after it.
fn read_quoted_field(text: &str) -> Option<(String, &str)> {
    let mut field = String::new();
    let mut rest = text;
    loop {
        let (before, after) = rest.split_once('"')?;
        field.push_str(before);
        match after.strip_prefix('"') {
            Some(more) => {
                field.push('"');
                rest = more;
            }
            None => return Some((field, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_separated_by_commas_and_may_be_quoted() {
        let read = |text: &str| pairs(text).map(|pairs| merged(&[pairs]));
        let map = |pairs: &[(&str, &str)]| {
            Ok(pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect())
        };
        assert_eq!(read("a=b"), map(&[("a", "b")]));
        assert_eq!(read("a=b,c="), map(&[("a", "b"), ("c", "")]));
        assert_eq!(read("a=b=c"), map(&[("a", "b=c")]));
        assert_eq!(read(r#""a=b,c=d",e=f"#), map(&[("a", "b,c=d"), ("e", "f")]));
        assert_eq!(read(r#""a=say ""x""""#), map(&[("a", "say \"x\"")]));
        for (text, reason) in [
            ("", "expected KEY=VALUE, not ``"),
            ("a", "expected KEY=VALUE, not `a`"),
            ("a=b,", "expected KEY=VALUE, not ``"),
            ("=b", "expected KEY=VALUE, not `=b`"),
            ("\"a=b", "a double quote is not closed"),
            ("\"a=b\"c", "a comma must follow the closing double quote"),
        ] {
            assert_eq!(read(text).unwrap_err().to_string(), reason, "{text}");
        }
    }

    #[test]
    fn mappings_are_pairs_of_names() {
        let read = |text: &str| mappings(text).map(|pairs| merged(&[pairs]));
        let expected = [("a", "b"), ("c", "d")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(read("a:b,c:d"), Ok(expected.into()));
        for text in ["", "a", "a:", ":b", "a:b:c", "a:b,"] {
            let reason = read(text).unwrap_err().to_string();
            assert!(reason.starts_with("expected FROM:TO, not `"), "{text}: {reason}");
        }
    }

    #[test]
    fn mapping_of_one_name_to_two_is_refused() {
        let read = |uses: &[&str]| {
            let uses: Vec<Pairs> = uses.iter().map(|text| mappings(text).unwrap()).collect();
            distinct("--namespace-mappings", &uses)
        };
        for uses in [&["a:b,a:c"][..], &["a:b", "a:c"]] {
            let error = read(uses).unwrap_err().to_string();
            let expected = "--namespace-mappings maps `a` to both `b` and `c`; choose one";
            assert_eq!(error, expected, "{uses:?}");
        }
        assert_eq!(read(&["a:b,a:b", "c:b"]).unwrap().len(), 2);
    }

    #[test]
    fn a_later_pair_wins() {
        let uses = [pairs("a=1,b=1").unwrap(), pairs("a=2").unwrap()];
        let merged = merged(&uses);
        assert_eq!(merged["a"], "2");
        assert_eq!(merged["b"], "1");
    }

    #[test]
    fn a_credential_is_one_key_of_one_secret() {
        let selector = credential("cloud=key.json").unwrap();
        assert_eq!((selector.name.as_str(), selector.key.as_str()), ("cloud", "key.json"));
        for bad in ["", "cloud", "=key", "cloud=", "a=b,c=d"] {
            assert!(credential(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_and_booleans_are_spelled_as_in_go() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_seconds(5400)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        assert_eq!(duration("-1s"), Err(InvalidValue::Negative));
        let days = duration("30d").unwrap_err().to_string();
        assert!(days.contains("unknown unit") && days.ends_with("; 30 days are 720h"), "{days}");
        assert_eq!(timeout("2s"), Ok(time::Duration::from_secs(2)));
        assert!(timeout("0s").is_err());
        assert_eq!(["t", "1", "FALSE", "0"].map(boolean), [true, true, false, false].map(Ok));
        assert!(boolean("yes").is_err());
    }
}
