//! What the two kinds of locations have in common.

use crate::string_set::string_set;

string_set! {
    /// Whether a location can be used.
    checked LocationPhase {
        /// It answered when last asked.
        Available = "Available",
        /// It did not.
        Unavailable = "Unavailable",
    }
}
