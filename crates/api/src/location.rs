//! Types of both kinds of locations.

use crate::string_set::string_set;

string_set! {
    /// Phase of a location.
    checked LocationPhase {
        /// The last check succeeded.
        Available = "Available",
        /// The last check failed.
        Unavailable = "Unavailable",
    }
}
