//! A journal in memory, for tests: it refuses entries on demand.

use std::fmt;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{Error, Journal, JournalEntry};

/// Journal that does not outlast its process.
#[derive(Default)]
pub struct InMemory {
    records: Mutex<Vec<JournalEntry>>,
    refusal: Option<Box<Refusal>>,
}

type Refusal = dyn Fn(&JournalEntry) -> bool + Send + Sync;

impl InMemory {
    /// Journal that refuses some entries, as an API server does that is unavailable or enforces a quota.
    pub fn refusing(refuses: impl Fn(&JournalEntry) -> bool + Send + Sync + 'static) -> Self {
        Self { records: Mutex::default(), refusal: Some(Box::new(refuses)) }
    }

    /// Entries so far, in order.
    pub fn records(&self) -> Vec<JournalEntry> {
        self.records.lock().clone()
    }
}

impl fmt::Debug for InMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("InMemory").field(&self.records()).finish()
    }
}

#[async_trait]
impl Journal for InMemory {
    async fn append(&self, record: &JournalEntry) -> Result<(), Error> {
        if self.refusal.as_ref().is_some_and(|refuses| refuses(record)) {
            return Err(Error::Failed("the journal refuses the record".to_owned()));
        }
        self.records.lock().push(record.clone());
        Ok(())
    }
}
