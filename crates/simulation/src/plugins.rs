//! Plugins within the process: snapshotters of both versions, and item actions with operations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_api::{Backup, Restore, annotation};
use bowline_plugin::{
    BackupItemAction, BackupOutput, Code, Config, DeleteItemAction, Encoded, Error, Item, Kind,
    OperationId, Progress, ResourceSelector, RestoreItemAction, RestoreOutput, Result, SnapshotId,
    State as ProgressState, VolumeId, VolumeInfo, VolumeSnapshotter,
};
use bowline_plugin_host::{InProcess, Named};
use serde_json::{Value, json};

use crate::disks::{Operation, Snapshot};
use crate::fault::{FaultKind, Part};
use crate::os;
use crate::world::{Link, State, Verdict};

/// Provider of snapshots, by the version of its plugin.
pub(crate) const PROVIDERS: [&str; 2] = ["simulated.io/v1", "simulated.io/v2"];

/// All plugins of a server.
pub(crate) fn all(link: &Link) -> anyhow::Result<InProcess> {
    let snapshotter = |is_v2, kind, name: &str| -> anyhow::Result<_> {
        let plugin: Arc<dyn VolumeSnapshotter> = Arc::new(Plugin { link: link.clone(), is_v2 });
        Ok(Named { name: name.parse()?, kind, plugin })
    };
    let action = || Plugin { link: link.clone(), is_v2: true };
    let backup: Arc<dyn BackupItemAction> = Arc::new(action());
    let restore: Arc<dyn RestoreItemAction> = Arc::new(action());
    let delete: Arc<dyn DeleteItemAction> = Arc::new(action());
    Ok(InProcess {
        backup_item_actions: vec![Named {
            name: "simulated.io/backup".parse()?,
            kind: Kind::BackupItemActionV2,
            plugin: backup,
        }],
        restore_item_actions: vec![Named {
            name: "simulated.io/restore".parse()?,
            kind: Kind::RestoreItemActionV2,
            plugin: restore,
        }],
        delete_item_actions: vec![Named {
            name: "simulated.io/delete".parse()?,
            kind: Kind::DeleteItemAction,
            plugin: delete,
        }],
        volume_snapshotters: vec![
            snapshotter(false, Kind::VolumeSnapshotter, PROVIDERS[0])?,
            snapshotter(true, Kind::VolumeSnapshotterV2, PROVIDERS[1])?,
        ],
        ..InProcess::default()
    })
}

struct Plugin {
    link: Link,
    is_v2: bool,
}

impl Plugin {
    async fn call<T>(
        &self,
        method: &str,
        what: &str,
        effect: impl FnOnce(&mut State) -> Result<T>,
    ) -> Result<T> {
        let verdict = self.link.before(Part::Plugin, &format!("plugin {method} {what}")).await;
        match verdict {
            Verdict::Fail(FaultKind::PluginHang) => {
                return Err(Error::new(Code::DeadlineExceeded, "the plugin did not answer"));
            }
            // Nobody could know better if it said so of what is to be deleted.
            Verdict::Fail(FaultKind::PluginLies) if method == "delete-snapshot" => {}
            Verdict::Fail(FaultKind::PluginLies) => {
                return Err(Error::new(Code::NotFound, "there is no such thing"));
            }
            // It says so before it has done anything.
            Verdict::Fail(_) => return Err(Error::unknown("the plugin has failed")),
            Verdict::Proceed | Verdict::LoseAnswer => {}
        }
        let result = self.link.world.with(effect);
        self.link.after(Part::Plugin).await;
        if verdict == Verdict::LoseAnswer {
            return Err(Error::new(Code::Unavailable, "the plugin has exited"));
        }
        result
    }

    fn start_operation(state: &mut State, run: String, item: String) -> Option<OperationId> {
        let id = state.disks.next_id("operation");
        let seconds = state.random.between(1, 90);
        let now = os::now();
        let ends = now + Duration::from_secs(seconds);
        let operation = Operation { run, item, started: now, ends, is_canceled: false };
        state.disks.operations.insert(id.clone(), operation);
        OperationId::new(id)
    }

    async fn operation_progress(&self, id: &OperationId) -> Result<Progress> {
        self.call("progress", id.as_str(), |state| {
            let found = state.disks.operations.get(id.as_str());
            let found = found.ok_or_else(|| Error::invalid_operation(id))?;
            let state = match (found.is_canceled, found.is_over()) {
                (true, _) => ProgressState::Failed("canceled".to_owned()),
                (false, true) => ProgressState::Succeeded,
                (false, false) => ProgressState::Running,
            };
            Ok(progress(state, found.started, found.ends))
        })
        .await
    }

    async fn cancel_operation(&self, id: &OperationId) -> Result<()> {
        self.call("cancel", id.as_str(), |state| {
            if let Some(found) = state.disks.operations.get_mut(id.as_str())
                && !found.is_over()
            {
                found.is_canceled = true;
            }
            Ok(())
        })
        .await
    }
}

fn progress(state: ProgressState, started: Duration, ends: Duration) -> Progress {
    let now = os::now();
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or_default();
    let time =
        |time: Duration| jiff::Timestamp::from_second(os::BEGIN + os::skew() + seconds(time)).ok();
    Progress {
        state,
        done: seconds(now.min(ends).saturating_sub(started)),
        total: seconds(ends.saturating_sub(started)),
        units: "Bytes".to_owned(),
        description: String::new(),
        started: time(started),
        updated: time(now),
    }
}

fn value_of(item: &Item) -> Result<Value> {
    item.parse().map_err(|error| Error::new(Code::InvalidArgument, error.to_string()))
}

fn name_of(item: &Item) -> Result<String> {
    let value = value_of(item)?;
    Ok(value["metadata"]["name"].as_str().unwrap_or_default().to_owned())
}

#[async_trait]
impl VolumeSnapshotter for Plugin {
    async fn init(&self, _: &Config) -> Result<()> {
        Ok(())
    }

    async fn get_volume_id(&self, volume: &Item) -> Result<Option<VolumeId>> {
        let value = value_of(volume)?;
        let handle = value["spec"]["csi"]["volumeHandle"].as_str().unwrap_or_default();
        self.call("volume-id", handle, |_| Ok(VolumeId::new(handle))).await
    }

    async fn set_volume_id(&self, volume: &Item, id: &VolumeId) -> Result<Item> {
        let mut value = value_of(volume)?;
        value["spec"]["csi"]["volumeHandle"] = json!(id.as_str());
        let item = Item::from_value(&value);
        item.map_err(|error| Error::new(Code::InvalidArgument, error.to_string()))
    }

    async fn get_volume_info(&self, volume: &VolumeId, _: &str) -> Result<VolumeInfo> {
        let info = VolumeInfo { volume_type: "simulated".to_owned(), iops: None };
        self.call("volume-info", volume.as_str(), |_| Ok(info)).await
    }

    async fn create_snapshot(
        &self,
        volume: &VolumeId,
        _: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<SnapshotId> {
        let tag = |name: &str| tags.get(name).cloned().unwrap_or_default();
        let (backup, request) = (tag("velero.io/backup"), tag(annotation::REQUEST_ID));
        self.call("create-snapshot", &format!("{volume} of {backup}"), |state| {
            let known = state.disks.of_request(&request).filter(|_| self.is_v2);
            let id = known.unwrap_or_else(|| {
                let id = state.disks.next_id("snapshot");
                let wait = if self.is_v2 { state.random.between(0, 60) } else { 0 };
                let now = os::now();
                let snapshot = Snapshot {
                    volume: volume.as_str().to_owned(),
                    backup,
                    request,
                    created: now,
                    ready: now + Duration::from_secs(wait),
                    is_uploaded: false,
                };
                state.disks.snapshots.insert(id.clone(), snapshot);
                id
            });
            SnapshotId::new(id).ok_or_else(|| Error::unknown("no id"))
        })
        .await
    }

    async fn create_volume_from_snapshot(
        &self,
        snapshot: &SnapshotId,
        _: &VolumeInfo,
        _: &str,
    ) -> Result<VolumeId> {
        self.call("create-volume", snapshot.as_str(), |state| {
            if !state.disks.snapshots.contains_key(snapshot.as_str()) {
                return Err(Error::new(Code::NotFound, "there is no such snapshot"));
            }
            let id = state.disks.next_id("volume");
            state.disks.restored.insert(id.clone(), snapshot.as_str().to_owned());
            VolumeId::new(id).ok_or_else(|| Error::unknown("no id"))
        })
        .await
    }

    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
        self.call("delete-snapshot", snapshot.as_str(), |state| {
            state.disks.snapshots.remove(snapshot.as_str());
            Ok(())
        })
        .await
    }

    async fn progress(&self, snapshot: &SnapshotId) -> Result<Progress> {
        if !self.is_v2 {
            return Err(Error::unimplemented("Progress"));
        }
        self.call("snapshot-progress", snapshot.as_str(), |state| {
            let found = state.disks.snapshots.get(snapshot.as_str());
            let found = found.ok_or_else(|| Error::invalid_operation(snapshot))?;
            let is_ready = os::now() >= found.ready;
            let state = if is_ready { ProgressState::Succeeded } else { ProgressState::Running };
            Ok(progress(state, found.created, found.ready))
        })
        .await
    }

    async fn upload_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
        if !self.is_v2 {
            return Err(Error::unimplemented("UploadSnapshot"));
        }
        let seconds = self.link.world.with(|state| state.random.between(1, 40));
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        self.call("upload", snapshot.as_str(), |state| {
            let found = state.disks.snapshots.get_mut(snapshot.as_str());
            let found = found.ok_or_else(|| Error::new(Code::NotFound, "no such snapshot"))?;
            found.is_uploaded = true;
            Ok(())
        })
        .await
    }
}

#[async_trait]
impl BackupItemAction for Plugin {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["persistentvolumeclaims"]))
    }

    async fn execute(&self, item: &Item, backup: &Encoded<Backup>) -> Result<BackupOutput> {
        let name = name_of(item)?;
        let run = format!("backups/{}", backup.metadata.name.as_deref().unwrap_or_default());
        self.call("execute", &format!("{name} of {run}"), |state| {
            let operation = Self::start_operation(state, run, name);
            Ok(BackupOutput { operation, ..BackupOutput::unchanged(item) })
        })
        .await
    }

    async fn progress(&self, id: &OperationId, _: &Encoded<Backup>) -> Result<Progress> {
        self.operation_progress(id).await
    }

    async fn cancel(&self, id: &OperationId, _: &Encoded<Backup>) -> Result<()> {
        self.cancel_operation(id).await
    }
}

#[async_trait]
impl RestoreItemAction for Plugin {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["persistentvolumeclaims"]))
    }

    async fn execute(
        &self,
        item: &Item,
        _: &Item,
        restore: &Encoded<Restore>,
    ) -> Result<RestoreOutput> {
        let name = name_of(item)?;
        let run = format!("restores/{}", restore.metadata.name.as_deref().unwrap_or_default());
        self.call("execute", &format!("{name} of {run}"), |state| {
            let operation = Self::start_operation(state, run, name);
            Ok(RestoreOutput { operation, ..RestoreOutput::unchanged(item) })
        })
        .await
    }

    async fn progress(&self, id: &OperationId, _: &Encoded<Restore>) -> Result<Progress> {
        self.operation_progress(id).await
    }

    async fn cancel(&self, id: &OperationId, _: &Encoded<Restore>) -> Result<()> {
        self.cancel_operation(id).await
    }
}

#[async_trait]
impl DeleteItemAction for Plugin {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["configmaps"]))
    }

    async fn execute(&self, item: &Item, _: &Encoded<Backup>) -> Result<()> {
        let name = name_of(item)?;
        self.call("delete-item", &name, |_| Ok(())).await
    }
}
