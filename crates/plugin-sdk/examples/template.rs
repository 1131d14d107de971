//! A plugin to copy and change.
//!
//! It exports each PersistentVolumeClaim that is backed up, as an operation that goes on in the
//! background, and notes on each that is restored where it came from.
//!
//! ```text
//! cargo build --example template
//! bowline plugin inspect target/debug/examples/template
//! ```

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bowline_plugin_sdk::jiff::{SignedDuration, Timestamp};
use bowline_plugin_sdk::serde_json::{Value, json};
use bowline_plugin_sdk::{
    Backup, BackupItemAction, BackupOutput, Code, Encoded, Error, Item, OperationId, Plugin,
    Progress, ResourceSelector, Restore, RestoreItemAction, RestoreOutput, Result, State,
    async_trait, tokio, tracing,
};

fn main() -> ExitCode {
    Plugin::new()
        .backup_item_action("example.io/export", Export { system: ExportSystem::new() })
        .restore_item_action("example.io/origin", Origin)
        .serve()
}

/// Exports claims while they are backed up.
struct Export {
    system: ExportSystem,
}

#[async_trait]
impl BackupItemAction for Export {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["persistentvolumeclaims"]))
    }

    /// Starts the export and returns at once; the backup waits for its end in the background.
    async fn execute(&self, item: &Item, backup: &Encoded<Backup>) -> Result<BackupOutput> {
        let claim: Value = item.parse().map_err(invalid)?;
        let text = |pointer| claim.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));

        // The same call may come twice. An id that follows from what we are given finds the export
        // that runs already, where a random one would start another.
        let backup = backup.metadata.name.as_deref().unwrap_or_default();
        let id = format!("{backup}.{namespace}.{name}");
        let operation = OperationId::new(id).ok_or_else(|| invalid("the item has no name"))?;
        self.system.start(&operation).await?;
        tracing::info!(%operation, claim = name, "export started");

        let operation = Some(operation);
        Ok(BackupOutput { operation, ..BackupOutput::unchanged(item) })
    }

    /// Maybe asked in another process than the one that started it, so the system is asked in turn.
    async fn progress(&self, operation: &OperationId, _: &Encoded<Backup>) -> Result<Progress> {
        let Some(export) = self.system.find(operation).await? else {
            // In these words, which say that it makes no sense to ask again.
            return Err(Error::invalid_operation(operation));
        };
        let now = Timestamp::now();
        let elapsed = now.duration_since(export.started).as_secs();
        let total = EXPORT_DURATION.as_secs();
        let state = if export.canceled {
            State::Failed("canceled".to_owned())
        } else if elapsed >= total {
            State::Succeeded
        } else {
            State::Running
        };
        Ok(Progress {
            state,
            done: elapsed.clamp(0, total),
            total,
            units: "Seconds".to_owned(),
            description: "exporting".to_owned(),
            started: Some(export.started),
            updated: Some(now),
        })
    }

    /// No error if there is nothing to cancel.
    async fn cancel(&self, operation: &OperationId, _: &Encoded<Backup>) -> Result<()> {
        self.system.cancel(operation).await
    }
}

/// Notes on restored claims which restore they came from.
struct Origin;

#[async_trait]
impl RestoreItemAction for Origin {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["persistentvolumeclaims"]))
    }

    /// `item` is what will be created, as earlier actions have left it; `_from_backup` is how it was.
    async fn execute(
        &self,
        item: &Item,
        _from_backup: &Item,
        restore: &Encoded<Restore>,
    ) -> Result<RestoreOutput> {
        // Read what you know and write it back whole: `Value` keeps all the rest.
        let mut claim: Value = item.parse().map_err(invalid)?;
        let Some(metadata) = claim.get_mut("metadata").and_then(Value::as_object_mut) else {
            return Err(invalid("the item has no metadata"));
        };
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.insert("example.io/origin".to_owned(), json!(restore.metadata.name));
        }
        let item = Item::from_object(&claim).map_err(invalid)?;
        Ok(RestoreOutput::unchanged(&item))
    }
}

/// How long an export takes.
const EXPORT_DURATION: SignedDuration = SignedDuration::from_secs(10);

/// Stands for the system that does the work. Put its API here. What it knows outlives this process;
/// that is the point of it, and the reason why this one has a folder.
struct ExportSystem {
    folder: PathBuf,
}

struct ExportState {
    started: Timestamp,
    canceled: bool,
}

impl ExportSystem {
    fn new() -> Self {
        Self { folder: std::env::temp_dir().join("template-exports") }
    }

    /// Starts an export, unless there is one with this id.
    async fn start(&self, id: &OperationId) -> Result<()> {
        tokio::fs::create_dir_all(&self.folder).await.map_err(unavailable)?;
        if self.find(id).await?.is_some() {
            return Ok(());
        }
        let started = Timestamp::now().to_string();
        tokio::fs::write(self.folder.join(id.as_str()), started).await.map_err(unavailable)
    }

    async fn find(&self, id: &OperationId) -> Result<Option<ExportState>> {
        let file = self.folder.join(id.as_str());
        // Give up early on what may hang; the server asks again.
        let read = tokio::time::timeout(Duration::from_secs(30), tokio::fs::read_to_string(&file));
        let started = match read.await.map_err(unavailable)? {
            Ok(started) => started.parse().map_err(invalid)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unavailable(error)),
        };
        Ok(Some(ExportState { started, canceled: file.with_added_extension("canceled").exists() }))
    }

    async fn cancel(&self, id: &OperationId) -> Result<()> {
        if self.find(id).await?.is_none() {
            return Ok(());
        }
        let mark = self.folder.join(id.as_str()).with_added_extension("canceled");
        tokio::fs::write(mark, "").await.map_err(unavailable)
    }
}

/// It will be the same the next time.
fn invalid(error: impl std::fmt::Display) -> Error {
    Error::new(Code::InvalidArgument, error.to_string())
}

/// It may pass: the server tries again.
fn unavailable(error: impl std::fmt::Display) -> Error {
    Error::new(Code::Unavailable, error.to_string())
}
