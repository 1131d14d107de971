//! Progress of operations.

use jiff::Timestamp;

/// Progress of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// State of the operation.
    pub state: State,
    /// Work done, in `units`.
    pub done: i64,
    /// Total work, in `units`; zero if unknown.
    pub total: i64,
    /// Unit of the counts: `Bytes`, `Files`.
    pub units: String,
    /// Current activity, for people.
    pub description: String,
    /// Start time; `None` until the operation has started.
    pub started: Option<Timestamp>,
    /// Time at which this progress was last known to be accurate.
    pub updated: Option<Timestamp>,
}

/// State of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Running, or not started yet.
    #[default]
    Running,
    /// Ended successfully.
    Succeeded,
    /// Ended with this error.
    Failed(String),
}
