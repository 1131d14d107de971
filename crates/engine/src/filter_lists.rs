//! Include and exclude lists, as backups and restores have them.

use crate::glob::Glob;

/// Patterns to include and to exclude. An empty include list means everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    /// Patterns to include.
    pub included: Vec<Glob>,
    /// Patterns to exclude.
    pub excluded: Vec<Glob>,
}
