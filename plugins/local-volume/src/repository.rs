//! The repository for uploaded snapshots: encrypted, compressed and deduplicated. Its format is
//! that of restic, so that `restic` and `rustic` can read it as well.
//!
//! A snapshot is identified by its tag, which is our id, and its time. So any process on any node
//! can find it without a record.

mod backend;
pub(crate) mod location;
pub(crate) mod node;
mod restore;
pub(crate) mod source;
mod store;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bowline_plugin_sdk::jiff::tz::TimeZone;
use bowline_plugin_sdk::jiff::{SignedDuration, Timestamp};
use bowline_plugin_sdk::tokio::runtime::Handle;
use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::{ObjectStore as _, ObjectStoreExt as _, PutMode};
use parking_lot::Mutex;
use rustic_core::repofile::{MasterKey, SnapshotFile};
use rustic_core::{
    BackupOptions, ConfigOptions, Credentials, FileType, KeyOptions, OpenStatus, ParentOptions,
    PruneOptions, ReadBackend as _, RepositoryBackends, RepositoryOptions, RusticError,
    SnapshotOptions, WriteBackend as _,
};

use self::backend::{CONFIG, ObjectStoreBackend};
use self::source::{TreeSize, TreeSource, UploadProgress};
use self::store::MissingFolder;
use crate::config::RepositorySettings;
use crate::id::Id;
use crate::rate_limiter::ByteRateLimiter;
use crate::stop_signal::StopSignal;
use crate::tree;

/// Time limit for the initialization of a repository. One that is still incomplete after that was
/// abandoned.
const INIT_TIMEOUT: Duration = Duration::from_mins(10);

type OpenRepository = rustic_core::Repository<OpenStatus>;

/// A repository. It is opened again for each job, since others use it as well.
#[derive(Debug)]
pub(crate) struct Repository {
    settings: RepositorySettings,
    runtime: Handle,
    /// The key that the password opened. Deriving it takes a second, on purpose.
    key: Mutex<Option<MasterKey>>,
}

/// A snapshot to upload.
pub(crate) struct UploadJob {
    pub id: Id,
    /// The point in time.
    pub created: Timestamp,
    /// The path of the volume.
    pub volume: String,
    /// The node, if it has a name here.
    pub node: Option<String>,
    /// The clone.
    pub tree: OwnedFd,
    pub stop: Arc<StopSignal>,
    pub progress: Arc<UploadProgress>,
}

/// Errors of the repository.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RepositoryError {
    #[error("the directory of the repository, {}, cannot be used", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("the store of the repository cannot be used: {reason}")]
    Store { reason: String },
    #[error("wrong password for repository {0}")]
    Password(String),
    #[error(
        "repository {0} has no key: its creation is in progress or incomplete; retry in ten \
         minutes"
    )]
    HalfInitialized(String),
    #[error("cannot {doing} the repository: {reason}")]
    Library { doing: &'static str, reason: String },
    #[error("snapshot {0} is not in the repository")]
    NoSnapshot(Id),
    #[error("{path:?} in the repository cannot be restored")]
    Entry { path: PathBuf, source: node::UnsupportedEntry },
    #[error(
        "the repository contains only {found} of {expected} entries ({found_bytes} of \
         {expected_bytes} bytes) of the snapshot"
    )]
    Incomplete { expected: u64, expected_bytes: u64, found: u64, found_bytes: u64 },
    #[error(transparent)]
    Tree(#[from] tree::TreeError),
    #[error("{0}")]
    Stopped(String),
}

/// The error of the library in one line. The reason of a stop takes precedence, if there is one.
fn library_error(
    doing: &'static str,
    stop: &StopSignal,
) -> impl FnOnce(Box<RusticError>) -> RepositoryError {
    move |error| {
        if let Some(reason) = stop.reason() {
            return RepositoryError::Stopped(reason.to_owned());
        }
        let text = error.display_log();
        let message = text.split_whitespace().skip_while(|word| *word == "Error:");
        RepositoryError::Library { doing, reason: message.collect::<Vec<_>>().join(" ") }
    }
}

impl Repository {
    /// A repository that has not been opened yet.
    pub(crate) fn new(settings: RepositorySettings, runtime: Handle) -> Self {
        Self { settings, runtime, key: Mutex::default() }
    }

    /// Uploads a clone to the repository, unless it is already there, and returns its size in
    /// bytes. Blocks.
    pub(crate) fn upload(&self, job: UploadJob) -> Result<u64, RepositoryError> {
        let UploadJob { id, created, volume, node, tree, stop, progress } = job;
        let limiter = ByteRateLimiter::new(self.settings.upload_limit);
        let source = TreeSource::new(tree, limiter, Arc::clone(&stop), Arc::clone(&progress));
        let amount = source.measure()?;
        progress.total.store(amount.bytes, Relaxed);
        let opened = self.open_or_init(&stop)?;
        let found = snapshots(&opened, &id, &stop)?;
        if found.iter().any(|snapshot| snapshot.time.timestamp() == created) {
            progress.done.store(amount.bytes, Relaxed);
            return Ok(amount.bytes);
        }
        let options = SnapshotOptions::default().add_tags(id.as_str());
        let mut options = options.map_err(library_error("upload to", &stop))?;
        options.time = Some(created.to_zoned(TimeZone::UTC));
        options.host = node;
        options.command = Some(String::new());
        let snapshot = options.to_snapshot().map_err(library_error("upload to", &stop))?;
        let indexed = opened.to_indexed_ids().map_err(library_error("read the index of", &stop))?;
        // Every file is read: a clone has no timestamp that shows whether a file has changed.
        let options = BackupOptions::default()
            .parent_opts(ParentOptions::default().force(true))
            .no_scan(true);
        let written = indexed
            .archive(&options, &source, snapshot, &[PathBuf::from(volume)])
            .map_err(library_error("upload to", &stop))?;
        if let Err(incomplete) = check_complete(amount, &written) {
            let removed = indexed.delete_snapshots(&[written.id]);
            removed.map_err(library_error("remove an incomplete snapshot from", &stop))?;
            return Err(incomplete);
        }
        Ok(amount.bytes)
    }

    /// Writes a snapshot into an empty folder. Blocks.
    pub(crate) fn restore(
        &self,
        id: &Id,
        to: BorrowedFd<'_>,
        stop: &Arc<StopSignal>,
    ) -> Result<(), RepositoryError> {
        let missing = || RepositoryError::NoSnapshot(id.clone());
        let opened = self.open(stop, MissingFolder::ReportNone)?.ok_or_else(missing)?;
        let snapshot = newest_snapshot(snapshots(&opened, id, stop)?).ok_or_else(missing)?;
        let indexed = opened.to_indexed().map_err(library_error("read the index of", stop))?;
        let top = indexed
            .node_from_path(snapshot.tree, Path::new("data"))
            .map_err(library_error("find the snapshot in", stop))?;
        restore::restore_tree(&indexed, &top, to, stop)
    }

    /// The path of the volume of a snapshot; `None` if there is no such snapshot. Blocks.
    pub(crate) fn volume_of(
        &self,
        id: &Id,
        stop: &Arc<StopSignal>,
    ) -> Result<Option<String>, RepositoryError> {
        let Some(opened) = self.open(stop, MissingFolder::ReportNone)? else { return Ok(None) };
        let found = newest_snapshot(snapshots(&opened, id, stop)?);
        Ok(found.map(|snapshot| snapshot.paths.iter().next().cloned().unwrap_or_default()))
    }

    /// Forgets a snapshot and frees the data that no other one uses. Not an error if the snapshot
    /// does not exist. Blocks.
    ///
    /// Unused data is marked first and removed a day later, by the next deletion then: another
    /// process may just be uploading a snapshot that refers to it.
    pub(crate) fn delete(&self, id: &Id, stop: &Arc<StopSignal>) -> Result<(), RepositoryError> {
        let Some(opened) = self.open(stop, MissingFolder::ReportNone)? else { return Ok(()) };
        let found: Vec<_> = snapshots(&opened, id, stop)?.iter().map(|found| found.id).collect();
        if found.is_empty() {
            return Ok(());
        }
        opened.delete_snapshots(&found).map_err(library_error("remove a snapshot from", stop))?;
        let options = PruneOptions::default();
        let plan = opened.prune_plan(&options).map_err(library_error("tidy", stop))?;
        opened.prune(&options, plan).map_err(library_error("tidy", stop))
    }

    fn open_backend(
        &self,
        stop: &Arc<StopSignal>,
        missing: MissingFolder,
    ) -> Result<Option<Arc<ObjectStoreBackend>>, RepositoryError> {
        let store = store::open(&self.settings, missing)?;
        Ok(store.map(|store| {
            Arc::new(ObjectStoreBackend {
                name: self.settings.location.to_string(),
                store,
                runtime: self.runtime.clone(),
                stop: Arc::clone(stop),
            })
        }))
    }

    /// Opens the repository; `None` if it does not exist.
    fn open(
        &self,
        stop: &Arc<StopSignal>,
        missing: MissingFolder,
    ) -> Result<Option<OpenRepository>, RepositoryError> {
        match self.open_backend(stop, missing)? {
            Some(backend) => self.open_in(&backend),
            None => Ok(None),
        }
    }

    fn open_in(
        &self,
        backend: &Arc<ObjectStoreBackend>,
    ) -> Result<Option<OpenRepository>, RepositoryError> {
        let stop = &backend.stop;
        let closed = || closed_repository(backend).map_err(library_error("open", stop));
        if closed()?.config_id().map_err(library_error("open", stop))?.is_none() {
            return Ok(None);
        }
        // Checked although the key may be cached: without it, no other process could read the data
        // that we write.
        if backend.list(FileType::Key).map_err(library_error("open", stop))?.is_empty() {
            return Err(RepositoryError::HalfInitialized(backend.name.clone()));
        }
        let key = self.key.lock().clone();
        // If this is another repository by now, the key fails, and the password may still work.
        if let Some(key) = key
            && let Ok(opened) = closed()?.open(&Credentials::Masterkey(key))
        {
            return Ok(Some(opened));
        }
        let password = Credentials::password(self.settings.password.reveal());
        let opened = match closed()?.open(&password) {
            Err(error) if error.is_incorrect_password() => {
                return Err(RepositoryError::Password(backend.name.clone()));
            }
            opened => opened.map_err(library_error("open", stop))?,
        };
        *self.key.lock() = Some(opened.key());
        Ok(Some(opened))
    }

    fn open_or_init(&self, stop: &Arc<StopSignal>) -> Result<OpenRepository, RepositoryError> {
        let Some(backend) = self.open_backend(stop, MissingFolder::Create)? else {
            return Err(RepositoryError::Store { reason: "no directory is given".to_owned() });
        };
        match self.open_in(&backend) {
            Ok(Some(opened)) => return Ok(opened),
            Ok(None) => {}
            Err(RepositoryError::HalfInitialized(_))
                if is_abandoned_half_initialized(&backend)? =>
            {
                let removed = backend.remove(FileType::Config, &rustic_core::Id::default(), false);
                removed.map_err(library_error("make", stop))?;
            }
            Err(failed) => return Err(failed),
        }
        self.init(&backend)?;
        let opened = self.open_in(&backend)?;
        opened.ok_or_else(|| RepositoryError::HalfInitialized(backend.name.clone()))
    }

    /// Initializes a repository. It is prepared in memory, so that among concurrent initializations
    /// one stores its configuration first, and the keys of the others are never stored.
    fn init(&self, backend: &ObjectStoreBackend) -> Result<(), RepositoryError> {
        let stop = &backend.stop;
        let draft = Arc::new(ObjectStoreBackend {
            name: backend.name.clone(),
            store: Arc::new(InMemory::new()),
            runtime: backend.runtime.clone(),
            stop: Arc::clone(stop),
        });
        let password = Credentials::password(self.settings.password.reveal());
        let initialized = closed_repository(&draft).and_then(|closed| {
            closed.init(&password, &KeyOptions::default(), &ConfigOptions::default())
        });
        let key = initialized.map_err(library_error("make", stop))?.key();
        let id = rustic_core::Id::default();
        let config = draft.read_full(FileType::Config, &id).map_err(library_error("make", stop))?;
        let path = Key::from(CONFIG);
        let is_first = backend.run("write", &path, async {
            let store = &backend.store;
            match store.put_opts(&path, config.clone().into(), PutMode::Create.into()).await {
                Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
                Err(object_store::Error::NotImplemented { .. }) => {
                    store.put(&path, config.into()).await.map(|_| true)
                }
                put => put.map(|_| true),
            }
        });
        if !is_first.map_err(library_error("make", stop))? {
            return Ok(());
        }
        for id in draft.list(FileType::Key).map_err(library_error("make", stop))? {
            let file = draft.read_full(FileType::Key, &id).map_err(library_error("make", stop))?;
            let written = backend.write_bytes(FileType::Key, &id, false, file.into());
            written.map_err(library_error("make", stop))?;
        }
        *self.key.lock() = Some(key);
        tracing::info!("created the repository {}", backend.name);
        Ok(())
    }
}

fn closed_repository(
    backend: &Arc<ObjectStoreBackend>,
) -> Result<rustic_core::Repository<()>, Box<RusticError>> {
    let backends = RepositoryBackends::new(Arc::clone(backend) as _, None);
    // A cache would need a home folder, which we do not have.
    let options = RepositoryOptions::default().no_cache(true);
    rustic_core::Repository::new(&options, &backends)
}

/// True if a repository without a key was abandoned during its initialization. Then it is empty.
fn is_abandoned_half_initialized(backend: &ObjectStoreBackend) -> Result<bool, RepositoryError> {
    let path = Key::from(CONFIG);
    let found = backend.run("check", &path, backend.store.head(&path));
    let found = found.map_err(library_error("make", &backend.stop))?;
    let modified_at = found.last_modified.timestamp();
    let age =
        Timestamp::now().duration_since(Timestamp::from_second(modified_at).unwrap_or_default());
    let is_old = SignedDuration::try_from(INIT_TIMEOUT).is_ok_and(|limit| age > limit);
    let packs = backend.list(FileType::Pack).map_err(library_error("make", &backend.stop))?;
    Ok(is_old && packs.is_empty())
}

/// All snapshots in the repository with our id. More than one only if the records were lost.
fn snapshots(
    opened: &OpenRepository,
    id: &Id,
    stop: &StopSignal,
) -> Result<Vec<SnapshotFile>, RepositoryError> {
    let found = opened.get_matching_snapshots(|snapshot| snapshot.tags.contains(id.as_str()));
    found.map_err(library_error("list the snapshots of", stop))
}

fn newest_snapshot(snapshots: Vec<SnapshotFile>) -> Option<SnapshotFile> {
    snapshots.into_iter().max_by_key(|snapshot| snapshot.time.timestamp())
}

/// Checks that everything was written: the library continues when an entry fails.
fn check_complete(expected: TreeSize, written: &SnapshotFile) -> Result<(), RepositoryError> {
    let summary = written.summary.as_ref();
    let found = TreeSize {
        entries: summary.map_or(0, |summary| summary.total_files_processed),
        bytes: summary.map_or(0, |summary| summary.total_bytes_processed),
    };
    if found == expected {
        return Ok(());
    }
    Err(RepositoryError::Incomplete {
        expected: expected.entries,
        expected_bytes: expected.bytes,
        found: found.entries,
        found_bytes: found.bytes,
    })
}
