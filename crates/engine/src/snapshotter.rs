//! Port to VolumeSnapshotLocations: opens the snapshotters of plugins.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_api::snapshot_type::SnapshotType;
use bowline_plugin::{Code, Name, ResourceIdentifier, SnapshotId, VolumeSnapshotter};
use tokio::time::timeout;

use crate::failpoint::{self, Failpoint};
use crate::journal::digest;

/// Maximum length of an object name.
const LONGEST_NAME: usize = 253;
/// Number of hash digits that distinguish names which would otherwise be equal.
const HASH_DIGITS: usize = 16;

/// Opens the snapshotters of VolumeSnapshotLocations.
#[async_trait]
pub trait Snapshotters: Send + Sync {
    /// Opens the snapshotter of a location, initialized with the location's settings.
    async fn open(&self, location: &str) -> Result<Snapshotter, OpenError>;
}

/// Snapshotter with the settings of a location.
#[derive(Clone)]
pub struct Snapshotter {
    /// Name of the VolumeSnapshotLocation.
    pub location: String,
    /// Name of the plugin.
    pub plugin: Name,
    /// True if the plugin implements version 2 of the contract: the same request yields the same
    /// snapshot.
    pub is_v2: bool,
    /// Snapshot type of the location, if it specifies one.
    pub snapshot_type: Option<SnapshotType>,
    /// Client of the plugin.
    pub calls: Arc<dyn VolumeSnapshotter>,
}

impl fmt::Debug for Snapshotter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { location, plugin, is_v2, .. } = self;
        write!(formatter, "Snapshotter({plugin} at {location}, v2: {is_v2})")
    }
}

/// Reason why a snapshotter cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the VolumeSnapshotLocation {location} cannot be used: {reason}")]
pub struct OpenError {
    /// Name of the location.
    pub location: String,
    /// Cause.
    pub reason: String,
    /// True if a retry may succeed without any intervention.
    pub is_retryable: bool,
}

/// No snapshotters, for runs without snapshots.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSnapshotters;

#[async_trait]
impl Snapshotters for NoSnapshotters {
    async fn open(&self, location: &str) -> Result<Snapshotter, OpenError> {
        let reason = "no snapshotters are available".to_owned();
        Err(OpenError { location: location.to_owned(), reason, is_retryable: false })
    }
}

/// Failure to delete a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeleteError {
    /// The plugin returned an error.
    #[error(transparent)]
    Plugin(#[from] bowline_plugin::Error),
    /// The plugin has not answered in this time.
    #[error("the plugin has not answered within {} s", .0.as_secs())]
    NoAnswer(Duration),
}

/// Deletes a snapshot. A snapshot that does not exist counts as deleted.
pub(crate) async fn delete(
    snapshotter: &Snapshotter,
    id: &SnapshotId,
    limit: Duration,
) -> Result<(), DeleteError> {
    failpoint::hit(Failpoint::DeleteSnapshot);
    let deleted = timeout(limit, snapshotter.calls.delete_snapshot(id)).await;
    failpoint::hit(Failpoint::SnapshotDeleted);
    match deleted {
        Ok(Err(error)) if error.code() == Code::NotFound => {
            tracing::info!(snapshot = %id, "the snapshot was already deleted");
            Ok(())
        }
        Ok(deleted) => Ok(deleted?),
        Err(_) => Err(DeleteError::NoAnswer(limit)),
    }
}

/// Name of an object that represents this id: the id itself if it is a valid object name, else its
/// readable part, followed by its hash.
pub fn object_name(id: &str) -> String {
    if is_object_name(id) { id.to_owned() } else { hashed_object_name(id, id) }
}

/// Name of the second form in any case: for when another object has the first one. The readable
/// part comes from `readable`, the hash is that of `id`.
pub fn hashed_object_name(readable: &str, id: &str) -> String {
    let hash = digest(id.as_bytes());
    let hash = &hash[..HASH_DIGITS];
    let words = readable.split(|letter: char| !letter.is_ascii_alphanumeric());
    let mut name = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-");
    name.make_ascii_lowercase();
    // The name is ASCII by now, so every position is a character boundary.
    name.truncate(LONGEST_NAME - 1 - HASH_DIGITS);
    match name.trim_end_matches('-') {
        "" => hash.to_owned(),
        name => format!("{name}-{hash}"),
    }
}

/// True for a valid object name: an RFC 1123 subdomain.
fn is_object_name(text: &str) -> bool {
    let is_edge = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let is_word = |word: &str| {
        let bytes = word.as_bytes();
        bytes.first().copied().is_some_and(is_edge)
            && bytes.last().copied().is_some_and(is_edge)
            && bytes.iter().all(|&letter| is_edge(letter) || letter == b'-')
    };
    text.len() <= LONGEST_NAME && text.split('.').all(is_word)
}

/// Identifier of the PersistentVolume with this name.
pub fn volume_id(name: &str) -> ResourceIdentifier {
    ResourceIdentifier {
        group: String::new(),
        resource: "persistentvolumes".to_owned(),
        namespace: String::new(),
        name: name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_an_object_can_be_called_by_is_its_name() {
        let longest = "a".repeat(253);
        for id in ["snap-0a1b", "s", "0", "snap.of.a", "a--b", &longest] {
            assert_eq!(object_name(id), id);
        }
    }

    #[test]
    fn any_other_id_becomes_readable_and_ends_in_a_hash() {
        let long = format!("{}-/", "Ab".repeat(200));
        let too_long = "a".repeat(254);
        for (id, readable) in [
            ("Snap-1", "snap-1-"),
            ("projects/p/global/snapshots/s_1", "projects-p-global-snapshots-s-1-"),
            ("arn:aws:ec2::snapshot/snap-1", "arn-aws-ec2-snapshot-snap-1-"),
            ("a..b", "a-b-"),
            (".a", "a-"),
            ("-a-", "a-"),
            ("a b", "a-b-"),
            ("été", "t-"),
            ("", ""),
            ("///", ""),
            (&long, &"ab".repeat(100)),
            (&too_long, &"a".repeat(236)),
        ] {
            let name = object_name(id);
            assert!(name.starts_with(readable), "{id:?}: {name}");
            assert!(is_object_name(&name), "{id:?}: {name}");
            let (_, hash) = name.rsplit_once('-').unwrap_or(("", &name));
            assert_eq!(hash, &digest(id.as_bytes())[..HASH_DIGITS], "{id:?}");
            assert_eq!(object_name(id), name, "it is the same each time");
            assert_eq!(object_name(&name), name, "and as good as any");
        }
        assert_eq!(object_name(&long).len(), LONGEST_NAME);
        assert_ne!(object_name("Snap-1"), object_name("sNap-1"));
    }

    #[test]
    fn a_name_that_is_taken_gives_way_to_one_with_a_hash_of_something_else() {
        let other = hashed_object_name("r-pv", "uid/pv");
        assert!(other.starts_with("r-pv-") && is_object_name(&other), "{other}");
        assert_ne!(other, hashed_object_name("r-pv", "uid2/pv"));
    }
}
