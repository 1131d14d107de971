//! A version 2 snapshotter for hosts that know only version 1.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_plugin::{
    Class, Code, Config, Error, Item, Progress, Result, SnapshotId, State, VolumeId, VolumeInfo,
    VolumeSnapshotter,
};
use bowline_plugin_wire::server::v1_with_upload;
use parking_lot::Mutex;

/// Answers from its script, and records the calls.
struct ScriptedSnapshotter {
    progress: Mutex<Vec<Result<State>>>,
    upload: Result<()>,
    delete: Result<()>,
    calls: Mutex<Vec<&'static str>>,
}

impl ScriptedSnapshotter {
    fn record_call(&self, call: &'static str) {
        self.calls.lock().push(call);
    }
}

#[async_trait]
impl VolumeSnapshotter for ScriptedSnapshotter {
    async fn init(&self, _: &Config) -> Result<()> {
        Ok(())
    }

    async fn get_volume_id(&self, _: &Item) -> Result<Option<VolumeId>> {
        Ok(None)
    }

    async fn set_volume_id(&self, volume: &Item, _: &VolumeId) -> Result<Item> {
        Ok(volume.clone())
    }

    async fn get_volume_info(&self, _: &VolumeId, _: &str) -> Result<VolumeInfo> {
        Ok(VolumeInfo::default())
    }

    async fn create_snapshot(
        &self,
        _: &VolumeId,
        _: &str,
        _: &BTreeMap<String, String>,
    ) -> Result<SnapshotId> {
        self.record_call("create");
        Ok(SnapshotId::new("s").unwrap())
    }

    async fn create_volume_from_snapshot(
        &self,
        _: &SnapshotId,
        _: &VolumeInfo,
        _: &str,
    ) -> Result<VolumeId> {
        Ok(VolumeId::new("v").unwrap())
    }

    async fn delete_snapshot(&self, _: &SnapshotId) -> Result<()> {
        self.record_call("delete");
        self.delete.clone()
    }

    async fn progress(&self, _: &SnapshotId) -> Result<Progress> {
        self.record_call("progress");
        let state = self.progress.lock().remove(0)?;
        Ok(Progress { state, ..Progress::default() })
    }

    async fn upload_snapshot(&self, _: &SnapshotId) -> Result<()> {
        self.record_call("upload");
        self.upload.clone()
    }
}

/// Creates a snapshot, and returns the outcome and the calls.
async fn create_with_script(
    progress: Vec<Result<State>>,
    upload: Result<()>,
    delete: Result<()>,
) -> (Result<SnapshotId>, String) {
    let progress = Mutex::new(progress);
    let scripted =
        Arc::new(ScriptedSnapshotter { progress, upload, delete, calls: Mutex::default() });
    let volume = VolumeId::new("v").unwrap();
    let created = v1_with_upload(scripted.clone()).create_snapshot(&volume, "", &[].into()).await;
    let calls = scripted.calls.lock().join(" ");
    (created, calls)
}

fn unclear_error() -> Result<State> {
    Err(Error::unknown("hm"))
}

#[tokio::test(start_paused = true)]
async fn creation_returns_when_the_snapshot_is_complete_and_uploaded() {
    let cases = [
        (
            vec![Ok(State::Running), Ok(State::Running), Ok(State::Succeeded)],
            Ok(()),
            "create progress progress progress upload",
        ),
        (vec![Err(Error::unimplemented("Progress"))], Ok(()), "create progress upload"),
        (vec![Ok(State::Succeeded)], Err(Error::unimplemented("Upload")), "create progress upload"),
        (
            vec![
                unclear_error(),
                unclear_error(),
                unclear_error(),
                unclear_error(),
                Ok(State::Running),
                unclear_error(),
                Ok(State::Succeeded),
            ],
            Ok(()),
            "create progress progress progress progress progress progress progress upload",
        ),
    ];
    for (progress, upload, calls) in cases {
        let (created, done) = create_with_script(progress, upload, Ok(())).await;
        assert_eq!((created, done.as_str()), (Ok(SnapshotId::new("s").unwrap()), calls));
    }
}

#[tokio::test(start_paused = true)]
async fn failed_snapshot_is_deleted() {
    let not_found = Error::new(Code::NotFound, "gone");
    // Asked once a second, for two minutes.
    let patient = format!("create{} delete", " progress".repeat(121));
    let cases = [
        (vec![Ok(State::Failed("no space".into()))], Ok(()), "no space", "create progress delete"),
        (vec![Err(not_found)], Ok(()), "gone", "create progress delete"),
        (std::iter::repeat_with(unclear_error).take(200).collect(), Ok(()), "hm", patient.as_str()),
        (
            vec![Ok(State::Succeeded)],
            Err(Error::unknown("no network")),
            "no network",
            "create progress upload delete",
        ),
    ];
    for (progress, upload, text, calls) in cases {
        let (created, done) = create_with_script(progress, upload, Ok(())).await;
        let message = format!("completing snapshot s: {text}");
        assert_eq!(created.unwrap_err().message(), message);
        assert_eq!(done, calls);
    }
}

#[tokio::test(start_paused = true)]
async fn leftover_snapshot_is_named() {
    let failed = vec![Ok(State::Failed("no space".into()))];
    let (created, _) = create_with_script(failed, Ok(()), Err(Error::unknown("no rights"))).await;
    let expected = "cannot complete snapshot s, or delete it (no rights): no space";
    assert_eq!(created.unwrap_err().message(), expected);
}

#[tokio::test]
async fn version_1_host_sees_no_progress_or_upload() {
    let scripted = Arc::new(ScriptedSnapshotter {
        progress: Mutex::default(),
        upload: Ok(()),
        delete: Ok(()),
        calls: Mutex::default(),
    });
    let bridge = v1_with_upload(scripted.clone());
    let snapshot = SnapshotId::new("s").unwrap();
    assert_eq!(bridge.progress(&snapshot).await.unwrap_err().class(), Class::Unimplemented);
    assert_eq!(bridge.upload_snapshot(&snapshot).await.unwrap_err().class(), Class::Unimplemented);
    assert_eq!(bridge.cancel(&snapshot).await, Ok(()));
    assert!(scripted.calls.lock().is_empty());
}
