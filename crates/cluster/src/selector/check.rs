//! Requirements with checked label keys and values.

use std::collections::BTreeSet;

use super::{InvalidSelector, Requirement, Test};

/// Kubernetes' limit for the name in a key, and for a value.
const MAX_NAME_LENGTH: usize = 63;
/// Kubernetes' limit for the prefix before the `/` of a key.
const LONGEST_PREFIX: usize = 253;

/// Label with one of the values.
pub(super) fn one_of<S: AsRef<str>>(
    key: &str,
    values: impl IntoIterator<Item = S>,
) -> Result<Requirement, InvalidSelector> {
    requirement(key, Test::In(checked(key, values)?))
}

/// Label with none of the values, or no such label.
pub(super) fn none_of<S: AsRef<str>>(
    key: &str,
    values: impl IntoIterator<Item = S>,
) -> Result<Requirement, InvalidSelector> {
    requirement(key, Test::NotIn(checked(key, values)?))
}

/// Existing label.
pub(super) fn exists(key: &str) -> Result<Requirement, InvalidSelector> {
    requirement(key, Test::Exists)
}

/// Missing label.
pub(super) fn does_not_exist(key: &str) -> Result<Requirement, InvalidSelector> {
    requirement(key, Test::DoesNotExist)
}

/// Label with a greater number.
pub(super) fn greater_than(key: &str, value: &str) -> Result<Requirement, InvalidSelector> {
    requirement(key, Test::GreaterThan(number(key, value)?))
}

/// Label with a smaller number.
pub(super) fn less_than(key: &str, value: &str) -> Result<Requirement, InvalidSelector> {
    requirement(key, Test::LessThan(number(key, value)?))
}

fn requirement(key: &str, test: Test) -> Result<Requirement, InvalidSelector> {
    if is_key(key) {
        Ok(Requirement { key: key.to_owned(), test })
    } else {
        Err(InvalidSelector::Key(key.to_owned()))
    }
}

fn checked<S: AsRef<str>>(
    key: &str,
    values: impl IntoIterator<Item = S>,
) -> Result<BTreeSet<String>, InvalidSelector> {
    let check = |value: S| match value.as_ref() {
        value if is_value(value) => Ok(value.to_owned()),
        value => Err(InvalidSelector::Value { key: key.to_owned(), value: value.to_owned() }),
    };
    values.into_iter().map(check).collect()
}

/// Number that is a valid label value, and so has no sign.
fn number(key: &str, value: &str) -> Result<i64, InvalidSelector> {
    let error = || InvalidSelector::Number { key: key.to_owned(), value: value.to_owned() };
    let is_unsigned = value.starts_with(|first: char| first.is_ascii_digit());
    value.parse().ok().filter(|_| is_unsigned).ok_or_else(error)
}

fn is_key(key: &str) -> bool {
    match key.split_once('/') {
        None => is_name(key),
        Some((prefix, name)) => {
            prefix.len() <= LONGEST_PREFIX && prefix.split('.').all(is_dns_label) && is_name(name)
        }
    }
}

fn is_value(value: &str) -> bool {
    value.is_empty() || is_name(value)
}

fn is_name(name: &str) -> bool {
    let inside = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let ends = [name.bytes().next(), name.bytes().last()];
    name.len() <= MAX_NAME_LENGTH
        && name.bytes().all(inside)
        && ends.into_iter().all(|end| end.is_some_and(|b| b.is_ascii_alphanumeric()))
}

fn is_dns_label(label: &str) -> bool {
    !label.is_empty()
        && label.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && !label.starts_with('-')
        && !label.ends_with('-')
}
