//! Number of times that deletions were started by servers that have ended since.
//!
//! An attempt is saved on its request before it starts, since it may crash the server. If the API server fails instead,
//! this process knows that, even while it cannot take the attempt back on the request.

use std::collections::HashMap;

use bowline_api::DeleteBackupRequest;
use kube::ResourceExt as _;
use parking_lot::Mutex;

use super::step;

/// Attempts saved on requests before this process worked on them, by uid.
#[derive(Debug, Default)]
pub(super) struct EarlierAttempts(Mutex<HashMap<String, u32>>);

impl EarlierAttempts {
    /// Number of attempts at a request that were made before this process.
    pub(super) fn count(&self, request: &DeleteBackupRequest) -> u32 {
        *self.0.lock().entry(uid(request)).or_insert_with(|| step::attempts(request))
    }

    /// Forgets a request that was answered.
    pub(super) fn forget(&self, request: &DeleteBackupRequest) {
        self.0.lock().remove(&uid(request));
    }
}

fn uid(request: &DeleteBackupRequest) -> String {
    request.uid().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use bowline_api::annotation::DELETION_ATTEMPTS;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_this_process_has_survived_does_not_count() {
        let request = |attempts: &str| -> DeleteBackupRequest {
            let annotations = json!({DELETION_ATTEMPTS: attempts});
            let metadata = json!({"name": "r", "uid": "u", "annotations": annotations});
            let request = json!({"metadata": metadata, "spec": {"backupName": "b"}});
            serde_json::from_value(request).unwrap()
        };
        let earlier = EarlierAttempts::default();
        assert_eq!(earlier.count(&request("2")), 2, "servers that have ended");
        // The third failed, and could not be taken back on the request.
        assert_eq!(earlier.count(&request("3")), 2);
        earlier.forget(&request("3"));
        assert_eq!(earlier.count(&request("3")), 3);
    }
}
