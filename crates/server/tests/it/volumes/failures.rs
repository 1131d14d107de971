//! Failures of plugins, disks and users: each is reported where users look for it, no snapshot is left over without a
//! report, and no secret is shown.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use bowline_api::{Backup, DeleteBackupRequest, VolumePluginBackup, VolumeSnapshotLocation};
use bowline_store::file::{
    BackupVolumeInfo, BowlineBackupInfo, Method, Outcome, Results, Snapshot, SnapshotPhase,
};
use bowline_testbed::{env, s3};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::subject::{
    AwsSnapshotter, LocalVolumeSnapshotter, PASSWORD, TestedSnapshotter as _, names,
};
use super::suite::{SnapshotterScenario, delete_backup};
use super::{SnapshotWorld, status_phase};
use crate::bed::{World, eventually};
use crate::support::runs::{is_over, is_waiting, phase};

/// State of a backup, in each place that shows it.
struct BackupFiles {
    phase: String,
    errors: String,
    warnings: String,
    snapshots: Vec<Snapshot>,
    infos: Vec<BackupVolumeInfo>,
    shown: Vec<VolumePluginBackup>,
}

impl BackupFiles {
    async fn of(trial: &SnapshotWorld, name: &str) -> Self {
        let phase = phase(&trial.ended(name).await);
        let results: Results = trial.get(name).await;
        Self {
            phase,
            errors: results.errors.cluster.join("\n"),
            warnings: results.warnings.cluster.join("\n"),
            snapshots: trial.get(name).await,
            infos: trial.get(name).await,
            shown: trial.resources(name).await,
        }
    }

    /// The ids of the snapshots that are in the record.
    fn ids(&self) -> Vec<&str> {
        let ids = self.snapshots.iter().map(|one| one.status.provider_snapshot_id.as_str());
        let mut ids: Vec<_> = ids.filter(|id| !id.is_empty()).collect();
        ids.sort_unstable();
        ids
    }

    /// Checks that everything succeeded, in every place that shows it.
    fn assert_completed(&self) {
        assert_eq!(self.phase, "Completed", "{} {}", self.errors, self.warnings);
        assert_eq!((self.errors.as_str(), self.warnings.as_str()), ("", ""));
        let is_complete = |one: &Snapshot| one.status.phase == Some(SnapshotPhase::Completed);
        assert!(self.snapshots.iter().all(is_complete), "{:?}", self.snapshots);
        assert!(self.infos.iter().all(|info| info.result == Some(Outcome::Succeeded)));
        assert!(self.shown.iter().all(|one| status_phase(one) == "Completed"), "{:?}", self.shown);
    }

    /// Shown state of the snapshot of a volume: phase and message.
    fn shown_of(&self, volume: &str) -> (String, String) {
        let shown = self.shown.iter().find(|one| one.spec.volume == volume).expect("it is shown");
        (status_phase(shown), shown.status.as_ref().unwrap().message.clone())
    }
}

impl SnapshotWorld {
    /// Nothing is at the plugin's that the backup does not name.
    fn assert_only(&self, ids: &[&str]) {
        let mut there = self.snapshots_at_plugin();
        there.sort_unstable();
        assert_eq!(there, ids);
    }

    /// Deletes the backup, and checks that nothing remains.
    async fn assert_deleted(&self, backup: &str) {
        delete_backup(&self.world, backup).await;
        self.assert_only(&[]);
        assert_eq!(names(&self.root().join("uploaded")), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_ids_that_are_no_object_names_are_shown_under_other_names() {
    let trial = SnapshotWorld::start("volumes-names", "sdk").await;
    trial.location("snaps", "vs-v2", json!({})).await;
    let long = "X".repeat(240);
    let disks = ["Disk_1", "a b:c", "größe", &long];
    for (number, disk) in disks.iter().enumerate() {
        trial.disk(disk);
        trial.volume_of(&number.to_string(), disk).await;
    }
    trial.back_up("b", json!({})).await;
    let outcomes = BackupFiles::of(&trial, "b").await;
    outcomes.assert_completed();
    assert_eq!(outcomes.ids().len(), disks.len());
    trial.assert_only(&outcomes.ids());
    let stored: Vec<VolumePluginBackup> = trial.get("b").await;
    for shown in [&outcomes.shown, &stored] {
        let id = |one: &VolumePluginBackup| one.status.as_ref().unwrap().snapshot_id.clone();
        let mut ids: Vec<_> = shown.iter().map(id).collect();
        ids.sort_unstable();
        assert_eq!(ids, outcomes.ids(), "the exact id is in the status");
        let first = shown.iter().find(|one| id(one) == "snap-Disk_1-1").unwrap();
        assert!(first.name_any().starts_with("snap-disk-1-1-"), "{}", first.name_any());
    }
    trial.assert_deleted("b").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_sharing_a_disk_have_a_snapshot_each() {
    let trial = SnapshotWorld::start("volumes-same-disk", "sdk").await;
    trial.location("snaps", "vs-v2", json!({})).await;
    trial.disk("one");
    for name in ["first", "second"] {
        trial.volume_of(name, "one").await;
    }
    trial.back_up("b", json!({})).await;
    let outcomes = BackupFiles::of(&trial, "b").await;
    outcomes.assert_completed();
    assert_eq!(outcomes.ids(), ["snap-one-1", "snap-one-2"]);
    assert_eq!(outcomes.shown.len(), 2);
    trial.assert_deleted("b").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicate_snapshot_id_is_kept_for_both_volumes() {
    let trial = SnapshotWorld::start("volumes-same-id", "sdk").await;
    trial.location("snaps", "vs-v2", json!({"snapshot-id": "group-1"})).await;
    let volumes = [trial.volume("one").await, trial.volume("two").await];
    trial.back_up("b", json!({})).await;
    let outcomes = BackupFiles::of(&trial, "b").await;
    outcomes.assert_completed();
    assert_eq!(outcomes.ids(), ["group-1", "group-1"]);
    trial.assert_only(&["group-1"]);
    assert_eq!(outcomes.shown.len(), 2, "{:?}", outcomes.shown);
    for volume in &volumes {
        outcomes.shown_of(volume);
    }
    let mut called: Vec<_> = outcomes.shown.iter().map(ResourceExt::name_any).collect();
    called.sort_unstable();
    assert_eq!(called[0], "group-1");
    assert!(called[1].starts_with("group-1-"), "{called:?}");
    trial.assert_deleted("b").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_progress_numbers_do_not_affect_the_upload() {
    let trial = SnapshotWorld::start("volumes-numbers", "sdk").await;
    trial.volume("one").await;
    for (number, (reported, expected)) in [
        ("95/90", (90, 90)),
        ("9223372036854775807/1", (1, 1)),
        ("-5/-1", (0, 0)),
        ("-3/9", (9, 9)),
        ("7/0", (7, 0)),
        ("0/0", (0, 0)),
    ]
    .into_iter()
    .enumerate()
    {
        let (location, backup) = (format!("snaps-{number}"), format!("b-{number}"));
        let settings = json!({"progress": reported, "upload-ms": "1500"});
        trial.location(&location, "vs-v2", settings).await;
        let spec = json!({"volumeSnapshotLocations": [location]});
        trial.back_up_with(&backup, json!({}), spec).await;
        let outcomes = BackupFiles::of(&trial, &backup).await;
        outcomes.assert_completed();
        assert_eq!(trial.called("snapshot-uploaded"), number + 1, "{reported}: it was waited for");
        let progress = &outcomes.shown[0].status.as_ref().unwrap().progress;
        assert_eq!((progress.bytes_done, progress.total_bytes), expected, "{reported}");
        trial.world.delete::<VolumeSnapshotLocation>(&location).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_that_always_fails_near_its_end_is_failed() {
    let trial = SnapshotWorld::start("volumes-99", "sdk").await;
    let settings = json!({"upload-ms": "3000", "upload-fail": "the line was cut"});
    trial.location("snaps", "vs-v2", settings).await;
    let volume = trial.volume("one").await;
    trial.back_up("b", json!({})).await;
    let outcomes = BackupFiles::of(&trial, "b").await;
    assert_eq!(outcomes.phase, "PartiallyFailed");
    let reason = "the upload failed 3 times: the line was cut";
    assert!(outcomes.errors.contains(reason), "{}", outcomes.errors);
    assert!(outcomes.errors.contains(&volume), "{}", outcomes.errors);
    assert_eq!(outcomes.shown_of(&volume), ("Failed".to_owned(), reason.to_owned()));
    let progress = &outcomes.shown[0].status.as_ref().unwrap().progress;
    assert!(0 < progress.bytes_done && progress.bytes_done < progress.total_bytes, "{progress:?}");
    assert_eq!(outcomes.snapshots[0].status.phase, Some(SnapshotPhase::Failed));
    assert_eq!(outcomes.infos[0].result, Some(Outcome::Failed));
    assert_eq!(trial.called("upload-snapshot"), 3, "{:?}", trial.calls());
    // The partial snapshot is known, and is deleted with the backup.
    trial.assert_only(&outcomes.ids());
    trial.assert_deleted("b").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_location_is_reported_before_the_backup_starts() {
    let trial = SnapshotWorld::start("volumes-nowhere", "sdk").await;
    trial.location("snaps", "vs-v2", json!({})).await;
    trial.volume("one").await;
    let spec = json!({"volumeSnapshotLocations": ["nowhere"]});
    trial.back_up_with("b", json!({}), spec).await;
    let backup = trial.ended("b").await;
    assert_eq!(phase(&backup), "FailedValidation");
    let errors = backup.status.unwrap().validation_errors.join("; ");
    assert!(errors.contains("nowhere"), "{errors}");
    assert_eq!(trial.called("create-snapshot"), 0);
    assert!(trial.resources("b").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_without_location_fails_and_its_snapshot_can_be_deleted() {
    let mut trial = SnapshotWorld::start("volumes-gone", "sdk").await;
    trial.location("snaps", "vs-v2", json!({"upload-ms": "600000"})).await;
    let volume = trial.volume("one").await;
    trial.back_up("b", json!({})).await;
    trial.world.until("b", is_waiting::<Backup>).await;
    eventually("an upload begins", async || trial.called("upload-snapshot") > 0).await;
    trial.world.end().await.unwrap();
    trial.world.delete::<VolumeSnapshotLocation>("snaps").await;
    let options = SnapshotWorld::options(&trial.world);
    trial.world.run(options);
    let outcomes = BackupFiles::of(&trial, "b").await;
    assert_eq!(outcomes.phase, "PartiallyFailed");
    let reason = "the VolumeSnapshotLocation snaps cannot be used: not found";
    assert!(outcomes.errors.contains(reason), "{}", outcomes.errors);
    assert_eq!(outcomes.shown_of(&volume), ("Failed".to_owned(), reason.to_owned()));
    assert_eq!(outcomes.snapshots[0].status.phase, Some(SnapshotPhase::Failed));
    trial.assert_only(&outcomes.ids());
    trial.location("snaps", "vs-v2", json!({})).await;
    trial.assert_deleted("b").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_credentials_are_an_error_per_volume() {
    let trial = SnapshotWorld::start("volumes-no-secret", "sdk").await;
    let volume = trial.volume("one").await;
    let spec = json!({
        "provider": "sdk.bowline.io/vs-v2", "config": {"root": trial.root()},
        "credential": {"name": "missing", "key": "cloud"},
    });
    let location = json!({"metadata": {"name": "snaps"}, "spec": spec});
    trial.world.create::<VolumeSnapshotLocation>(location).await;
    trial.back_up("b", json!({})).await;
    let outcomes = BackupFiles::of(&trial, "b").await;
    assert_eq!(outcomes.phase, "PartiallyFailed");
    for words in ["the VolumeSnapshotLocation snaps cannot be used", "missing", &volume] {
        assert!(outcomes.errors.contains(words), "no {words:?} in {}", outcomes.errors);
    }
    assert!(outcomes.infos.iter().all(|info| info.skipped), "{:?}", outcomes.infos);
    assert!(outcomes.snapshots.is_empty() && outcomes.shown.is_empty());
    trial.assert_only(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_cloud_key_is_reported_without_leaking_it() {
    let world = World::without_server("volumes-aws-wrong").await;
    let aws = AwsSnapshotter::new(&world).await;
    let stage = SnapshotterScenario::prepare(world, aws).await;
    let (right, wrong) = (stage.subject.ec2.credentials(), "wrong-and-still-a-secret");
    for access_key in [right.access_key.as_str(), "AKIAOFSOMEBODYELSE"] {
        let wrong =
            s3::Credentials { access_key: access_key.to_owned(), secret_key: wrong.to_owned() };
        stage.world.secret("snaps", &stage.subject.ec2.profile(&wrong)).await;
        let name = access_key.to_lowercase();
        let backup = stage.back_up(&name).await;
        assert_eq!(phase(&backup), "PartiallyFailed");
        let results: Results = stage.get(&name).await;
        let errors = results.errors.cluster.join("\n");
        for disk in stage.subject.disks() {
            assert!(errors.contains(&stage.volume(disk.name)), "{errors}");
        }
        assert!(errors.contains("AuthFailure"), "{errors}");
        let snapshots: Vec<Snapshot> = stage.get(&name).await;
        assert!(snapshots.is_empty(), "{snapshots:?}");
        assert!(stage.list::<VolumePluginBackup>().await.is_empty());
    }
    assert_eq!(stage.subject.remaining_snapshots(), [""; 0]);
    stage.assert_no_secret_leaks().await;
    stage.assert_no_leaks_of(&[wrong.to_owned()]).await;

    // The right key is used as soon as it exists.
    stage.put_credentials().await;
    assert_eq!(phase(&stage.back_up("b").await), "Completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_password_fails_the_upload_without_leaking_it() {
    let world = World::without_server("volumes-wrong-password").await;
    let local = LocalVolumeSnapshotter::with_folder(&world).await;
    let mut stage = SnapshotterScenario::prepare(world, local).await;
    assert_eq!(phase(&stage.back_up("first").await), "Completed");
    let right = stage.subject.credentials.clone();
    let wrong = "another-secret-of-ours".to_owned();
    stage.subject.credentials = vec![("RUSTIC_PASSWORD", wrong.clone())];
    stage.put_credentials().await;
    let backup = stage.back_up("second").await;
    assert_eq!(phase(&backup), "PartiallyFailed");
    stage.assert_uploads_failed("second", "password").await;
    stage.assert_no_leaks_of(&[wrong, PASSWORD.to_owned()]).await;
    stage.subject.credentials = right;
    stage.put_credentials().await;
    for backup in ["second", "first"] {
        delete_backup(&stage.world, backup).await;
    }
    assert_eq!(stage.subject.remaining_snapshots(), [""; 0]);
}

impl SnapshotterScenario<LocalVolumeSnapshotter> {
    /// All uploads of a backup have failed for the same reason, in every place, and the clones are there.
    async fn assert_uploads_failed(&self, backup: &str, reason: &str) {
        let results: Results = self.get(backup).await;
        let errors = results.errors.cluster.join("\n");
        let snapshots: Vec<Snapshot> = self.get(backup).await;
        let infos: Vec<BackupVolumeInfo> = self.get(backup).await;
        let own: BowlineBackupInfo = self.get(backup).await;
        let shown = self.list::<VolumePluginBackup>().await;
        assert_eq!(own.volume_operations.len(), 2 * self.subject.disks().len());
        for disk in self.subject.disks() {
            let volume = self.volume(disk.name);
            let is_reported =
                errors.lines().any(|line| line.contains(&volume) && line.contains(reason));
            assert!(is_reported, "{errors}");
            let snapshot =
                snapshots.iter().find(|one| one.spec.persistent_volume_name == volume).unwrap();
            assert_eq!(snapshot.status.phase, Some(SnapshotPhase::Failed));
            let id = &snapshot.status.provider_snapshot_id;
            assert!(self.subject.state().join(id).join("data").is_dir(), "the clone is kept");
            let info = infos.iter().find(|one| one.pv_name == volume).unwrap();
            assert_eq!(info.backup_method, Some(Method::NativeSnapshot));
            assert_eq!(info.result, Some(Outcome::Failed));
            let is_of =
                |one: &&VolumePluginBackup| one.spec.backup == backup && one.spec.volume == volume;
            let shown = shown.iter().find(is_of).expect("it is shown");
            assert_eq!(status_phase(shown), "Failed");
            let message = &shown.status.as_ref().unwrap().message;
            assert!(message.contains(reason), "{message}");
        }
    }
}

/// A small filesystem, unmounted when this is dropped.
struct SmallFilesystem(PathBuf);

impl SmallFilesystem {
    /// None where we may not mount anything.
    fn mount(at: &Path, size: &str) -> Option<Self> {
        fs::create_dir(at).unwrap();
        let options = format!("size={size},mode=0755");
        let mut command = Command::new("mount");
        let output = command.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at).output();
        let output = output.unwrap();
        if output.status.success() {
            return Some(Self(at.to_owned()));
        }
        let reason = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(std::env::var_os(env::CI).is_none(), "{reason}");
        println!("SKIPPED: no full disk can be had: {reason}");
        None
    }

    fn grow(&self, size: &str) {
        let options = format!("remount,size={size}");
        let output = Command::new("mount").args(["-o", &options]).arg(&self.0).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

impl Drop for SmallFilesystem {
    fn drop(&mut self) {
        // Lazily: the plugin may still have something open.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Makes a disk large, with what cannot be compressed.
fn fill(local: &LocalVolumeSnapshotter, disk: &str, size: u64) {
    let mut noise = Vec::new();
    File::open("/dev/urandom").unwrap().take(size).read_to_end(&mut noise).unwrap();
    fs::write(local.root.join(disk).join("noise"), noise).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn clone_without_space_is_a_volume_error_and_leaves_nothing() {
    let world = World::without_server("volumes-full-state").await;
    let mut local = LocalVolumeSnapshotter::with_folder(&world).await;
    let at = local.root.with_file_name("small");
    let Some(_small) = SmallFilesystem::mount(&at, "2m") else { return };
    local.more = json!({"stateDir": at.join("state")});
    fill(&local, "host", 8_000_000);
    let stage = SnapshotterScenario::prepare(world, local).await;
    // Both are cloned concurrently. While the large one has filled the disk, the small one may not fit either.
    let mut attempts = 0;
    let name = loop {
        attempts += 1;
        let name = format!("b{attempts}");
        let backup = stage.back_up(&name).await;
        assert_eq!(phase(&backup), "PartiallyFailed");
        let status = backup.status.unwrap();
        assert_eq!(status.volume_snapshots_attempted, 2);
        match status.volume_snapshots_completed {
            1 => break name,
            completed => assert_eq!((completed, stage.subject.records()), (0, Vec::new())),
        }
        assert!(attempts < 10, "it does not fit by itself");
    };
    let name = name.as_str();
    let results: Results = stage.get(name).await;
    let errors = results.errors.cluster.join("\n");
    for words in ["No space left", "noise", &stage.volume("host")] {
        assert!(errors.contains(words), "no {words:?} in {errors}");
    }
    assert!(!errors.contains(&stage.volume("local")), "{errors}");
    // A plugin that reports a failure has created nothing.
    assert_eq!(results.warnings, Results::default().warnings);
    let snapshots: Vec<Snapshot> = stage.get(name).await;
    let mut backups = Vec::new();
    for snapshot in &snapshots {
        let is_full = snapshot.spec.persistent_volume_name == stage.volume("host");
        let id = &snapshot.status.provider_snapshot_id;
        assert_eq!(id.is_empty(), is_full);
        let phase = if is_full { SnapshotPhase::Failed } else { SnapshotPhase::Completed };
        assert_eq!(snapshot.status.phase, Some(phase));
        backups.extend((!is_full).then(|| id.clone()));
    }
    assert_eq!(stage.subject.records(), backups);
    let shown = stage.list::<VolumePluginBackup>().await;
    assert_eq!(shown.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), backups);
    assert_eq!(status_phase(&shown[0]), "Completed");
    stage.assert_no_secret_leaks().await;
    delete_backup(&stage.world, name).await;
    assert_eq!(stage.subject.remaining_snapshots(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn full_repository_fails_uploads_and_the_next_backup_succeeds() {
    let world = World::without_server("volumes-full-repository").await;
    let mut local = LocalVolumeSnapshotter::with_folder(&world).await;
    let at = local.root.with_file_name("small");
    let Some(small) = SmallFilesystem::mount(&at, "3m") else { return };
    let repository = at.join("repository");
    local.repository = (repository.display().to_string(), repository);
    for disk in local.disks() {
        fill(&local, disk.name, 20_000_000);
    }
    let stage = SnapshotterScenario::prepare(world, local).await;
    assert_eq!(phase(&stage.back_up("first").await), "PartiallyFailed");
    stage.assert_uploads_failed("first", "No space left").await;
    assert_eq!(stage.subject.uploaded(), [""; 0]);
    stage.assert_no_secret_leaks().await;

    small.grow("96m");
    let backup = stage.back_up("second").await;
    let results: Results = stage.get("second").await;
    assert_eq!(phase(&backup), "Completed", "{results:?}");
    for backup in ["first", "second"] {
        delete_backup(&stage.world, backup).await;
    }
    assert_eq!(stage.subject.remaining_snapshots(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_bucket_key_fails_uploads_without_leaking_it() {
    let world = World::without_server("volumes-wrong-bucket-key").await;
    let mut local = LocalVolumeSnapshotter::with_bucket(&world).await;
    let right = local.credentials.clone();
    let wrong = "not-the-key-of-the-bucket".to_owned();
    for (key, value) in &mut local.credentials {
        if *key == "AWS_SECRET_ACCESS_KEY" {
            value.clone_from(&wrong);
        }
    }
    let mut stage = SnapshotterScenario::prepare(world, local).await;
    assert_eq!(phase(&stage.back_up("b").await), "PartiallyFailed");
    stage.assert_uploads_failed("b", "repository").await;
    stage.assert_no_leaks_of(&[wrong.clone(), PASSWORD.to_owned()]).await;

    // The contents of the bucket cannot be checked, so the record stays.
    let request = json!({"metadata": {"name": "too-early"}, "spec": {"backupName": "b"}});
    stage.world.create::<DeleteBackupRequest>(request).await;
    let is_reported = |request: &DeleteBackupRequest| {
        request.status.as_ref().is_some_and(|status| !status.errors.is_empty())
    };
    let refused = stage.world.until("too-early", is_reported).await;
    let errors = refused.status.unwrap().errors.join("\n");
    for snapshot in &stage.get::<Vec<Snapshot>>("b").await {
        assert!(errors.contains(&snapshot.status.provider_snapshot_id), "{errors}");
    }
    assert!(!errors.contains(&wrong) && !errors.contains(PASSWORD), "{errors}");

    stage.subject.credentials = right;
    stage.put_credentials().await;
    delete_backup(&stage.world, "b").await;
    assert_eq!(stage.subject.remaining_snapshots(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn local_snapshots_are_restored_in_place() {
    let world = World::without_server("volumes-local-only").await;
    let local = LocalVolumeSnapshotter::with_folder(&world).await;
    let stage = SnapshotterScenario::prepare(world, local).await;
    let annotations: Value = json!({bowline_api::annotation::SNAPSHOT_TYPE: "local"});
    let spec = stage.spec();
    let object = json!({"metadata": {"name": "b", "annotations": annotations}, "spec": spec});
    stage.world.create::<Backup>(object).await;
    let backup = stage.world.until("b", is_over::<Backup>).await;
    assert_eq!(phase(&backup), "Completed");
    assert_eq!(stage.subject.uploaded(), [""; 0], "nothing is uploaded");
    let snapshots: Vec<Snapshot> = stage.get("b").await;
    for snapshot in &snapshots {
        let clone = stage.subject.state().join(&snapshot.status.provider_snapshot_id).join("data");
        assert!(clone.is_dir(), "the clone is all there is");
    }
    stage.assert_restored().await;
    delete_backup(&stage.world, "b").await;
    assert_eq!(stage.subject.remaining_snapshots(), [""; 0]);
}
