//! The calls of servers. What blocks is done on threads for it, and goes on when a call is given up:
//! the server may ask again.

mod opened;
mod turns;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bowline_plugin_sdk::jiff::Timestamp;
use bowline_plugin_sdk::serde_json::Value;
use bowline_plugin_sdk::tokio::sync::{Mutex, Semaphore};
use bowline_plugin_sdk::{
    Config, Error as PluginError, Item, Progress, Result, SnapshotId, VolumeId, VolumeInfo,
    VolumeSnapshotter, api, async_trait, tokio,
};

use self::opened::Opened;
use self::turns::Turns;
use crate::config::Settings;
use crate::error::Error;
use crate::id::Id;
use crate::path::VolumePath;
use crate::persistent_volume::{Found, volume_of, with_path};
use crate::roots::Refused;
use crate::upload::{Begun, Upload, Uploads};

/// How many volumes are cloned, and how many are made, at a time. Each has several threads. Who makes
/// one, for hours maybe, must not keep others from being cloned while their application is frozen.
const CLONES: usize = 4;
const NEW_VOLUMES: usize = 4;
/// How often an upload looks whether another process wants it to stop.
const LOOK: Duration = Duration::from_millis(250);
/// How long to wait for an upload to stop.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// What we say that a volume is.
const VOLUME_TYPE: &str = "local";

/// Snapshots folders of this node.
pub struct Snapshotter {
    opened: RwLock<Option<Arc<Opened>>>,
    shared: Arc<Shared>,
}

/// What stays when the configuration changes.
struct Shared {
    uploads: Uploads,
    /// Who writes to the repository.
    repository: Mutex<()>,
    clones: Semaphore,
    new_volumes: Semaphore,
    /// One at a time for each id.
    creating: Turns,
}

impl Default for Snapshotter {
    fn default() -> Self {
        let shared = Shared {
            uploads: Uploads::default(),
            repository: Mutex::default(),
            clones: Semaphore::new(CLONES),
            new_volumes: Semaphore::new(NEW_VOLUMES),
            creating: Turns::default(),
        };
        Self { opened: RwLock::default(), shared: Arc::new(shared) }
    }
}

impl Snapshotter {
    fn opened(&self) -> Result<Arc<Opened>, Error> {
        let opened = self.opened.read().unwrap_or_else(PoisonError::into_inner);
        opened.clone().ok_or(Error::NotInitialised)
    }
}

/// Goes on when nobody waits for it any more.
async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    tokio::spawn(work).await.unwrap_or(Err(Error::Panicked))
}

/// Runs what blocks.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(Error::Panicked))
}

fn parse_item(persistent_volume: &Item) -> Result<Value, Error> {
    persistent_volume.parse().map_err(|error| Error::PersistentVolume(error.to_string()))
}

fn parse_volume(volume: &str) -> Result<VolumePath, Error> {
    Ok(volume.parse().map_err(Refused::from)?)
}

fn volume_id(path: &VolumePath) -> Result<VolumeId> {
    VolumeId::new(path.as_str()).ok_or_else(|| PluginError::unknown("the volume has no path"))
}

#[async_trait]
impl VolumeSnapshotter for Snapshotter {
    async fn init(&self, config: &Config) -> Result<()> {
        let config = config.clone();
        let runtime = tokio::runtime::Handle::current();
        let current = self.opened().ok();
        let open = move || Opened::new(Settings::read(&config)?, runtime, current);
        let opened = blocking(open).await?;
        *self.opened.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&opened));
        // Nobody waits for it: what was left behind may be large.
        tokio::task::spawn_blocking(move || opened.sweep());
        Ok(())
    }

    async fn get_volume_id(&self, persistent_volume: &Item) -> Result<Option<VolumeId>> {
        let opened = self.opened()?;
        let object = parse_item(persistent_volume)?;
        let path = match volume_of(&object, opened.node.as_deref()) {
            Found::OtherType | Found::OtherNode => return Ok(None),
            Found::Block => return Err(Error::Block.into()),
            Found::Path(path) => parse_volume(&path)?,
        };
        let volume = blocking(move || Ok(opened.roots.open(&path)?)).await?;
        volume_id(&volume.path).map(Some)
    }

    async fn set_volume_id(&self, persistent_volume: &Item, volume: &VolumeId) -> Result<Item> {
        let opened = self.opened()?;
        let path = parse_volume(volume.as_str())?;
        opened.roots.allow(&path).map_err(Error::from)?;
        let object = parse_item(persistent_volume)?;
        let changed = with_path(object, path.as_str(), opened.node.as_deref());
        let changed = changed.ok_or(Error::OtherType)?;
        let item = Item::from_object(&changed);
        Ok(item.map_err(|error| Error::PersistentVolume(error.to_string()))?)
    }

    async fn get_volume_info(&self, volume: &VolumeId, _: &str) -> Result<VolumeInfo> {
        let opened = self.opened()?;
        let path = parse_volume(volume.as_str())?;
        blocking(move || Ok(opened.roots.open(&path)?)).await?;
        Ok(VolumeInfo { volume_type: VOLUME_TYPE.to_owned(), iops: None })
    }

    async fn create_snapshot(
        &self,
        volume: &VolumeId,
        _: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<SnapshotId> {
        let opened = self.opened()?;
        let path = parse_volume(volume.as_str())?;
        let request =
            tags.get(api::annotation::REQUEST_ID).filter(|text| !text.is_empty()).cloned();
        let id = match &request {
            Some(request) => Id::of_request(request),
            None => Id::random().map_err(|error| PluginError::unknown(error.to_string()))?,
        };
        let text = id.as_str().to_owned();
        let shared = Arc::clone(&self.shared);
        detached(async move {
            let _turn = shared.creating.wait(&id).await;
            let _permit = shared.clones.acquire().await;
            let creator = Arc::clone(&opened);
            let created = Timestamp::now();
            let made = blocking(move || {
                let made = creator.create(&id, &path, request, created)?;
                Ok(made.then_some(id))
            });
            if let Some(id) = made.await? {
                tokio::task::spawn_blocking(move || opened.settle(&id));
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
        let opened = self.opened()?;
        let id: Id = snapshot.as_str().parse().map_err(Error::from)?;
        let shared = Arc::clone(&self.shared);
        let path = detached(async move {
            let _permit = shared.new_volumes.acquire().await;
            blocking(move || opened.make_volume(&id)).await
        });
        volume_id(&path.await?)
    }

    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
        let opened = self.opened()?;
        let id: Id = snapshot.as_str().parse().map_err(Error::from)?;
        let shared = Arc::clone(&self.shared);
        detached(async move {
            if let Some(upload) = shared.uploads.get(&id) {
                upload.stop.cancel();
                let stopped = tokio::time::timeout(STOP_LIMIT, upload.outcome()).await;
                stopped.map(drop).map_err(|_| Error::Busy(id.clone()))?;
            }
            let deleter = Arc::clone(&opened);
            let known = id.clone();
            let _turn = if blocking(move || deleter.is_in_repository(&known)).await? {
                Some(shared.repository.lock().await)
            } else {
                None
            };
            blocking(move || opened.delete(&id)).await
        })
        .await?;
        Ok(())
    }

    async fn progress(&self, snapshot: &SnapshotId) -> Result<Progress> {
        let opened = self.opened()?;
        let unknown = || PluginError::invalid_operation(snapshot);
        let id: Id = snapshot.as_str().parse().map_err(|_| unknown())?;
        let upload = self.shared.uploads.get(&id);
        let now = Timestamp::now();
        let told = blocking(move || opened.progress(&id, upload.as_deref(), now)).await?;
        told.ok_or_else(unknown)
    }

    async fn cancel(&self, snapshot: &SnapshotId) -> Result<()> {
        let opened = self.opened()?;
        // What is not ours does not run.
        let Ok(id) = snapshot.as_str().parse::<Id>() else { return Ok(()) };
        match self.shared.uploads.get(&id) {
            Some(upload) => upload.stop.cancel(),
            None => blocking(move || opened.cancel_elsewhere(&id)).await?,
        }
        Ok(())
    }

    async fn upload_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
        let opened = self.opened()?;
        if opened.repository.is_none() {
            return Err(PluginError::unimplemented("UploadSnapshot"));
        }
        let id: Id = snapshot.as_str().parse().map_err(Error::from)?;
        let upload = match self.shared.uploads.begin(&id, Timestamp::now()) {
            Begun::Running(upload) => upload,
            Begun::New(upload) => {
                let (shared, ours) = (Arc::clone(&self.shared), Arc::clone(&upload));
                tokio::spawn(async move {
                    let work = upload_in_turn(opened, Arc::clone(&shared), id.clone(), ours);
                    let outcome = detached(work).await.map_err(PluginError::from);
                    shared.uploads.end(&id, outcome);
                });
                upload
            }
        };
        upload.outcome().await
    }
}

/// Uploads a snapshot when it is its turn at the repository.
async fn upload_in_turn(
    opened: Arc<Opened>,
    shared: Arc<Shared>,
    id: Id,
    upload: Arc<Upload>,
) -> Result<(), Error> {
    let (beginner, known, ours) = (Arc::clone(&opened), id.clone(), Arc::clone(&upload));
    let begun = blocking(move || beginner.begin_upload(&known, &ours)).await?;
    let Some((lock, job)) = begun else { return Ok(()) };
    let worker = Arc::clone(&opened);
    let work = async {
        let _turn = tokio::select! {
            () = upload.stop.wait() => None,
            turn = shared.repository.lock() => Some(turn),
        };
        blocking(move || worker.upload(job)).await
    };
    tokio::pin!(work);
    let outcome = loop {
        tokio::select! {
            outcome = &mut work => break outcome,
            () = tokio::time::sleep(LOOK) => {
                if opened.state.is_asked_to_cancel(&id) {
                    upload.stop.cancel();
                }
            }
        }
    };
    let (started, ended) = (upload.started, Timestamp::now());
    blocking(move || opened.end_upload(&id, started, ended, outcome, lock)).await
}
