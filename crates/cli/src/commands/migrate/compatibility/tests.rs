use bowline_api::{
    BackupStorageLocation, BackupStorageLocationSpec, Schedule, ScheduleSpec,
    VolumeSnapshotLocation, VolumeSnapshotLocationSpec,
};

use super::*;

fn server(flags: &[&str], plugins: &[&str]) -> Server {
    let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
    let (name, flags, plugins) = ("velero".to_owned(), texts(flags), texts(plugins));
    Server { name, replicas: 1, flags, plugins }
}

fn find_finding<'a>(findings: &'a [Finding], what: &str) -> &'a Finding {
    findings.iter().find(|one| one.what == what).unwrap_or_else(|| panic!("{findings:#?}"))
}

fn backup(name: &str) -> Backup {
    Backup::new(name, BackupSpec::default())
}

fn location(name: &str, provider: &str) -> BackupStorageLocation {
    let provider = provider.to_owned();
    let spec = BackupStorageLocationSpec { provider, ..BackupStorageLocationSpec::default() };
    BackupStorageLocation::new(name, spec)
}

fn snapshot_location(name: &str, provider: &str) -> VolumeSnapshotLocation {
    let provider = provider.to_owned();
    let spec = VolumeSnapshotLocationSpec { provider, ..VolumeSnapshotLocationSpec::default() };
    VolumeSnapshotLocation::new(name, spec)
}

#[test]
fn flags_are_compared_with_our_server_flags() {
    let facts = Facts {
        velero: Some(server(
            &["--concurrent-backups=4", "--features=EnableCSI", "--teleport=true"],
            &[],
        )),
        ..Facts::default()
    };
    let found = check_switch_to_bowline(&facts, &[]);
    assert_eq!(
        find_finding(&found, "server flag --concurrent-backups=4").verdict,
        MigrationVerdict::Carries
    );
    assert_eq!(
        find_finding(&found, "server flag --teleport=true").verdict,
        MigrationVerdict::Stays
    );
    assert_ne!(
        find_finding(&found, "server flag --features=EnableCSI").verdict,
        MigrationVerdict::Stays
    );
}

#[test]
fn separate_value_belongs_to_the_preceding_flag() {
    let flags = ["--concurrent-backups", "4", "--features", "EnableCSI", "--teleport", "far"];
    let facts = Facts { velero: Some(server(&flags, &[])), ..Facts::default() };
    let found = check_switch_to_bowline(&facts, &[]);
    assert_eq!(
        find_finding(&found, "server flag --concurrent-backups 4").verdict,
        MigrationVerdict::Carries
    );
    assert_ne!(
        find_finding(&found, "server flag --features EnableCSI").verdict,
        MigrationVerdict::Stays
    );
    assert_eq!(find_finding(&found, "server flag --teleport far").verdict, MigrationVerdict::Stays);
    assert_eq!(found.len(), 3, "{found:#?}");
}

#[test]
fn unsupported_methods_are_reported_wherever_requested() {
    let mut schedule = Schedule::new("nightly", ScheduleSpec::default());
    schedule.spec.template.snapshot_move_data = Some(true);
    let other = Schedule::new("hourly", ScheduleSpec::default());
    let facts = Facts {
        velero: Some(server(&["--default-volumes-to-fs-backup"], &["x/velero-plugin-for-aws:v1"])),
        has_node_agent: true,
        schedules: vec![schedule, other],
        backups: ["copied", "plain", "moved"].map(backup).into(),
        pod_volume_backups: ["copied"; 3].map(str::to_owned).into(),
        data_uploads: vec!["moved".to_owned()],
        ..Facts::default()
    };
    let found = check_switch_to_bowline(&facts, &["backup a (InProgress)".to_owned()]);
    for what in [
        "backup a (InProgress)",
        "the node agent",
        "3 PodVolumeBackups",
        "1 DataUploads",
        "2 of 3 backups",
        "schedule nightly",
        "the default --default-volumes-to-fs-backup",
    ] {
        assert_eq!(find_finding(&found, what).verdict, MigrationVerdict::Stays, "{what}");
    }
    // Objects that do not carry over are not counted among those that do.
    assert_eq!(find_finding(&found, "1 schedule").verdict, MigrationVerdict::Carries);
    assert_eq!(find_finding(&found, "1 backup").verdict, MigrationVerdict::Carries);
    assert!(found.iter().all(|one| !one.what.starts_with("server flag")), "{found:#?}");
    assert_eq!(
        find_finding(&found, "plugin x/velero-plugin-for-aws:v1").verdict,
        MigrationVerdict::Carries
    );
}

#[test]
fn active_run_blocks_switching_back() {
    let facts = Facts { snapshotters: vec!["aws".to_owned()], ..Facts::default() };
    let hinders =
        |found: &[Finding]| found.iter().any(|finding| finding.verdict == MigrationVerdict::Stays);
    assert!(!hinders(&check_switch_to_velero(&facts, &[])));
    assert!(hinders(&check_switch_to_velero(&facts, &["backup a (InProgress)".to_owned()])));
    let both = Facts { velero: Some(server(&[], &[])), bowline: Some(server(&[], &[])), ..facts };
    assert!(hinders(&check_switch_to_velero(&both, &[])));
}

#[test]
fn location_without_a_provider_plugin_does_not_carry_over() {
    let mut facts = Facts {
        velero: Some(server(&[], &["x/velero-plugin-for-microsoft-azure:v1"])),
        locations: vec![location("a", "aws"), location("b", "azure"), location("c", "gcp")],
        snapshot_locations: vec![
            snapshot_location("d", "velero.io/aws"),
            snapshot_location("e", "csi"),
            snapshot_location("f", "acme.com/disks"),
        ],
        ..Facts::default()
    };
    let found = check_switch_to_bowline(&facts, &[]);
    for (what, verdict) in [
        ("2 backup locations", MigrationVerdict::Carries),
        ("backup location c (gcp)", MigrationVerdict::Stays),
        ("snapshot location d (velero.io/aws)", MigrationVerdict::Stays),
        ("1 snapshot location", MigrationVerdict::Carries),
        ("snapshot location f (acme.com/disks)", MigrationVerdict::Differs),
    ] {
        assert_eq!(find_finding(&found, what).verdict, verdict, "{what}");
    }
    // Velero has no built-in providers.
    let found = check_switch_to_velero(&facts, &[]);
    assert_eq!(find_finding(&found, "backup location a (aws)").verdict, MigrationVerdict::Stays);
    assert_eq!(find_finding(&found, "1 backup location").verdict, MigrationVerdict::Carries);
    // Without a Velero Deployment its plugins are unknown.
    facts.velero = None;
    for found in [check_switch_to_bowline(&facts, &[]), check_switch_to_velero(&facts, &[])] {
        assert_eq!(
            find_finding(&found, "backup location c (gcp)").verdict,
            MigrationVerdict::Differs
        );
    }
}

#[test]
fn bowline_only_data_is_reported_when_switching_back() {
    let in_location = |name: &str, location: &str| {
        let mut backup = backup(name);
        backup.spec.storage_location = location.to_owned();
        backup
    };
    let schedule = |name: &str, location: &str| {
        let mut schedule = Schedule::new(name, ScheduleSpec::default());
        schedule.spec.template.storage_location = location.to_owned();
        schedule
    };
    let mut folder = location("folder", "filesystem");
    folder.spec.default = true;
    let local = "bowline.io/local-volume";
    let mut facts = Facts {
        velero: Some(server(&[], &["x/velero-plugin-for-aws:v1"])),
        locations: vec![location("bucket", "aws"), folder],
        snapshot_locations: vec![snapshot_location("local", local)],
        backups: vec![in_location("one", "bucket"), in_location("two", "folder")],
        schedules: vec![schedule("named", "bucket"), schedule("by-default", "")],
        snapshotters: [local, local, "ebs.csi.aws.com"].map(str::to_owned).into(),
        ..Facts::default()
    };
    let found = check_switch_to_velero(&facts, &[]);
    for what in ["backup location folder (filesystem)", "schedule by-default"] {
        assert_eq!(find_finding(&found, what).verdict, MigrationVerdict::Stays, "{what}");
    }
    assert!(
        find_finding(&found, "backup location folder (filesystem)").reason.contains("1 backups")
    );
    let snapshots = format!("2 snapshots of {local}");
    assert_eq!(find_finding(&found, &snapshots).verdict, MigrationVerdict::Stays);
    for what in ["1 backup", "1 schedule", "1 backup location"] {
        assert_eq!(find_finding(&found, what).verdict, MigrationVerdict::Carries, "{what}");
    }
    facts.velero = Some(server(&[], &["x/velero-plugin-for-aws:v1", "x/local-volume:v1"]));
    let found = check_switch_to_velero(&facts, &[]);
    assert!(found.iter().all(|one| one.what != snapshots), "{found:#?}");
    assert_eq!(find_finding(&found, "1 snapshot location").verdict, MigrationVerdict::Carries);
}

#[test]
fn differences_for_action_plugins_are_reported() {
    let found = |plugins: &[&str]| {
        let facts = Facts { velero: Some(server(&[], plugins)), ..Facts::default() };
        check_switch_to_bowline(&facts, &[])
    };
    let clouds = found(&["x/velero-plugin-for-aws:v1", "x/velero-plugin-for-microsoft-azure:v1"]);
    let is_about = |one: &Finding| one.what == "permissions of plugins";
    assert!(!clouds.iter().any(is_about), "{clouds:#?}");
    let actions = found(&["x/velero-plugin-for-gcp:v1", "x/openshift-velero-plugin:v1"]);
    for (what, words) in [
        ("permissions of plugins", "cluster-admin"),
        ("concurrent item action calls", "--serial-plugin"),
        ("the Deployment", "`bowline`"),
    ] {
        let finding = find_finding(&actions, what);
        assert_eq!(finding.verdict, MigrationVerdict::Differs, "{what}");
        assert!(finding.reason.contains(words), "{finding:?}");
    }
}

#[test]
fn location_with_a_credentials_file_does_not_carry_over() {
    let config = [("credentialsFile".to_owned(), "/credentials/other".to_owned())];
    let (mut bucket, mut disks) = (location("b", "aws"), snapshot_location("s", "velero.io/aws"));
    bucket.spec.config.extend(config.clone());
    disks.spec.config.extend(config);
    let facts = Facts {
        locations: vec![bucket, location("plain", "aws")],
        snapshot_locations: vec![disks],
        ..Facts::default()
    };
    let found = check_switch_to_bowline(&facts, &[]);
    for (what, words) in [
        ("credentials of backup location b", "backup-location set b --credential"),
        ("credentials of snapshot location s", "snapshot-location set s --credential"),
    ] {
        let finding = find_finding(&found, what);
        assert_eq!(finding.verdict, MigrationVerdict::Stays, "{what}");
        assert!(finding.reason.contains(words), "{finding:?}");
    }
    assert!(!found.iter().any(|one| one.what.ends_with("plain")), "{found:#?}");
}
