//! Notes what must not be forgotten of a restore: the operations that actions begin, and the volumes
//! that plugins make.
//!
//! As in backups: a note before an item is shown to an action that may begin an operation, and one
//! when all actions have seen it, with what they made of it kept in the bucket. A later process takes
//! that over, and shows the item to nobody again.
//!
//! In the same way a note before a plugin is asked for a volume, and one with its answer. A later
//! process uses the volume that is known, and tells of one that may be left over.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_plugin::{Item, ResourceIdentifier, VolumeId};
use bowline_store::BackupStore;
use bowline_store::name::RunUid;
use bytes::Bytes;
use serde_json::Value;

use super::Context;
use super::request::Request;
use crate::journal::{
    Begun, Ended, Intent, Journal, Kept, Record, Recovered, Requested, Told, VolumeBegun,
    VolumeEnded, digest,
};
use crate::operation::{Operation, record};
use crate::point::{self, Point, Verdict};
use crate::report::{About, Message, Report};

/// How large one item may be.
const LARGEST: u64 = 64 << 20;

/// Where a restore notes what must not be forgotten.
pub(super) struct Notes {
    journal: Arc<dyn Journal>,
    store: BackupStore,
    run: RunUid,
    next: AtomicU64,
    /// What an earlier process has finished.
    past: HashMap<ResourceIdentifier, Ended>,
    /// Volumes that earlier processes have asked for.
    volumes: Vec<Requested>,
}

/// What earlier processes did for a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Before {
    /// What its PersistentVolume is called in the cluster.
    pub(super) name: String,
    /// What a plugin has made for it, in its words.
    pub(super) volume: Option<VolumeId>,
}

/// What the actions made of an item.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Acted {
    /// It is to be restored as this.
    Changed(Value),
    /// It is not to be restored, and why.
    Skipped(String),
}

/// An item that the actions have seen.
pub(super) struct Shown<'a> {
    pub(super) id: &'a ResourceIdentifier,
    pub(super) acted: &'a Result<Acted, String>,
    pub(super) operations: &'a [Operation],
    pub(super) report: &'a Report,
    /// What they want restored with it whatever the filters say.
    pub(super) additional: Vec<ResourceIdentifier>,
}

/// Why an item was not restored by an earlier process.
const SKIPPED_BEFORE: &str = "an action said so before the server was started again";

impl Notes {
    pub(super) fn new(
        journal: Arc<dyn Journal>,
        store: BackupStore,
        request: &Request,
        recovered: &Recovered,
    ) -> Self {
        let of_item = |ended: &Ended| {
            let item = ended.visited.first()?.clone();
            Some((item.into(), ended.clone()))
        };
        Self {
            journal,
            store,
            run: request.uid.clone(),
            next: AtomicU64::new(recovered.next_block),
            past: recovered.finished.iter().filter_map(of_item).collect(),
            volumes: recovered.volumes.clone(),
        }
    }

    /// Notes that a plugin is about to be asked for a volume. Returns the number of the note.
    pub(super) async fn begin_volume(&self, mut begun: VolumeBegun) -> Result<u64, String> {
        let block = self.next.fetch_add(1, Ordering::Relaxed);
        begun.block = block;
        if point::verdict(Point::NoteBegun) == Verdict::Go {
            let noted = self.journal.append(&Record::VolumeBegun(begun)).await;
            noted.map_err(|error| format!("it is not restored: {error}"))?;
        }
        point::pass(Point::Begun);
        Ok(block)
    }

    /// Notes the answer: a volume, or that there is none.
    pub(super) async fn end_volume(&self, block: u64, volume: Option<&VolumeId>) {
        let ended = VolumeEnded { block, volume: volume.map(ToString::to_string) };
        if point::verdict(Point::NoteEnded) == Verdict::Go
            && let Err(error) = self.journal.append(&Record::VolumeEnded(ended)).await
        {
            tracing::warn!("{error}; if the server ends now, the volume is made again");
        }
        point::pass(Point::Ended);
    }

    /// What earlier processes did for the volume of a PersistentVolume.
    pub(super) fn volume_before(&self, id: &ResourceIdentifier) -> Option<Before> {
        let asked = self
            .volumes
            .iter()
            .filter(|one| ResourceIdentifier::from(one.begun.item.clone()) == *id);
        // One that was made counts more than what was tried after or before it.
        let last = asked.max_by_key(|one| (made(one).is_some(), one.begun.block))?;
        let volume = made(last).and_then(VolumeId::new);
        Some(Before { name: last.begun.name.clone(), volume })
    }

    /// Notes that an item is about to be shown to actions. Returns the number of the note.
    pub(super) async fn begin(&self, intents: Vec<Intent>) -> Result<u64, String> {
        let block = self.next.fetch_add(1, Ordering::Relaxed);
        if point::verdict(Point::NoteBegun) == Verdict::Go {
            let begun = Record::Begun(Begun { block, intents, ..Begun::default() });
            let noted = self.journal.append(&begun).await;
            noted.map_err(|error| format!("it is not restored: {error}"))?;
        }
        point::pass(Point::Begun);
        Ok(block)
    }

    /// Notes what came of it.
    pub(super) async fn end(&self, block: u64, shown: Shown<'_>, request: &Request) {
        let Shown { id, acted, operations, report, additional } = shown;
        let kept = match acted {
            Ok(Acted::Changed(value)) => match self.keep(block, value).await {
                Some(kept) => Some(kept),
                // Without it the note would be worth nothing.
                None => return,
            },
            _ => None,
        };
        let (errors, warnings) = report.messages();
        let run = request.of();
        let ended = Ended {
            block,
            visited: vec![id.clone().into()],
            additional: additional.into_iter().map(Into::into).collect(),
            kept,
            failed: acted.as_ref().err().cloned(),
            restore_operations: operations.iter().map(|one| record::of_restore(one, run)).collect(),
            errors: errors.into_iter().map(Told::from).collect(),
            warnings: warnings.into_iter().map(Told::from).collect(),
            ..Ended::default()
        };
        if point::verdict(Point::NoteEnded) == Verdict::Go
            && let Err(error) = self.journal.append(&Record::Ended(Box::new(ended))).await
        {
            tracing::warn!("{error}; if the server ends now, more is done again than need be");
        }
        point::pass(Point::Ended);
    }

    async fn keep(&self, block: u64, value: &Value) -> Option<Kept> {
        let bytes = Bytes::from(serde_json::to_vec(value).ok()?);
        let sha256 = digest(&bytes);
        point::pass(Point::Keep);
        match self.store.put_scratch(&self.run, block, bytes).await {
            Ok(()) => {
                point::pass(Point::Kept);
                Some(Kept { number: block, sha256 })
            }
            Err(error) => {
                let error = bowline_plugin::one_line(&error);
                tracing::warn!("an item cannot be kept in case the server ends: {error}");
                None
            }
        }
    }

    /// What the actions of an item wanted restored with it in an earlier process.
    pub(super) fn additional_before(&self, id: &ResourceIdentifier) -> Vec<ResourceIdentifier> {
        let ended = self.past.get(id);
        ended
            .into_iter()
            .flat_map(|ended| ended.additional.iter().cloned().map(Into::into))
            .collect()
    }

    /// What the actions made of an item in an earlier process, if they saw it there.
    pub(super) async fn before(&self, id: &ResourceIdentifier) -> Option<Result<Acted, String>> {
        let ended = self.past.get(id)?;
        if let Some(reason) = &ended.failed {
            return Some(Err(reason.clone()));
        }
        let Some(kept) = &ended.kept else {
            return Some(Ok(Acted::Skipped(SKIPPED_BEFORE.to_owned())));
        };
        let read = match self.store.scratch(&self.run, kept.number, LARGEST).await {
            Ok(Some(bytes)) if digest(&bytes) == kept.sha256 => Item::from_json(bytes)
                .and_then(|item| item.parse())
                .map_err(|error| error.to_string()),
            Ok(Some(_)) => Err("it is not what was put there".to_owned()),
            Ok(None) => Err("it is not in the bucket".to_owned()),
            Err(error) => Err(bowline_plugin::one_line(&error)),
        };
        let lost = |error| {
            format!(
                "what the actions made of it before the server was started again is lost: {error}"
            )
        };
        Some(read.map(Acted::Changed).map_err(lost))
    }
}

/// The volume that a plugin has made, as far as that is known.
fn made(requested: &Requested) -> Option<&str> {
    requested.ended.as_ref()?.volume.as_deref()
}

/// What is to be said of a volume that a plugin was asked for, if nobody goes on with it.
fn left_over(requested: &Requested) -> Option<(ResourceIdentifier, String)> {
    let Requested { begun: VolumeBegun { plugin, snapshot, item, .. }, ended } = requested;
    let text = match ended {
        None => format!(
            "the server ended while the plugin {plugin} made a volume from the snapshot {snapshot} \
             for it: what it had made, if anything, may be left over"
        ),
        Some(VolumeEnded { volume: Some(volume), .. }) => format!(
            "the plugin {plugin} made the volume {volume} from the snapshot {snapshot} for it: it is \
             left over, unless a PersistentVolume points to it"
        ),
        Some(VolumeEnded { volume: None, .. }) => return None,
    };
    Some((item.clone().into(), text))
}

/// Volumes that earlier processes asked plugins for, and that may be left over if nobody goes on with
/// the restore.
pub fn volumes_left(recovered: &Recovered) -> Vec<(ResourceIdentifier, String)> {
    recovered.volumes.iter().filter_map(left_over).collect()
}

/// Tells of volumes that earlier processes had made, and that this one did not come to.
pub(super) fn tell_left_over(context: &Context) {
    let volumes = context.notes.iter().flat_map(|notes| &notes.volumes);
    let unused = volumes.filter(|one| made(one).is_some());
    let unused = unused.filter(|one| !context.volume_outcomes.has(&one.begun.item.name));
    for (id, text) in unused.filter_map(left_over) {
        context.report.warning(&id, text);
    }
}

/// Takes over what an earlier process has noted.
pub(super) fn replay(context: &Context, recovered: &Recovered) {
    let message = |told: &Told| Message::from(told.clone());
    for ended in &recovered.finished {
        let (errors, warnings) = (ended.errors.iter(), ended.warnings.iter());
        context.report.take_over(errors.map(message), warnings.map(message));
        let timeout = context.request.timeouts.item_operation;
        for operation in &ended.restore_operations {
            match record::from_restore(operation.clone(), timeout, context.began) {
                Ok(operation) => context.begun(operation),
                Err(error) => context.report.error(About::Run, error.to_string()),
            }
        }
    }
    for Intent { plugin, item, .. } in recovered.unfinished.iter().flat_map(|begun| &begun.intents)
    {
        let id: ResourceIdentifier = item.clone().into();
        let text = format!(
            "the server ended while the plugin {plugin} had this item, and the plugin is shown it \
             again: what it had begun, if anything, may be left over"
        );
        context.report.warning(&id, text);
    }
    for (id, text) in
        recovered.volumes.iter().filter(|one| one.ended.is_none()).filter_map(left_over)
    {
        context.report.warning(&id, text);
    }
}
