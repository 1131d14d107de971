//! The storage location of a backup, and the locations of its snapshots.

use std::collections::BTreeMap;

use bowline_api::backup_storage_location::AccessMode;
use bowline_api::location::LocationPhase;
use bowline_api::{
    Backup, BackupSpec, BackupStorageLocation, GROUP, VolumeSnapshotLocation, label,
};

use super::{Defaults, Facts, Lookup, ValidationErrors};

/// The name of a backup's storage location: its own, else the one marked as the default, else the server's.
pub fn storage_location_name<'a>(
    backup: &'a Backup,
    default_location: Option<&'a str>,
    defaults: &'a Defaults,
) -> &'a str {
    match backup.spec.storage_location.as_str() {
        "" => default_location.unwrap_or(&defaults.storage_location),
        name => name,
    }
}

/// Writes the location into spec and labels, and checks that it is writable.
pub(super) fn choose_storage(
    backup: &mut Backup,
    facts: &Facts,
    defaults: &Defaults,
    errors: &mut Vec<String>,
) {
    let is_default = backup.spec.storage_location.is_empty();
    let default_location = facts.default_storage_location.as_deref();
    let name = storage_location_name(backup, default_location, defaults).to_owned();
    match &facts.storage_location {
        Lookup::Found(location) => check_storage(&name, location, errors),
        Lookup::Missing => {
            let which = if is_default {
                format!("the server default {name} does not exist")
            } else {
                format!("the default {name} was not found")
            };
            errors.push(format!(
                "an existing backup storage location was not specified at backup creation time and \
                 {which}. Please address this issue (see `bowline backup-location -h` for options) \
                 and create a new backup. Error: backupstoragelocations.{GROUP} {name:?} not found"
            ));
        }
        Lookup::Failed(error) => {
            errors.push(format!("error getting backup storage location: {error}"));
        }
    }
    let labels = backup.metadata.labels.get_or_insert_default();
    labels.insert(label::STORAGE_LOCATION.to_owned(), label::value(&name).into_owned());
    backup.spec.storage_location = name;
}

fn check_storage(name: &str, location: &BackupStorageLocation, errors: &mut Vec<String>) {
    if location.spec.access_mode == Some(AccessMode::ReadOnly) {
        errors.push(format!(
            "backup can't be created because backup storage location {name} is currently in \
             read-only mode"
        ));
    }
    let status = location.status.as_ref();
    if status.and_then(|status| status.phase.as_ref()) != Some(&LocationPhase::Available) {
        let message_suffix = status.map(|status| status.message.as_str()).unwrap_or_default();
        let message_suffix =
            if message_suffix.is_empty() { String::new() } else { format!(" {message_suffix}") };
        errors.push(format!(
            "backup can't be created because BackupStorageLocation {name} is in Unavailable \
             status.{message_suffix}"
        ));
    }
}

/// Chooses one VolumeSnapshotLocation for each provider that has one, and writes them into the spec. Also without
/// `snapshotVolumes`, since a volume policy may ask for a snapshot.
pub(super) fn choose_snapshots(
    spec: &mut BackupSpec,
    facts: &Facts,
    defaults: &Defaults,
    errors: &mut Vec<String>,
) -> Vec<String> {
    let chosen = match &facts.snapshot_locations {
        Ok(locations) => choose(&spec.volume_snapshot_locations, locations, defaults),
        Err(error) => {
            Err(ValidationErrors(vec![format!("error listing volume snapshot locations: {error}")]))
        }
    };
    match chosen {
        Ok(names) => {
            spec.volume_snapshot_locations.clone_from(&names);
            names
        }
        Err(ValidationErrors(problems)) => {
            errors.extend(problems);
            Vec::new()
        }
    }
}

/// The names of the locations: the requested ones in their order, then one for each other provider.
fn choose(
    requested: &[String],
    locations: &[VolumeSnapshotLocation],
    defaults: &Defaults,
) -> Result<Vec<String>, ValidationErrors> {
    let mut by_name = BTreeMap::new();
    let mut by_provider: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for location in locations {
        let name = location.metadata.name.as_deref().unwrap_or_default();
        by_name.insert(name, location.spec.provider.as_str());
        by_provider.entry(&location.spec.provider).or_default().push(name);
    }
    let not_found = |name: &str| format!("volumesnapshotlocations.{GROUP} {name:?} not found");

    let mut problems = Vec::new();
    let mut chosen: Vec<(&str, &str)> = Vec::new();
    for name in requested {
        let Some(provider) = by_name.get(name.as_str()) else {
            problems.push(format!(
                "a VolumeSnapshotLocation CRD for the location {name} with the name specified in \
                 the backup spec needs to be created before this snapshot can be executed. Error: {}",
                not_found(name)
            ));
            continue;
        };
        match chosen.iter().find(|(chosen_provider, _)| chosen_provider == provider) {
            None => chosen.push((provider, name)),
            Some((_, other)) if other == name => {}
            Some((_, other)) => problems.push(format!(
                "more than one VolumeSnapshotLocation name specified for provider {provider}: \
                 {name}; unexpected name was {other}"
            )),
        }
    }
    if !problems.is_empty() {
        return Err(ValidationErrors(problems));
    }
    for (provider, names) in &by_provider {
        if chosen.iter().any(|(chosen_provider, _)| chosen_provider == provider) {
            continue;
        }
        let default = defaults.snapshot_locations.get(*provider);
        match (names.as_slice(), default) {
            ([only], _) => chosen.push((provider, only)),
            (several, Some(default)) if several.contains(&default.as_str()) => {
                chosen.push((provider, default));
            }
            (_, Some(default)) => problems.push(format!(
                "error getting volume snapshot location named {default}: {}",
                not_found(default)
            )),
            (_, None) => problems.push(format!(
                "provider {provider} has more than one possible volume snapshot location, and none \
                 were specified explicitly or as a default"
            )),
        }
    }
    if problems.is_empty() {
        Ok(chosen.into_iter().map(|(_, name)| name.to_owned()).collect())
    } else {
        Err(ValidationErrors(problems))
    }
}
