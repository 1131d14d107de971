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

fn of<'a>(findings: &'a [Finding], what: &str) -> &'a Finding {
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
fn flags_are_judged_by_what_our_server_takes() {
    let facts = Facts {
        velero: Some(server(
            &["--concurrent-backups=4", "--features=EnableCSI", "--teleport=true"],
            &[],
        )),
        ..Facts::default()
    };
    let found = forth(&facts, &[]);
    assert_eq!(of(&found, "server flag --concurrent-backups=4").verdict, Verdict::Carries);
    assert_eq!(of(&found, "server flag --teleport=true").verdict, Verdict::Stays);
    assert_ne!(of(&found, "server flag --features=EnableCSI").verdict, Verdict::Stays);
}

#[test]
fn a_value_that_is_a_word_of_its_own_belongs_to_the_flag_before_it() {
    let flags = ["--concurrent-backups", "4", "--features", "EnableCSI", "--teleport", "far"];
    let facts = Facts { velero: Some(server(&flags, &[])), ..Facts::default() };
    let found = forth(&facts, &[]);
    assert_eq!(of(&found, "server flag --concurrent-backups 4").verdict, Verdict::Carries);
    assert_ne!(of(&found, "server flag --features EnableCSI").verdict, Verdict::Stays);
    assert_eq!(of(&found, "server flag --teleport far").verdict, Verdict::Stays);
    assert_eq!(found.len(), 3, "{found:#?}");
}

#[test]
fn what_we_lack_is_told_wherever_it_is_asked_for() {
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
    let found = forth(&facts, &["backup a (InProgress)".to_owned()]);
    for what in [
        "backup a (InProgress)",
        "the node agent",
        "3 PodVolumeBackups",
        "1 DataUploads",
        "2 of 3 backups",
        "schedule nightly",
        "the default --default-volumes-to-fs-backup",
    ] {
        assert_eq!(of(&found, what).verdict, Verdict::Stays, "{what}");
    }
    // What does not carry over is not counted among what does.
    assert_eq!(of(&found, "1 schedule").verdict, Verdict::Carries);
    assert_eq!(of(&found, "1 backup").verdict, Verdict::Carries);
    assert!(found.iter().all(|one| !one.what.starts_with("server flag")), "{found:#?}");
    assert_eq!(of(&found, "plugin x/velero-plugin-for-aws:v1").verdict, Verdict::Carries);
}

#[test]
fn nobody_goes_back_while_a_run_is_open() {
    let facts = Facts { snapshotters: vec!["aws".to_owned()], ..Facts::default() };
    let hinders = |found: &[Finding]| found.iter().any(|finding| finding.verdict == Verdict::Stays);
    assert!(!hinders(&back(&facts, &[])));
    assert!(hinders(&back(&facts, &["backup a (InProgress)".to_owned()])));
    let both = Facts { velero: Some(server(&[], &[])), bowline: Some(server(&[], &[])), ..facts };
    assert!(hinders(&back(&both, &[])));
}

#[test]
fn a_location_without_a_plugin_for_its_provider_does_not_carry_over() {
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
    let found = forth(&facts, &[]);
    for (what, verdict) in [
        ("2 backup locations", Verdict::Carries),
        ("backup location c (gcp)", Verdict::Stays),
        ("snapshot location d (velero.io/aws)", Verdict::Stays),
        ("1 snapshot location", Verdict::Carries),
        ("snapshot location f (acme.com/disks)", Verdict::Differs),
    ] {
        assert_eq!(of(&found, what).verdict, verdict, "{what}");
    }
    // Velero has nothing built in.
    let found = back(&facts, &[]);
    assert_eq!(of(&found, "backup location a (aws)").verdict, Verdict::Stays);
    assert_eq!(of(&found, "1 backup location").verdict, Verdict::Carries);
    // Nothing is known of a Velero that is not there.
    facts.velero = None;
    for found in [forth(&facts, &[]), back(&facts, &[])] {
        assert_eq!(of(&found, "backup location c (gcp)").verdict, Verdict::Differs);
    }
}

#[test]
fn what_only_we_can_read_is_named_on_the_way_back() {
    let in_location = |name: &str, place: &str| {
        let mut backup = backup(name);
        backup.spec.storage_location = place.to_owned();
        backup
    };
    let schedule = |name: &str, place: &str| {
        let mut schedule = Schedule::new(name, ScheduleSpec::default());
        schedule.spec.template.storage_location = place.to_owned();
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
    let found = back(&facts, &[]);
    for what in ["backup location folder (filesystem)", "schedule by-default"] {
        assert_eq!(of(&found, what).verdict, Verdict::Stays, "{what}");
    }
    assert!(of(&found, "backup location folder (filesystem)").why.contains("1 backups"));
    let snapshots = format!("2 snapshots of {local}");
    assert_eq!(of(&found, &snapshots).verdict, Verdict::Stays);
    for what in ["1 backup", "1 schedule", "1 backup location"] {
        assert_eq!(of(&found, what).verdict, Verdict::Carries, "{what}");
    }
    facts.velero = Some(server(&[], &["x/velero-plugin-for-aws:v1", "x/local-volume:v1"]));
    let found = back(&facts, &[]);
    assert!(found.iter().all(|one| one.what != snapshots), "{found:#?}");
    assert_eq!(of(&found, "1 snapshot location").verdict, Verdict::Carries);
}

#[test]
fn what_plugins_with_actions_may_notice_is_told() {
    let found = |plugins: &[&str]| {
        let facts = Facts { velero: Some(server(&[], plugins)), ..Facts::default() };
        forth(&facts, &[])
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
        let told = of(&actions, what);
        assert_eq!(told.verdict, Verdict::Differs, "{what}");
        assert!(told.why.contains(words), "{told:?}");
    }
}

#[test]
fn a_location_that_names_a_file_with_its_credentials_does_not_carry_over() {
    let config = [("credentialsFile".to_owned(), "/credentials/other".to_owned())];
    let (mut bucket, mut disks) = (location("b", "aws"), snapshot_location("s", "velero.io/aws"));
    bucket.spec.config.extend(config.clone());
    disks.spec.config.extend(config);
    let facts = Facts {
        locations: vec![bucket, location("plain", "aws")],
        snapshot_locations: vec![disks],
        ..Facts::default()
    };
    let found = forth(&facts, &[]);
    for (what, words) in [
        ("credentials of backup location b", "backup-location set b --credential"),
        ("credentials of snapshot location s", "snapshot-location set s --credential"),
    ] {
        let told = of(&found, what);
        assert_eq!(told.verdict, Verdict::Stays, "{what}");
        assert!(told.why.contains(words), "{told:?}");
    }
    assert!(!found.iter().any(|one| one.what.ends_with("plain")), "{found:#?}");
}
