//! Notes what must not be forgotten of a restore: the operations that actions begin.
//!
//! As in backups: a note before an item is shown to an action that may begin an operation, and one
//! when all actions have seen it, with what they made of it kept in the bucket. A later process takes
//! that over, and shows the item to nobody again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_plugin::ResourceIdentifier;
use bowline_store::BackupStore;
use bowline_store::name::RunUid;
use bytes::Bytes;
use serde_json::Value;

use super::Context;
use super::request::Request;
use crate::journal::{Begun, Ended, Intent, Journal, Kept, Record, Recovered, Told, digest};
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
        }
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
            Ok(Some(bytes)) if digest(&bytes) == kept.sha256 => {
                serde_json::from_slice(&bytes).map_err(|error| error.to_string())
            }
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
    for Intent { plugin, item } in recovered.unfinished.iter().flat_map(|begun| &begun.intents) {
        let id: ResourceIdentifier = item.clone().into();
        let text = format!(
            "the server ended while the plugin {plugin} had this item, and the plugin is shown it \
             again: what it had begun, if anything, may be left over"
        );
        context.report.warning(&id, text);
    }
}
