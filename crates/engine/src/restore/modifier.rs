//! Resource modifiers: user-defined changes to objects before they are restored.
//!
//! Modifiers are a YAML document in a ConfigMap: rules, each with conditions and with patches of one of three
//! types, as in Velero's `internal/resourcemodifiers`. All rules are matched against the object as it was before the
//! first one; their changes accumulate.
//!
//! Errors that can be detected before the restore begins are refused before it begins. Velero detects an invalid
//! pattern, an invalid patch or a rule without patches only at the first matching object.

mod condition;
mod json;
mod pattern;
mod schema;
mod strategic;
#[cfg(test)]
mod tests;
mod value;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::glob::InvalidGlob;
use crate::resource::GroupResource;
use crate::selector::InvalidSelector;
use condition::Conditions;
use json::Operation;
pub use json::PatchError;
pub use strategic::StrategicError;
pub use value::InvalidValue;

/// The only supported version of the document.
const VERSION: &str = "v1";

/// A compiled document.
#[derive(Clone, Debug)]
pub struct Modifiers {
    rules: Vec<Rule>,
}

/// Why a document is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidModifiers {
    /// The ConfigMap does not have exactly one key.
    #[error("expected exactly one key in the data of the ConfigMap, found {0}")]
    Keys(usize),
    /// The document is not YAML, or does not have the structure of modifiers; with the text of the parser, which
    /// quotes its causes.
    #[error("failed to decode yaml data into resource modifiers, err: {0}")]
    Yaml(String),
    /// The version is not supported.
    #[error("unsupported resource modifier version {0}")]
    Version(String),
    /// The document has no rules.
    #[error("resource modifier rules cannot be empty")]
    NoRules,
    /// A rule has no group and resource.
    #[error("groupResource cannot be empty")]
    NoGroupResource,
    /// A rule has patches of several types.
    #[error("only one of patches, mergePatches, strategicPatches can be specified")]
    MixedPatchTypes,
    /// A rule has no patches.
    #[error("no patch data found for {0}: expected patches, mergePatches or strategicPatches")]
    NoPatches(String),
    /// A patch has no operation.
    #[error("operation cannot be empty")]
    NoOperation,
    /// A patch has an unknown operation.
    #[error("unsupported operation {0}")]
    Operation(String),
    /// A patch or a condition has no path.
    #[error("path cannot be empty")]
    NoPath,
    /// A path is invalid.
    #[error("{0:?} is not a JSON pointer such as /metadata/labels/app")]
    Path(String),
    /// The value of a patch or condition looks like JSON but is invalid.
    #[error("the value for {path} is not valid JSON")]
    Value {
        /// Path of the patch or condition.
        path: String,
        /// The parse error.
        source: InvalidValue,
    },
    /// A merge patch cannot be parsed.
    #[error("the patchData of a rule for {resource} cannot be read")]
    PatchData {
        /// Resource of the rule.
        resource: String,
        /// Defect of the patch.
        source: InvalidPatchData,
    },
    /// A pattern of kinds or namespaces is invalid.
    #[error(transparent)]
    Glob(#[from] InvalidGlob),
    /// A pattern of names is invalid.
    #[error("invalid resourceNameRegex {pattern:?}")]
    Regex {
        /// The pattern.
        pattern: String,
        /// The parse error.
        source: regex::Error,
    },
    /// A label selector is invalid.
    #[error("error in creating label selector {0}")]
    Selector(InvalidSelector),
}

/// Why the text of a merge patch is none.
#[derive(Debug, thiserror::Error)]
pub enum InvalidPatchData {
    /// Neither YAML nor JSON; with the text of the parser, which quotes its causes.
    #[error("{0}")]
    Yaml(String),
    /// Not an object.
    #[error("expected the fields of an object")]
    NotAnObject,
}

impl InvalidModifiers {
    /// True if the document could be decoded, and only its content is invalid.
    pub fn is_decoded(&self) -> bool {
        !matches!(self, Self::Keys(_) | Self::Yaml(_))
    }
}

/// Why a matching rule did not change an object.
#[derive(Debug, thiserror::Error)]
pub enum ModifyError {
    /// A JSON patch does not apply.
    #[error("error in applying JSON Patch: {0}")]
    Json(#[from] PatchError),
    /// A strategic merge patch does not apply.
    #[error("error in applying Strategic Patch: {0}")]
    Strategic(#[from] StrategicError),
    /// The result would not be a valid Kubernetes object.
    #[error("the patch leaves the object without {0}")]
    Broken(&'static str),
}

impl Modifiers {
    /// Parses the data of a ConfigMap.
    pub fn parse(data: &BTreeMap<String, String>) -> Result<Self, InvalidModifiers> {
        let mut texts = data.values();
        let (Some(text), None) = (texts.next(), texts.next()) else {
            return Err(InvalidModifiers::Keys(data.len()));
        };
        let document: Document = serde_saphyr::from_str(text)
            .map_err(|error| InvalidModifiers::Yaml(error.to_string()))?;
        document.compile()
    }

    /// True if a rule may match objects of a kind.
    pub fn may_apply_to(&self, kind: &GroupResource) -> bool {
        self.rules.iter().any(|rule| rule.conditions.may_apply_to(kind))
    }

    /// Applies all matching rules to an object, in order. A rule that fails changes nothing, and the others are
    /// still applied.
    pub fn apply(&self, kind: &GroupResource, object: &mut Value) -> Vec<ModifyError> {
        let before = object.clone();
        let matching = self.rules.iter().filter(|rule| rule.conditions.match_object(kind, &before));
        let errors = matching.map(|rule| rule.patches.apply(object)).filter_map(Result::err);
        errors.collect()
    }
}

#[derive(Clone, Debug)]
struct Rule {
    conditions: Conditions,
    patches: Patches,
}

/// The patches of a rule, all of one type.
#[derive(Clone, Debug)]
enum Patches {
    Json(Vec<Operation>),
    Merge(Vec<Value>),
    Strategic(Vec<Map<String, Value>>),
}

impl Patches {
    fn apply(&self, object: &mut Value) -> Result<(), ModifyError> {
        let mut changed = object.clone();
        match self {
            Self::Json(operations) => json::apply(operations, &mut changed)?,
            Self::Merge(patches) => {
                for patch in patches {
                    json_patch::merge(&mut changed, patch);
                }
            }
            Self::Strategic(patches) => {
                for patch in patches {
                    strategic::apply(patch, &mut changed)?;
                }
            }
        }
        check(&changed)?;
        *object = changed;
        Ok(())
    }
}

/// Checks that a value is still a Kubernetes object.
fn check(object: &Value) -> Result<(), ModifyError> {
    for (pointer, name) in [
        ("/apiVersion", "an `apiVersion`"),
        ("/kind", "a `kind`"),
        ("/metadata/name", "a `metadata.name`"),
    ] {
        let text = object.pointer(pointer).and_then(Value::as_str);
        if text.unwrap_or_default().is_empty() {
            return Err(ModifyError::Broken(name));
        }
    }
    Ok(())
}

/// The document as users write it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    resource_modifier_rules: Option<Vec<RuleDocument>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RuleDocument {
    #[serde(default)]
    conditions: condition::ConditionsDocument,
    #[serde(default)]
    patches: Option<Vec<json::PatchDocument>>,
    #[serde(default)]
    merge_patches: Option<Vec<PatchData>>,
    #[serde(default)]
    strategic_patches: Option<Vec<PatchData>>,
}

/// A patch as YAML or JSON within the YAML.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PatchData {
    #[serde(default)]
    patch_data: Option<String>,
}

impl Document {
    fn compile(self) -> Result<Modifiers, InvalidModifiers> {
        let version = self.version.unwrap_or_default();
        if !version.eq_ignore_ascii_case(VERSION) {
            return Err(InvalidModifiers::Version(version));
        }
        let rules = self.resource_modifier_rules.unwrap_or_default();
        if rules.is_empty() {
            return Err(InvalidModifiers::NoRules);
        }
        let rules = rules.into_iter().map(RuleDocument::compile).collect::<Result<_, _>>()?;
        Ok(Modifiers { rules })
    }
}

impl RuleDocument {
    fn compile(self) -> Result<Rule, InvalidModifiers> {
        let resource = self.conditions.group_resource().to_owned();
        let conditions = self.conditions.compile()?;
        let json = self.patches.unwrap_or_default();
        let merge = self.merge_patches.unwrap_or_default();
        let strategic = self.strategic_patches.unwrap_or_default();
        let read = |patches: Vec<PatchData>| -> Result<Vec<_>, _> {
            patches.into_iter().map(|patch| patch.read(&resource)).collect()
        };
        let patches = match (json.is_empty(), merge.is_empty(), strategic.is_empty()) {
            (false, true, true) => {
                let operations = json.into_iter().map(json::PatchDocument::compile);
                Patches::Json(operations.collect::<Result<_, _>>()?)
            }
            (true, false, true) => {
                Patches::Merge(read(merge)?.into_iter().map(Value::Object).collect())
            }
            (true, true, false) => Patches::Strategic(read(strategic)?),
            (true, true, true) => return Err(InvalidModifiers::NoPatches(resource)),
            _ => return Err(InvalidModifiers::MixedPatchTypes),
        };
        Ok(Rule { conditions, patches })
    }
}

impl PatchData {
    fn read(self, resource: &str) -> Result<Map<String, Value>, InvalidModifiers> {
        let text = self.patch_data.unwrap_or_default();
        let source = match serde_saphyr::from_str(&text) {
            Ok(Value::Object(patch)) => return Ok(patch),
            Ok(_) => InvalidPatchData::NotAnObject,
            Err(error) => InvalidPatchData::Yaml(error.to_string()),
        };
        Err(InvalidModifiers::PatchData { resource: resource.to_owned(), source })
    }
}
