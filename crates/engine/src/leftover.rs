//! Wording of reports about leftovers. `bench/kill` counts these reports, so it uses the same constants.

use std::fmt::Display;

/// Part of each report about something that remains, or may remain.
pub const LEFT_OVER: &str = "left over";
/// Text before the name of a plugin that was called when the server stopped.
pub const INTERRUPTED_PLUGIN: &str = "the server stopped while plugin ";
/// Text after the name of a plugin that was called for an item.
pub const INTERRUPTED_ITEM: &str = " processed this item";
/// Name of the kind in reports about a VolumeSnapshot.
pub const VOLUME_SNAPSHOT: &str = "VolumeSnapshot";
/// Reason why a snapshot that a v1 plugin may have created stays.
pub const V1_CANNOT_SEARCH: &str = "v1 plugins cannot search for snapshots";

/// Report on an item that a plugin was processing when the server stopped.
pub(crate) fn interrupted_action(plugin: &impl Display, consequence: &str) -> String {
    format!(
        "{INTERRUPTED_PLUGIN}{plugin}{INTERRUPTED_ITEM}, {consequence}; results of the first call \
         may be {LEFT_OVER}"
    )
}
