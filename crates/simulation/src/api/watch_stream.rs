//! Watches: one long answer, with a line for each change.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::object_store::Selection;
use super::route::{Route, Target};
use super::{Answer, Change, ConnectionError, Refusal, answer_with, json_answer};
use crate::fault::{FaultKind, Part};
use crate::os;
use crate::world::Link;

/// Interval of bookmarks.
const BOOKMARKS: Duration = Duration::from_mins(1);
/// Longest watch.
const LONGEST: u64 = 300;
/// Pause while the API server cannot be reached.
const PARTITION_PAUSE: Duration = Duration::from_millis(500);

struct WatchState {
    link: Link,
    place: usize,
    selection: Selection,
    /// Version that was reported last.
    version: u64,
    wants_bookmarks: bool,
    next_bookmark: Instant,
    end: Instant,
    changes: tokio::sync::watch::Receiver<u64>,
    /// Lines that are reported first.
    first: Option<Vec<u8>>,
}

/// Answer to a watch.
pub(super) fn answer(link: &Link, route: &Route) -> Result<Answer, ConnectionError> {
    let opened = link.world.with(|state| {
        let Target::Resource { group, plural, .. } = &route.target else {
            return Err(Refusal::not_found("the path"));
        };
        let place = state.objects.place(group, plural);
        let place = place.ok_or_else(|| Refusal::not_found(&format!("kind {plural}")))?;
        let selection = route.selection()?;
        let from = route.parameter("resourceVersion").and_then(|text| text.parse::<u64>().ok());
        let mut first = Vec::new();
        let version = match from {
            Some(version) if version > 0 => version,
            _ => {
                for (_, object) in state.objects.of_kind(place) {
                    if selection.matches(object) {
                        push_line(&mut first, "ADDED", object);
                    }
                }
                state.objects.version()
            }
        };
        Ok((place, selection, version, Some(first).filter(|lines| !lines.is_empty())))
    });
    let (place, selection, version, first) = match opened {
        Ok(opened) => opened,
        Err(refusal) => return json_answer(Err(refusal), false),
    };
    let seconds = route.parameter("timeoutSeconds").and_then(|text| text.parse().ok());
    let watching = WatchState {
        link: link.clone(),
        place,
        selection,
        version,
        wants_bookmarks: route.parameter("allowWatchBookmarks") == Some("true"),
        next_bookmark: Instant::now() + BOOKMARKS,
        end: Instant::now() + Duration::from_secs(LONGEST.min(seconds.unwrap_or(LONGEST))),
        changes: link.world.changes.subscribe(),
        first,
    };
    let lines = stream::unfold(watching, async |mut watching| {
        let lines = watching.next_lines().await?;
        Some((Ok::<_, ConnectionError>(Frame::data(Bytes::from(lines))), watching))
    });
    answer_with(200, StreamBody::new(lines).boxed_unsync())
}

impl WatchState {
    /// Lines to send next; none at the end.
    async fn next_lines(&mut self) -> Option<Vec<u8>> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        loop {
            self.link.stop_if_dead().await;
            let lines = self.lines_since();
            if !lines.is_empty() {
                let latency = self.link.world.with(|state| Part::Api.latency(&mut state.random));
                tokio::time::sleep(latency).await;
                while self.is_cut_off() {
                    tokio::time::sleep(PARTITION_PAUSE).await;
                }
                self.link.stop_if_dead().await;
                return Some(lines);
            }
            let now = Instant::now();
            if now >= self.end {
                return None;
            }
            if now >= self.next_bookmark {
                self.next_bookmark = now + BOOKMARKS;
                if self.wants_bookmarks {
                    return Some(self.bookmark());
                }
            }
            let next = self.end.min(self.next_bookmark);
            // Either way, everything is looked at again.
            let _ = timeout_at(next, self.changes.changed()).await;
        }
    }

    fn lines_since(&mut self) -> Vec<u8> {
        let (place, selection, since) = (self.place, &self.selection, self.version);
        let (lines, version) = self.link.world.with(|state| {
            let all = &state.objects.changes;
            let from = all.partition_point(|change| change.version <= since);
            let mut lines = Vec::new();
            for change in all[from..].iter().filter(|change| change.kind == place) {
                add_change(&mut lines, change, selection);
            }
            (lines, state.objects.version())
        });
        self.version = version;
        lines
    }

    fn is_cut_off(&self) -> bool {
        let now = os::now();
        self.link.world.with(|state| {
            let mut all = state.faults.iter();
            all.any(|fault| fault.kind == FaultKind::ApiPartition && fault.is_active(now))
        })
    }

    fn bookmark(&self) -> Vec<u8> {
        let object = self.link.world.with(|state| {
            let kind = &state.objects.kinds[self.place];
            json!({
                "apiVersion": kind.api_version(), "kind": kind.name,
                "metadata": {"resourceVersion": self.version.to_string()},
            })
        });
        let mut lines = Vec::new();
        push_line(&mut lines, "BOOKMARK", &object);
        lines
    }
}

fn add_change(lines: &mut Vec<u8>, change: &Change, selection: &Selection) {
    let selected =
        |object: &Option<Arc<Value>>| object.clone().filter(|object| selection.matches(object));
    match (selected(&change.before), selected(&change.after)) {
        (None, Some(after)) => push_line(lines, "ADDED", &after),
        (Some(_), Some(after)) => push_line(lines, "MODIFIED", &after),
        (Some(before), None) => {
            let mut last = (*before).clone();
            last["metadata"]["resourceVersion"] = json!(change.version.to_string());
            push_line(lines, "DELETED", &last);
        }
        (None, None) => {}
    }
}

fn push_line(lines: &mut Vec<u8>, kind: &str, object: &Value) {
    lines.extend_from_slice(json!({"type": kind, "object": object}).to_string().as_bytes());
    lines.push(b'\n');
}
