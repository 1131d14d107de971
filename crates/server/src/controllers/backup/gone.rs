//! Backups that nobody goes on with, and of which the journal alone knows what they have made: their Backups
//! were deleted while no server ran, or the bucket does not show their files.

use std::time::Duration;

use bowline_api::{Backup, annotation};
use bowline_engine::backup::{Taken, snapshot};
use bowline_engine::journal::{Intent, Recovered};
use bowline_engine::operation::record::Of;
use bowline_engine::report::Report;
use bowline_store::file::Snapshot;
use jiff::Timestamp;
use kube::ResourceExt as _;

use super::clean::{discard, named};
use super::csi;
use super::items::stop_operations;
use super::volumes::Resources;
use crate::server::Context;

/// What a backup has made, as its journal knows it. Nothing is done.
pub(in crate::controllers) fn made(recovered: &Recovered) -> Vec<String> {
    let taken = taken(recovered, Duration::ZERO);
    let by_csi = taken.csi_targets().into_iter().map(|target| target.to_string());
    taken.snapshots.iter().filter_map(named).chain(by_csi).collect()
}

/// Stops the operations that a journal knows of, and deletes the snapshots. Returns those that are left, by
/// name. May be repeated.
pub(in crate::controllers) async fn take_away(
    context: &Context,
    backup: &Backup,
    recovered: &Recovered,
) -> Vec<String> {
    let (name, uid) = (backup.name_any(), backup.uid().unwrap_or_default());
    let mut taken = taken(recovered, context.options.default_item_operation_timeout);
    let plugins = context.host.run();
    stop_operations(context, &plugins, backup, &mut taken.operations).await;
    plugins.end().await;
    Resources::new(context, backup).show(&taken.operations).await;
    context.metrics.forget(&uid);
    let by_csi = taken.csi_targets();
    let report = Report::default();
    let snapshots = discard(context, taken.snapshots, &report).await;
    let of = Of { name: &name, uid: &uid };
    let by_csi = csi::discard(context, of, &by_csi, &report).await;
    for message in report.messages().0 {
        tracing::warn!("{}", message.text);
    }
    let by_csi = by_csi.iter().map(ToString::to_string);
    snapshots.iter().filter_map(named).chain(by_csi).collect()
}

fn taken(recovered: &Recovered, timeout: Duration) -> Taken {
    Taken::given_up(String::new(), recovered, timeout, Timestamp::now())
}

/// Deletes a snapshot that was in flight, unless the files of the backup name it: its plugin finds it by its tag. One
/// of version 1 cannot be asked, which is told.
pub(in crate::controllers) async fn reclaim(
    context: &Context,
    backup: &Backup,
    intent: &Intent,
    recorded: &[Snapshot],
) -> Result<(), String> {
    let labels = backup.metadata.labels.as_ref();
    let name = backup.name_any();
    match snapshot::reclaim(&*context.snapshotters, &name, labels, intent, recorded).await? {
        snapshot::Reclaim::Recorded => {
            tracing::info!("{} is in the backup, and is kept", named_in_flight(intent));
        }
        snapshot::Reclaim::Deleted => {
            tracing::info!("{} is deleted, if it was taken", named_in_flight(intent));
        }
        snapshot::Reclaim::Unknowable => {
            tell_unclear(intent, "plugins of version 1 cannot be asked for it");
        }
    }
    Ok(())
}

/// A snapshot that was in flight, for somebody who has to look for it.
pub(in crate::controllers) fn named_in_flight(intent: &Intent) -> String {
    let (location, request) = match &intent.snapshot {
        Some(wanted) => (wanted.location.as_str(), wanted.request.as_str()),
        None => ("", ""),
    };
    let volume = &intent.item.name;
    let tag = annotation::REQUEST_ID;
    format!("the snapshot of the volume {volume} at {location} with the tag {tag}={request}")
}

/// Tells of a snapshot that nobody can find out about.
pub(in crate::controllers) fn tell_unclear(intent: &Intent, reason: &str) {
    tracing::error!("{} may be left over: {reason}", named_in_flight(intent));
}

#[cfg(test)]
mod tests {
    use bowline_engine::backup::csi::Record;
    use bowline_engine::journal::{Begun, CsiIntent, Ended, Intent};

    use super::*;

    #[test]
    fn all_snapshots_that_a_journal_knows_of_are_named() {
        let snapshot = |id: &str| {
            let mut snapshot = Snapshot::default();
            snapshot.spec.persistent_volume_name = "pv-1".to_owned();
            snapshot.spec.location = "east".to_owned();
            id.clone_into(&mut snapshot.status.provider_snapshot_id);
            snapshot
        };
        let text = str::to_owned;
        let by_csi = Record { namespace: text("shop"), name: text("vs-1"), ..Record::default() };
        let finished = Ended {
            snapshots: vec![snapshot("snap-1"), snapshot("")],
            csi_snapshots: vec![by_csi],
            ..Ended::default()
        };
        let csi = CsiIntent { namespace: text("shop"), name: text("vs-2"), is_group: false };
        let intent = Intent { csi: Some(csi), ..Intent::default() };
        let recovered = Recovered {
            finished: vec![finished],
            unfinished: vec![Begun { intents: vec![intent], ..Begun::default() }],
            ..Recovered::default()
        };
        assert_eq!(
            made(&recovered),
            [
                "the snapshot snap-1 of the volume pv-1 at east",
                "the VolumeSnapshot shop/vs-1",
                "the VolumeSnapshot shop/vs-2",
            ]
        );
        assert!(made(&Recovered::default()).is_empty());
    }
}
