//! Results of lookups in the cluster, which requests are made of.

/// Result of a lookup.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Lookup<T> {
    /// The object exists.
    Found(T),
    /// The object does not exist.
    #[default]
    Missing,
    /// The lookup failed, with the reason.
    Failed(String),
}

/// Refusal of the API server to list objects, with its reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ListRefused(String);

impl<T: Into<String>> From<T> for ListRefused {
    fn from(reason: T) -> Self {
        Self(reason.into())
    }
}
