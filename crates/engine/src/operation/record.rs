//! Operations in the format that Velero stores in the bucket.
//!
//! Velero's file has no stop requests and failed polls. The missing data follows from the run: a
//! canceled run has its own mark, and the deadline follows from the creation time of the operation.

use std::time::Duration;

use bowline_plugin::{InvalidName, Name, OperationId, Progress};
use bowline_store::file::{
    BackupOperation, BackupOperationSpec, OperationPhase, OperationStatus, ResourceIdentifier,
    RestoreOperation, RestoreOperationSpec, VolumeOperation, VolumeOperationKind,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Completion, Kind, Operation, State, VolumeDetails, saturating_add};
use crate::snapshotter::volume_id;

/// Description of an upload whose plugin has no upload stage. The file has no other place for that.
pub(super) const NOTHING_TO_UPLOAD: &str = "the plugin has no upload stage";

/// Record that cannot be resumed.
#[derive(Debug, thiserror::Error)]
pub enum InvalidRecord {
    /// Invalid name of the plugin.
    #[error("an operation in the operations file names no plugin: {0}")]
    Plugin(#[from] InvalidName),
    /// Kind that this version does not know.
    #[error("an operation of {plugin} on a volume has the unknown kind {kind:?}")]
    Kind {
        /// Name of the plugin.
        plugin: String,
        /// Unknown kind.
        kind: String,
    },
    /// Missing id.
    #[error("an operation of {plugin} in the operations file has no id")]
    NoId {
        /// Name of the plugin.
        plugin: String,
    },
}

/// Run, as its operations refer to it.
#[derive(Clone, Copy, Debug)]
pub struct RunRef<'a> {
    /// Name of the run.
    pub name: &'a str,
    /// Uid of the run.
    pub uid: &'a str,
}

/// Record of an operation of a backup.
pub fn of_backup(operation: &Operation, run: RunRef<'_>) -> BackupOperation {
    BackupOperation {
        spec: BackupOperationSpec {
            backup_name: run.name.to_owned(),
            backup_uid: run.uid.to_owned(),
            backup_item_action: operation.plugin.to_string(),
            resource_identifier: operation.item.clone().into(),
            operation_id: operation.id.to_string(),
            post_operation_items: operation
                .post_operation_items
                .iter()
                .cloned()
                .map(Into::into)
                .collect(),
            ..BackupOperationSpec::default()
        },
        status: status(operation),
        ..BackupOperation::default()
    }
}

/// Record of an operation of a restore.
pub fn of_restore(operation: &Operation, run: RunRef<'_>) -> RestoreOperation {
    RestoreOperation {
        spec: RestoreOperationSpec {
            restore_name: run.name.to_owned(),
            restore_uid: run.uid.to_owned(),
            restore_item_action: operation.plugin.to_string(),
            resource_identifier: operation.item.clone().into(),
            operation_id: operation.id.to_string(),
            ..RestoreOperationSpec::default()
        },
        status: status(operation),
        ..RestoreOperation::default()
    }
}

/// Record of an operation on a volume snapshot, for Bowline's own file. `None` for an operation on
/// an item.
pub fn of_volume(operation: &Operation) -> Option<VolumeOperation> {
    let VolumeDetails { location, snapshot_type } = operation.volume.as_ref()?;
    let kind = match operation.kind {
        Kind::SnapshotCreation => VolumeOperationKind::Creation,
        Kind::SnapshotUpload => VolumeOperationKind::Upload,
        Kind::ItemBackup | Kind::ItemRestore => return None,
    };
    Some(VolumeOperation {
        kind,
        plugin: operation.plugin.to_string(),
        location: location.clone(),
        volume: operation.item.name.clone(),
        snapshot_id: operation.id.to_string(),
        snapshot_type: snapshot_type.to_string(),
        status: status(operation),
        ..VolumeOperation::default()
    })
}

/// Parses the record of an operation on a volume snapshot. `default_created` is the start of one
/// without a time.
pub fn from_volume(
    record: VolumeOperation,
    timeout: Duration,
    default_created: Timestamp,
) -> Result<Operation, InvalidRecord> {
    let VolumeOperation { kind, plugin, location, volume, snapshot_id, status, .. } = record;
    let kind = match kind {
        VolumeOperationKind::Creation => Kind::SnapshotCreation,
        VolumeOperationKind::Upload => Kind::SnapshotUpload,
        VolumeOperationKind::Other(kind) => return Err(InvalidRecord::Kind { plugin, kind }),
    };
    let item = volume_id(&volume).into();
    let operation = read(kind, &plugin, item, &snapshot_id, status, timeout, default_created)?;
    let snapshot_type = record.snapshot_type.parse().unwrap_or_default();
    Ok(Operation { volume: Some(VolumeDetails { location, snapshot_type }), ..operation })
}

/// Parses the record of an operation of a backup. `default_created` is the start of one without a
/// time.
pub fn from_backup(
    record: BackupOperation,
    timeout: Duration,
    default_created: Timestamp,
) -> Result<Operation, InvalidRecord> {
    let BackupOperation { spec, status, .. } = record;
    let action = &spec.backup_item_action;
    let item = spec.resource_identifier;
    let mut operation =
        read(Kind::ItemBackup, action, item, &spec.operation_id, status, timeout, default_created)?;
    operation.post_operation_items =
        spec.post_operation_items.into_iter().map(Into::into).collect();
    Ok(operation)
}

/// Parses the record of an operation of a restore. `default_created` is the start of one without a
/// time.
pub fn from_restore(
    record: RestoreOperation,
    timeout: Duration,
    default_created: Timestamp,
) -> Result<Operation, InvalidRecord> {
    let RestoreOperation { spec, status, .. } = record;
    let action = &spec.restore_item_action;
    let item = spec.resource_identifier;
    read(Kind::ItemRestore, action, item, &spec.operation_id, status, timeout, default_created)
}

fn read(
    kind: Kind,
    plugin: &str,
    item: ResourceIdentifier,
    id: &str,
    status: OperationStatus,
    timeout: Duration,
    default_created: Timestamp,
) -> Result<Operation, InvalidRecord> {
    let plugin: Name = plugin.parse()?;
    let id =
        OperationId::new(id).ok_or_else(|| InvalidRecord::NoId { plugin: plugin.to_string() })?;
    let created = status.created.map_or(default_created, |created| created.0);
    let state = match status.phase {
        None | Some(OperationPhase::New) => State::New,
        // A phase of a newer version is not a terminal one.
        Some(OperationPhase::InProgress | OperationPhase::Other(_)) => State::InProgress,
        Some(OperationPhase::Completed) => State::Completed,
        Some(OperationPhase::Failed) => State::Failed(status.error.into()),
    };
    let is_empty_upload = kind == Kind::SnapshotUpload
        && state == State::Completed
        && status.description == NOTHING_TO_UPLOAD;
    let completion = if is_empty_upload { Completion::NothingToUpload } else { Completion::Done };
    let progress = Progress {
        done: status.n_completed,
        total: status.n_total,
        units: status.operation_units,
        description: status.description,
        started: status.started.map(|time| time.0),
        updated: status.updated.map(|time| time.0),
        ..Progress::default()
    };
    Ok(Operation {
        deadline: saturating_add(created, timeout),
        progress,
        state,
        completion,
        ..Operation::started(kind, plugin, item.into(), id, created, timeout)
    })
}

fn status(operation: &Operation) -> OperationStatus {
    let Progress { done, total, units, description, started, updated, .. } =
        operation.progress.clone();
    let (phase, error) = match &operation.state {
        State::New => (OperationPhase::New, String::new()),
        State::InProgress => (OperationPhase::InProgress, String::new()),
        State::Completed => (OperationPhase::Completed, String::new()),
        State::Failed(failure) => (OperationPhase::Failed, failure.to_string()),
    };
    OperationStatus {
        phase: Some(phase),
        error,
        n_completed: done,
        n_total: total,
        operation_units: units,
        description,
        created: Some(Time(operation.created)),
        started: started.map(Time),
        updated: updated.map(Time),
        ..OperationStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use bowline_api::snapshot_type::SnapshotType;

    use super::*;

    fn operation(state: State) -> Operation {
        let item = bowline_plugin::ResourceIdentifier {
            group: String::new(),
            resource: "pods".into(),
            namespace: "shop".into(),
            name: "db".into(),
        };
        let created = Timestamp::from_second(1_700_000_000).unwrap();
        let (plugin, id) = ("x.io/a".parse().unwrap(), OperationId::new("op-1").unwrap());
        let timeout = Duration::from_hours(4);
        Operation {
            post_operation_items: vec![item.clone()],
            progress: Progress {
                done: 3,
                total: 9,
                units: "Bytes".into(),
                description: "copying".into(),
                started: Some(created),
                updated: Some(created),
                ..Progress::default()
            },
            state,
            ..Operation::started(Kind::ItemBackup, plugin, item, id, created, timeout)
        }
    }

    #[test]
    fn item_operations_round_trip() {
        let run = RunRef { name: "b", uid: "1" };
        for state in [State::New, State::InProgress, State::Completed, State::Failed("no".into())] {
            let before = operation(state);
            let (timeout, default_created) = (Duration::from_hours(4), Timestamp::UNIX_EPOCH);
            let read = from_backup(of_backup(&before, run), timeout, default_created).unwrap();
            assert_eq!(read, before);
            let before =
                Operation { kind: Kind::ItemRestore, post_operation_items: Vec::new(), ..before };
            let read = from_restore(of_restore(&before, run), timeout, default_created).unwrap();
            assert_eq!(read, before);
        }
    }

    #[test]
    fn volume_operations_round_trip() {
        let (timeout, default_created) = (Duration::from_hours(4), Timestamp::UNIX_EPOCH);
        let (location, snapshot_type) = ("here".to_owned(), SnapshotType::Cloud);
        for kind in [Kind::SnapshotCreation, Kind::SnapshotUpload] {
            let before = Operation {
                kind,
                item: volume_id("pv-1"),
                post_operation_items: Vec::new(),
                volume: Some(VolumeDetails { location: location.clone(), snapshot_type }),
                ..operation(State::InProgress)
            };
            let written = of_volume(&before).unwrap();
            assert_eq!(from_volume(written, timeout, default_created).unwrap(), before);
        }
        let empty_upload = Operation {
            kind: Kind::SnapshotUpload,
            item: volume_id("pv-1"),
            post_operation_items: Vec::new(),
            volume: Some(VolumeDetails { location, snapshot_type }),
            completion: Completion::NothingToUpload,
            progress: Progress { description: NOTHING_TO_UPLOAD.into(), ..Progress::default() },
            ..operation(State::Completed)
        };
        let written = of_volume(&empty_upload).unwrap();
        assert_eq!(from_volume(written, timeout, default_created).unwrap(), empty_upload);
        assert_eq!(of_volume(&operation(State::New)), None);
    }

    #[test]
    fn a_record_without_a_plugin_or_an_id_is_refused() {
        let good = of_backup(&operation(State::New), RunRef { name: "b", uid: "1" });
        for spoil in
            [(|spec: &mut BackupOperationSpec| spec.operation_id.clear()) as fn(&mut _), |spec| {
                spec.backup_item_action.clear();
            }]
        {
            let mut record = good.clone();
            spoil(&mut record.spec);
            let read = from_backup(record, Duration::ZERO, Timestamp::UNIX_EPOCH);
            assert!(read.is_err());
        }
    }
}
