//! The act in which the application is destroyed and restored, and what came back is compared with
//! what there was.
//!
//! The restore is the command that a user would type. The comparison is the one of the engine, by
//! which a restore decides whether an object that is there already is the one in the backup.

use std::collections::BTreeSet;
use std::ffi::OsString;

use anyhow::bail;
use bowline_api::{DEFAULT_NAMESPACE, Restore, RestorePhase};
use bowline_engine::restore::difference;
use bowline_testbed::ControlPlane;
use kube::Client;
use serde_json::Value;

use super::super::{Command, restore};
use super::backup;
use super::sample::{self, Id, Objects};
use crate::args;
use crate::exit::Exit;
use crate::output::{self, Step, harmless};

/// What has become of an object.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Equal,
    Missing,
    /// It is there, with other values in these fields.
    Differs(BTreeSet<String>),
}

/// Destroys the application, restores it, and shows what has become of each object. Success only if
/// all of them are equal.
pub(super) async fn perform(
    plane: &ControlPlane,
    client: &Client,
    server: &backup::Server,
) -> anyhow::Result<Exit> {
    let before = sample::read(client).await?;

    let step = Step::start("destroying the sample application");
    sample::destroy(client).await?;
    step.done();
    output::data(gone(before.len()))?;

    let exit = create(plane).await?;
    if exit != Exit::Success {
        return Ok(exit);
    }
    let step = Step::start("waiting for the restore");
    let restored = server.until(client, "the restore is over", is_over).await?;
    step.done();
    let status = restored.status.unwrap_or_default();
    if status.phase != Some(RestorePhase::Completed) {
        let status = serde_json::to_string(&status)?;
        output::error(&format!("the restore is not complete: {status}"));
        return Ok(Exit::Failed);
    }

    let step = Step::start("comparing the objects with the originals");
    let runs = sample::until_it_runs(client).await;
    let after = sample::read(client).await?;
    step.done();
    let fates = compare(&before, &after);
    let items = status.progress.map_or(0, |progress| progress.items_restored);
    output::data(show(items, &fates))?;
    if fates.iter().any(|(_, fate)| *fate != Fate::Equal) {
        return Ok(Exit::Failed);
    }
    // Pods that do not run are told only if the table has not said what they lack.
    runs?;
    Ok(Exit::Success)
}

/// Asks for the restore, as a user would. It is waited for here and not with `--wait`, which listens
/// for Ctrl-C itself and would say that the restore goes on, while all of the demo ends.
async fn create(plane: &ControlPlane) -> anyhow::Result<Exit> {
    let words = ["bowline", "restore", "create", backup::NAME, "--from-backup", backup::NAME];
    output::say(format_args!("restoring it with `{}` …", words.join(" ")));
    // Whatever cluster and namespace are the user's own, it is this one that is meant.
    let ours = ["--namespace", DEFAULT_NAMESPACE, "--kubeconfig"];
    let mut words: Vec<OsString> = words.iter().chain(&ours).map(OsString::from).collect();
    words.push(plane.kubeconfig().into());
    let Ok(args::Args { command: Command::Restore(command) }) = args::parse(words) else {
        bail!("cannot ask for a restore");
    };
    // Boxed, since all that a restore needs goes through it.
    Box::pin(restore::run(command)).await
}

fn is_over(restore: &Restore) -> bool {
    let phase = restore.status.as_ref().and_then(|status| status.phase.as_ref());
    phase.is_some_and(RestorePhase::is_terminal)
}

/// What has become of each object.
fn compare<'a>(before: &'a Objects, after: &Objects) -> Vec<(&'a Id, Fate)> {
    before.iter().map(|(id, original)| (id, fate(original, after.get(id)))).collect()
}

fn fate(original: &Value, restored: Option<&Value>) -> Fate {
    let Some(restored) = restored else { return Fate::Missing };
    let (original, restored) = (lasting(original), lasting(restored));
    // Both ways: one way excuses fields that a cluster fills in, and both have lived in one.
    let there = difference::differs(&original, &restored);
    let back = difference::differs(&restored, &original);
    let paths: BTreeSet<String> = [there, back].into_iter().flatten().flatten().collect();
    if paths.is_empty() { Fate::Equal } else { Fate::Differs(paths) }
}

/// An object without what a cluster hands out anew and the engine's comparison takes for chosen: the
/// addresses of a service.
fn lasting(object: &Value) -> Value {
    let mut object = object.clone();
    if object["kind"] == "Service"
        && let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
        // To have no address is a choice.
        && spec.get("clusterIP").is_some_and(|address| address != "None")
    {
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
    object
}

fn gone(objects: usize) -> String {
    format!("\nThe application is gone. Of its {objects} objects, pods included, none is left.\n")
}

/// A table of what has become of each object.
fn show(items: i64, fates: &[(&Id, Fate)]) -> String {
    let total = fates.len();
    let rows = fates.iter().map(|(id, fate)| {
        let fate = match fate {
            Fate::Equal => "equal".to_owned(),
            Fate::Missing => "missing".to_owned(),
            Fate::Differs(paths) => {
                let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
                format!("differs in {}", paths.join(", "))
            }
        };
        [&id.namespace, &id.kind, &id.name, &fate].map(|cell| harmless(cell))
    });
    let table = output::table(["NAMESPACE", "KIND", "NAME", "RESTORED"], rows.collect());
    let verdict = match fates.iter().filter(|(_, fate)| *fate != Fate::Equal).count() {
        0 => format!("All {total} objects are back, and equal to the originals"),
        bad => format!("{bad} of {total} objects are not what they were"),
    };
    format!(
        "\nThe restore is complete, with {items} items. {verdict}:\n\n{table}\n\
         Not compared is what servers and controllers write by themselves, such as uids, times, status\n\
         and the addresses of services, and the labels that a restore puts on objects.\n"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn objects(objects: &[Value]) -> Objects {
        objects.iter().map(|object| (Id::of(object), object.clone())).collect()
    }

    fn config_map() -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": "c", "namespace": "n", "uid": "1", "resourceVersion": "2",
                "creationTimestamp": "2026-01-02T03:04:05Z", "labels": {"team": "a"},
                "managedFields": [{"manager": "m"}],
            },
            "data": {"currency": "EUR"},
        })
    }

    fn service() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "n"},
            "spec": {
                "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "type": "ClusterIP",
                "ports": [{"port": 80, "targetPort": 8080, "protocol": "TCP"}],
            },
        })
    }

    /// What has become of an object that was changed at one place.
    fn changed(original: &Value, pointer: &str, value: Value) -> Fate {
        let mut restored = original.clone();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        restored.pointer_mut(parent).unwrap()[field] = value;
        fate(original, Some(&restored))
    }

    fn differs_in(path: &str) -> Fate {
        Fate::Differs([path.to_owned()].into())
    }

    #[test]
    fn what_every_restore_changes_is_no_difference() {
        for (pointer, value) in [
            ("/metadata/uid", json!("9")),
            ("/metadata/resourceVersion", json!("9")),
            ("/metadata/creationTimestamp", json!("2026-02-02T03:04:05Z")),
            ("/metadata/managedFields", json!([{"manager": "bowline"}])),
            ("/metadata/labels", json!({"team": "a", "velero.io/restore-name": "demo"})),
            ("/status", json!({"ready": true})),
        ] {
            assert_eq!(changed(&config_map(), pointer, value), Fate::Equal, "{pointer}");
        }
    }

    #[test]
    fn what_somebody_wrote_must_be_there_again() {
        for (pointer, value, path) in [
            ("/data/currency", json!("USD"), "data.currency"),
            ("/data/currency", Value::Null, "data.currency"),
            ("/data/more", json!(""), "data.more"),
            ("/data", Value::Null, "data"),
            ("/metadata/labels/team", json!("b"), "metadata.labels.team"),
            ("/metadata/labels", Value::Null, "metadata.labels.team"),
            ("/metadata/annotations", json!({"a": "b"}), "metadata.annotations.a"),
        ] {
            assert_eq!(changed(&config_map(), pointer, value), differs_in(path), "{pointer}");
        }
    }

    #[test]
    fn a_service_may_get_another_address_but_neither_lose_nor_gain_one() {
        let mut elsewhere = service();
        elsewhere["spec"]["clusterIP"] = json!("10.0.0.2");
        elsewhere["spec"]["clusterIPs"] = json!(["10.0.0.2"]);
        let mut headless = service();
        headless["spec"]["clusterIP"] = json!("None");
        headless["spec"]["clusterIPs"] = json!(["None"]);

        assert_eq!(fate(&service(), Some(&elsewhere)), Fate::Equal);
        assert_eq!(fate(&headless, Some(&headless)), Fate::Equal);
        let lost = ["spec.clusterIP", "spec.clusterIPs"].map(str::to_owned);
        assert_eq!(fate(&service(), Some(&headless)), Fate::Differs(lost.clone().into()));
        assert_eq!(fate(&headless, Some(&service())), Fate::Differs(lost.into()));
    }

    #[test]
    fn what_a_cluster_fills_in_must_be_on_both_sides() {
        let (without, with) = (Value::Null, json!(31_000));
        let port = "/spec/ports/0/nodePort";
        assert_eq!(changed(&service(), port, with), differs_in("spec.ports[0]"));
        assert_eq!(changed(&service(), port, without), Fate::Equal);
    }

    #[test]
    fn each_object_of_before_has_a_fate_whatever_else_is_there_now() {
        let mut other = service();
        other["metadata"]["namespace"] = json!("elsewhere");
        let before = objects(&[config_map(), service()]);
        let after = objects(&[config_map(), other]);
        let fates: Vec<(&str, Fate)> = compare(&before, &after)
            .into_iter()
            .map(|(id, fate)| (id.kind.as_str(), fate))
            .collect();
        assert_eq!(fates, [("ConfigMap", Fate::Equal), ("Service", Fate::Missing)]);
    }

    #[test]
    fn success_is_shown_for_all_and_failure_with_its_place() {
        let before = objects(&[config_map(), service()]);
        let shown = show(28, &compare(&before, &before));
        assert_eq!(
            shown,
            "\nThe restore is complete, with 28 items. All 2 objects are back, and equal to the originals:\n\n\
             NAMESPACE   KIND        NAME   RESTORED\n\
             n           ConfigMap   c      equal\n\
             n           Service     s      equal\n\n\
             Not compared is what servers and controllers write by themselves, such as uids, times, status\n\
             and the addresses of services, and the labels that a restore puts on objects.\n"
        );
        let mut changed = config_map();
        changed["data"] = json!({"currency": "USD", "a\u{1b}": "b"});
        let shown = show(28, &compare(&before, &objects(&[changed])));
        for line in [
            " 2 of 2 objects are not what they were:\n",
            "\nn           Service     s      missing\n",
            "differs in data.currency, data[\"a",
        ] {
            assert!(shown.contains(line), "no {line:?} in {shown}");
        }
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
    }
}
