//! Evidence about a run, read when it should have ended and when its server is dead.

pub(crate) mod csi;
pub(crate) mod resources;
pub(crate) mod volumes;

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::Path;

use anyhow::Context as _;
use bowline_api::{Backup, Restore};
use flate2::read::MultiGzDecoder;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::check::{self, ActionOnItem, ExecutedAction, Operation, RunEvidence};
use crate::plan::SnapshotterMode;
use crate::world::{BASE, World, contents, csi_claims_of, volumes_of};

/// Run that was started.
#[derive(Clone, Debug)]
pub(crate) struct RunUnderTest {
    pub(crate) kind: RunKind,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Namespace that is backed up, or restored into.
    pub(crate) namespace: String,
    /// See [`RunEvidence::executed_when_recorded`].
    pub(crate) executed_when_recorded: Option<usize>,
    /// See [`RunEvidence::recorded_requests`].
    pub(crate) recorded_requests: Option<BTreeSet<String>>,
    /// Handles that the CSI driver had for it when all was recorded and the server dead: see [`check::CsiEvidence`].
    pub(crate) csi_recorded_handles: Option<BTreeSet<String>>,
    /// Volumes that existed before it.
    pub(crate) volumes_before: BTreeSet<String>,
    /// Snapshots and volumes that the CSI driver had before it.
    pub(crate) csi_before: csi::CsiInventory,
    /// Names of the VolumePluginRestores that existed before it.
    pub(crate) resources_before: BTreeSet<String>,
    pub(crate) snapshotter: SnapshotterMode,
    /// True if it is to be deleted while it runs.
    pub(crate) is_cut_short: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunKind {
    Backup,
    Restore,
}

/// Phase of a run that no longer exists.
const DELETED_PHASE: &str = "Gone";

/// Phase and reason of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunStatus {
    pub(crate) phase: String,
    pub(crate) reason: String,
}

impl RunStatus {
    /// True if nothing more will happen.
    pub(crate) fn is_terminal(&self) -> bool {
        let over = [
            "Completed",
            "PartiallyFailed",
            "Failed",
            "FailedValidation",
            "Deleting",
            DELETED_PHASE,
        ];
        over.contains(&self.phase())
    }

    /// True if a kill counts as an attempt at its items.
    pub(crate) fn is_before_or_at_items(&self) -> bool {
        ["", "New", "Queued", "ReadyToStart", "InProgress"].contains(&self.phase())
    }

    fn phase(&self) -> &str {
        &self.phase
    }
}

impl RunUnderTest {
    pub(crate) async fn status(&self, world: &World) -> anyhow::Result<RunStatus> {
        let object = match self.kind {
            RunKind::Backup => {
                serde_json::to_value(world.api::<Backup>().get_opt(&self.name).await?)?
            }
            RunKind::Restore => {
                serde_json::to_value(world.api::<Restore>().get_opt(&self.name).await?)?
            }
        };
        if object.is_null() {
            return Ok(RunStatus { phase: DELETED_PHASE.to_owned(), reason: String::new() });
        }
        let status = &object["status"];
        let text = |name: &str| status[name].as_str().unwrap_or_default().to_owned();
        let mut reason = text("failureReason");
        if let Some(errors) = status["validationErrors"].as_array() {
            reason.push_str(&Value::from(errors.clone()).to_string());
        }
        Ok(RunStatus { phase: text("phase"), reason })
    }

    /// Records, while no server runs, the progress in the bucket: everything, once its last file is there.
    pub(crate) fn record_progress(&mut self, world: &World) -> anyhow::Result<()> {
        if self.executed_when_recorded.is_none() && world.bucket.join(self.last_file()).exists() {
            self.executed_when_recorded = Some(self.executed(world)?.len());
            let snapshots = volumes::plugin_snapshots(&world.disks, &self.name)?;
            self.recorded_requests = Some(snapshots.into_iter().map(|one| one.request).collect());
            let csi_snapshots =
                csi::csi_snapshots(world, &self.namespace, &self.csi_before.snapshots)?;
            self.csi_recorded_handles =
                Some(csi_snapshots.into_iter().map(|one| one.handle).collect());
        }
        Ok(())
    }

    fn executed(&self, world: &World) -> anyhow::Result<Vec<ExecutedAction>> {
        match std::fs::read_to_string(&world.calls) {
            Ok(text) => Ok(parse_executed(&text, &self.uid)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error).context("cannot read the calls of the plugins"),
        }
    }

    /// File that is written when all items are processed.
    fn last_file(&self) -> String {
        let name = &self.name;
        match self.kind {
            RunKind::Backup => format!("backups/{name}/{name}.tar.gz"),
            RunKind::Restore => self.file("itemoperations.json.gz"),
        }
    }

    fn file(&self, suffix: &str) -> String {
        let name = &self.name;
        match self.kind {
            RunKind::Backup => format!("backups/{name}/{name}-{suffix}"),
            RunKind::Restore => format!("restores/{name}/restore-{name}-{suffix}"),
        }
    }

    /// All evidence about the run.
    pub(crate) async fn collect_evidence(&self, world: &World) -> anyhow::Result<RunEvidence> {
        let status = self.status(world).await?;
        let mut missing = Vec::new();
        let mut read = |suffix: &str| {
            let file = self.file(suffix);
            read_json_gzip(&world.bucket.join(&file)).unwrap_or_else(|error| {
                missing.push(format!("{file} ({error})"));
                Value::Null
            })
        };
        let (records, results) = (read("itemoperations.json.gz"), read("results.gz"));
        let mut run = RunEvidence::default();
        match self.kind {
            RunKind::Backup => {
                let with_hooked = world.can_freeze();
                run.records = volumes::snapshot_records(&read("volumesnapshots.json.gz"));
                run.snapshots = volumes::plugin_snapshots(&world.disks, &self.name)?;
                run.resources = resources::resources_of_backup(world, self).await?;
                let mut wanted = contents(&self.namespace, with_hooked);
                for volume in volumes_of(&self.namespace, with_hooked) {
                    wanted.push(format!("persistentvolumes/{}", volume.name));
                    run.expected_volumes.push(volume.name);
                }
                let infos = read("volumeinfo.json.gz");
                let archive = world.bucket.join(self.last_file());
                run.csi = check::CsiEvidence {
                    expected_claims: csi_claims_of(&self.namespace),
                    snapshots: csi::csi_snapshots(
                        world,
                        &self.namespace,
                        &self.csi_before.snapshots,
                    )?,
                    records: csi::csi_records(
                        &infos,
                        &csi::archived_handles(&archive).unwrap_or_default(),
                    ),
                    recorded_handles: self.csi_recorded_handles.clone(),
                    objects: csi::objects_of(world, &self.name).await?,
                    restored: Vec::new(),
                };
                match archived_objects(&archive, &self.namespace) {
                    Ok(found) => {
                        missing.extend(wanted.into_iter().filter(|item| !found.contains(item)));
                    }
                    Err(error) => missing.push(format!("its archive ({error})")),
                }
            }
            RunKind::Restore => {
                let found = present_objects(world, &self.namespace).await?;
                let wanted = contents(BASE, false);
                missing.extend(wanted.into_iter().filter(|item| !found.contains(item)));
                let behind = volumes::claim_volumes(world, &self.namespace).await?;
                missing.extend(volumes::without_data(world, &behind));
                run.restored_volumes =
                    volumes::restored_volumes(&world.disks, &self.volumes_before, &behind)?;
                run.resources = resources::resources_of_restore(world, self).await?;
                missing.extend(csi::without_data(world, &behind));
                run.csi.restored =
                    csi::restored_resources(world, &self.csi_before.volumes, &self.namespace)
                        .await?;
            }
        }
        Ok(RunEvidence {
            name: self.name.clone(),
            phase: status.phase,
            reason: status.reason,
            executed: self.executed(world)?,
            executed_when_recorded: self.executed_when_recorded,
            operations: parse_operations(&records),
            leftover_warnings: item_warnings(&results).filter_map(parse_leftover_warning).collect(),
            recorded_requests: self.recorded_requests.clone(),
            snapshotter: self.snapshotter,
            volume_warnings: volumes::volume_leftover_warnings(item_warnings(&results)),
            missing,
            ..run
        })
    }
}

fn read_json_gzip(path: &Path) -> anyhow::Result<Value> {
    Ok(serde_json::from_reader(MultiGzDecoder::new(File::open(path)?))?)
}

/// Objects of a namespace in an archive, and cluster-scoped ones, as `<resource>/<name>`. Reads the whole archive.
fn archived_objects(path: &Path, namespace: &str) -> anyhow::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut archive = tar::Archive::new(MultiGzDecoder::new(File::open(path)?));
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().into_owned();
        let parts: Vec<&str> = path.split('/').collect();
        let (resource, file) = match parts[..] {
            ["resources", resource, "namespaces", of, file] if of == namespace => (resource, file),
            ["resources", resource, "cluster", file] => (resource, file),
            _ => continue,
        };
        if let Some(name) = file.strip_suffix(".json") {
            serde_json::from_reader::<_, Value>(&mut entry).context(path.clone())?;
            found.insert(format!("{resource}/{name}"));
        }
    }
    Ok(found)
}

/// Objects of a namespace in the cluster, as `<resource>/<name>`.
async fn present_objects(world: &World, namespace: &str) -> anyhow::Result<BTreeSet<String>> {
    async fn names<K>(world: &World, namespace: &str) -> anyhow::Result<Vec<String>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + std::fmt::Debug + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(world.client.clone(), namespace);
        let found = api.list(&ListParams::default()).await?;
        let name = |object: K| format!("{}/{}", K::plural(&()), object.name_any());
        Ok(found.items.into_iter().map(name).collect())
    }
    let mut found: BTreeSet<String> = BTreeSet::new();
    found.extend(names::<Pod>(world, namespace).await?);
    found.extend(names::<ConfigMap>(world, namespace).await?);
    found.extend(names::<PersistentVolumeClaim>(world, namespace).await?);
    Ok(found)
}

/// Calls of plugins for a run, from their records: see the README of the fixture plugins.
fn parse_executed(text: &str, uid: &str) -> Vec<ExecutedAction> {
    let mut executed = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, plugin, "execute", run, item, operation] = fields[..] else { continue };
        let [kind, _, name] = item.split('/').collect::<Vec<_>>()[..] else { continue };
        if run == uid {
            let item = format!("{}s/{name}", kind.to_lowercase());
            let operation = Some(operation.to_owned()).filter(|id| id != "-");
            executed.push(ExecutedAction {
                key: ActionOnItem { plugin: plugin.to_owned(), item },
                operation,
            });
        }
    }
    executed
}

/// Operations in a file of either kind of run.
fn parse_operations(records: &Value) -> Vec<Operation> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let operation = |record: &Value| {
        let spec = &record["spec"];
        let item = &spec["resourceIdentifier"];
        let plugin = text(&spec["backupItemAction"]) + &text(&spec["restoreItemAction"]);
        let item = format!("{}/{}", text(&item["Resource"]), text(&item["Name"]));
        Operation {
            key: ActionOnItem { plugin, item },
            id: text(&spec["operationID"]),
            is_completed: record["status"]["phase"] == "Completed",
        }
    };
    records.as_array().into_iter().flatten().map(operation).collect()
}

/// Warnings about items in a results file.
fn item_warnings(results: &Value) -> impl Iterator<Item = &str> {
    let warnings = &results["warnings"];
    let namespaces = warnings["namespaces"].as_object().into_iter().flatten();
    let lists = namespaces.map(|(_, list)| list).chain([&warnings["cluster"]]);
    lists.filter_map(Value::as_array).flatten().filter_map(Value::as_str)
}

/// Action and item of a warning about a leftover.
fn parse_leftover_warning(text: &str) -> Option<ActionOnItem> {
    let (item, rest) = text.split_once(": ")?;
    let (_, rest) = rest.split_once("while plugin ")?;
    let (plugin, rest) = rest.split_once(" processed this item")?;
    let key = ActionOnItem { plugin: plugin.to_owned(), item: item.to_owned() };
    rest.contains("may be left over").then_some(key)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(plugin: &str, item: &str) -> ActionOnItem {
        ActionOnItem { plugin: plugin.into(), item: item.into() }
    }

    #[test]
    fn only_execute_calls_of_the_run_count() {
        let text = "1 f/bia-v2 execute u1 PersistentVolumeClaim/app-a/c op/1/2/\n\
                    2 f/both execute u2 Pod/app-a/p op/1/2/\n\
                    3 f/bia-v2 progress u1 - op/1/2/\n\
                    4 f/bia-v2 execute u1 Pod/app-a/p -\n\
                    5 f/bia-v2 exec";
        let claim = key("f/bia-v2", "persistentvolumeclaims/c");
        let expected = [
            ExecutedAction { key: claim, operation: Some("op/1/2/".into()) },
            ExecutedAction { key: key("f/bia-v2", "pods/p"), operation: None },
        ];
        assert_eq!(parse_executed(text, "u1"), expected);
    }

    #[test]
    fn operations_of_both_kinds_of_runs_are_read() {
        let item = json!({"Group": "", "Resource": "pods", "Namespace": "n", "Name": "p"});
        let record = |field: &str, phase: &str| {
            let mut record = json!({"spec": {"operationID": "1", "resourceIdentifier": item}});
            record["spec"][field] = json!("f/x");
            record["status"] = json!({"phase": phase});
            record
        };
        let file = json!([
            record("backupItemAction", "Completed"),
            record("restoreItemAction", "InProgress"),
        ]);
        let expected =
            |is_completed| Operation { key: key("f/x", "pods/p"), id: "1".into(), is_completed };
        assert_eq!(parse_operations(&file), [expected(true), expected(false)]);
        assert_eq!(parse_operations(&Value::Null), []);
    }

    #[test]
    fn warnings_name_plugin_and_item() {
        let text = "pods/p: the server stopped while plugin f/x processed this item, and the \
                    plugin is called again; results of the first call may be left over";
        assert_eq!(parse_leftover_warning(text), Some(key("f/x", "pods/p")));
        assert_eq!(parse_leftover_warning("pods/q: old"), None);
    }

    #[test]
    fn warnings_are_about_items_with_and_without_a_namespace() {
        let messages = json!({"namespaces": {"n": ["a", "b"], "m": ["c"]}, "cluster": ["d"]});
        let found = |results: Value| item_warnings(&results).collect::<BTreeSet<_>>().len();
        assert_eq!(found(json!({"warnings": messages, "errors": messages})), 4);
        assert_eq!(found(json!({"errors": messages})), 0);
    }

    #[test]
    fn phases_are_classified() {
        let status = |phase: &str| RunStatus { phase: phase.into(), reason: String::new() };
        for phase in ["", "New", "ReadyToStart", "InProgress"] {
            assert!(
                status(phase).is_before_or_at_items() && !status(phase).is_terminal(),
                "{phase}"
            );
        }
        for phase in ["WaitingForPluginOperations", "Finalizing"] {
            assert!(
                !status(phase).is_before_or_at_items() && !status(phase).is_terminal(),
                "{phase}"
            );
        }
        for phase in [
            "Completed",
            "Failed",
            "PartiallyFailed",
            "FailedValidation",
            "Deleting",
            DELETED_PHASE,
        ] {
            assert!(
                !status(phase).is_before_or_at_items() && status(phase).is_terminal(),
                "{phase}"
            );
        }
    }
}
