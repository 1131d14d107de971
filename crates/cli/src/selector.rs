//! Label selectors: conversion between the user's text and the fields of a Backup.

use std::collections::BTreeSet;

use anyhow::{Context as _, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// Longest value of a label, and longest name.
const MAX_LABEL_LENGTH: usize = 63;
/// Longest prefix of a label's name.
const MAX_PREFIX_LENGTH: usize = 253;

/// Parses a selector as kubectl does: `app=web,tier in (a, b),!canary`.
pub(crate) fn parse(text: &str) -> anyhow::Result<LabelSelector> {
    let mut selector = LabelSelector::default();
    for requirement in requirements(text) {
        add_requirement(requirement.trim(), &mut selector)
            .with_context(|| format!("`{text}` is not a valid label selector"))?;
    }
    Ok(selector)
}

/// Parses alternative selectors: `app=web or app=db`.
pub(crate) fn parse_any(text: &str) -> anyhow::Result<Vec<LabelSelector>> {
    text.split(" or ").map(|selector| parse(selector.trim())).collect()
}

/// Selector as kubectl prints it; empty for one that selects everything.
pub(crate) fn text(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().flatten();
    let equals = labels.map(|(key, value)| (key.as_str(), format!("{key}={value}")));
    let expressions = selector.match_expressions.iter().flatten().map(|expression| {
        let LabelSelectorRequirement { key, operator, values } = expression;
        let mut values = values.clone().unwrap_or_default();
        values.sort();
        let text = match operator.as_str() {
            "Exists" => key.clone(),
            "DoesNotExist" => format!("!{key}"),
            other => format!("{key} {} ({})", other.to_lowercase(), values.join(",")),
        };
        (key.as_str(), text)
    });
    let mut parts: Vec<(&str, String)> = equals.chain(expressions).collect();
    parts.sort_by_key(|(key, _)| *key);
    parts.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(",")
}

/// Splits at the commas that are not in parentheses.
fn requirements(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    text.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .collect()
}

/// Adds one requirement to a selector.
fn add_requirement(requirement: &str, to: &mut LabelSelector) -> anyhow::Result<()> {
    let mut expression = |key: &str, operator: &str, values: Option<Vec<String>>| {
        let key = checked_key(key)?;
        let requirement = LabelSelectorRequirement { key, operator: operator.to_owned(), values };
        to.match_expressions.get_or_insert_default().push(requirement);
        Ok(())
    };
    if let Some(key) = requirement.strip_prefix('!') {
        return expression(key, "DoesNotExist", None);
    }
    if let Some((key, value)) = requirement.split_once("!=") {
        return expression(key, "NotIn", Some(vec![checked_value(value)?]));
    }
    if let Some((key, value)) = requirement.split_once('=') {
        let value = checked_value(value.strip_prefix('=').unwrap_or(value))?;
        let key = checked_key(key)?;
        let labels = to.match_labels.get_or_insert_default();
        if labels.get(&key).is_some_and(|previous| *previous != value) {
            bail!("`{key}` cannot have two values");
        }
        labels.insert(key, value);
        return Ok(());
    }
    let Some((head, list)) = requirement.split_once('(') else {
        return expression(requirement, "Exists", None);
    };
    let Some(list) = list.strip_suffix(')') else { bail!("a parenthesis is not closed") };
    let Some((key, operator)) = head.trim_end().rsplit_once(char::is_whitespace) else {
        bail!("expected `in` or `notin` before a parenthesis");
    };
    let values = list.split(',').map(checked_value).collect::<anyhow::Result<BTreeSet<_>>>()?;
    // Sorted and unique, as Velero's command line writes them.
    let values = values.into_iter().collect();
    match operator {
        "in" => expression(key, "In", Some(values)),
        "notin" => expression(key, "NotIn", Some(values)),
        _ => bail!("expected `in` or `notin` after `{key}`, not `{operator}`"),
    }
}

fn checked_value(value: &str) -> anyhow::Result<String> {
    let value = value.trim();
    if !value.is_empty() && !is_label_value(value) {
        bail!("`{value}` is not a valid label value");
    }
    Ok(value.to_owned())
}

fn checked_key(key: &str) -> anyhow::Result<String> {
    let key = key.trim();
    let is_key = match key.split_once('/') {
        Some((prefix, name)) => is_prefix(prefix) && is_label_value(name),
        None => is_label_value(key),
    };
    if !is_key {
        bail!("`{key}` is not a valid label key");
    }
    Ok(key.to_owned())
}

fn is_label_value(text: &str) -> bool {
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= MAX_LABEL_LENGTH
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && is_end(text.chars().next())
        && is_end(text.chars().next_back())
}

fn is_prefix(text: &str) -> bool {
    let is_label = |label: &str| {
        label.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
            && !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= MAX_PREFIX_LENGTH && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_selectors_are_parsed_and_printed_again() {
        for (typed, printed) in [
            ("app=web", "app=web"),
            (" app == web ", "app=web"),
            ("app=", "app="),
            ("tier in (b, a),app=web", "app=web,tier in (a,b)"),
            ("tier notin (a)", "tier notin (a)"),
            ("tier!=a", "tier notin (a)"),
            ("canary", "canary"),
            ("!canary , app=web", "app=web,!canary"),
            ("x.io/a-b_c.d=1", "x.io/a-b_c.d=1"),
        ] {
            assert_eq!(text(&parse(typed).unwrap()), printed, "{typed}");
        }
    }

    #[test]
    fn equality_becomes_labels_and_the_rest_expressions() {
        let selector = parse("a=b,c in (d)").unwrap();
        assert_eq!(selector.match_labels.unwrap()["a"], "b");
        let [expression] = selector.match_expressions.unwrap().try_into().unwrap();
        assert_eq!(expression.operator, "In");
        assert_eq!(expression.values.unwrap(), ["d"]);
    }

    #[test]
    fn invalid_selector_is_refused_with_a_reason() {
        for (typed, reason) in [
            ("", "`` is not a valid label key"),
            ("a=b,", "`` is not a valid label key"),
            ("a b", "`a b` is not a valid label key"),
            ("a>5", "`a>5` is not a valid label key"),
            ("a=b c", "`b c` is not a valid label value"),
            ("a=b,a=c", "`a` cannot have two values"),
            ("a in (b", "a parenthesis is not closed"),
            ("a like (b)", "expected `in` or `notin` after `a`, not `like`"),
            ("in (b)", "expected `in` or `notin` before a parenthesis"),
            ("A.io/a=b", "`A.io/a` is not a valid label key"),
        ] {
            let error = parse(typed).unwrap_err();
            assert_eq!(error.to_string(), format!("`{typed}` is not a valid label selector"));
            assert_eq!(error.root_cause().to_string(), reason, "{typed}");
        }
    }

    #[test]
    fn alternative_selectors_are_separated_by_or() {
        let any = parse_any("app=web or app in (db, cache) or !x").unwrap();
        let printed: Vec<String> = any.iter().map(text).collect();
        assert_eq!(printed, ["app=web", "app in (cache,db)", "!x"]);
        assert!(parse_any("app=web or ").is_err());
    }
}
