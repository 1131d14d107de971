//! Uploads that run in this process. There is one per snapshot, however many calls wait for it.

use std::collections::HashMap;
use std::sync::Arc;

use bowline_plugin_sdk::jiff::Timestamp;
use bowline_plugin_sdk::tokio::sync::watch;
use bowline_plugin_sdk::{Error, Result};
use parking_lot::Mutex;

use crate::id::Id;
use crate::repository::source::UploadProgress;
use crate::stop_signal::StopSignal;

/// An upload that runs.
#[derive(Debug)]
pub(crate) struct RunningUpload {
    pub started: Timestamp,
    pub stop: Arc<StopSignal>,
    pub progress: Arc<UploadProgress>,
    outcome: watch::Sender<Option<Result<()>>>,
}

impl RunningUpload {
    /// Waits for the end of the upload.
    pub(crate) async fn outcome(&self) -> Result<()> {
        let mut outcome = self.outcome.subscribe();
        let ended = outcome.wait_for(Option::is_some).await;
        let outcome = ended.map(|outcome| outcome.clone());
        outcome.ok().flatten().unwrap_or_else(|| Err(Error::unknown("the upload was aborted")))
    }
}

/// All running uploads.
#[derive(Debug, Default)]
pub(crate) struct RunningUploads(Mutex<HashMap<Id, Arc<RunningUpload>>>);

/// Result of starting an upload.
pub(crate) enum UploadStart {
    /// The caller must do it, and then call [`finish`](RunningUploads::finish).
    New(Arc<RunningUpload>),
    /// Already running.
    Running(Arc<RunningUpload>),
}

impl RunningUploads {
    pub(crate) fn start_or_join(&self, id: &Id, now: Timestamp) -> UploadStart {
        let mut running = self.0.lock();
        if let Some(upload) = running.get(id) {
            return UploadStart::Running(Arc::clone(upload));
        }
        let upload = Arc::new(RunningUpload {
            started: now,
            stop: Arc::default(),
            progress: Arc::default(),
            outcome: watch::Sender::new(None),
        });
        running.insert(id.clone(), Arc::clone(&upload));
        UploadStart::New(upload)
    }

    pub(crate) fn get(&self, id: &Id) -> Option<Arc<RunningUpload>> {
        self.0.lock().get(id).cloned()
    }

    /// Ends an upload, so that it can be started again; waiters get its outcome.
    pub(crate) fn finish(&self, id: &Id, outcome: Result<()>) {
        if let Some(upload) = self.0.lock().remove(id) {
            upload.outcome.send_replace(Some(outcome));
        }
    }
}

#[cfg(test)]
mod tests {
    use bowline_plugin_sdk::tokio;

    use super::*;

    #[tokio::test]
    async fn calls_for_one_snapshot_share_one_upload_and_its_outcome() {
        let uploads = RunningUploads::default();
        let id = Id::from_request("a");
        let UploadStart::New(first) = uploads.start_or_join(&id, Timestamp::UNIX_EPOCH) else {
            panic!()
        };
        let UploadStart::Running(second) = uploads.start_or_join(&id, Timestamp::MAX) else {
            panic!()
        };
        assert!(Arc::ptr_eq(&first, &second));
        let waiting = tokio::spawn(async move { second.outcome().await });
        uploads.finish(&id, Err(Error::unknown("no")));
        assert_eq!(waiting.await.unwrap(), Err(Error::unknown("no")));
        // Also for later callers.
        assert_eq!(first.outcome().await, Err(Error::unknown("no")));
        assert!(uploads.get(&id).is_none());
        assert!(matches!(uploads.start_or_join(&id, Timestamp::MAX), UploadStart::New(_)));
    }
}
