//! Deletion and restore of the application, and a comparison of objects and files with the originals.
//!
//! The restore is the command that a user would type. The comparison of objects is that of the engine, by which a
//! restore decides whether an existing object is equal to the one in the backup.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use bowline_api::{Restore, RestorePhase};
use bowline_engine::restore::difference;
use serde_json::Value;
use tokio::sync::mpsc;

use super::orders::{self, Hold};
use super::sample::{self, ObjectId, Objects};
use super::server::{NAME, Server};
use super::volume::{Files, JOURNAL};
use super::{DemoContext, run_command};
use crate::output::{self, Step, strip_control_chars};
use crate::{listing, wait};

/// Interval of checks that the server still runs.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Number of file differences printed.
const MAX_SHOWN_DIFFERENCES: usize = 20;

/// Comparison of an object with the original.
#[derive(Debug, PartialEq, Eq)]
enum ObjectComparison {
    Equal,
    Missing,
    /// The object exists, with other values in these fields.
    Differs(BTreeSet<String>),
}

/// Original application: its objects, and its files at the time of the backup.
pub(super) struct OriginalApplication {
    pub(super) objects: Objects,
    pub(super) files: Files,
    pub(super) hold: Hold,
}

/// Result of the comparison.
#[derive(Debug, Default)]
pub(super) struct RestoreComparison {
    pub(super) objects_equal: bool,
    pub(super) files_equal: bool,
}

/// Deletes the application, restores it, and compares its objects and files.
pub(super) async fn restore_and_compare(
    context: &DemoContext<'_>,
    server: &mut Server,
    original: &OriginalApplication,
) -> anyhow::Result<RestoreComparison> {
    let client = context.client;
    let step = Step::start("destroying the sample application");
    context.sample.destroy(client).await?;
    step.done();
    output::print_data(destroyed_text(original))?;

    run_command(context, &["restore", "create", NAME, "--from-backup", NAME]).await?;
    let restored = wait_for_end(context, server).await?;
    let status = restored.status.unwrap_or_default();
    if status.phase != Some(RestorePhase::Completed) {
        let status = serde_json::to_string(&status)?;
        output::print_error(&format!("the restore is not complete: {status}"));
        return Ok(RestoreComparison::default());
    }

    let step = Step::start("comparing objects and files with the originals");
    let pods_running = sample::wait_until_running(client).await;
    let after = context.sample.read(client).await?;
    let volume = sample::volume_path(client).await?;
    let files = super::read_files(&volume, None).await?;
    step.done();
    let comparisons = compare(&original.objects, &after);
    let items = status.progress.map_or(0, |progress| progress.items_restored);
    output::print_data(objects_text(items, &comparisons))?;
    let differences = original.files.differences(&files);
    output::print_data(files_text(&volume, original, &files, &differences))?;
    let objects_equal =
        comparisons.iter().all(|(_, comparison)| *comparison == ObjectComparison::Equal);
    if objects_equal {
        // Pods that do not run are reported only if the table does not show the cause.
        pods_running?;
    }
    Ok(RestoreComparison { objects_equal, files_equal: differences.is_empty() })
}

/// Waits for the end of the restore. Not with `--wait`, which handles Ctrl-C itself and would print that the restore
/// continues, while the whole demo ends.
async fn wait_for_end(context: &DemoContext<'_>, server: &mut Server) -> anyhow::Result<Restore> {
    let created: Restore = listing::get(&context.installation, NAME).await?;
    let (_, mut no_extra_lines) = mpsc::channel(1);
    // Boxed, since the future is large.
    let mut over =
        Box::pin(wait::until_ended(&context.installation, &created, &mut no_extra_lines));
    loop {
        tokio::select! {
            over = &mut over => return over,
            () = tokio::time::sleep(CHECK_INTERVAL) => server.check()?,
        }
    }
}

/// Comparison of each object.
fn compare<'a>(originals: &'a Objects, after: &Objects) -> Vec<(&'a ObjectId, ObjectComparison)> {
    originals.iter().map(|(id, original)| (id, compare_object(original, after.get(id)))).collect()
}

fn compare_object(original: &Value, restored: Option<&Value>) -> ObjectComparison {
    let Some(restored) = restored else { return ObjectComparison::Missing };
    let (original, restored) =
        (without_reassigned_fields(original), without_reassigned_fields(restored));
    // In both directions: one direction ignores fields that a cluster fills in, and both objects have been in one.
    let forward = difference::differs(&original, &restored);
    let backward = difference::differs(&restored, &original);
    let paths: BTreeSet<String> = [forward, backward].into_iter().flatten().flatten().collect();
    if paths.is_empty() { ObjectComparison::Equal } else { ObjectComparison::Differs(paths) }
}

/// Object without fields that are reassigned and that the engine's comparison takes for chosen: the addresses of a
/// service, the folder of a volume, and the uid of its claim.
fn without_reassigned_fields(object: &Value) -> Value {
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
            let reassigned =
                [("local", "path"), ("claimRef", "uid"), ("claimRef", "resourceVersion")];
            for (part, field) in reassigned {
                if let Some(part) = spec.get_mut(part).and_then(Value::as_object_mut) {
                    part.remove(field);
                }
            }
        }
        _ => {}
    }
    object
}

fn destroyed_text(original: &OriginalApplication) -> String {
    format!(
        "\nThe application is gone: none of its {} objects, pods included, and none of its {} files \
         is left.\n",
        original.objects.len(),
        original.files.count(),
    )
}

/// Result for the files.
fn files_text(
    volume: &Path,
    original: &OriginalApplication,
    after: &Files,
    differences: &[String],
) -> String {
    let conclusion = if differences.is_empty() {
        format!(
            "All {} files, directories and links are restored in {},\n\
             with their original checksums, modes, times and targets.\n",
            original.files.count(),
            volume.display(),
        )
    } else {
        let lines = differences
            .iter()
            .take(MAX_SHOWN_DIFFERENCES)
            .map(|line| format!("  {}\n", strip_control_chars(line)));
        format!(
            "{} files, directories or links in {}\ndiffer from the originals:\n{}",
            differences.len(),
            volume.display(),
            lines.collect::<String>(),
        )
    };
    let restored = after.bytes_of(JOURNAL).map_or(0, orders::order_count);
    format!(
        "\n{conclusion}The order log has {restored} orders; it had {} when the database was frozen.\n",
        original.hold.order_count(),
    )
}

/// Table with the result for each object.
fn objects_text(items: i64, comparisons: &[(&ObjectId, ObjectComparison)]) -> String {
    let total = comparisons.len();
    let rows = comparisons.iter().map(|(id, comparison)| {
        let text = match comparison {
            ObjectComparison::Equal => "equal".to_owned(),
            ObjectComparison::Missing => "missing".to_owned(),
            ObjectComparison::Differs(paths) => {
                let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
                format!("differs in {}", paths.join(", "))
            }
        };
        [&id.namespace, &id.kind, &id.name, &text].map(|cell| strip_control_chars(cell))
    });
    let table = output::table(["NAMESPACE", "KIND", "NAME", "RESTORED"], rows.collect());
    let conclusion = match comparisons
        .iter()
        .filter(|(_, comparison)| *comparison != ObjectComparison::Equal)
        .count()
    {
        0 => format!("All {total} objects are restored and equal to the originals"),
        bad => format!("{bad} of {total} objects differ from the originals"),
    };
    format!(
        "\nThe restore is complete, with {items} items. {conclusion}:\n\n{table}\n\
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
        objects.iter().map(|object| (ObjectId::from_object(object), object.clone())).collect()
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

    /// Comparison of an object that was changed in one place.
    fn compare_changed(original: &Value, pointer: &str, value: Value) -> ObjectComparison {
        let mut restored = original.clone();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        restored.pointer_mut(parent).unwrap()[field] = value;
        compare_object(original, Some(&restored))
    }

    fn differs_in(path: &str) -> ObjectComparison {
        ObjectComparison::Differs([path.to_owned()].into())
    }

    #[test]
    fn fields_changed_by_every_restore_are_no_difference() {
        for (pointer, value) in [
            ("/metadata/uid", json!("9")),
            ("/metadata/resourceVersion", json!("9")),
            ("/metadata/creationTimestamp", json!("2026-02-02T03:04:05Z")),
            ("/metadata/managedFields", json!([{"manager": "bowline"}])),
            ("/metadata/labels", json!({"team": "a", "velero.io/restore-name": "demo"})),
            ("/status", json!({"ready": true})),
        ] {
            assert_eq!(
                compare_changed(&config_map(), pointer, value),
                ObjectComparison::Equal,
                "{pointer}"
            );
        }
    }

    #[test]
    fn user_written_fields_must_be_restored() {
        for (pointer, value, path) in [
            ("/data/currency", json!("USD"), "data.currency"),
            ("/data/currency", Value::Null, "data.currency"),
            ("/data/more", json!(""), "data.more"),
            ("/data", Value::Null, "data"),
            ("/metadata/labels/team", json!("b"), "metadata.labels.team"),
            ("/metadata/labels", Value::Null, "metadata.labels.team"),
            ("/metadata/annotations", json!({"a": "b"}), "metadata.annotations.a"),
        ] {
            assert_eq!(
                compare_changed(&config_map(), pointer, value),
                differs_in(path),
                "{pointer}"
            );
        }
    }

    #[test]
    fn service_may_get_another_address_but_not_lose_or_gain_one() {
        let mut elsewhere = service();
        elsewhere["spec"]["clusterIP"] = json!("10.0.0.2");
        elsewhere["spec"]["clusterIPs"] = json!(["10.0.0.2"]);
        let mut headless = service();
        headless["spec"]["clusterIP"] = json!("None");
        headless["spec"]["clusterIPs"] = json!(["None"]);

        assert_eq!(compare_object(&service(), Some(&elsewhere)), ObjectComparison::Equal);
        assert_eq!(compare_object(&headless, Some(&headless)), ObjectComparison::Equal);
        let lost = ["spec.clusterIP", "spec.clusterIPs"].map(str::to_owned);
        assert_eq!(
            compare_object(&service(), Some(&headless)),
            ObjectComparison::Differs(lost.clone().into())
        );
        assert_eq!(
            compare_object(&headless, Some(&service())),
            ObjectComparison::Differs(lost.into())
        );
    }

    #[test]
    fn volume_may_have_another_path_and_claim_uid() {
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"},
            "spec": {
                "local": {"path": "/a", "fsType": "xfs"},
                "claimRef": {"name": "c", "namespace": "n", "uid": "1", "resourceVersion": "2"},
            },
        });
        for (pointer, value, expected) in [
            ("/spec/local/path", json!("/b"), ObjectComparison::Equal),
            ("/spec/claimRef/uid", json!("9"), ObjectComparison::Equal),
            ("/spec/claimRef/resourceVersion", json!("9"), ObjectComparison::Equal),
            ("/spec/local/fsType", json!("ext4"), differs_in("spec.local.fsType")),
            ("/spec/claimRef/name", json!("other"), differs_in("spec.claimRef.name")),
        ] {
            assert_eq!(compare_changed(&volume, pointer, value), expected, "{pointer}");
        }
    }

    #[test]
    fn changed_files_are_listed_with_control_characters_replaced() {
        let original = OriginalApplication {
            objects: Objects::new(),
            files: Files::default(),
            hold: Hold { bytes: 640, duration: Duration::from_millis(5) },
        };
        let text = |differences: &[String]| {
            files_text(Path::new("/v"), &original, &Files::default(), differences)
        };
        assert!(text(&[]).contains("with their original checksums, modes, times and targets.\n"));
        let many: Vec<String> =
            (0..50).map(|number| format!("{number}\u{1b} is missing")).collect();
        let shown = text(&many);
        assert!(shown.contains("50 files, directories or links in /v\ndiffer from the originals:"));
        assert_eq!(shown.matches("is missing").count(), MAX_SHOWN_DIFFERENCES);
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
        assert!(shown.contains("has 0 orders; it had 10 when"), "{shown}");
    }

    #[test]
    fn defaulted_fields_must_be_on_both_sides() {
        let (without, with) = (Value::Null, json!(31_000));
        let port = "/spec/ports/0/nodePort";
        assert_eq!(compare_changed(&service(), port, with), differs_in("spec.ports[0]"));
        assert_eq!(compare_changed(&service(), port, without), ObjectComparison::Equal);
    }

    #[test]
    fn each_original_object_is_compared_and_others_are_ignored() {
        let mut other = service();
        other["metadata"]["namespace"] = json!("elsewhere");
        let before = objects(&[config_map(), service()]);
        let after = objects(&[config_map(), other]);
        let comparisons: Vec<(&str, ObjectComparison)> = compare(&before, &after)
            .into_iter()
            .map(|(id, comparison)| (id.kind.as_str(), comparison))
            .collect();
        assert_eq!(
            comparisons,
            [("ConfigMap", ObjectComparison::Equal), ("Service", ObjectComparison::Missing)]
        );
    }

    #[test]
    fn success_is_shown_once_and_differences_with_their_fields() {
        let before = objects(&[config_map(), service()]);
        let shown = objects_text(28, &compare(&before, &before));
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
        let shown = objects_text(28, &compare(&before, &objects(&[changed])));
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
