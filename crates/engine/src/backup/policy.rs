//! Resource policies: treatment of the data of volumes, and kinds to include.
//!
//! They are a YAML document in a ConfigMap, which several backups may share. It is parsed strictly: an unknown field,
//! or a rule that can never match, is an error and not silently ignored. The rules are those of Velero's
//! `internal/resourcepolicies`.

mod condition;
#[cfg(test)]
mod tests;
mod volume;

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use super::filter::{Lists, ScopedLists};
use crate::glob::{Glob, InvalidGlob};
pub use crate::quantity::InvalidQuantity;
use condition::Conditions;
pub use volume::{Csi, Nfs, VolumeFacts};

/// The only version of the document.
const VERSION: &str = "v1";

/// A parsed document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policies {
    rules: Vec<Rule>,
    kinds: Option<ScopedLists>,
    warnings: Vec<String>,
}

/// Treatment of the data of a volume.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    /// Method of saving the data.
    pub method: Method,
    /// Further parameters, for the plugin that carries it out.
    pub parameters: BTreeMap<String, serde_json::Value>,
}

/// Method of saving the data of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Not at all. The objects of the volume are still included.
    Skip,
    /// File system backup.
    FsBackup,
    /// Snapshot.
    Snapshot,
    /// By a plugin, with neither a file system backup nor a snapshot.
    Custom,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 4] = [Self::Skip, Self::FsBackup, Self::Snapshot, Self::Custom];

    /// Name in a document.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::FsBackup => "fs-backup",
            Self::Snapshot => "snapshot",
            Self::Custom => "custom",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Reason why a document is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidPolicies {
    /// The ConfigMap does not hold exactly one document.
    #[error("expected exactly one key in the data of the ConfigMap, found {0}")]
    Keys(usize),
    /// The document is not YAML, or does not match the schema of policies.
    #[error("cannot read the YAML: {0}")]
    Yaml(String),
    /// A capacity is not a range.
    #[error("wrong format of Capacity {0:?}: expected two quantities, as in 10Gi,100Gi")]
    Capacity(String),
    /// A bound of a capacity is not a quantity.
    #[error("wrong format of Capacity {capacity:?}: {source}")]
    Quantity {
        /// The whole range.
        capacity: String,
        /// The error in the bound.
        source: InvalidQuantity,
    },
    /// The version is not supported.
    #[error("incompatible version number {0} with supported version {VERSION}")]
    Version(String),
    /// The action is unknown.
    #[error("invalid action type {0}: expected skip, fs-backup, snapshot or custom")]
    Action(String),
    /// A range of capacities is empty.
    #[error("illegal values for capacity {0}: the first is above the second")]
    EmptyRange(String),
    /// Volume attributes are given without a driver.
    #[error("csi driver should not be empty when filtering by volume attributes")]
    NoDriver,
    /// `*` is in the lists of kinds.
    #[error("cannot use '*' in includes or excludes filters in the policy")]
    Everything,
    /// A kind is in both lists.
    #[error("excludes list cannot contain an item in the includes list: {0}")]
    Contradiction(String),
    /// A pattern of kinds is invalid.
    #[error(transparent)]
    Glob(#[from] InvalidGlob),
}

impl InvalidPolicies {
    /// True if the document could be parsed, and only its content is invalid.
    pub fn is_readable(&self) -> bool {
        match self {
            Self::Keys(_) | Self::Yaml(_) | Self::Capacity(_) | Self::Quantity { .. } => false,
            Self::Version(_)
            | Self::Action(_)
            | Self::EmptyRange(_)
            | Self::NoDriver
            | Self::Everything
            | Self::Contradiction(_)
            | Self::Glob(_) => true,
        }
    }
}

impl Policies {
    /// Parses the data of a ConfigMap.
    pub fn parse(data: &BTreeMap<String, String>) -> Result<Self, InvalidPolicies> {
        let mut texts = data.values();
        let (Some(text), None) = (texts.next(), texts.next()) else {
            return Err(InvalidPolicies::Keys(data.len()));
        };
        let document: Document = serde_saphyr::from_str(text)
            .map_err(|error| InvalidPolicies::Yaml(error.without_snippet().to_string()))?;
        document.check()
    }

    /// Treatment of the data of a volume: the action of the first policy that matches it.
    pub fn action_for(&self, volume: &VolumeFacts) -> Option<&Action> {
        self.rules.iter().find(|rule| rule.conditions.fit(volume)).map(|rule| &rule.action)
    }

    /// The kinds to include and to exclude, if the document has any.
    pub fn kinds(&self) -> Option<&ScopedLists> {
        self.kinds.as_ref()
    }

    /// Warnings: conditions that match nothing.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Rule {
    conditions: Conditions,
    action: Action,
}

/// The document as it is written.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    #[serde(default)]
    version: String,
    #[serde(default)]
    volume_policies: Option<Vec<VolumePolicy>>,
    #[serde(default)]
    include_exclude_policy: Option<IncludeExcludePolicy>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VolumePolicy {
    #[serde(default)]
    conditions: Option<condition::ConditionsDocument>,
    action: ActionDocument,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ActionDocument {
    #[serde(rename = "type")]
    method: String,
    #[serde(default)]
    parameters: Option<BTreeMap<String, serde_json::Value>>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct IncludeExcludePolicy {
    #[serde(rename = "includedClusterScopedResources")]
    included_cluster: Option<Vec<String>>,
    #[serde(rename = "excludedClusterScopedResources")]
    excluded_cluster: Option<Vec<String>>,
    #[serde(rename = "includedNamespaceScopedResources")]
    included_namespaced: Option<Vec<String>>,
    #[serde(rename = "excludedNamespaceScopedResources")]
    excluded_namespaced: Option<Vec<String>>,
}

impl Document {
    fn check(self) -> Result<Policies, InvalidPolicies> {
        let mut warnings = Vec::new();
        let mut rules = Vec::new();
        for policy in self.volume_policies.unwrap_or_default() {
            let conditions = policy.conditions.unwrap_or_default();
            rules.push((conditions.read(&mut warnings)?, policy.action));
        }
        if self.version != VERSION {
            return Err(InvalidPolicies::Version(self.version));
        }
        let check = |(conditions, action): (Conditions, ActionDocument)| {
            let action = action.check()?;
            conditions.check()?;
            Ok(Rule { conditions, action })
        };
        let rules = rules.into_iter().map(check).collect::<Result<_, InvalidPolicies>>()?;
        let kinds = self.include_exclude_policy.map(IncludeExcludePolicy::check).transpose()?;
        Ok(Policies { rules, kinds, warnings })
    }
}

impl ActionDocument {
    fn check(self) -> Result<Action, InvalidPolicies> {
        let method = Method::ALL.into_iter().find(|method| method.as_str() == self.method);
        Ok(Action {
            method: method.ok_or(InvalidPolicies::Action(self.method))?,
            parameters: self.parameters.unwrap_or_default(),
        })
    }
}

impl IncludeExcludePolicy {
    fn check(self) -> Result<ScopedLists, InvalidPolicies> {
        Ok(ScopedLists {
            cluster: lists(self.included_cluster, self.excluded_cluster)?,
            namespaced: lists(self.included_namespaced, self.excluded_namespaced)?,
        })
    }
}

fn lists(
    included: Option<Vec<String>>,
    excluded: Option<Vec<String>>,
) -> Result<Lists, InvalidPolicies> {
    let (included, excluded) = (included.unwrap_or_default(), excluded.unwrap_or_default());
    if included.iter().chain(&excluded).any(|name| name == "*") {
        return Err(InvalidPolicies::Everything);
    }
    if let Some(name) = excluded.iter().find(|name| included.contains(name)) {
        return Err(InvalidPolicies::Contradiction(name.clone()));
    }
    let globs = |names: &[String]| {
        names.iter().map(|name| Glob::new(name)).collect::<Result<_, InvalidGlob>>()
    };
    Ok(Lists { included: globs(&included)?, excluded: globs(&excluded)? })
}
