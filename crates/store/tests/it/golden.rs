//! Compares our files with those that Velero's types write, which come from `golden/`.

use std::path::Path;

use bowline_api::Backup;
use bowline_store::decode::{self, Limits};
use bowline_store::encode;
use bowline_store::file::{
    BackupOperation, BackupVolumeInfo, OperationPhase, ResourceList, RestoreOperation,
    RestoreVolumeInfo, Results, Snapshot,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn unpacked(packed: &[u8]) -> String {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut decode::gunzip(packed, Limits::JSON), &mut text).unwrap();
    text
}

/// Files of Velero that are read and written by us are unchanged, byte by byte.
fn assert_same<T: Serialize + DeserializeOwned + Default>(name: &str) {
    let expected = read(name);
    let mut packed = encode::gzip(Vec::new());
    std::io::Write::write_all(&mut packed, expected.as_bytes()).unwrap();
    let value: T = decode::json_gzip(&packed.finish().unwrap(), Limits::JSON).unwrap();
    assert_eq!(unpacked(&encode::json_gzip(&value).unwrap()), expected, "{name}");
}

#[test]
fn every_file_is_byte_identical_to_veleros() {
    assert_same::<Vec<BackupOperation>>("backup-operations.json");
    assert_same::<Vec<RestoreOperation>>("restore-operations.json");
    assert_same::<Vec<BackupVolumeInfo>>("backup-volume-infos.json");
    assert_same::<Vec<RestoreVolumeInfo>>("restore-volume-infos.json");
    assert_same::<Vec<Snapshot>>("volume-snapshots.json");
    assert_same::<ResourceList>("resource-list.json");
    assert_same::<Results>("results.json");
}

#[test]
fn every_field_of_velero_is_modelled() {
    let operations: Vec<BackupOperation> =
        serde_json::from_str(&read("backup-operations.json")).unwrap();
    assert!(operations[0].unknown.is_empty() && operations[0].spec.unknown.is_empty());
    assert!(operations[0].status.unknown.is_empty());
    let operations: Vec<RestoreOperation> =
        serde_json::from_str(&read("restore-operations.json")).unwrap();
    assert!(operations[0].unknown.is_empty() && operations[0].spec.unknown.is_empty());
    let infos: Vec<BackupVolumeInfo> =
        serde_json::from_str(&read("backup-volume-infos.json")).unwrap();
    let info = &infos[0];
    assert!(info.unknown.is_empty());
    assert!(info.csi_snapshot_info.as_ref().unwrap().unknown.is_empty());
    assert!(info.snapshot_data_movement_info.as_ref().unwrap().unknown.is_empty());
    assert!(info.native_snapshot_info.as_ref().unwrap().unknown.is_empty());
    assert!(info.pvb_info.as_ref().unwrap().unknown.is_empty());
    assert!(info.pv_info.as_ref().unwrap().unknown.is_empty());
    let infos: Vec<RestoreVolumeInfo> =
        serde_json::from_str(&read("restore-volume-infos.json")).unwrap();
    assert!(infos[0].unknown.is_empty());
    let snapshots: Vec<Snapshot> = serde_json::from_str(&read("volume-snapshots.json")).unwrap();
    assert!(snapshots[0].unknown.is_empty() && snapshots[0].spec.unknown.is_empty());
    assert!(snapshots[0].status.unknown.is_empty());
}

#[test]
fn field_of_a_newer_version_is_preserved() {
    let text = r#"{"spec":{"newField":1},"status":{"phase":"Paused"},"extra":[]}"#;
    let operation: BackupOperation = serde_json::from_str(text).unwrap();
    assert_eq!(operation.status.phase, Some(OperationPhase::Other("Paused".to_owned())));
    let written = serde_json::to_value(&operation).unwrap();
    assert_eq!(
        (&written["spec"]["newField"], &written["extra"]),
        (&1.into(), &Value::Array(vec![]))
    );
}

#[test]
fn the_commit_record_is_indented_and_ends_without_a_line_feed() {
    let expected = read("velero-backup.json");
    assert!(!expected.ends_with('\n') && expected.starts_with("{\n  \""));
    let backup: Backup = serde_json::from_str(&expected).unwrap();
    let actual = String::from_utf8(encode::json_indented(&backup).unwrap().to_vec()).unwrap();
    // The order of fields in metadata differs; everything else is the same, line by line.
    let lines = |text: &str| {
        let mut lines: Vec<String> =
            text.lines().map(|line| line.trim_end_matches(',').to_owned()).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(&actual), lines(&expected));
    assert!(
        !actual.ends_with('\n') && actual.contains(r"a \u003c b \u0026\u0026 c \u003e d \u2028")
    );
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(value(&actual), value(&expected));
}

#[test]
fn strings_and_numbers_are_spelled_as_go_spells_them() {
    let pairs: Vec<Value> = serde_json::from_str(&read("json.json")).unwrap();
    assert!(pairs.len() > 20);
    for pair in pairs {
        let mut actual = Vec::new();
        encode::json(&pair["value"], &mut actual).unwrap();
        assert_eq!(String::from_utf8(actual).unwrap(), pair["text"], "{pair}");
    }
    for (value, text) in [
        (1.0_f64, "1"),
        (-0.5, "-0.5"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1e-7, "1e-7"),
        (0.0, "0"),
    ] {
        let mut actual = Vec::new();
        encode::json(&value, &mut actual).unwrap();
        assert_eq!(String::from_utf8(actual).unwrap(), text);
    }
}
