//! What a cluster must have before anything is started.
//!
//! The server runs on Velero's own resource definitions as well as on ours. What they lack is said
//! once, at the start, and not found out later by a field that vanished.

use std::collections::BTreeMap;

use bowline_api::crds::{self, Plan};
use bowline_api::{VolumePluginBackup, VolumePluginRestore, annotation};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, CustomResourceExt as _, ResourceExt as _};

use crate::patch;
use crate::server::Error;

/// How many of the things that are missing are named.
const NAMED: usize = 5;

/// What a resource definition lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gap {
    /// It is not there, and nothing works without it.
    Needed(String),
    /// It is not there, and one feature is missing.
    Feature(String),
    /// It is there, and lacks these.
    Fields(String, Vec<String>),
}

/// What the installed definitions lack that ours have.
pub fn gaps(
    installed: &BTreeMap<String, CustomResourceDefinition>,
    ours: &[CustomResourceDefinition],
) -> Vec<Gap> {
    let own = [VolumePluginBackup::crd_name(), VolumePluginRestore::crd_name()];
    let gap = |ours: &CustomResourceDefinition| {
        let name = ours.name_any();
        let Some(installed) = installed.get(&name) else {
            let is_own = own.contains(&name.as_str());
            return Some(if is_own { Gap::Feature(name) } else { Gap::Needed(name) });
        };
        // Seen from the installed definition, what is newer in ours is what it lacks.
        let Plan::KeepNewer { unknown_to_us: mut lacks } = crds::plan(Some(ours), installed) else {
            return None;
        };
        lacks.retain(|lack| !lack.starts_with(annotation::CRD_VERSION));
        (!lacks.is_empty()).then_some(Gap::Fields(name, lacks))
    };
    ours.iter().filter_map(gap).collect()
}

/// Fails if the namespace is not there.
pub(crate) async fn namespace(client: &Client, name: &str) -> Result<(), Error> {
    let api: Api<Namespace> = Api::all(client.clone());
    match api.get_opt(name).await {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(Error::NoNamespace(name.to_owned())),
        Err(error) if patch::is_forbidden(&error) => {
            tracing::warn!("may not look at namespaces, so `{name}` is taken to exist");
            Ok(())
        }
        Err(error) => Err(Error::unreachable("look at the namespace", error)),
    }
}

/// Fails if a definition is missing without which nothing works, and says what else is missing.
pub(crate) async fn definitions(client: &Client) -> Result<(), Error> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let ours = crds::all();
    let mut installed = BTreeMap::new();
    for name in ours.iter().map(kube::ResourceExt::name_any) {
        match api.get_opt(&name).await {
            Ok(Some(crd)) => drop(installed.insert(name, crd)),
            Ok(None) => {}
            Err(error) if patch::is_forbidden(&error) => {
                tracing::warn!(
                    "may not look at resource definitions, so they are taken to be there"
                );
                return Ok(());
            }
            Err(error) => {
                return Err(Error::unreachable("look at the resource definitions", error));
            }
        }
    }
    let gaps = gaps(&installed, &ours);
    let needed = |gap: &Gap| match gap {
        Gap::Needed(name) => Some(name.clone()),
        Gap::Feature(_) | Gap::Fields(..) => None,
    };
    let missing: Vec<String> = gaps.iter().filter_map(needed).collect();
    if !missing.is_empty() {
        return Err(Error::NoDefinitions(some(&missing)));
    }
    for gap in gaps {
        match gap {
            Gap::Needed(_) => {}
            Gap::Feature(name) => tracing::warn!(
                definition = name,
                "not installed, so plugins cannot report there; `bowline install --crds-only` \
                 brings it"
            ),
            Gap::Fields(name, lacks) => tracing::warn!(
                definition = name,
                lacks = some(&lacks),
                "keeps less than ours; `bowline install --crds-only` brings the rest"
            ),
        }
    }
    Ok(())
}

/// The first few of many names, and how many more there are.
fn some(names: &[String]) -> String {
    let first = names[..names.len().min(NAMED)].join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installed(
        change: impl Fn(&mut CustomResourceDefinition),
    ) -> BTreeMap<String, CustomResourceDefinition> {
        let mut all = crds::all();
        all.iter_mut().for_each(change);
        all.into_iter().map(|crd| (crd.name_any(), crd)).collect()
    }

    #[test]
    fn our_own_definitions_lack_nothing() {
        assert_eq!(gaps(&installed(|_| {}), &crds::all()), []);
    }

    #[test]
    fn velero_definitions_lack_our_kinds_and_fields_and_can_be_used() {
        let mut velero = installed(|crd| {
            crd.metadata.annotations = None;
            if crd.name_any() == "backups.velero.io" {
                let schema = crd.spec.versions[0].schema.as_mut().unwrap();
                let root = schema.open_api_v3_schema.as_mut().unwrap();
                let status = root.properties.as_mut().unwrap().get_mut("status").unwrap();
                status.properties.as_mut().unwrap().remove("conditions").unwrap();
            }
        });
        velero.remove("volumepluginbackups.velero.io").unwrap();
        let found = gaps(&velero, &crds::all());
        let [Gap::Fields(name, lacks), Gap::Feature(kind)] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(name, "backups.velero.io");
        assert!(lacks.contains(&"v1:status.conditions".to_owned()), "{lacks:?}");
        assert!(lacks.iter().all(|lack| lack.starts_with("v1:status.conditions")), "{lacks:?}");
        assert_eq!(kind, "volumepluginbackups.velero.io");
    }

    #[test]
    fn without_a_kind_of_velero_nothing_works() {
        let mut few = installed(|_| {});
        few.remove("backups.velero.io").unwrap();
        assert_eq!(gaps(&few, &crds::all()), [Gap::Needed("backups.velero.io".to_owned())]);
    }

    #[test]
    fn of_many_names_only_some_are_said() {
        let names: Vec<String> = (1..=7).map(|number| number.to_string()).collect();
        assert_eq!(some(&names), "1, 2, 3, 4, 5 and 2 more");
        assert_eq!(some(&names[..5]), "1, 2, 3, 4, 5");
    }
}
