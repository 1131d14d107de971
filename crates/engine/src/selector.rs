//! Label selectors, compiled once.
//!
//! They come as Kubernetes' `LabelSelector` from resources, and as text from plugins. Written as
//! text they go to the API server with a LIST.

mod check;
mod parse;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// A label selector. Without requirements it selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// All must hold. Sorted, so that equal selectors are written the same.
    requirements: Vec<Requirement>,
}

/// Why a selector is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSelector {
    /// A label cannot have this key.
    #[error(
        "{0:?} is no key of a label: expected a name of at most 63 letters, digits, `-`, `_` and \
         `.`, after a DNS subdomain and a `/` or without"
    )]
    Key(String),
    /// A label cannot have this value.
    #[error(
        "{value:?}, asked of {key}, is no value of a label: expected at most 63 letters, digits, \
         `-`, `_` and `.`, beginning and ending with a letter or digit"
    )]
    Value {
        /// The label.
        key: String,
        /// Its value.
        value: String,
    },
    /// The operator does not exist.
    #[error("{operator:?} is no operator for {key}: expected In, NotIn, Exists or DoesNotExist")]
    Operator {
        /// The label.
        key: String,
        /// The operator.
        operator: String,
    },
    /// `In` or `NotIn` has nothing to compare with.
    #[error("{operator} needs values for {key}")]
    NoValues {
        /// The label.
        key: String,
        /// The operator.
        operator: &'static str,
    },
    /// `Exists` or `DoesNotExist` has something to compare with.
    #[error("{operator} takes no values for {key}")]
    Values {
        /// The label.
        key: String,
        /// The operator.
        operator: &'static str,
    },
    /// `>` or `<` must be followed by a whole number.
    #[error("{key} cannot be compared with {value:?}: expected a whole number")]
    Number {
        /// The label.
        key: String,
        /// What stands where the number should.
        value: String,
    },
    /// The text breaks off, or has something where it does not belong.
    #[error("selector {text:?} has {found} where {expected} was expected")]
    Syntax {
        /// The whole text.
        text: String,
        /// What stands there.
        found: String,
        /// What should.
        expected: &'static str,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Requirement {
    key: String,
    test: Test,
}

/// What must hold for the value of a label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Test {
    In(BTreeSet<String>),
    /// Also holds if there is no such label.
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

    /// Compiles a text as Kubernetes writes it: `a=b,c!=d,e in (x,y),f notin (z),g,!h,i>1`.
    pub fn parse(text: &str) -> Result<Self, InvalidSelector> {
        parse::requirements(text).map(Self::from_requirements)
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements.iter().all(|requirement| requirement.holds(labels))
    }

    /// Whether it selects everything.
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

/// The text for the API server's `labelSelector`; empty if it selects everything.
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
