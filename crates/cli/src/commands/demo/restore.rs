//! The act in which the application is destroyed and restored, and what came back is compared with
//! what there was: objects and files.
//!
//! The restore is the command that a user would type. The comparison of objects is the one of the
//! engine, by which a restore decides whether an object that is there already is the one in the backup.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use bowline_api::{Restore, RestorePhase};
use bowline_engine::restore::difference;
use serde_json::Value;
use tokio::sync::mpsc;

use super::orders::{self, Hold};
use super::sample::{self, Id, Objects};
use super::server::{NAME, Server};
use super::volume::{Files, JOURNAL};
use super::{Director, ask};
use crate::output::{self, Step, harmless};
use crate::{listing, wait};

/// How often it is looked whether the server still runs.
const PAUSE: Duration = Duration::from_millis(500);
/// How many differences of files are told.
const TOLD: usize = 20;

/// What has become of an object.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Equal,
    Missing,
    /// It is there, with other values in these fields.
    Differs(BTreeSet<String>),
}

/// What the application was: its objects, and its files at the time of the backup.
pub(super) struct Before {
    pub(super) objects: Objects,
    pub(super) files: Files,
    pub(super) hold: Hold,
}

/// Whether what came back is what there was.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) objects_equal: bool,
    pub(super) files_equal: bool,
}

/// Destroys the application, restores it, and shows what has become of its objects and files.
pub(super) async fn perform(
    director: &Director<'_>,
    server: &mut Server,
    before: &Before,
) -> anyhow::Result<Verdict> {
    let client = director.client;
    let step = Step::start("destroying the sample application");
    director.sample.destroy(client).await?;
    step.done();
    output::data(gone(before))?;

    ask(director, &["restore", "create", NAME, "--from-backup", NAME]).await?;
    let restored = until_over(director, server).await?;
    let status = restored.status.unwrap_or_default();
    if status.phase != Some(RestorePhase::Completed) {
        let status = serde_json::to_string(&status)?;
        output::error(&format!("the restore is not complete: {status}"));
        return Ok(Verdict::default());
    }

    let step = Step::start("comparing objects and files with the originals");
    let runs = sample::until_it_runs(client).await;
    let after = director.sample.read(client).await?;
    let volume = sample::where_volume_is(client).await?;
    let files = super::look_at(&volume, None).await?;
    step.done();
    let fates = compare(&before.objects, &after);
    let items = status.progress.map_or(0, |progress| progress.items_restored);
    output::data(show(items, &fates))?;
    let differences = before.files.differences(&files);
    output::data(show_files(&volume, before, &files, &differences))?;
    let objects_equal = fates.iter().all(|(_, fate)| *fate == Fate::Equal);
    if objects_equal {
        // Pods that do not run are told only if the table has not said what they lack.
        runs?;
    }
    Ok(Verdict { objects_equal, files_equal: differences.is_empty() })
}

/// Waits for the end of the restore. Not with `--wait`, which listens for Ctrl-C itself and would say
/// that the restore goes on, while all of the demo ends.
async fn until_over(director: &Director<'_>, server: &mut Server) -> anyhow::Result<Restore> {
    let created: Restore = listing::get(&director.installation, NAME).await?;
    let (_, mut no_asides) = mpsc::channel(1);
    // Boxed, since what it asks for is large.
    let mut over = Box::pin(wait::until_over(&director.installation, &created, &mut no_asides));
    loop {
        tokio::select! {
            over = &mut over => return over,
            () = tokio::time::sleep(PAUSE) => server.check()?,
        }
    }
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

/// An object without what is handed out anew and the engine's comparison takes for chosen: the
/// addresses of a service, the folder of a volume, and the uid of its claim.
fn lasting(object: &Value) -> Value {
    let mut object = object.clone();
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return object };
    match kind.as_str() {
        // To have no address is a choice.
        "Service" if spec.get("clusterIP").is_some_and(|address| address != "None") => {
            spec.remove("clusterIP");
            spec.remove("clusterIPs");
        }
        "PersistentVolume" => {
            let anew = [("local", "path"), ("claimRef", "uid"), ("claimRef", "resourceVersion")];
            for (part, field) in anew {
                if let Some(part) = spec.get_mut(part).and_then(Value::as_object_mut) {
                    part.remove(field);
                }
            }
        }
        _ => {}
    }
    object
}

fn gone(before: &Before) -> String {
    format!(
        "\nThe application is gone: none of its {} objects, pods included, and none of its {} files \
         is left.\n",
        before.objects.len(),
        before.files.count(),
    )
}

/// What has become of the files.
fn show_files(volume: &Path, before: &Before, after: &Files, differences: &[String]) -> String {
    let verdict = if differences.is_empty() {
        format!(
            "All {} files, directories and links are restored in {},\n\
             with their original checksums, modes, times and targets.\n",
            before.files.count(),
            volume.display(),
        )
    } else {
        let told = differences.iter().take(TOLD).map(|line| format!("  {}\n", harmless(line)));
        format!(
            "{} files, directories or links in {}\ndiffer from the originals:\n{}",
            differences.len(),
            volume.display(),
            told.collect::<String>(),
        )
    };
    let restored = after.bytes_of(JOURNAL).map_or(0, orders::orders);
    format!(
        "\n{verdict}The journal has {restored} orders; it had {} when the database was frozen.\n",
        before.hold.orders(),
    )
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
        0 => format!("All {total} objects are restored and equal to the originals"),
        bad => format!("{bad} of {total} objects differ from the originals"),
    };
    format!(
        "\nThe restore is complete, with {items} items. {verdict}:\n\n{table}\n\
         Fields that servers and controllers set, such as uids, times, status and the addresses of services,\n\
         are not compared; neither are the directory of the volume, which is a new one, and the labels that\n\
         a restore adds to objects.\n"
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
    fn a_volume_may_be_another_folder_and_of_another_claim_of_that_name() {
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"},
            "spec": {
                "local": {"path": "/a", "fsType": "xfs"},
                "claimRef": {"name": "c", "namespace": "n", "uid": "1", "resourceVersion": "2"},
            },
        });
        for (pointer, value, expected) in [
            ("/spec/local/path", json!("/b"), Fate::Equal),
            ("/spec/claimRef/uid", json!("9"), Fate::Equal),
            ("/spec/claimRef/resourceVersion", json!("9"), Fate::Equal),
            ("/spec/local/fsType", json!("ext4"), differs_in("spec.local.fsType")),
            ("/spec/claimRef/name", json!("other"), differs_in("spec.claimRef.name")),
        ] {
            assert_eq!(changed(&volume, pointer, value), expected, "{pointer}");
        }
    }

    #[test]
    fn files_that_are_not_what_they_were_are_told_without_steering_the_terminal() {
        let before = Before {
            objects: Objects::new(),
            files: Files::default(),
            hold: Hold { bytes: 640, lasted: Duration::from_millis(5) },
        };
        let told = |differences: &[String]| {
            show_files(Path::new("/v"), &before, &Files::default(), differences)
        };
        assert!(told(&[]).contains("with their original checksums, modes, times and targets.\n"));
        let many: Vec<String> =
            (0..50).map(|number| format!("{number}\u{1b} is missing")).collect();
        let shown = told(&many);
        assert!(shown.contains("50 files, directories or links in /v\ndiffer from the originals:"));
        assert_eq!(shown.matches("is missing").count(), TOLD);
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
        assert!(shown.contains("has 0 orders; it had 10 when"), "{shown}");
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
            "\nThe restore is complete, with 28 items. All 2 objects are restored and equal to the originals:\n\n\
             NAMESPACE   KIND        NAME   RESTORED\n\
             n           ConfigMap   c      equal\n\
             n           Service     s      equal\n\n\
             Fields that servers and controllers set, such as uids, times, status and the addresses of services,\n\
             are not compared; neither are the directory of the volume, which is a new one, and the labels that\n\
             a restore adds to objects.\n"
        );
        let mut changed = config_map();
        changed["data"] = json!({"currency": "USD", "a\u{1b}": "b"});
        let shown = show(28, &compare(&before, &objects(&[changed])));
        for line in [
            " 2 of 2 objects differ from the originals:\n",
            "\nn           Service     s      missing\n",
            "differs in data.currency, data[\"a",
        ] {
            assert!(shown.contains(line), "no {line:?} in {shown}");
        }
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
    }
}
