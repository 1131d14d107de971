//! Implementation of the calls, with a configuration. All of this blocks.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bowline_plugin_sdk::jiff::Timestamp;
use bowline_plugin_sdk::tokio::runtime::Handle;
use bowline_plugin_sdk::{Progress, State as Running, error_chain};
use rustix::fs::syncfs;

use crate::config::Settings;
use crate::error::Error;
use crate::id::Id;
use crate::path::VolumePath;
use crate::record::{Record, UploadRecord};
use crate::repository::{Repository, RepositoryError as RepositoryFailed, UploadJob};
use crate::roots::Roots;
use crate::state::{DATA_FOLDER, State, StateLock, boot_id};
use crate::stop_signal::StopSignal;
use crate::tree::clone::{self, CloneSource};
use crate::upload::RunningUpload;
use crate::volume::{self, NewVolume};

/// Time limit of the wait for others to release a snapshot that is to be deleted.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which a process that only checks the upload lock may hold it.
const UPLOAD_LOCK_TIMEOUT: Duration = Duration::from_millis(500);
const RELEASE_POLL_INTERVAL: Duration = Duration::from_millis(50);
const BYTES: &str = "Bytes";

/// A configuration, ready for use.
#[derive(Debug)]
pub(super) struct SnapshotterSession {
    settings: Settings,
    pub roots: Roots,
    pub state: State,
    pub repository: Option<Repository>,
    pub node: Option<String>,
    keep_local: bool,
    /// The boot id of this node.
    boot: String,
}

type Result<T> = std::result::Result<T, Error>;

impl SnapshotterSession {
    /// Servers configure the plugin repeatedly. An unchanged configuration keeps the session: it
    /// may have opened the repository, which takes time.
    pub(super) fn new(
        settings: Settings,
        runtime: Handle,
        current: Option<Arc<Self>>,
    ) -> Result<Arc<Self>> {
        if let Some(current) = current.filter(|current| current.settings == settings) {
            current.check_folders()?;
            return Ok(current);
        }
        let Settings { roots, state_dir, repository, keep_local, node } = settings.clone();
        let mut reserved = vec![state_dir.as_path().to_owned()];
        reserved.extend(repository.as_ref().and_then(|repository| repository.location.folder()));
        let roots = Roots::new(roots, reserved);
        let session = Self {
            settings,
            roots,
            state: State::new(state_dir.as_path()),
            repository: repository.map(|settings| Repository::new(settings, runtime)),
            node,
            keep_local,
            boot: boot_id()?,
        };
        session.check_folders()?;
        Ok(Arc::new(session))
    }

    /// Checks that the folders exist.
    fn check_folders(&self) -> Result<()> {
        for root in self.roots.open_all() {
            root?;
        }
        Ok(self.state.prepare()?)
    }

    /// Removes the leftovers of killed processes. A failure does no harm.
    pub(super) fn remove_leftovers(&self) {
        let roots: Vec<_> = self.roots.open_all().flatten().collect();
        let warn = |error: &(dyn std::error::Error + 'static)| {
            tracing::warn!("cannot remove leftovers: {}", error_chain(error));
        };
        let set_aside = || {
            for failed in roots.iter().filter_map(|root| volume::rename_leftovers(root).err()) {
                warn(&failed);
            }
        };
        if let Err(failed) = self.state.remove_leftovers(self.keep_local, set_aside) {
            warn(&failed);
        }
        for failed in roots.iter().filter_map(|root| volume::remove_leftovers(root).err()) {
            warn(&failed);
        }
    }

    /// Creates a snapshot. False if it already exists.
    pub(super) fn create(
        &self,
        id: &Id,
        volume: &VolumePath,
        request: Option<String>,
        created: Timestamp,
    ) -> Result<bool> {
        if let Some(record) = self.state.record(id)? {
            self.check_same_volume(&record, volume)?;
            return Ok(false);
        }
        let _working = self.state.lock_shared()?;
        let open = self.roots.open(volume)?;
        let draft = self.state.create_draft(id)?;
        let cloned = clone::clone_volume(
            open.as_fd(),
            draft.folder.as_fd(),
            DATA_FOLDER,
            &StopSignal::default(),
        )?;
        let record = Record::new(id.clone(), volume.as_str(), request, created, &self.boot, cloned);
        let is_ours = self.state.publish_draft(draft, &record)?;
        if is_ours {
            tracing::info!(snapshot = %id, volume = %volume, "{}", cloned.describe());
        } else if let Some(record) = self.state.record(id)? {
            self.check_same_volume(&record, volume)?;
        }
        Ok(is_ours)
    }

    /// Checks that an existing snapshot is of the requested volume.
    fn check_same_volume(&self, record: &Record, volume: &VolumePath) -> Result<()> {
        if record.volume != volume.as_str() {
            return Err(Error::OtherVolume(record.volume.clone()));
        }
        let is_there = self.state.has_data(&record.id) && record.is_clone_intact(&self.boot);
        if is_there || record.is_uploaded() { Ok(()) } else { Err(Error::Lost(record.id.clone())) }
    }

    /// Flushes a new clone to disk, after the application has resumed.
    pub(super) fn sync_clone(&self, id: &Id) {
        let synced = File::open(self.state.data_path(id)).and_then(|data| Ok(syncfs(data)?));
        let recorded = match synced {
            Ok(()) => self.state.change_record(id, |record| record.is_on_disk = true).map(drop),
            // Uploaded and removed, or deleted, in the meantime.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => {
                tracing::warn!(snapshot = %id, "cannot flush the clone to disk: {error}");
                Ok(())
            }
        };
        if let Err(failed) = recorded {
            tracing::warn!(snapshot = %id, "{}", error_chain(&failed));
        }
    }

    /// Creates a volume from the clone, if it exists, or from the repository.
    pub(super) fn create_volume(&self, id: &Id) -> Result<VolumePath> {
        let _working = self.state.lock_shared()?;
        let stop = Arc::<StopSignal>::default();
        let record = self.state.record(id)?;
        let sound = record.as_ref().filter(|record| record.is_clone_intact(&self.boot));
        if let Some(record) = sound
            && let Some(data) = self.state.lock_data(id)?
        {
            let root = self.roots.open_for_new(record.volume.parse().ok().as_ref())?;
            let new = NewVolume::create(root)?;
            let cloned = clone::clone_tree(data.as_fd(), new.as_fd(), CloneSource::Static, &stop)?;
            let path = new.publish(id)?;
            let clone_summary = cloned.describe();
            tracing::info!(
                snapshot = %id,
                volume = %path,
                "created from the clone on this node; {clone_summary}"
            );
            return Ok(path);
        }
        let missing = || match &record {
            Some(record) if !record.is_uploaded() => Error::Lost(id.clone()),
            _ => Error::NoSnapshot(id.clone()),
        };
        let repository = self.repository.as_ref().ok_or_else(missing)?;
        let original = repository.volume_of(id, &stop)?.ok_or_else(missing)?;
        let root = self.roots.open_for_new(original.parse().ok().as_ref())?;
        let new = NewVolume::create(root)?;
        repository.restore(id, new.as_fd(), &stop)?;
        let path = new.publish(id)?;
        tracing::info!(snapshot = %id, volume = %path, "created from the repository");
        Ok(path)
    }

    /// True if the repository may contain data of a snapshot.
    pub(super) fn is_in_repository(&self, id: &Id) -> Result<bool> {
        let upload = self.state.record(id)?.map(|record| record.upload);
        Ok(self.repository.is_some() && upload != Some(UploadRecord::None))
    }

    /// Deletes a snapshot completely. Not an error if it is gone.
    pub(super) fn delete(&self, id: &Id) -> Result<()> {
        let _working = self.state.lock_shared()?;
        let record = self.state.record(id)?;
        let _upload = match &record {
            Some(_) => Some(self.take_over_upload(id)?),
            None => None,
        };
        match &self.repository {
            Some(repository) if self.is_in_repository(id)? => {
                repository.delete(id, &Arc::default())?;
            }
            None if record.is_some_and(|record| record.is_uploaded()) => {
                return Err(Error::NoRepository(id.clone()));
            }
            _ => {}
        }
        let removed = retry_until(RELEASE_TIMEOUT, || Ok(self.state.remove(id)?.then_some(())))?;
        removed.ok_or_else(|| Error::InUse(id.clone()))
    }

    /// Acquires the right to upload, from another process if necessary.
    fn take_over_upload(&self, id: &Id) -> Result<StateLock> {
        let lock = retry_until(RELEASE_TIMEOUT, || {
            let lock = self.state.lock_upload(id)?;
            if lock.is_none() {
                self.state.request_cancel(id)?;
            }
            Ok(lock)
        });
        lock?.ok_or_else(|| Error::Busy(id.clone()))
    }

    /// Asks another process to stop its upload, if there is one.
    pub(super) fn cancel_in_other_process(&self, id: &Id) -> Result<()> {
        if self.state.record(id)?.is_some() && self.state.lock_upload(id)?.is_none() {
            self.state.request_cancel(id)?;
        }
        Ok(())
    }

    /// Progress of the creation or the upload; `None` if there is no such snapshot.
    pub(super) fn progress(
        &self,
        id: &Id,
        upload: Option<&RunningUpload>,
        now: Timestamp,
    ) -> Result<Option<Progress>> {
        let Some(record) = self.state.record(id)? else { return Ok(None) };
        let count = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let progress_of = |state,
                           (done, total): (u64, u64),
                           description: String,
                           started,
                           updated| {
            let (done, total) = (count(done), count(total));
            let (started, updated) = (Some(started), Some(updated));
            Progress { state, done, total, units: BYTES.to_owned(), description, started, updated }
        };
        if let Some(upload) = upload {
            let progress = &upload.progress;
            let bytes = (progress.done.load(Relaxed), progress.total.load(Relaxed));
            let description = if bytes.1 == 0 { "waiting to upload" } else { "uploading" };
            return Ok(Some(progress_of(
                Running::Running,
                bytes,
                description.into(),
                upload.started,
                now,
            )));
        }
        let created = record.created;
        let clone_summary = record.cloned.describe();
        let all = (record.cloned.bytes, record.cloned.bytes);
        Ok(Some(match record.upload {
            UploadRecord::None => {
                progress_of(Running::Succeeded, all, clone_summary, created, created)
            }
            UploadRecord::Begun { started } if self.state.lock_upload(id)?.is_none() => {
                let description = "uploading in another process".to_owned();
                progress_of(Running::Running, (0, all.1), description, started, now)
            }
            UploadRecord::Begun { .. } => {
                let description =
                    format!("{clone_summary}; the upload was interrupted and can be repeated");
                progress_of(Running::Succeeded, all, description, created, created)
            }
            UploadRecord::Failed { started, ended, error } => progress_of(
                Running::Failed(error),
                (0, all.1),
                "uploading".to_owned(),
                started,
                ended,
            ),
            UploadRecord::Done { started, ended, bytes } => {
                let description = "uploaded".to_owned();
                progress_of(Running::Succeeded, (bytes, bytes), description, started, ended)
            }
        }))
    }

    /// Prepares an upload; `None` if it has already been done.
    pub(super) fn prepare_upload(
        &self,
        id: &Id,
        upload: &RunningUpload,
    ) -> Result<Option<(StateLock, UploadJob)>> {
        let missing = || Error::NoSnapshot(id.clone());
        let record = self.state.record(id)?.ok_or_else(missing)?;
        if record.is_uploaded() {
            return Ok(None);
        }
        let lock = retry_until(UPLOAD_LOCK_TIMEOUT, || Ok(self.state.lock_upload(id)?))?;
        let lock = lock.ok_or_else(|| Error::Busy(id.clone()))?;
        // Another process may have done it in the meantime.
        let record = self.state.record(id)?.ok_or_else(missing)?;
        if record.is_uploaded() {
            return Ok(None);
        }
        let lost = || Error::Lost(id.clone());
        let data = Some(record.is_clone_intact(&self.boot)).filter(|is_sound| *is_sound);
        let data = data.and_then(|_| File::open(self.state.data_path(id)).ok()).ok_or_else(lost)?;
        self.state.clear_cancel_request(id)?;
        let upload_record = UploadRecord::Begun { started: upload.started };
        self.state.change_record(id, |record| record.upload = upload_record)?;
        let job = UploadJob {
            id: id.clone(),
            created: record.created,
            volume: record.volume,
            node: self.node.clone(),
            tree: data.into(),
            stop: Arc::clone(&upload.stop),
            progress: Arc::clone(&upload.progress),
        };
        Ok(Some((lock, job)))
    }

    pub(super) fn upload(&self, job: UploadJob) -> Result<u64> {
        if let Some(reason) = job.stop.reason() {
            return Err(RepositoryFailed::Stopped(reason.to_owned()).into());
        }
        let repository = self.repository.as_ref();
        let missing = || Error::NoRepository(job.id.clone());
        Ok(repository.ok_or_else(missing)?.upload(job)?)
    }

    /// Records the end of an upload, and removes the clone if it is no longer needed.
    pub(super) fn record_upload_end(
        &self,
        id: &Id,
        started: Timestamp,
        ended: Timestamp,
        outcome: Result<u64>,
        lock: StateLock,
    ) -> Result<()> {
        let upload = match &outcome {
            Ok(bytes) => UploadRecord::Done { started, ended, bytes: *bytes },
            Err(error) => UploadRecord::Failed { started, ended, error: error_chain(error) },
        };
        let recorded = self.state.change_record(id, |record| record.upload = upload);
        drop(lock);
        let bytes = outcome?;
        recorded?;
        tracing::info!(snapshot = %id, "uploaded {bytes} bytes");
        // If the clone is being read, or the removal fails, the next start removes it.
        if !self.keep_local
            && let Err(failed) = self.state.remove_data(id)
        {
            tracing::warn!(snapshot = %id, "{}", error_chain(&failed));
        }
        Ok(())
    }
}

/// Retries until a deadline.
fn retry_until<T>(
    limit: Duration,
    mut attempt: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let began = Instant::now();
    loop {
        let done = attempt()?;
        if done.is_some() || began.elapsed() >= limit {
            return Ok(done);
        }
        std::thread::sleep(RELEASE_POLL_INTERVAL);
    }
}
