//! How an operation goes.

use jiff::Timestamp;

/// What is known of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whether it has ended, and how.
    pub state: State,
    /// How much is done, in `units`.
    pub done: i64,
    /// How much there is to do, in `units`; zero if not known.
    pub total: i64,
    /// What is counted: `Bytes`, `Files`.
    pub units: String,
    /// What is happening, for people.
    pub description: String,
    /// When it started; not given as long as it has not.
    pub started: Option<Timestamp>,
    /// When this was last known to be true.
    pub updated: Option<Timestamp>,
}

/// Whether an operation has ended, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// It goes on, or has not started yet.
    #[default]
    Running,
    /// It has ended well.
    Succeeded,
    /// It has ended badly.
    Failed(String),
}
