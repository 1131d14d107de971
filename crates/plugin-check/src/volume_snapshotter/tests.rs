use async_trait::async_trait;
use bowline_plugin::{Code, Progress, Result};
use parking_lot::Mutex;

use super::*;
use crate::rule::RuleRunner;
use crate::test_support::{
    NoRestart, broken_rules, kept_rules, reported_leftovers, run_check, run_check_until,
    sample_input, sample_plugin,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    RefusesConfig,
    ClaimsAllVolumes,
    IgnoresTheRequest,
    NeverCompletes,
    HasNoProgress,
    HasNoUpload,
    UploadsOnce,
    SetsAnotherVolume,
    DeletesOnce,
    NeverDeletes,
    HangsInCreate,
    HangsInCreateVolume,
    HangsInDelete,
    KnowsEverySnapshot,
    RefusesCancelOfUnknown,
}

#[derive(Default)]
struct FakeState {
    snapshots: Vec<String>,
    uploaded: usize,
}

/// A snapshotter in memory.
struct FakeSnapshotter {
    flaw: Flaw,
    state: Mutex<FakeState>,
}

fn handle_of(volume: &Item) -> Option<VolumeId> {
    let object: serde_json::Value = volume.parse().unwrap();
    VolumeId::new(object["spec"]["csi"]["volumeHandle"].as_str()?)
}

#[async_trait]
impl VolumeSnapshotter for FakeSnapshotter {
    async fn init(&self, _: &Config) -> Result<()> {
        if self.flaw == Flaw::RefusesConfig { Err(Error::unknown("no")) } else { Ok(()) }
    }

    async fn get_volume_id(&self, volume: &Item) -> Result<Option<VolumeId>> {
        let is_own = String::from_utf8_lossy(volume.json()).contains("mine.example.com");
        Ok(handle_of(volume).filter(|_| is_own || self.flaw == Flaw::ClaimsAllVolumes))
    }

    async fn set_volume_id(&self, volume: &Item, id: &VolumeId) -> Result<Item> {
        let mut object: serde_json::Value = volume.parse().unwrap();
        let id = if self.flaw == Flaw::SetsAnotherVolume { "other" } else { id.as_str() };
        object["spec"]["csi"]["volumeHandle"] = id.into();
        Ok(Item::from_object(&object).unwrap())
    }

    async fn get_volume_info(&self, _: &VolumeId, _: &str) -> Result<VolumeInfo> {
        Ok(VolumeInfo::default())
    }

    async fn create_snapshot(
        &self,
        volume: &VolumeId,
        _: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<SnapshotId> {
        if self.flaw == Flaw::HangsInCreate {
            std::future::pending::<()>().await;
        }
        let mut state = self.state.lock();
        let number = state.snapshots.len();
        let more = if self.flaw == Flaw::IgnoresTheRequest { number } else { 0 };
        let id = format!("{volume}-{}-{more}", tags["bowline.io/request-id"]);
        if !state.snapshots.contains(&id) {
            state.snapshots.push(id.clone());
        }
        Ok(SnapshotId::new(id).unwrap())
    }

    async fn create_volume_from_snapshot(
        &self,
        _: &SnapshotId,
        _: &VolumeInfo,
        _: &str,
    ) -> Result<VolumeId> {
        if self.flaw == Flaw::HangsInCreateVolume {
            std::future::pending::<()>().await;
        }
        Ok(VolumeId::new("made").unwrap())
    }

    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
        if self.flaw == Flaw::HangsInDelete {
            std::future::pending::<()>().await;
        }
        let mut state = self.state.lock();
        let before = state.snapshots.len();
        if self.flaw == Flaw::NeverDeletes {
            return Err(Error::new(Code::PermissionDenied, "no"));
        }
        state.snapshots.retain(|id| id != snapshot.as_str());
        if self.flaw == Flaw::DeletesOnce && state.snapshots.len() == before {
            return Err(Error::new(Code::NotFound, "gone"));
        }
        Ok(())
    }

    async fn progress(&self, snapshot: &SnapshotId) -> Result<Progress> {
        let is_known = self.state.lock().snapshots.iter().any(|id| id == snapshot.as_str());
        match self.flaw {
            Flaw::HasNoProgress => return Err(Error::unimplemented("Progress")),
            _ if !is_known && self.flaw != Flaw::KnowsEverySnapshot => {
                return Err(Error::invalid_operation(snapshot));
            }
            _ => {}
        }
        let runs = self.flaw == Flaw::NeverCompletes;
        let state = if runs { super::State::Running } else { super::State::Succeeded };
        Ok(Progress { state, ..Progress::default() })
    }

    async fn cancel(&self, _: &SnapshotId) -> Result<()> {
        if self.flaw == Flaw::RefusesCancelOfUnknown {
            return Err(Error::unknown("what?"));
        }
        Ok(())
    }

    async fn upload_snapshot(&self, _: &SnapshotId) -> Result<()> {
        let mut state = self.state.lock();
        state.uploaded += 1;
        match self.flaw {
            Flaw::HasNoUpload => Err(Error::unimplemented("UploadSnapshot")),
            Flaw::UploadsOnce if state.uploaded > 1 => Err(Error::unknown("it is there")),
            _ => Ok(()),
        }
    }
}

const CLEANS_UP: &str = "the check leaves no snapshot and no unknown volume";

#[tokio::test(start_paused = true)]
async fn each_snapshotter_flaw_breaks_its_rule() {
    let clean_up = CLEANS_UP;
    let expected: [(Flaw, &[&str]); 14] = [
        (Flaw::None, &[]),
        (Flaw::RefusesConfig, &["Init accepts the configuration"]),
        (Flaw::ClaimsAllVolumes, &["GetVolumeID ignores PersistentVolumes of other drivers"]),
        (
            Flaw::IgnoresTheRequest,
            &["CreateSnapshot returns the same snapshot for the same request"],
        ),
        (Flaw::NeverCompletes, &["Progress reports the snapshot until it is complete"]),
        (Flaw::HasNoProgress, &[]),
        (Flaw::HasNoUpload, &[]),
        (Flaw::UploadsOnce, &["UploadSnapshot works, and again after a restart of the process"]),
        (Flaw::SetsAnotherVolume, &["GetVolumeID returns the volume that SetVolumeID has set"]),
        (Flaw::DeletesOnce, &["DeleteSnapshot can be repeated"]),
        (Flaw::NeverDeletes, &["DeleteSnapshot can be repeated", clean_up]),
        (Flaw::HangsInCreate, &["CreateSnapshot creates a snapshot", clean_up]),
        (Flaw::KnowsEverySnapshot, &["Progress of an unknown snapshot returns a permanent error"]),
        (Flaw::RefusesCancelOfUnknown, &["Cancel accepts an unknown snapshot"]),
    ];
    for (flaw, rules) in expected {
        let fake = Arc::new(FakeSnapshotter { flaw, state: Mutex::default() });
        let mut input = Input::clone(&sample_input());
        let own_volume = String::from_utf8_lossy(sample::persistent_volume().unwrap().json())
            .replace("unknown.example.com", "mine.example.com");
        input.persistent_volume = Some(Item::from_json(own_volume).unwrap());
        let plugin = sample_plugin(Kind::VolumeSnapshotterV2);
        let check =
            SnapshotterCheck::new(plugin, fake.clone(), Arc::new(NoRestart), Arc::new(input));
        let found =
            run_check(async |runner: &mut RuleRunner<'_>| check.check_rules(runner).await).await;
        assert_eq!(broken_rules(&found), rules, "{flaw:?}");
        let remaining = fake.state.lock().snapshots.len();
        assert_eq!(remaining, usize::from(flaw == Flaw::NeverDeletes), "{flaw:?}");
        if flaw == Flaw::RefusesConfig {
            assert_eq!(kept_rules(&found), [] as [&str; 0]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_snapshot_is_created_without_a_volume() {
    let fake = Arc::new(FakeSnapshotter { flaw: Flaw::None, state: Mutex::default() });
    let input = Arc::new(Input { volume: None, ..Input::clone(&sample_input()) });
    let check = SnapshotterCheck::new(
        sample_plugin(Kind::VolumeSnapshotter),
        fake.clone(),
        Arc::new(NoRestart),
        input,
    );
    let found =
        run_check(async |runner: &mut RuleRunner<'_>| check.check_rules(runner).await).await;
    assert_eq!(
        kept_rules(&found),
        [
            "Init accepts the configuration",
            "GetVolumeID ignores PersistentVolumes of other drivers"
        ]
    );
    assert_eq!(broken_rules(&found), [] as [&str; 0]);
    assert_eq!(fake.state.lock().snapshots, [] as [&str; 0]);
}

const POSSIBLE_VOLUME: &str = "possibly a volume created from the snapshot vol-bowline-check-id-0";

#[tokio::test(start_paused = true)]
async fn possible_results_of_an_unanswered_call_are_named() {
    let snapshot = "snapshot vol-bowline-check-id-0";
    let request = "possibly a snapshot with the tag bowline.io/request-id=bowline-check-id";
    for (flaw, expected) in [
        (Flaw::None, None),
        (Flaw::HangsInCreate, Some(request)),
        (Flaw::HangsInCreateVolume, Some(POSSIBLE_VOLUME)),
        (Flaw::HangsInDelete, Some(snapshot)),
    ] {
        let fake = Arc::new(FakeSnapshotter { flaw, state: Mutex::default() });
        let plugin = sample_plugin(Kind::VolumeSnapshotterV2);
        let check = SnapshotterCheck::new(plugin, fake, Arc::new(NoRestart), sample_input());
        let found =
            run_check(async |runner: &mut RuleRunner<'_>| check.check_rules(runner).await).await;
        assert_eq!(
            reported_leftovers(&found),
            expected.into_iter().collect::<Vec<_>>(),
            "{flaw:?}"
        );
        assert_eq!(broken_rules(&found).contains(&CLEANS_UP), expected.is_some(), "{flaw:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_an_interrupt_only_a_volume_may_be_left_over() {
    let fake =
        Arc::new(FakeSnapshotter { flaw: Flaw::HangsInCreateVolume, state: Mutex::default() });
    let plugin = sample_plugin(Kind::VolumeSnapshotterV2);
    let check = SnapshotterCheck::new(plugin, fake.clone(), Arc::new(NoRestart), sample_input());
    let interrupt = tokio::time::sleep(sample_input().timeout / 3);
    let examine = async |runner: &mut RuleRunner<'_>| check.check_rules(runner).await;
    let found = run_check_until(interrupt, examine).await;
    assert_eq!(reported_leftovers(&found), [POSSIBLE_VOLUME]);
    assert_eq!(fake.state.lock().snapshots, [] as [&str; 0]);
}
