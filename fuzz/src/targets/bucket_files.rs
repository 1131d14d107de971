//! The compressed JSON files of backups and restores.
//!
//! The first byte names the file, and says whether its text follows or its compressed bytes.

use std::io::Write as _;

use bowline_api::{PodVolumeBackup, VolumePluginBackup};
use bowline_store::decode::{self, Limits};
use bowline_store::encode;
use bowline_store::file::{
    BackupContent, BackupOperation, BackupVolumeInfo, BowlineBackupInfo, CsiVolumeSnapshotClasses,
    CsiVolumeSnapshotContents, CsiVolumeSnapshots, ResourceList, RestoreOperation,
    RestoreVolumeInfo, Results, Snapshot,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::memory;

/// Bit of the first byte that says that the bytes are compressed already.
const IS_PACKED: u8 = 0x80;
/// Memory that a read takes beside the content: buffers, and the decompressor.
const BUFFERS: u64 = 512 << 10;

pub(super) fn run(input: &[u8]) {
    let Some((&kind, rest)) = input.split_first() else { return };
    let packed = if kind & IS_PACKED == 0 { gzip(rest) } else { rest.to_vec() };
    drop(reencode(kind & !IS_PACKED, &packed));
}

/// Text of a file as we write it after we have read it; an error if it is refused.
pub fn reencode(kind: u8, packed: &[u8]) -> Result<Vec<u8>, decode::Error> {
    let volumes = <Vec<BackupVolumeInfo> as BackupContent>::LIMITS;
    match kind % 13 {
        0 => read::<Vec<BackupOperation>>(packed, Limits::JSON),
        1 => read::<Vec<RestoreOperation>>(packed, Limits::JSON),
        2 => read::<Vec<BackupVolumeInfo>>(packed, volumes),
        3 => read::<Vec<RestoreVolumeInfo>>(packed, volumes),
        4 => read::<Vec<Snapshot>>(packed, volumes),
        5 => read::<ResourceList>(packed, Limits::JSON),
        6 => read::<Results>(packed, Limits::JSON),
        7 => read::<Vec<PodVolumeBackup>>(packed, volumes),
        8 => read::<Vec<VolumePluginBackup>>(packed, volumes),
        9 => read::<BowlineBackupInfo>(packed, volumes),
        10 => read::<CsiVolumeSnapshots>(packed, volumes),
        11 => read::<CsiVolumeSnapshotContents>(packed, volumes),
        _ => read::<CsiVolumeSnapshotClasses>(packed, volumes),
    }
}

fn read<T: Serialize + DeserializeOwned + Default>(
    packed: &[u8],
    limits: Limits,
) -> Result<Vec<u8>, decode::Error> {
    let weight = decode::weigh_gzip(packed, limits)?;
    let mut outcome = Ok(T::default());
    let peak = memory::peak_of(|| outcome = decode::json_gzip::<T>(packed, limits)) as u64;
    assert!(
        peak <= weight + BUFFERS,
        "the estimate is {weight} bytes, and reading took {peak}: it must not be more"
    );
    let text = write(&outcome?);
    let again: T = decode::json_gzip(&gzip(&text), Limits { ratio: u64::MAX, ..limits })
        .expect("what we write, we read");
    assert_eq!(
        String::from_utf8_lossy(&write(&again)),
        String::from_utf8_lossy(&text),
        "what is read and written again stays the same"
    );
    Ok(text)
}

fn write(value: &impl Serialize) -> Vec<u8> {
    let mut text = Vec::new();
    encode::json(value, &mut text).expect("what was read can be written");
    text
}

/// Compresses a file.
pub fn gzip(text: &[u8]) -> Vec<u8> {
    let mut gzip = encode::gzip(Vec::new());
    gzip.write_all(text).and_then(|()| gzip.finish()).expect("a list takes all")
}
