//! Permission to write at this moment.

use std::fmt;
use std::sync::Arc;

/// Permission to write. It is checked repeatedly during a write, since the answer can change: a
/// server whose lease has expired must not continue a write that it began.
///
/// Without a check, everything is permitted.
#[derive(Clone, Default)]
pub struct Permit(Option<Arc<PermitCheck>>);

type PermitCheck = dyn Fn() -> Result<(), PermitDenied> + Send + Sync;

/// Writing is not permitted, for this reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PermitDenied(pub String);

impl Permit {
    /// Uses this check each time. It must be quick: it is called for every piece that is sent.
    pub fn new(check: impl Fn() -> Result<(), PermitDenied> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(check)))
    }

    /// Fails if writing is not permitted now.
    pub fn check(&self) -> Result<(), PermitDenied> {
        self.0.as_ref().map_or(Ok(()), |check| check())
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Permit").field(&self.check()).finish()
    }
}
