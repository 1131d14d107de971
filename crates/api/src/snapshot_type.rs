//! Destination of volume snapshots.

use std::fmt;
use std::str::FromStr;

/// Destination of a snapshot's data: the value of the annotation [`SNAPSHOT_TYPE`](crate::annotation::SNAPSHOT_TYPE).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SnapshotType {
    /// Upload the snapshot if its plugin supports it.
    #[default]
    Auto,
    /// The same, with a warning if the plugin has no upload stage.
    Cloud,
    /// Keep the snapshot where it was created.
    Local,
}

/// Not a snapshot type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSnapshotType(String);

impl fmt::Display for InvalidSnapshotType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "invalid snapshot type {:?}: choose `auto`, `cloud` or `local`", self.0)
    }
}

impl std::error::Error for InvalidSnapshotType {}

impl SnapshotType {
    /// All types.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Cloud, Self::Local];

    /// The text in annotations and flags.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cloud => "cloud",
            Self::Local => "local",
        }
    }
}

impl fmt::Display for SnapshotType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for SnapshotType {
    type Err = InvalidSnapshotType;

    fn from_str(text: &str) -> Result<Self, InvalidSnapshotType> {
        let found = Self::ALL.into_iter().find(|snapshot_type| snapshot_type.as_str() == text);
        found.ok_or_else(|| InvalidSnapshotType(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_type_round_trips_and_other_text_is_refused() {
        for snapshot_type in SnapshotType::ALL {
            assert_eq!(snapshot_type.to_string().parse(), Ok(snapshot_type));
        }
        let error = "Cloud".parse::<SnapshotType>().unwrap_err();
        assert!(error.to_string().contains("`cloud`"), "{error}");
    }
}
