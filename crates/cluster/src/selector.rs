//! Label selectors, compiled once.
//!
//! Resources contain them as Kubernetes' `LabelSelector`, plugins send them as text. As text they
//! go to the API server with a LIST.

mod check;
mod parse;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// Label selector. Without requirements it selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// All must hold. Sorted, so that equal selectors have equal texts.
    requirements: Vec<Requirement>,
}

/// Reason why a selector is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSelector {
    /// Invalid label key.
    #[error(
        "{0:?} is not a label key: expected a name of at most 63 letters, digits, `-`, `_` and \
         `.`, optionally after a DNS subdomain and a `/`"
    )]
    Key(String),
    /// Invalid label value.
    #[error(
        "{value:?} for {key} is not a label value: expected at most 63 letters, digits, `-`, `_` \
         and `.`, beginning and ending with a letter or digit"
    )]
    Value {
        /// Label key.
        key: String,
        /// Label value.
        value: String,
    },
    /// Unknown operator.
    #[error(
        "{operator:?} is not an operator for {key}: expected In, NotIn, Exists or DoesNotExist"
    )]
    Operator {
        /// Label key.
        key: String,
        /// Operator.
        operator: String,
    },
    /// `In` or `NotIn` without values.
    #[error("{operator} needs values for {key}")]
    NoValues {
        /// Label key.
        key: String,
        /// Operator.
        operator: &'static str,
    },
    /// `Exists` or `DoesNotExist` with values.
    #[error("{operator} takes no values for {key}")]
    Values {
        /// Label key.
        key: String,
        /// Operator.
        operator: &'static str,
    },
    /// `>` or `<` without a whole number.
    #[error("{key} cannot be compared with {value:?}: expected a whole number")]
    Number {
        /// Label key.
        key: String,
        /// Text in place of the number.
        value: String,
    },
    /// Truncated text, or an unexpected token.
    #[error("selector {text:?} has {found} where {expected} was expected")]
    Syntax {
        /// Whole text.
        text: String,
        /// Unexpected token.
        found: String,
        /// Expected token.
        expected: &'static str,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Requirement {
    key: String,
    test: Test,
}

/// Condition on the value of a label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Test {
    In(BTreeSet<String>),
    /// Also holds if the label is missing.
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
    GreaterThan(i64),
    LessThan(i64),
}

impl Selector {
    /// Compiles the selector of a resource.
    pub fn new(selector: &LabelSelector) -> Result<Self, InvalidSelector> {
        let mut requirements = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten() {
            requirements.push(check::one_of(key, [value])?);
        }
        for expression in selector.match_expressions.iter().flatten() {
            requirements.push(requirement(expression)?);
        }
        Ok(Self::from_requirements(requirements))
    }

    /// Parses a selector in Kubernetes syntax: `a=b,c!=d,e in (x,y),f notin (z),g,!h,i>1`.
    pub fn parse(text: &str) -> Result<Self, InvalidSelector> {
        parse::requirements(text).map(Self::from_requirements)
    }

    /// True if the selector matches these labels.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements.iter().all(|requirement| requirement.holds(labels))
    }

    /// True if the selector matches everything.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    fn from_requirements(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort();
        requirements.dedup();
        Self { requirements }
    }
}

fn requirement(expression: &LabelSelectorRequirement) -> Result<Requirement, InvalidSelector> {
    let LabelSelectorRequirement { key, operator, values } = expression;
    let values = values.as_deref().unwrap_or_default();
    let some = |operator| match values {
        [] => Err(InvalidSelector::NoValues { key: key.clone(), operator }),
        values => Ok(values),
    };
    let none = |operator| match values {
        [] => Ok(()),
        _ => Err(InvalidSelector::Values { key: key.clone(), operator }),
    };
    match operator.as_str() {
        "In" => check::one_of(key, some("In")?),
        "NotIn" => check::none_of(key, some("NotIn")?),
        "Exists" => none("Exists").and_then(|()| check::exists(key)),
        "DoesNotExist" => none("DoesNotExist").and_then(|()| check::does_not_exist(key)),
        _ => Err(InvalidSelector::Operator { key: key.clone(), operator: operator.clone() }),
    }
}

impl Requirement {
    fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.test {
            Test::In(values) => value.is_some_and(|value| values.contains(value)),
            Test::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Test::Exists => value.is_some(),
            Test::DoesNotExist => value.is_none(),
            Test::GreaterThan(limit) => number().is_some_and(|number| number > *limit),
            Test::LessThan(limit) => number().is_some_and(|number| number < *limit),
        }
    }
}

/// Text for the API server's `labelSelector`; empty if the selector matches everything.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{requirement}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        let list = |values: &BTreeSet<String>| {
            values.iter().map(String::as_str).collect::<Vec<_>>().join(",")
        };
        match &self.test {
            Test::In(values) if values.len() == 1 => write!(f, "{key}={}", list(values)),
            Test::In(values) => write!(f, "{key} in ({})", list(values)),
            Test::NotIn(values) if values.len() == 1 => write!(f, "{key}!={}", list(values)),
            Test::NotIn(values) => write!(f, "{key} notin ({})", list(values)),
            Test::Exists => f.write_str(key),
            Test::DoesNotExist => write!(f, "!{key}"),
            Test::GreaterThan(limit) => write!(f, "{key}>{limit}"),
            Test::LessThan(limit) => write!(f, "{key}<{limit}"),
        }
    }
}
