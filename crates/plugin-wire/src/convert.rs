//! Conversion of values that several services share, in both directions.

use std::time::Duration;

use bowline_plugin::{Progress, ResourceIdentifier, ResourceSelector, State};
use jiff::Timestamp;

use crate::proto::generated as wire;

/// The first second of year 1: Go's zero time.
const GO_ZERO_TIME_SECONDS: i64 = -62_135_596_800;

const NANOS_PER_SECOND: i32 = 1_000_000_000;

/// Upper bound of waits, so that adding one to a time cannot overflow.
const MAX_WAIT: Duration = Duration::from_hours(366 * 24);

pub(crate) fn identifiers(items: Vec<wire::ResourceIdentifier>) -> Vec<ResourceIdentifier> {
    let convert = |item: wire::ResourceIdentifier| ResourceIdentifier {
        group: item.group,
        resource: item.resource,
        namespace: item.namespace,
        name: item.name,
    };
    items.into_iter().map(convert).collect()
}

pub(crate) fn to_identifiers(items: Vec<ResourceIdentifier>) -> Vec<wire::ResourceIdentifier> {
    let convert = |item: ResourceIdentifier| wire::ResourceIdentifier {
        group: item.group,
        resource: item.resource,
        namespace: item.namespace,
        name: item.name,
    };
    items.into_iter().map(convert).collect()
}

/// An absent selector selects everything.
pub(crate) fn selector(selector: Option<wire::ResourceSelector>) -> ResourceSelector {
    let selector = selector.unwrap_or_default();
    ResourceSelector {
        included_namespaces: selector.included_namespaces,
        excluded_namespaces: selector.excluded_namespaces,
        included_resources: selector.included_resources,
        excluded_resources: selector.excluded_resources,
        label_selector: selector.selector,
    }
}

// An `Option`, since the field is optional.
#[expect(clippy::unnecessary_wraps, reason = "the field is optional")]
pub(crate) fn to_selector(selector: ResourceSelector) -> Option<wire::ResourceSelector> {
    Some(wire::ResourceSelector {
        included_namespaces: selector.included_namespaces,
        excluded_namespaces: selector.excluded_namespaces,
        included_resources: selector.included_resources,
        excluded_resources: selector.excluded_resources,
        selector: selector.label_selector,
    })
}

pub(crate) fn progress(progress: wire::OperationProgress) -> Progress {
    let state = match (progress.completed, progress.err) {
        // As in Velero, an error counts only once the operation has completed.
        (false, _) => State::Running,
        (true, err) if err.is_empty() => State::Succeeded,
        (true, err) => State::Failed(err),
    };
    Progress {
        state,
        done: progress.n_completed.max(0),
        total: progress.n_total.max(0),
        units: progress.operation_units,
        description: progress.description,
        started: progress.started.and_then(timestamp),
        updated: progress.updated.and_then(timestamp),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the field is optional")]
pub(crate) fn to_progress(progress: Progress) -> Option<wire::OperationProgress> {
    let (completed, err) = match progress.state {
        State::Running => (false, String::new()),
        State::Succeeded => (true, String::new()),
        // Without a text the failure would look like a success.
        State::Failed(err) if err.is_empty() => (true, "the plugin gave no reason".to_owned()),
        State::Failed(err) => (true, err),
    };
    Some(wire::OperationProgress {
        completed,
        err,
        n_completed: progress.done,
        n_total: progress.total,
        operation_units: progress.units,
        description: progress.description,
        started: Some(to_timestamp(progress.started)),
        updated: Some(to_timestamp(progress.updated)),
    })
}

/// A time; `None` for Go's zero time and for times out of range.
fn timestamp(time: prost_types::Timestamp) -> Option<Timestamp> {
    let in_range =
        time.seconds > GO_ZERO_TIME_SECONDS && (0..NANOS_PER_SECOND).contains(&time.nanos);
    in_range.then(|| Timestamp::new(time.seconds, time.nanos).ok()).flatten()
}

fn to_timestamp(time: Option<Timestamp>) -> prost_types::Timestamp {
    let Some(time) = time else {
        return prost_types::Timestamp { seconds: GO_ZERO_TIME_SECONDS, nanos: 0 };
    };
    let (seconds, nanos) = (time.as_second(), time.subsec_nanosecond());
    // Before 1970 jiff counts both backwards; protobuf always counts nanoseconds forwards.
    if nanos < 0 {
        prost_types::Timestamp { seconds: seconds - 1, nanos: nanos + NANOS_PER_SECOND }
    } else {
        prost_types::Timestamp { seconds, nanos }
    }
}

/// A wait; `None` if absent, zero, negative or malformed.
pub(crate) fn wait(duration: Option<prost_types::Duration>) -> Option<Duration> {
    let duration = duration?;
    let seconds = u64::try_from(duration.seconds).ok()?;
    let nanos = u32::try_from(duration.nanos).ok().filter(|_| duration.nanos < NANOS_PER_SECOND)?;
    let wait = Duration::new(seconds, nanos);
    (!wait.is_zero()).then(|| wait.min(MAX_WAIT))
}

pub(crate) fn to_wait(wait: Option<Duration>) -> Option<prost_types::Duration> {
    let wait = wait?.min(MAX_WAIT);
    let seconds = wait.as_secs().try_into().ok()?;
    Some(prost_types::Duration { seconds, nanos: wait.subsec_nanos().try_into().ok()? })
}

/// The rate; `None` for zero, which means "not given", and for negative values.
pub(crate) fn iops(iops: i64) -> Option<i64> {
    Some(iops).filter(|iops| *iops > 0)
}

#[cfg(test)]
mod tests;
