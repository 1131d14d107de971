//! What the commands print and redact, for fuzz targets.

use std::io::Write as _;

use bowline_api::{
    Backup, BackupRepository, BackupStorageLocation, Restore, Schedule, VolumePluginBackup,
    VolumePluginRestore, VolumeSnapshotLocation,
};
use bowline_store::file::{
    BackupOperation, BackupVolumeInfo, ResourceList, RestoreOperation, RestoreVolumeInfo, Results,
};
use jiff::Timestamp;
use serde_json::Value;

use crate::age::{self, DecryptionKey, EncryptionKey, EncryptionKind, Identity, Recipient};
use crate::commands::recovery::contents::Contents;
use crate::commands::{backup, restore};
use crate::describe::{Describable, DescribableRun, FetchedVolumeProgress};
use crate::listing::{self, ObjectFormat};
use crate::output::{self, ControlCharFilter};
use crate::table::{self, LabelColumns, Tabular};
use crate::volume_progress::VolumeReport;

/// A line of a log or an error without secrets.
pub fn redact_text(text: &str) -> String {
    crate::redact::text(text)
}

/// Removes the secrets of an object.
pub fn redact_object(object: &mut Value) {
    crate::redact::object(object);
}

/// A message as a terminal gets it.
pub fn message(text: &str) -> String {
    output::strip_control_chars(text)
}

/// A log as a terminal gets it, written in pieces of this size.
pub fn log(bytes: &[u8], piece: usize) -> Vec<u8> {
    let mut filter = ControlCharFilter::new(Vec::new());
    for piece in bytes.chunks(piece.max(1)) {
        // Writing to a list cannot fail.
        drop(filter.write_all(piece));
    }
    filter.into_inner()
}

/// What `get` prints for an object, as a table, as JSON, as YAML and as a name.
fn listed<K: Tabular + Clone>(object: &K, now: Timestamp) -> Vec<String> {
    let objects = std::slice::from_ref(object);
    let mut printed = vec![table::table(objects, &LabelColumns::all(), now), table::names(objects)];
    for format in [ObjectFormat::Json, ObjectFormat::Yaml] {
        printed.extend(listing::format_one(object.clone(), format));
    }
    printed
}

/// What `get` and `describe` print for an object.
fn described<K: Describable + Tabular + Clone>(object: &K, now: Timestamp) -> Vec<String> {
    let mut printed = listed(object, now);
    printed.extend([object.text(), output::document(&object.json())]);
    printed
}

fn run<R: DescribableRun + Tabular + Clone>(
    run: &R,
    files: &R::Files,
    volumes: &FetchedVolumeProgress,
    now: Timestamp,
) -> Vec<String> {
    let mut printed = listed(run, now);
    for details in [false, true] {
        printed.push(run.text(files, volumes, details));
        printed.push(output::document(&run.json(files, volumes, details)));
    }
    printed
}

/// Files of a backup or restore, as far as the commands show them.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub struct Files {
    results: Results,
    backup_volumes: Vec<BackupVolumeInfo>,
    restore_volumes: Vec<RestoreVolumeInfo>,
    backup_operations: Vec<BackupOperation>,
    restore_operations: Vec<RestoreOperation>,
    resources: ResourceList,
    volume_plugin_backups: Vec<VolumePluginBackup>,
    volume_plugin_restores: Vec<VolumePluginRestore>,
}

/// What the commands print for an object of any kind of theirs.
pub fn print(object: &Value, files: Files, now: Timestamp) -> Vec<String> {
    fn read<T: serde::de::DeserializeOwned>(object: &Value) -> Option<T> {
        serde_json::from_value(object.clone()).ok()
    }
    let printed = match object.get("kind").and_then(Value::as_str).unwrap_or_default() {
        "Backup" => read::<Backup>(object).map(|backup| {
            let Files { results, backup_volumes, backup_operations, resources, .. } = files;
            let progress = files.volume_plugin_backups.into_iter();
            let progress = Ok(progress.map(VolumeReport::into_progress).collect());
            let files = backup::describe::Files::downloaded(
                results,
                backup_volumes,
                backup_operations,
                resources,
            );
            run(&backup, &files, &progress, now)
        }),
        "Restore" => read::<Restore>(object).map(|restore| {
            let Files { results, restore_volumes, restore_operations, resources, .. } = files;
            let progress = files.volume_plugin_restores.into_iter();
            let progress = Ok(progress.map(VolumeReport::into_progress).collect());
            let files = restore::describe::Files::downloaded(
                results,
                restore_volumes,
                restore_operations,
                resources,
            );
            run(&restore, &files, &progress, now)
        }),
        "Schedule" => read::<Schedule>(object).map(|object| described(&object, now)),
        "BackupStorageLocation" => {
            read::<BackupStorageLocation>(object).map(|object| described(&object, now))
        }
        "VolumeSnapshotLocation" => {
            read::<VolumeSnapshotLocation>(object).map(|object| described(&object, now))
        }
        "BackupRepository" => {
            read::<BackupRepository>(object).map(|object| described(&object, now))
        }
        _ => None,
    };
    printed.unwrap_or_default()
}

/// Key of the recovery files of fuzz targets.
const IDENTITY: &str = "AGE-SECRET-KEY-1U3KRA38FNQVLXZXQ5GJCP9HC5XHHRCZ3CS9DNXZ5KYCV3C84Q7CSS4LV0Q";
const RECIPIENT: &str = "age1munncrq6tvthy5t8wgcmhay78vu3lfzew3g23w68mt74maaghp6sy3st6k";

/// Encrypts a recovery file; empty if the system has no randomness.
pub fn encrypt_recovery_file(text: &[u8]) -> Vec<u8> {
    let Ok(recipient) = RECIPIENT.parse::<Recipient>() else { return Vec::new() };
    age::encrypt(text, &EncryptionKey::Recipients(&[recipient])).unwrap_or_default()
}

/// Text of a recovery file that was encrypted for [`encrypt_recovery_file`]'s key.
pub fn decrypt_recovery_file(file: &[u8]) -> Option<Vec<u8>> {
    // A passphrase takes a second by design.
    if !matches!(age::encryption_kind(file), Ok(EncryptionKind::Recipients)) {
        return None;
    }
    let identity: Identity = IDENTITY.parse().ok()?;
    let text = age::decrypt(file, &DecryptionKey::Identities(&[identity])).ok()?;
    Some(text.to_vec())
}

/// Number of objects in the text of a recovery file, if it is one.
pub fn decode_recovery_file(text: &[u8]) -> Option<usize> {
    Contents::decode(text).ok().map(|contents| contents.count())
}
