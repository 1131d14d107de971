//! Stores items again that operations have changed.
//!
//! Each item is fetched and passed to the actions once more. The archive is copied from the bucket into an unnamed
//! file, and from there back again, with these items in place of their earlier versions (`rewrite`). The copy in the
//! bucket is replaced atomically, so a kill leaves one or the other.

mod previous_index;
mod rewrite;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use backon::Retryable as _;
use bowline_plugin::{ByteStream, ResourceIdentifier, error_chain};
use bowline_store::file::ResourceList;
use bowline_store::{BackupFile, BackupName, BackupStore, Key};
use futures::future::join;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::archive::{self, Message};
use super::hook::Tally;
use super::item::{self, Inclusion, ItemOrigin, Sink, VisitResults};
use super::spool::Spool;
use super::volume::SnapshotOutcome;
use super::{Context, FatalError, Run, assemble, into_owned_report, upload};
use crate::archive_index::IndexFile;
use crate::compression::CompressionMode;
use crate::item::Object;
use crate::journal::RecoveredRun;
use crate::operation::Operation;
use crate::report::Report;
use previous_index::PreviousIndex;
use rewrite::{CopiedMembers, Replacement, Replacements, Rewriter};

/// Size limit of a copied item.
const MAX_ITEM_BYTES: u64 = 64 << 20;

/// Outcome of storing items again.
#[derive(Debug)]
pub struct ReplaceOutcome {
    /// Errors and warnings of the items.
    pub report: Report,
    /// Number of items stored again, or the reason why the archive is unchanged.
    pub outcome: Result<usize, FatalError>,
}

/// Items to store again, on disk until then.
pub(super) struct ReplacementItems<'a> {
    context: &'a Context,
    spool: Spool,
    /// By path without a version.
    items: Mutex<BTreeMap<String, Replacement>>,
    names: Mutex<Vec<(String, String)>>,
}

impl<'a> ReplacementItems<'a> {
    fn new(context: &'a Context) -> Self {
        let spool = context.spool.clone();
        Self { context, spool, items: Mutex::default(), names: Mutex::default() }
    }

    pub(super) fn store(&self, object: &Object) -> io::Result<()> {
        let place = self.spool.put(&object.item)?;
        let paths = archive::paths(&object.resource, &object.namespace, &object.name);
        self.items.lock().insert(paths[0].clone(), Replacement { paths, place });
        let kind = format!("{}/{}", object.resource.api_version(), object.resource.kind);
        let name = match object.namespace.as_str() {
            "" => object.name.clone(),
            namespace => format!("{namespace}/{}", object.name),
        };
        self.names.lock().push((kind, name));
        Ok(())
    }
}

/// The results of the run, except that nobody would wait for another operation.
impl VisitResults for ReplacementItems<'_> {
    fn report(&self) -> &Report {
        &self.context.report
    }

    fn tally(&self) -> &Tally {
        &self.context.hook_tally
    }

    fn record_snapshot(&self, volume: &str, outcome: SnapshotOutcome) {
        self.context.volumes.record_snapshot(volume, outcome);
    }

    fn record_operation(&self, operation: Operation) {
        let text = format!(
            "the action {} started operation {} when the item was stored again; the backup does \
             not wait for it",
            operation.plugin, operation.id
        );
        self.context.report.error(&operation.item, text);
    }
}

/// The items that operations ask to store again, each once.
pub fn items_of(operations: &[Operation]) -> BTreeSet<ResourceIdentifier> {
    operations.iter().flat_map(|operation| operation.post_operation_items.clone()).collect()
}

/// The items to store again according to a journal.
pub fn journaled_items(recovered: &RecoveredRun) -> BTreeSet<ResourceIdentifier> {
    let records = recovered.finished.iter().flat_map(|ended| &ended.backup_operations);
    records.flat_map(|one| one.spec.post_operation_items.iter().cloned()).map(Into::into).collect()
}

/// Stores items again in the archive of a backup. The operations file, which names them, is in the bucket; a writer
/// of that file must not be able to read the whole cluster. The filters of the backup therefore apply, except to
/// items that its own journal names (`journaled_items`): actions may include items that users did not.
pub async fn run(
    run: Run,
    items: &BTreeSet<ResourceIdentifier>,
    journaled: &BTreeSet<ResourceIdentifier>,
    now: Timestamp,
) -> ReplaceOutcome {
    let report = Arc::new(Report::default());
    let context = match Box::pin(assemble(run, Arc::clone(&report), now)).await {
        Ok(context) => context,
        Err(fatal) => {
            return ReplaceOutcome { report: into_owned_report(report), outcome: Err(fatal) };
        }
    };
    let outcome = replace(&context, items, journaled).await;
    drop(context);
    ReplaceOutcome { report: into_owned_report(report), outcome }
}

async fn replace(
    context: &Context,
    items: &BTreeSet<ResourceIdentifier>,
    journaled: &BTreeSet<ResourceIdentifier>,
) -> Result<usize, FatalError> {
    let sink = Sink::for_replacement(ReplacementItems::new(context));
    for id in items {
        if context.is_aborted() {
            return Err(FatalError::Canceled);
        }
        let inclusion =
            if journaled.contains(id) { Inclusion::Required } else { Inclusion::Filtered };
        visit(context, id, inclusion, &sink).await;
    }
    let Some(ReplacementItems { spool, items, names, .. }) = sink.into_replacement() else {
        return Ok(0);
    };
    let items: Vec<Replacement> = items.into_inner().into_values().collect();
    let names = names.into_inner();
    if items.is_empty() {
        return Ok(0);
    }
    let Context { store, request, options, started, .. } = context;
    let target = Target { store, backup: &request.name, scratch: &options.scratch };
    target.rewrite(Replacements::new(spool, items), *started, options.compression).await?;
    let count = names.len();
    list(context, names).await?;
    Ok(count)
}

async fn visit(context: &Context, id: &ResourceIdentifier, inclusion: Inclusion, sink: &Sink<'_>) {
    let Some((resource, id)) = context.resolve(id) else {
        let text = "an operation requested to store the item again, but the cluster does not serve \
                    its kind";
        context.report.error(id, text);
        return;
    };
    match context.cluster.get(&resource, &id.namespace, &id.name).await {
        Ok(Some(object)) => {
            let origin = ItemOrigin { inclusion, ..ItemOrigin::default() };
            item::visit(context, object, origin, sink).await;
        }
        // The earlier version stays.
        Ok(None) => tracing::info!(item = %id, "not stored again: the object no longer exists"),
        Err(error) => {
            let text = format!("cannot read the item to back it up again: {error}");
            context.report.error(&id, text);
        }
    }
}

/// The copying of an archive.
struct Copying {
    previous: File,
    index: Option<Arc<PreviousIndex>>,
    replacements: Replacements,
    seconds: u64,
}

impl Copying {
    async fn run(
        self,
        members: mpsc::Sender<Message>,
        compression: CompressionMode,
    ) -> io::Result<CopiedMembers> {
        let ended = || io::Error::new(io::ErrorKind::BrokenPipe, "the upload has ended");
        if compression != CompressionMode::Inline {
            let send = move |message| members.blocking_send(message).map_err(|_| ended());
            return compression.run(move || self.copy(send)).await;
        }
        // Nothing may block here, so all members are in memory. Only tests do this.
        let mut messages = Vec::new();
        let copied = self.copy(|message| {
            messages.push(message);
            Ok(())
        })?;
        for message in messages {
            members.send(message).await.map_err(|_| ended())?;
        }
        Ok(copied)
    }

    fn copy(self, send: impl FnMut(Message) -> io::Result<()>) -> io::Result<CopiedMembers> {
        let rewriter = Rewriter::new(send, self.replacements, self.seconds);
        rewriter.copy(&self.previous, self.index.as_deref())
    }
}

/// The archive that is rewritten.
struct Target<'a> {
    store: &'a BackupStore,
    backup: &'a BackupName,
    scratch: &'a Path,
}

impl Target<'_> {
    /// Copies the archive, replacing some items and adding those that it lacks.
    async fn rewrite(
        &self,
        replacements: Replacements,
        now: Timestamp,
        compression: CompressionMode,
    ) -> Result<(), FatalError> {
        let Self { store, backup, scratch } = self;
        let found = store.contents(backup).await.map_err(FatalError::ReadBucket)?;
        let found = found.ok_or(FatalError::NoArchive)?;
        let downloaded =
            upload::spool_to_disk(found, scratch).await.map_err(FatalError::Scratch)?;
        let previous = upload::rewind(&downloaded).map_err(FatalError::Scratch)?;
        let index = self.previous_index().await.map(Arc::new);
        let (members, stream, writer) =
            archive::start_members(scratch, compression).map_err(FatalError::Archive)?;
        let seconds = u64::try_from(now.as_second()).unwrap_or_default();
        let copying = Copying { previous, index: index.clone(), replacements, seconds };
        let uploading = upload::contents(store, backup, stream, scratch);
        let (copied, uploaded) = join(copying.run(members, compression), uploading).await;
        let copied = copied.map_err(FatalError::Archive)?;
        uploaded?;
        let sealed = writer.finish(move |new| match index {
            Some(index) => index.copy_entries(&copied, new),
            None => Ok(()),
        });
        match sealed.await {
            Ok(sealed) => self.write_index(sealed.index).await,
            Err(error) => tracing::warn!("the index of the archive cannot be written: {error}"),
        }
        Ok(())
    }

    /// The index of the archive. An archive without a usable one is copied as a whole.
    async fn previous_index(&self) -> Option<PreviousIndex> {
        let stream = match self.store.get_stream(&self.index_key()).await {
            Ok(stream) => stream?,
            Err(error) => {
                tracing::warn!("cannot read the index of the archive: {}", error_chain(&error));
                return None;
            }
        };
        match self.open_index(stream).await {
            Ok(index) => Some(index),
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!("the index of the archive is not used: {error}");
                None
            }
        }
    }

    async fn open_index(
        &self,
        stream: ByteStream,
    ) -> Result<PreviousIndex, previous_index::UnusableIndex> {
        let file = upload::spool_to_disk(stream, self.scratch).await?;
        PreviousIndex::open(upload::rewind(&file)?)
    }

    /// Writes the index of the new archive. Readers notice if the previous one is still there.
    async fn write_index(&self, index: Option<IndexFile>) {
        let Some(index) = index else { return };
        let key = self.index_key();
        let write = || self.store.put_stream(&key, index.stream());
        let written = write.retry(upload::UPLOAD_RETRIES).await;
        if let Err(error) = written {
            let error = error_chain(&error);
            tracing::warn!(
                "the index of the archive cannot be written, so that reading one object \
                 reads the whole archive: {error}"
            );
        }
    }

    fn index_key(&self) -> Key {
        Key::Backup(self.backup.clone(), BackupFile::ArchiveIndex)
    }
}

/// Adds items to the list of the archive's contents.
async fn list(context: &Context, names: Vec<(String, String)>) -> Result<(), FatalError> {
    let Context { store, request, .. } = context;
    let list = store.get::<ResourceList>(&request.name).await.map_err(FatalError::ReadBucket)?;
    let mut list = list.unwrap_or_default();
    let mut is_new = false;
    for (kind, name) in names {
        let of_kind = list.0.entry(kind).or_default();
        if let Err(place) = of_kind.binary_search(&name) {
            of_kind.insert(place, name);
            is_new = true;
        }
    }
    if is_new {
        store.put(&request.name, &list).await.map_err(FatalError::ReadBucket)?;
    }
    Ok(())
}
