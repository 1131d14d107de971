//! Whether something may be written at this moment.

use std::fmt;
use std::sync::Arc;

/// What says whether something may be written. It is asked again and again while a write is under way, since the
/// answer can change: a server whose time is over must not go on with what it began.
///
/// Without anybody to ask, everything may be.
#[derive(Clone, Default)]
pub struct Permit(Option<Arc<PermitCheck>>);

type PermitCheck = dyn Fn() -> Result<(), PermitDenied> + Send + Sync;

/// Nothing may be written, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PermitDenied(pub String);

impl Permit {
    /// Asks this each time. It must be quick: it is called for every piece that is sent.
    pub fn new(check: impl Fn() -> Result<(), PermitDenied> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(check)))
    }

    /// Fails if nothing may be written now.
    pub fn check(&self) -> Result<(), PermitDenied> {
        self.0.as_ref().map_or(Ok(()), |check| check())
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Permit").field(&self.check()).finish()
    }
}
