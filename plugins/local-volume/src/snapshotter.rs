//! The calls of servers. Blocking work runs on its own threads, and continues when a call is given
//! up: the server may call again.

mod id_locks;
mod session;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_plugin_sdk::jiff::Timestamp;
use bowline_plugin_sdk::serde_json::Value;
use bowline_plugin_sdk::tokio::sync::{Mutex, Semaphore};
use bowline_plugin_sdk::{
    Config, Error as PluginError, Item, Progress, Result, SnapshotId, VolumeId, VolumeInfo,
    VolumeSnapshotter, api, async_trait, tokio,
};
use parking_lot::RwLock;

use self::id_locks::IdLocks;
use self::session::SnapshotterSession;
use crate::config::Settings;
use crate::error::Error;
use crate::id::Id;
use crate::path::VolumePath;
use crate::persistent_volume::{VolumeSource, volume_source_of, with_path};
use crate::roots::VolumeRefusal;
use crate::upload::{RunningUpload, RunningUploads, UploadStart};

/// Number of volumes that are cloned, and that are created, at a time. Each uses several threads.
/// Creating one, which may take hours, must not keep others from being cloned while their
/// application is frozen.
const CONCURRENT_CLONES: usize = 4;
const CONCURRENT_NEW_VOLUMES: usize = 4;
/// Interval at which an upload checks for a cancel request of another process.
const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Time limit of the wait for an upload to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// The volume type that we report.
const VOLUME_TYPE: &str = "local";

/// Snapshots folders of this node.
pub struct Snapshotter {
    session: RwLock<Option<Arc<SnapshotterSession>>>,
    shared: Arc<SharedState>,
}

/// State that is kept when the configuration changes.
struct SharedState {
    uploads: RunningUploads,
    /// Held while writing to the repository.
    repository: Mutex<()>,
    clones: Semaphore,
    new_volumes: Semaphore,
    /// Serializes calls with the same id.
    id_locks: IdLocks,
}

impl Default for Snapshotter {
    fn default() -> Self {
        let shared = SharedState {
            uploads: RunningUploads::default(),
            repository: Mutex::default(),
            clones: Semaphore::new(CONCURRENT_CLONES),
            new_volumes: Semaphore::new(CONCURRENT_NEW_VOLUMES),
            id_locks: IdLocks::default(),
        };
        Self { session: RwLock::default(), shared: Arc::new(shared) }
    }
}

impl Snapshotter {
    fn current_session(&self) -> Result<Arc<SnapshotterSession>, Error> {
        let session = self.session.read();
        session.clone().ok_or(Error::NotInitialised)
    }
}

/// Runs work that continues when its caller is gone.
async fn run_detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    tokio::spawn(work).await.unwrap_or(Err(Error::Panicked))
}

/// Runs blocking work.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(Error::Panicked))
}

fn parse_item(persistent_volume: &Item) -> Result<Value, Error> {
    persistent_volume.parse().map_err(|error| Error::PersistentVolume(error.to_string()))
}

fn parse_volume(volume: &str) -> Result<VolumePath, Error> {
    Ok(volume.parse().map_err(VolumeRefusal::from)?)
}

fn volume_id(path: &VolumePath) -> Result<VolumeId> {
    VolumeId::new(path.as_str()).ok_or_else(|| PluginError::unknown("the volume has no path"))
}

#[async_trait]
impl VolumeSnapshotter for Snapshotter {
    async fn init(&self, config: &Config) -> Result<()> {
        let config = config.clone();
        let runtime = tokio::runtime::Handle::current();
        let current = self.current_session().ok();
        let open = move || SnapshotterSession::new(Settings::read(&config)?, runtime, current);
        let session = run_blocking(open).await?;
        *self.session.write() = Some(Arc::clone(&session));
        // Not awaited: leftovers may be large.
        tokio::task::spawn_blocking(move || session.remove_leftovers());
        Ok(())
    }

    async fn get_volume_id(&self, persistent_volume: &Item) -> Result<Option<VolumeId>> {
        let session = self.current_session()?;
        let object = parse_item(persistent_volume)?;
        let path = match volume_source_of(&object, session.node.as_deref()) {
            VolumeSource::OtherType | VolumeSource::OtherNode => return Ok(None),
            VolumeSource::Block => return Err(Error::Block.into()),
            VolumeSource::Path(path) => parse_volume(&path)?,
        };
        let volume = run_blocking(move || Ok(session.roots.open(&path)?)).await?;
        volume_id(&volume.path).map(Some)
    }

    async fn set_volume_id(&self, persistent_volume: &Item, volume: &VolumeId) -> Result<Item> {
        let session = self.current_session()?;
        let path = parse_volume(volume.as_str())?;
        session.roots.check_allowed(&path).map_err(Error::from)?;
        let object = parse_item(persistent_volume)?;
        let changed = with_path(object, path.as_str(), session.node.as_deref());
        let changed = changed.ok_or(Error::OtherType)?;
        let item = Item::from_object(&changed);
        Ok(item.map_err(|error| Error::PersistentVolume(error.to_string()))?)
    }

    async fn get_volume_info(&self, volume: &VolumeId, _: &str) -> Result<VolumeInfo> {
        let session = self.current_session()?;
        let path = parse_volume(volume.as_str())?;
        run_blocking(move || Ok(session.roots.open(&path)?)).await?;
        Ok(VolumeInfo { volume_type: VOLUME_TYPE.to_owned(), iops: None })
    }

    async fn create_snapshot(
        &self,
        volume: &VolumeId,
        _: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<SnapshotId> {
        let session = self.current_session()?;
        let path = parse_volume(volume.as_str())?;
        let request =
            tags.get(api::annotation::REQUEST_ID).filter(|text| !text.is_empty()).cloned();
        let id = match &request {
            Some(request) => Id::from_request(request),
            None => Id::random().map_err(|error| PluginError::unknown(error.to_string()))?,
        };
        let text = id.as_str().to_owned();
        let shared = Arc::clone(&self.shared);
        run_detached(async move {
            let _id_lock = shared.id_locks.lock(&id).await;
            let _permit = shared.clones.acquire().await;
            let creator = Arc::clone(&session);
            let created = Timestamp::now();
            let created_id = run_blocking(move || {
                let is_new = creator.create(&id, &path, request, created)?;
                Ok(is_new.then_some(id))
            });
            if let Some(id) = created_id.await? {
                tokio::task::spawn_blocking(move || session.sync_clone(&id));
            }
            Ok(())
        })
        .await?;
        SnapshotId::new(text).ok_or_else(|| PluginError::unknown("the snapshot has no id"))
    }

    async fn create_volume_from_snapshot(
        &self,
        snapshot: &SnapshotId,
        _: &VolumeInfo,
        _: &str,
    ) -> Result<VolumeId> {
        let session = self.current_session()?;
        let id: Id = snapshot.as_str().parse().map_err(Error::from)?;
        let shared = Arc::clone(&self.shared);
        let path = run_detached(async move {
            let _permit = shared.new_volumes.acquire().await;
            run_blocking(move || session.create_volume(&id)).await
        });
        volume_id(&path.await?)
    }

    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
        let session = self.current_session()?;
        let id: Id = snapshot.as_str().parse().map_err(Error::from)?;
        let shared = Arc::clone(&self.shared);
        run_detached(async move {
            if let Some(upload) = shared.uploads.get(&id) {
                upload.stop.cancel();
                let stopped = tokio::time::timeout(STOP_TIMEOUT, upload.outcome()).await;
                stopped.map(drop).map_err(|_| Error::Busy(id.clone()))?;
            }
            let deleter = Arc::clone(&session);
            let known = id.clone();
            let _repository_lock = if run_blocking(move || deleter.is_in_repository(&known)).await?
            {
                Some(shared.repository.lock().await)
            } else {
                None
            };
            run_blocking(move || session.delete(&id)).await
        })
        .await?;
        Ok(())
    }

    async fn progress(&self, snapshot: &SnapshotId) -> Result<Progress> {
        let session = self.current_session()?;
        let unknown = || PluginError::invalid_operation(snapshot);
        let id: Id = snapshot.as_str().parse().map_err(|_| unknown())?;
        let upload = self.shared.uploads.get(&id);
        let now = Timestamp::now();
        let progress = run_blocking(move || session.progress(&id, upload.as_deref(), now)).await?;
        progress.ok_or_else(unknown)
    }

    async fn cancel(&self, snapshot: &SnapshotId) -> Result<()> {
        let session = self.current_session()?;
        // An id that is not ours has no operation.
        let Ok(id) = snapshot.as_str().parse::<Id>() else { return Ok(()) };
        match self.shared.uploads.get(&id) {
            Some(upload) => upload.stop.cancel(),
            None => run_blocking(move || session.cancel_in_other_process(&id)).await?,
        }
        Ok(())
    }

    async fn upload_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
        let session = self.current_session()?;
        if session.repository.is_none() {
            return Err(PluginError::unimplemented("UploadSnapshot"));
        }
        let id: Id = snapshot.as_str().parse().map_err(Error::from)?;
        let upload = match self.shared.uploads.start_or_join(&id, Timestamp::now()) {
            UploadStart::Running(upload) => upload,
            UploadStart::New(upload) => {
                let (shared, own_upload) = (Arc::clone(&self.shared), Arc::clone(&upload));
                tokio::spawn(async move {
                    let work = upload_when_repository_is_free(
                        session,
                        Arc::clone(&shared),
                        id.clone(),
                        own_upload,
                    );
                    let outcome = run_detached(work).await.map_err(PluginError::from);
                    shared.uploads.finish(&id, outcome);
                });
                upload
            }
        };
        upload.outcome().await
    }
}

/// Uploads a snapshot once the repository is free.
async fn upload_when_repository_is_free(
    session: Arc<SnapshotterSession>,
    shared: Arc<SharedState>,
    id: Id,
    upload: Arc<RunningUpload>,
) -> Result<(), Error> {
    let (beginner, known, own_upload) = (Arc::clone(&session), id.clone(), Arc::clone(&upload));
    let started = run_blocking(move || beginner.prepare_upload(&known, &own_upload)).await?;
    let Some((lock, job)) = started else { return Ok(()) };
    let worker = Arc::clone(&session);
    let work = async {
        let _repository_lock = tokio::select! {
            () = upload.stop.wait() => None,
            guard = shared.repository.lock() => Some(guard),
        };
        run_blocking(move || worker.upload(job)).await
    };
    tokio::pin!(work);
    let outcome = loop {
        tokio::select! {
            outcome = &mut work => break outcome,
            () = tokio::time::sleep(CANCEL_POLL_INTERVAL) => {
                if session.state.is_cancel_requested(&id) {
                    upload.stop.cancel();
                }
            }
        }
    };
    let (started, ended) = (upload.started, Timestamp::now());
    run_blocking(move || session.record_upload_end(&id, started, ended, outcome, lock)).await
}
