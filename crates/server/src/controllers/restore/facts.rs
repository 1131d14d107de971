//! Lookups before a restore starts.

use bowline_api::{Backup, BackupStorageLocation, Restore, label};
use bowline_engine::restore::request::{Defaults, Facts, Lookup, source_backup};
use bowline_store::BackupStore;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use crate::controllers::lookup::{OpenError, config_map, lookup, open, split_refusal};
use crate::server::Context;

/// Facts that the server knows before a restore starts.
pub(super) struct RestoreFacts {
    pub(super) facts: Facts,
    pub(super) defaults: Defaults,
}

impl RestoreFacts {
    /// Opens the store of the backup's location.
    pub(super) async fn open(&self, context: &Context) -> Result<BackupStore, OpenError> {
        open(context, &self.facts.location).await
    }

    /// Name of the backup's location; empty if it is not known.
    pub(super) fn location_name(&self) -> String {
        match &self.facts.location {
            Lookup::Found(location) => location.name_any(),
            Lookup::Missing | Lookup::Failed(_) => String::new(),
        }
    }

    /// Reason why the backup of the restore, or its location, is not known, if so. The Backup itself may be gone; that
    /// is a known state.
    pub(super) fn unknown_reason(&self, restore: &Restore) -> Option<String> {
        match (&self.facts.backups, &self.facts.location) {
            (Err(refusal), _) => Some(refusal.to_string()),
            (Ok(_), Lookup::Failed(refusal)) => Some(refusal.clone()),
            (Ok(backups), Lookup::Missing) => source_backup(restore, backups)
                .map(|_| "the storage location of the backup does not exist".to_owned()),
            (Ok(_), Lookup::Found(_)) => None,
        }
    }

    /// True if there is a location that may have files.
    pub(super) fn has_location(&self) -> bool {
        !matches!(self.facts.location, Lookup::Missing)
    }
}

/// Looks up all facts. A refusal of the API server is one of them, since it may make the restore invalid; a temporary
/// failure is an error.
pub(super) async fn gather_facts(
    context: &Context,
    restore: &Restore,
) -> kube::Result<RestoreFacts> {
    let backups = split_refusal(candidate_backups(&context.api(), restore).await)?;
    let backups = backups.map_err(|refusal| refusal.to_string().into());
    let found = backups.as_ref().ok().and_then(|backups| source_backup(restore, backups));
    let location = match found {
        Some(backup) => {
            let locations: Api<BackupStorageLocation> = context.api();
            lookup(locations.get_opt(&backup.spec.storage_location).await)?
        }
        None => Lookup::Missing,
    };
    let modifiers = restore.spec.resource_modifier.as_ref().map(|modifier| modifier.name.as_str());
    let modifiers = config_map(context, modifiers).await?;
    let options = &context.options;
    let defaults = Defaults {
        item_operation_timeout: options.default_item_operation_timeout.into(),
        resource_timeout: options.resource_timeout.into(),
    };
    Ok(RestoreFacts { facts: Facts { backups, location, modifiers }, defaults })
}

/// The backup that the restore names, or all those of its schedule.
async fn candidate_backups(api: &Api<Backup>, restore: &Restore) -> kube::Result<Vec<Backup>> {
    let (backup, schedule) = (&restore.spec.backup_name, &restore.spec.schedule_name);
    if !backup.is_empty() {
        return Ok(api.get_opt(backup).await?.into_iter().collect());
    }
    if schedule.is_empty() {
        return Ok(Vec::new());
    }
    let selector = format!("{}={}", label::SCHEDULE_NAME, label::value(schedule));
    Ok(api.list(&ListParams::default().labels(&selector)).await?.items)
}
