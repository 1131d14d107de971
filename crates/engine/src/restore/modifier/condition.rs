//! Conditions of a rule. All of them must hold.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::InvalidModifiers;
use super::json::{self, Test};
use super::pattern::{self, KindPattern};
use crate::glob::Globs;
use crate::resource::GroupResource;
use crate::selector::Selector;

/// Conditions as users write them.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ConditionsDocument {
    namespaces: Option<Vec<String>>,
    group_resource: Option<String>,
    resource_name_regex: Option<String>,
    label_selector: Option<LabelSelector>,
    matches: Option<Vec<Match>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Match {
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    value: Option<String>,
}

/// Compiled conditions.
#[derive(Clone, Debug)]
pub(super) struct Conditions {
    /// `None` for all namespaces.
    namespaces: Option<Globs>,
    kind: KindPattern,
    name: Option<Regex>,
    labels: Option<Selector>,
    matches: Vec<Test>,
}

impl ConditionsDocument {
    pub(super) fn group_resource(&self) -> &str {
        self.group_resource.as_deref().unwrap_or_default()
    }

    pub(super) fn compile(self) -> Result<Conditions, InvalidModifiers> {
        if self.group_resource().is_empty() {
            return Err(InvalidModifiers::NoGroupResource);
        }
        let kind = pattern::kind(self.group_resource())?;
        let namespaces = self.namespaces.filter(|names| !names.is_empty());
        let name = self.resource_name_regex.filter(|pattern| !pattern.is_empty());
        let name = name.map(|pattern| {
            Regex::new(&pattern).map_err(|source| InvalidModifiers::Regex { pattern, source })
        });
        let labels = self.label_selector.as_ref().map(Selector::new).transpose();
        let test =
            |one: Match| json::test(&one.path.unwrap_or_default(), &one.value.unwrap_or_default());
        Ok(Conditions {
            namespaces: namespaces.map(Globs::new).transpose()?,
            kind,
            name: name.transpose()?,
            labels: labels.map_err(InvalidModifiers::Selector)?,
            matches: self.matches.into_iter().flatten().map(test).collect::<Result<_, _>>()?,
        })
    }
}

impl Conditions {
    /// True if a rule may match objects of a kind.
    pub(super) fn may_apply_to(&self, kind: &GroupResource) -> bool {
        self.kind.matches(&kind.to_string())
    }

    /// True if a rule matches an object, whose namespace is that in the backup. Cluster-scoped objects match any
    /// namespace.
    pub(super) fn match_object(&self, kind: &GroupResource, object: &Value) -> bool {
        let metadata = |field: &str| object.get("metadata").and_then(|found| found.get(field));
        let text = |field: &str| metadata(field).and_then(Value::as_str).unwrap_or_default();
        let namespace = text("namespace");
        let in_namespace = match &self.namespaces {
            Some(namespaces) => namespace.is_empty() || namespaces.matches(namespace),
            None => true,
        };
        in_namespace
            && self.kind.matches(&kind.to_string())
            && self.name.as_ref().is_none_or(|name| name.is_match(text("name")))
            && self.labels.as_ref().is_none_or(|labels| labels_match(labels, metadata("labels")))
            && self.matches.iter().all(|test| test.holds(object))
    }
}

fn labels_match(selector: &Selector, labels: Option<&Value>) -> bool {
    let labels = labels.and_then(Value::as_object).into_iter().flatten();
    let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    selector.matches(&labels.filter_map(text).collect())
}
