//! Requirements on the cluster, checked before anything starts.
//!
//! The server runs on Velero's own CustomResourceDefinitions as well as on ours. Their gaps are
//! logged once, at the start, rather than discovered later by a field that vanished.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline_api::crds::{self, Plan};
use bowline_api::{VolumePluginBackup, VolumePluginRestore, annotation};
use k8s_openapi::api::core::v1::{Container, Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, Client, CustomResourceExt as _, ResourceExt as _};

use crate::list::list_all;
use crate::patch;
use crate::server::Error;

/// Number of missing things to name.
const MAX_NAMES: usize = 5;

/// Number of checks for a terminating Velero pod, and the pause between them.
const MAX_VELERO_EXIT_CHECKS: u32 = 60;
const VELERO_EXIT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Gap in the installed CustomResourceDefinitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CrdGap {
    /// Missing definition without which nothing works.
    RequiredCrd(String),
    /// Missing definition that disables one feature.
    OptionalCrd(String),
    /// Definition that lacks these fields.
    MissingFields(String, Vec<String>),
}

/// Gaps of the installed definitions compared with ours.
pub fn crd_gaps(
    installed: &BTreeMap<String, CustomResourceDefinition>,
    ours: &[CustomResourceDefinition],
) -> Vec<CrdGap> {
    let own = [VolumePluginBackup::crd_name(), VolumePluginRestore::crd_name()];
    let gap = |ours: &CustomResourceDefinition| {
        let name = ours.name_any();
        let Some(installed) = installed.get(&name) else {
            let is_own = own.contains(&name.as_str());
            return Some(if is_own {
                CrdGap::OptionalCrd(name)
            } else {
                CrdGap::RequiredCrd(name)
            });
        };
        // Seen from the installed definition, the newer parts of ours are its gaps.
        let Plan::KeepNewer { unknown_to_us: mut lacks } = crds::plan(Some(ours), installed) else {
            return None;
        };
        lacks.retain(|lack| !lack.starts_with(annotation::CRD_VERSION));
        (!lacks.is_empty()).then_some(CrdGap::MissingFields(name, lacks))
    };
    ours.iter().filter_map(gap).collect()
}

/// Fails if the namespace does not exist.
pub(crate) async fn check_namespace(client: &Client, name: &str) -> Result<(), Error> {
    let api: Api<Namespace> = Api::all(client.clone());
    match api.get_opt(name).await {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(Error::NoNamespace(name.to_owned())),
        Err(error) if patch::is_forbidden(&error) => {
            tracing::warn!(
                "no permission to read namespaces; assuming that namespace `{name}` exists"
            );
            Ok(())
        }
        Err(error) => Err(Error::cluster_error("read the namespace", error)),
    }
}

/// Fails if a required definition is missing, and logs all other gaps.
pub(crate) async fn check_crds(client: &Client) -> Result<(), Error> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let ours = crds::all();
    let mut installed = BTreeMap::new();
    for name in ours.iter().map(kube::ResourceExt::name_any) {
        match api.get_opt(&name).await {
            Ok(Some(crd)) => drop(installed.insert(name, crd)),
            Ok(None) => {}
            Err(error) if patch::is_forbidden(&error) => {
                tracing::warn!(
                    "no permission to read CustomResourceDefinitions; assuming that they are \
                     installed"
                );
                return Ok(());
            }
            Err(error) => {
                return Err(Error::cluster_error("read the CustomResourceDefinitions", error));
            }
        }
    }
    let gaps = crd_gaps(&installed, &ours);
    let needed = |gap: &CrdGap| match gap {
        CrdGap::RequiredCrd(name) => Some(name.clone()),
        CrdGap::OptionalCrd(_) | CrdGap::MissingFields(..) => None,
    };
    let missing: Vec<String> = gaps.iter().filter_map(needed).collect();
    if !missing.is_empty() {
        return Err(Error::NoDefinitions(first_names(&missing)));
    }
    for gap in gaps {
        match gap {
            CrdGap::RequiredCrd(_) => {}
            CrdGap::OptionalCrd(name) => tracing::warn!(
                definition = name,
                "a CustomResourceDefinition is not installed, so progress of volumes is not shown; \
                 install it with `bowline install --crds-only`"
            ),
            CrdGap::MissingFields(name, lacks) => tracing::warn!(
                definition = name,
                lacks = first_names(&lacks),
                "a CustomResourceDefinition lacks fields; update it with `bowline install \
                 --crds-only`"
            ),
        }
    }
    Ok(())
}

/// Fails if `velero server` runs in a pod of the namespace. Waits for a terminating one.
pub(crate) async fn check_no_velero_server(client: &Client, namespace: &str) -> Result<(), Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    for attempt in 0..=MAX_VELERO_EXIT_CHECKS {
        let pods = match list_all(&api, ListParams::default()).await {
            Ok(pods) => pods,
            Err(error) if patch::is_forbidden(&error) => {
                tracing::warn!("no permission to list pods; assuming that Velero does not run");
                return Ok(());
            }
            Err(error) => return Err(Error::cluster_error("list the pods", error)),
        };
        let mut running = pods.iter().filter(|pod| runs_velero(pod));
        let Some(pod) = running.next() else { return Ok(()) };
        let is_leaving = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        if !is_leaving(pod)
            || running.any(|pod| !is_leaving(pod))
            || attempt == MAX_VELERO_EXIT_CHECKS
        {
            let (namespace, pod) = (namespace.to_owned(), pod.name_any());
            return Err(Error::VeleroRuns { namespace, pod });
        }
        tracing::info!(pod = pod.name_any(), "waiting for the Velero server to terminate");
        tokio::time::sleep(VELERO_EXIT_CHECK_INTERVAL).await;
    }
    Ok(())
}

/// True if a pod runs Velero's server, or is about to. Velero's node agent and jobs are no servers.
fn runs_velero(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_over = matches!(phase, Some("Succeeded" | "Failed"));
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    !is_over && containers.into_iter().any(is_velero_server)
}

/// True if a container runs `velero server`, judged by its command or, without one, by its image.
pub fn is_velero_server(container: &Container) -> bool {
    let empty = Vec::new();
    let command = container.command.as_ref().unwrap_or(&empty);
    let mut words =
        command.iter().chain(container.args.as_ref().unwrap_or(&empty)).map(String::as_str);
    let image = container.image.as_deref().unwrap_or_default();
    let image = image.split('@').next().unwrap_or_default();
    let image = image.rsplit('/').next().unwrap_or_default();
    let image = image.split(':').next().unwrap_or_default();
    let program = if command.is_empty() { Some(image) } else { words.next() };
    let program = program.and_then(|program| program.rsplit('/').next());
    program == Some("velero") && words.next() == Some("server")
}

/// First few of many names, and the number of the others.
fn first_names(names: &[String]) -> String {
    let first = names[..names.len().min(MAX_NAMES)].join(", ");
    match names.len().saturating_sub(MAX_NAMES) {
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
    fn own_crds_have_no_gaps() {
        assert_eq!(crd_gaps(&installed(|_| {}), &crds::all()), []);
    }

    #[test]
    fn velero_crds_lack_optional_kinds_and_fields_only() {
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
        let found = crd_gaps(&velero, &crds::all());
        let [CrdGap::MissingFields(name, lacks), CrdGap::OptionalCrd(kind)] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(name, "backups.velero.io");
        assert!(lacks.contains(&"v1:status.conditions".to_owned()), "{lacks:?}");
        assert!(lacks.iter().all(|lack| lack.starts_with("v1:status.conditions")), "{lacks:?}");
        assert_eq!(kind, "volumepluginbackups.velero.io");
    }

    #[test]
    fn missing_velero_crd_is_required() {
        let mut few = installed(|_| {});
        few.remove("backups.velero.io").unwrap();
        assert_eq!(
            crd_gaps(&few, &crds::all()),
            [CrdGap::RequiredCrd("backups.velero.io".to_owned())]
        );
    }

    #[test]
    fn velero_server_is_recognized_by_command_or_image() {
        let pod = |container: serde_json::Value, phase: &str| -> Pod {
            let mut container = container;
            container["name"] = "c".into();
            serde_json::from_value(serde_json::json!({
                "metadata": {"name": "p"},
                "spec": {"containers": [{"name": "sidecar", "image": "x"}, container]},
                "status": {"phase": phase},
            }))
            .unwrap()
        };
        let container = |command: &[&str], args: &[&str], image: &str| {
            let mut container = serde_json::json!({"args": args, "image": image});
            if !command.is_empty() {
                container["command"] = command.into();
            }
            container
        };
        for (command, args, image, expected) in [
            (
                &["/velero"][..],
                &["server", "--uploader-type=kopia"][..],
                "velero/velero:v1.18.3",
                true,
            ),
            (&["/velero", "server"], &[], "mirror.example/anything", true),
            (&[], &["server"], "velero/velero", true),
            (&[], &["server"], "registry.example:5000/x/velero:v1@sha256:00", true),
            (&["/velero"], &["node-agent", "server"], "velero/velero:v1", false),
            (&["/velero"], &["repo-maintenance"], "velero/velero:v1", false),
            (&["/bowline"], &["server"], "velero/velero:v1", false),
            (&[], &["server"], "example/bowline:v1", false),
            (&[], &["server"], "velero/velero-plugin-for-aws:v1", false),
            (&[], &[], "velero/velero:v1", false),
        ] {
            let container = container(command, args, image);
            assert_eq!(runs_velero(&pod(container.clone(), "Running")), expected, "{container}");
            assert_eq!(runs_velero(&pod(container.clone(), "Pending")), expected, "{container}");
            assert!(!runs_velero(&pod(container, "Succeeded")));
        }
        assert!(!runs_velero(&Pod::default()));
    }

    #[test]
    fn long_name_list_is_shortened() {
        let names: Vec<String> = (1..=7).map(|number| number.to_string()).collect();
        assert_eq!(first_names(&names), "1, 2, 3, 4, 5 and 2 more");
        assert_eq!(first_names(&names[..5]), "1, 2, 3, 4, 5");
    }
}
