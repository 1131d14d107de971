//! Stores items again that operations have changed.
//!
//! Each item is fetched and passed to the actions once more. The archive is copied from the bucket into an unnamed
//! file, and from there back again, with these items in place of their earlier versions. The copy in the bucket is
//! replaced atomically, so a kill leaves one or the other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::sync::Arc;

use bowline_plugin::ResourceIdentifier;
use bowline_store::file::ResourceList;
use bowline_store::pipe;
use flate2::read::MultiGzDecoder;
use jiff::Timestamp;
use parking_lot::Mutex;

use super::archive;
use super::hook::Tally;
use super::item::{self, Inclusion, ItemOrigin, Sink, VisitResults};
use super::spool::{Spool, SpoolRange};
use super::volume::SnapshotOutcome;
use super::{Context, FatalError, Run, assemble, into_owned_report, upload};
use crate::item::Object;
use crate::journal::RecoveredRun;
use crate::operation::Operation;
use crate::report::Report;

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
    places: Mutex<BTreeMap<String, SpoolRange>>,
    names: Mutex<Vec<(String, String)>>,
}

impl<'a> ReplacementItems<'a> {
    fn new(context: &'a Context) -> Self {
        let spool = context.spool.clone();
        Self { context, spool, places: Mutex::default(), names: Mutex::default() }
    }

    pub(super) fn store(&self, object: &Object) -> io::Result<()> {
        let place = self.spool.put(&object.item)?;
        let mut places = self.places.lock();
        for path in archive::paths(&object.resource, &object.namespace, &object.name) {
            places.insert(path, place);
        }
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
    let Some(ReplacementItems { spool, places, names, .. }) = sink.into_replacement() else {
        return Ok(0);
    };
    let places = places.into_inner();
    let names = names.into_inner();
    if places.is_empty() {
        return Ok(0);
    }
    rewrite(context, spool, places).await?;
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

/// Copies the archive, replacing some files and adding those that it lacks.
async fn rewrite(
    context: &Context,
    spool: Spool,
    places: BTreeMap<String, SpoolRange>,
) -> Result<(), FatalError> {
    let Context { store, request, options, .. } = context;
    let found = store.contents(&request.name).await.map_err(FatalError::ReadBucket)?;
    let found = found.ok_or(FatalError::NoArchive)?;
    let downloaded =
        upload::spool_to_disk(found, &options.scratch).await.map_err(FatalError::Scratch)?;
    let previous = upload::rewind(&downloaded).await.map_err(FatalError::Scratch)?;
    let (writer, stream) = pipe::pipe();
    let seconds = u64::try_from(context.started.as_second()).unwrap_or_default();
    let copying =
        tokio::task::spawn_blocking(move || copy(previous, writer, &spool, places, seconds));
    let uploaded = upload::contents(store, &request.name, stream, &options.scratch).await;
    match copying.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(FatalError::Archive(error)),
        Err(error) => return Err(FatalError::Archive(io::Error::other(error))),
    }
    Ok(uploaded?)
}

fn copy(
    previous: File,
    writer: pipe::Writer,
    spool: &Spool,
    mut places: BTreeMap<String, SpoolRange>,
    seconds: u64,
) -> io::Result<()> {
    let mut tar = archive::builder(writer);
    let mut entries = tar::Archive::new(MultiGzDecoder::new(io::BufReader::new(previous)));
    for entry in entries.entries()? {
        let mut entry = entry?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        if let Some(place) = places.remove(&path) {
            archive::append(&mut tar, &path, spool.get(place)?.json(), seconds)?;
            continue;
        }
        let size = entry.size();
        if size > MAX_ITEM_BYTES {
            return Err(io::Error::other(format!("{path} in the archive is {size} bytes long")));
        }
        archive::append_from(&mut tar, &path, size, entry.by_ref().take(size), seconds)?;
    }
    for (path, place) in places {
        archive::append(&mut tar, &path, spool.get(place)?.json(), seconds)?;
    }
    tar.into_inner()?.finish()?.finish()
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
