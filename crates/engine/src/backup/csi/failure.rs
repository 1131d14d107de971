//! Reasons why a claim has no snapshot. Their texts go into the report, the journal and the files of the backup.

use std::time::Duration;

use bowline_api::label::VOLUME_GROUP_SNAPSHOT_CLASS;
use bowline_plugin::InvalidItem;

use super::class::ClassError;
use crate::cluster::{self, watch::WatchError};
use crate::csi::GROUP_SNAPSHOT_API_GROUP;

/// Reason why a driver is not asked for a snapshot: the cluster or the driver does not support it.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum UnsupportedError {
    /// The snapshot API is missing.
    #[error(transparent)]
    Api(#[from] ApiMissing),
    /// The classes are unknown.
    #[error(transparent)]
    Classes(#[from] ClassListError),
    /// No class can be used.
    #[error(transparent)]
    Class(#[from] ClassError),
}

/// The cluster has no snapshot API.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "the cluster does not serve snapshot.storage.k8s.io/v1; install the snapshot controller and \
     its CRDs if the driver supports snapshots"
)]
pub(super) struct ApiMissing;

/// The VolumeSnapshotClasses could not be listed. All claims of a run share the answer, so only its text is kept.
#[derive(Clone, Debug, thiserror::Error)]
#[error("VolumeSnapshotClasses cannot be listed: {0}")]
pub(super) struct ClassListError(pub(super) String);

/// Reason why a requested snapshot was not taken, or will not be requested.
#[derive(Debug, thiserror::Error)]
pub(super) enum CsiSnapshotError {
    /// The snapshot API is missing.
    #[error(transparent)]
    Api(#[from] ApiMissing),
    /// The group snapshot API is gone.
    #[error("the cluster no longer serves {GROUP_SNAPSHOT_API_GROUP}")]
    GroupApi,
    /// The VolumeSnapshot cannot be encoded.
    #[error("the VolumeSnapshot cannot be encoded: {0}")]
    Encode(InvalidItem),
    /// The intent could not be written to the journal: a snapshot without a record could be left behind.
    #[error("the journal of the backup cannot be written")]
    NotJournaled,
    /// The VolumeSnapshot was not created.
    #[error("the VolumeSnapshot cannot be created: {0}")]
    Create(cluster::Error),
    /// The VolumeGroupSnapshot was not created.
    #[error("the VolumeGroupSnapshot cannot be created: {0}")]
    CreateGroup(cluster::Error),
    /// The state of snapshots cannot be observed.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// The state of groups cannot be observed.
    #[error("VolumeGroupSnapshots cannot be watched: {0}")]
    WatchGroups(cluster::Error),
    /// The VolumeSnapshot was deleted meanwhile.
    #[error("the VolumeSnapshot was deleted")]
    Deleted,
    /// The driver, or the snapshot controller, reported this error.
    #[error("{0}")]
    Driver(String),
    /// The driver has not taken the snapshot in time.
    #[error(
        "the driver has not created the snapshot within {} s (csiSnapshotTimeout){}", .limit.as_secs(),
        .last_error.as_ref().map(|error| format!(": {error}")).unwrap_or_default()
    )]
    TimedOut { limit: Duration, last_error: Option<String> },
    /// The driver has not taken the group in time.
    #[error("the driver has not created the snapshots of the group within {} s (csiSnapshotTimeout)", .0.as_secs())]
    GroupTimedOut(Duration),
    /// The backup was canceled.
    #[error("the backup was canceled")]
    Canceled,
}

/// Reason why claims are not snapshotted by one VolumeGroupSnapshot.
#[derive(Debug, thiserror::Error)]
pub(super) enum GroupPlanError {
    /// The group snapshot API is missing.
    #[error("the cluster does not serve {GROUP_SNAPSHOT_API_GROUP}")]
    Api,
    /// The API server has no claims.
    #[error("the cluster no longer serves claims")]
    NoClaims,
    /// The members could not be listed.
    #[error("the claims with the label of the group cannot be listed: {0}")]
    ListClaims(cluster::Error),
    /// The classes could not be listed.
    #[error("VolumeGroupSnapshotClasses cannot be listed: {0}")]
    ListClasses(cluster::Error),
    /// The group would have other members than planned.
    #[error(transparent)]
    Members(#[from] GroupMembersError),
    /// No class can be used.
    #[error(transparent)]
    Class(#[from] GroupClassError),
    /// The VolumeGroupSnapshot cannot be encoded.
    #[error(transparent)]
    Encode(#[from] InvalidItem),
}

/// Difference between the claims of a group and those that were planned.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum GroupMembersError {
    /// Others have the label, too.
    #[error(
        "claims outside of the group now have its label: {}",
        shortened(.0)
    )]
    Others(Vec<String>),
    /// One has lost it.
    #[error("claim {0} no longer has the label")]
    Lost(String),
}

/// Number of obstructing claims that a message names.
const MAX_NAMED_CLAIMS: usize = 5;

fn shortened(claims: &[String]) -> String {
    let named = claims[..claims.len().min(MAX_NAMED_CLAIMS)].join(", ");
    match claims.len().saturating_sub(MAX_NAMED_CLAIMS) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Failure to choose the class of a group.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum GroupClassError {
    /// The named class does not exist.
    #[error("no VolumeGroupSnapshotClass {name} exists for driver {driver}")]
    NotFound { name: String, driver: String },
    /// The driver has no class.
    #[error("no VolumeGroupSnapshotClass exists for driver {0}")]
    NoClass(String),
    /// The driver has several, and nothing determines which to use.
    #[error(
        "driver {0} has several VolumeGroupSnapshotClasses; set the label \
         {VOLUME_GROUP_SNAPSHOT_CLASS}=true on one of them"
    )]
    Ambiguous(String),
}
