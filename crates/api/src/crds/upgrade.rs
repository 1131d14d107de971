//! Decides whether an installed definition is replaced. The caller replaces it.
//!
//! # Guarantee
//!
//! `install` never removes a field. If a definition is replaced by an older one, the API server
//! drops the fields of the newer one from every object that any client writes afterwards. So an
//! installed definition is kept if it is newer than ours, that is, if one of these holds:
//!
//! - it has a greater `bowline.io/crd-version` than ours;
//! - it serves a version that ours does not have;
//! - its schema accepts something that ours does not: another property, another value of a closed
//!   set such as a phase, or an object without a property that ours requires.
//!
//! The last two recognize the definition of a newer Velero, which has no version number.
//!
//! # Caveat
//!
//! A definition that is so old that Velero has since removed a field from it also looks newer. It
//! is kept and reported, which is the safe error.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionSpec, CustomResourceDefinitionVersion,
    CustomResourceSubresources, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::ResourceExt;
use semver::Version;

use crate::{annotation, label};

/// Action for one definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// The definition is not installed.
    Create,
    /// The installed definition lacks something of ours.
    Update,
    /// The installed definition equals ours.
    UpToDate,
    /// The installed definition is newer than ours.
    KeepNewer {
        /// Its additions to ours: `bowline.io/crd-version=1.2.3`, a version such as `v2`, a
        /// property such as `v1:spec.hooks.resources[].name`, a value such as
        /// `v1:status.phase=Paused` (`=*` for any), or that a property may be absent, such as
        /// `v1:spec.pod?`.
        unknown_to_us: Vec<String>,
    },
}

/// Compares an installed definition with ours; see the rules of the module.
pub fn plan(installed: Option<&CustomResourceDefinition>, ours: &CustomResourceDefinition) -> Plan {
    let Some(installed) = installed else {
        return Plan::Create;
    };
    let unknown_to_us = additions_over(installed, ours);
    if !unknown_to_us.is_empty() {
        return Plan::KeepNewer { unknown_to_us };
    }
    if normalized(&installed.spec) == normalized(&ours.spec)
        && has_version_and_label_of(installed, ours)
    {
        Plan::UpToDate
    } else {
        Plan::Update
    }
}

/// True if version and label are those of ours.
fn has_version_and_label_of(
    installed: &CustomResourceDefinition,
    ours: &CustomResourceDefinition,
) -> bool {
    crd_version(installed) == crd_version(ours)
        && installed.labels().get(label::COMPONENT) == ours.labels().get(label::COMPONENT)
}

/// Properties, values and versions that only the installed definition has.
fn additions_over(
    installed: &CustomResourceDefinition,
    ours: &CustomResourceDefinition,
) -> Vec<String> {
    let mut unknown = Vec::new();
    if let Some(version) = crd_version(installed).filter(|v| Some(v) > crd_version(ours).as_ref()) {
        unknown.push(format!("{}={version}", annotation::CRD_VERSION));
    }
    for version in &installed.spec.versions {
        match ours.spec.versions.iter().find(|known| known.name == version.name) {
            Some(known) => {
                let missing = accepted_paths(version)
                    .difference(&accepted_paths(known))
                    .cloned()
                    .collect::<Vec<_>>();
                unknown.extend(missing.iter().map(|path| format!("{}:{path}", version.name)));
            }
            None if version.served => unknown.push(version.name.clone()),
            None => {}
        }
    }
    without_implied(&unknown)
}

/// The version of Bowline that wrote a definition; none if it is missing or unreadable.
fn crd_version(crd: &CustomResourceDefinition) -> Option<Version> {
    crd.annotations().get(annotation::CRD_VERSION)?.parse().ok()
}

/// Everything that the schema of a version accepts: the paths of all properties, which of them may
/// be absent, and the values that each may have.
fn accepted_paths(version: &CustomResourceDefinitionVersion) -> BTreeSet<String> {
    let mut accepted = BTreeSet::new();
    let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
    if let Some(schema) = schema {
        add_accepted_paths(schema, "", &mut accepted);
    }
    accepted
}

fn add_accepted_paths(schema: &JSONSchemaProps, path: &str, accepted: &mut BTreeSet<String>) {
    for (name, property) in schema.properties.iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        if !schema.required.iter().flatten().any(|required| required == name) {
            accepted.insert(format!("{path}?"));
        }
        match &property.enum_ {
            Some(values) => {
                accepted.extend(values.iter().map(|value| match value.0.as_str() {
                    Some(text) => format!("{path}={text}"),
                    None => format!("{path}={}", value.0),
                }));
            }
            None => {
                accepted.insert(format!("{path}=*"));
            }
        }
        add_accepted_paths(property, &path, accepted);
        accepted.insert(path);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
        add_accepted_paths(items, &format!("{path}[]"), accepted);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
        add_accepted_paths(values, &format!("{path}{{}}"), accepted);
    }
}

/// Additions without those that follow from others: a new property implies its values.
fn without_implied(unknown: &[String]) -> Vec<String> {
    let is_new = |path: &str| unknown.iter().any(|other| other == path);
    let follows = |entry: &str| {
        entry.strip_suffix('?').is_some_and(is_new)
            || entry.split_once('=').is_some_and(|(path, _)| is_new(path))
    };
    unknown.iter().filter(|entry| !follows(entry)).cloned().collect()
}

/// A spec without fields that the API server fills in.
fn normalized(spec: &CustomResourceDefinitionSpec) -> CustomResourceDefinitionSpec {
    let mut spec = spec.clone();
    let names = &mut spec.names;
    names.list_kind.get_or_insert_with(|| format!("{}List", names.kind));
    names.singular.get_or_insert_with(|| names.kind.to_lowercase());
    names.short_names = names.short_names.take().filter(|names| !names.is_empty());
    names.categories = names.categories.take().filter(|categories| !categories.is_empty());
    spec.conversion = spec.conversion.filter(|conversion| conversion.strategy != "None");
    spec.preserve_unknown_fields = spec.preserve_unknown_fields.filter(|preserve| *preserve);
    for version in &mut spec.versions {
        version.deprecated = version.deprecated.filter(|deprecated| *deprecated);
        let nothing = CustomResourceSubresources::default();
        version.subresources = version.subresources.take().filter(|sub| *sub != nothing);
        for column in version.additional_printer_columns.iter_mut().flatten() {
            column.priority = column.priority.filter(|priority| *priority != 0);
        }
    }
    spec
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        CustomResourceConversion, CustomResourceDefinitionCondition,
        CustomResourceDefinitionStatus, JSON,
    };

    use super::*;
    use crate::crds;

    fn ours() -> CustomResourceDefinition {
        crds::all().remove(0)
    }

    fn installed(change: impl FnOnce(&mut CustomResourceDefinition)) -> CustomResourceDefinition {
        let mut crd = ours();
        change(&mut crd);
        crd
    }

    fn properties_of<'a>(
        crd: &'a mut CustomResourceDefinition,
        path: &[&str],
    ) -> &'a mut std::collections::BTreeMap<String, JSONSchemaProps> {
        let schema = crd.spec.versions[0].schema.as_mut().unwrap();
        let mut node = schema.open_api_v3_schema.as_mut().unwrap();
        for name in path {
            node = node.properties.as_mut().unwrap().get_mut(*name).unwrap();
            if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut node.items {
                node = items;
            }
        }
        node.properties.get_or_insert_default()
    }

    fn set_version(crd: &mut CustomResourceDefinition, version: &str) {
        crd.annotations_mut().insert(annotation::CRD_VERSION.into(), version.into());
    }

    fn keep_newer(unknown: &[&str]) -> Plan {
        Plan::KeepNewer { unknown_to_us: unknown.iter().map(|text| (*text).to_owned()).collect() }
    }

    #[test]
    fn missing_definition_is_created() {
        assert_eq!(plan(None, &ours()), Plan::Create);
    }

    #[test]
    fn own_definitions_are_up_to_date_despite_api_server_defaults() {
        for ours in crds::all() {
            let mut crd = ours.clone();
            crd.metadata.uid = Some("1-2-3".into());
            crd.metadata.generation = Some(7);
            crd.spec.conversion =
                Some(CustomResourceConversion { strategy: "None".into(), webhook: None });
            crd.spec.preserve_unknown_fields = Some(false);
            crd.spec.names.categories = Some(Vec::new());
            crd.spec.versions[0].subresources = Some(CustomResourceSubresources::default());
            crd.status = Some(CustomResourceDefinitionStatus {
                conditions: Some(vec![CustomResourceDefinitionCondition::default()]),
                ..CustomResourceDefinitionStatus::default()
            });
            assert_eq!(plan(Some(&crd), &ours), Plan::UpToDate);

            // The reverse: the API server fills in fields that ours leaves out.
            let mut sparse = ours.clone();
            sparse.spec.names.list_kind = None;
            sparse.spec.names.singular = None;
            assert_eq!(plan(Some(&ours), &sparse), Plan::UpToDate);
        }
    }

    #[test]
    fn older_definition_is_updated() {
        type Change = fn(&mut CustomResourceDefinition);
        let older: [(&str, Change); 7] = [
            ("an older version", |crd| set_version(crd, "0.0.9")),
            ("a pre-release", |crd| set_version(crd, concat!(env!("CARGO_PKG_VERSION"), "-rc.1"))),
            ("an unreadable version", |crd| set_version(crd, "yesterday")),
            ("Velero's, without our mark", |crd| crd.metadata.annotations = None),
            ("no label", |crd| crd.metadata.labels = None),
            ("a property less", |crd| {
                properties_of(crd, &["status"]).remove("conditions");
            }),
            ("no short names", |crd| crd.spec.names.short_names = None),
        ];
        for (what, change) in older {
            assert_eq!(plan(Some(&installed(change)), &ours()), Plan::Update, "{what}");
        }
    }

    #[test]
    fn newer_definition_is_kept_and_its_additions_are_named() {
        type Change = fn(&mut CustomResourceDefinition);
        let newer: [(&[&str], Change); 7] = [
            (&["bowline.io/crd-version=99.0.0"], |crd| set_version(crd, "99.0.0")),
            (&["v1:spec.foo", "v1:spec.foo.bar"], |crd| {
                let foo = JSONSchemaProps {
                    properties: Some([("bar".into(), JSONSchemaProps::default())].into()),
                    ..JSONSchemaProps::default()
                };
                properties_of(crd, &["spec"]).insert("foo".into(), foo);
            }),
            (&["v1:spec.hooks.resources[].sudo"], |crd| {
                let hook = properties_of(crd, &["spec", "hooks", "resources"]);
                hook.insert("sudo".into(), JSONSchemaProps::default());
            }),
            (&["v2"], |crd| {
                let mut version = crd.spec.versions[0].clone();
                version.name = "v2".into();
                crd.spec.versions.push(version);
            }),
            (&["v1:status.phase=Paused"], |crd| {
                let phase = properties_of(crd, &["status"]).get_mut("phase").unwrap();
                phase.enum_.as_mut().unwrap().push(JSON("Paused".into()));
            }),
            (&["v1:status.phase=*"], |crd| {
                properties_of(crd, &["status"]).get_mut("phase").unwrap().enum_ = None;
            }),
            // Newer in one way and older in another: not replaced.
            (&["v1:status.mood"], |crd| {
                set_version(crd, "0.0.1");
                properties_of(crd, &["status"]).remove("conditions");
                properties_of(crd, &["status"]).insert("mood".into(), JSONSchemaProps::default());
            }),
        ];
        for (unknown, change) in newer {
            assert_eq!(plan(Some(&installed(change)), &ours()), keep_newer(unknown));
        }
    }

    #[test]
    fn definition_that_requires_less_is_kept() {
        let looser = installed(|crd| {
            let schema = crd.spec.versions[0].schema.as_mut().unwrap();
            let root = schema.open_api_v3_schema.as_mut().unwrap();
            let spec = root.properties.as_mut().unwrap().get_mut("spec").unwrap();
            let hooks = spec.properties.as_mut().unwrap().get_mut("hooks").unwrap();
            let resources = hooks.properties.as_mut().unwrap().get_mut("resources").unwrap();
            let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut resources.items else {
                panic!("resources are a list");
            };
            items.required = None;
        });
        assert_eq!(plan(Some(&looser), &ours()), keep_newer(&["v1:spec.hooks.resources[].name?"]));
    }

    #[test]
    fn unserved_version_does_not_make_a_definition_newer() {
        let crd = installed(|crd| {
            let mut version = crd.spec.versions[0].clone();
            version.name = "v0".into();
            version.served = false;
            crd.spec.versions.push(version);
        });
        assert_eq!(plan(Some(&crd), &ours()), Plan::Update);
    }
}
