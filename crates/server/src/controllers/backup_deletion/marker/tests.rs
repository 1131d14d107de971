use std::sync::{Arc, Mutex};

use bowline_api::{DeleteBackupRequest, label};
use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::super::step::yields_to_restores;
use super::*;

/// Stand-in for an API server with one Backup.
#[derive(Clone)]
struct FakeApi(Arc<Mutex<FakeState>>);

struct FakeState {
    backup: Value,
    /// Restores in the cluster; none if lists fail.
    restores: Option<Vec<Value>>,
    accepts_patches: bool,
}

impl FakeApi {
    fn client(&self) -> Client {
        let fake = self.clone();
        let service = tower::service_fn(move |request| {
            let fake = fake.clone();
            async move { fake.answer(request).await }
        });
        Client::new(service, "velero")
    }

    async fn answer(&self, request: Request<Body>) -> kube::Result<Response<Body>> {
        let (parts, body) = request.into_parts();
        let change = serde_json::from_slice(&body.collect_bytes().await?).unwrap_or_default();
        let mut state = self.0.lock().unwrap();
        let answer = match parts.method {
            Method::PATCH if state.accepts_patches => {
                merge(&mut state.backup, change);
                Some(state.backup.clone())
            }
            Method::GET => state.restores.as_ref().map(|items| {
                json!({"apiVersion": "velero.io/v1", "kind": "RestoreList", "metadata": {}, "items": items})
            }),
            _ => None,
        };
        let mut response = Response::new(Body::from(
            answer.as_ref().map(Value::to_string).unwrap_or_default().into_bytes(),
        ));
        if answer.is_none() {
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        }
        Ok(response)
    }
}

/// Applies a merge patch.
fn merge(target: &mut Value, change: Value) {
    let Value::Object(change) = change else {
        *target = change;
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let target = target.as_object_mut().unwrap();
    for (key, value) in change {
        if value.is_null() {
            target.remove(&key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}

impl FakeApi {
    fn new() -> Self {
        let backup = json!({
            "apiVersion": "velero.io/v1", "kind": "Backup",
            "metadata": {"name": "b", "namespace": "velero", "uid": "u"},
            "spec": {}, "status": {"phase": "Completed"},
        });
        let restores = Some(Vec::new());
        Self(Arc::new(Mutex::new(FakeState { backup, restores, accepts_patches: true })))
    }

    fn change(&self, change: impl FnOnce(&mut FakeState)) {
        change(&mut self.0.lock().unwrap());
    }

    fn marker(&self) -> DeletionMarker {
        let client = self.client();
        DeletionMarker {
            backups: Api::namespaced(client.clone(), "velero"),
            restores: Api::namespaced(client, "velero"),
        }
    }

    /// The Backup, as the next attempt reads it.
    fn backup(&self) -> Backup {
        serde_json::from_value(self.0.lock().unwrap().backup.clone()).unwrap()
    }

    fn phase(&self) -> String {
        self.backup().status.unwrap().phase.unwrap().to_string()
    }

    async fn mark(&self) -> Backup {
        let backup = self.backup();
        let before = phase_before_deletion(&backup);
        self.marker().mark(&backup, before.as_ref()).await.unwrap().unwrap()
    }

    /// True if the next attempt of retention checks for restores.
    fn is_checked_next_time(&self) -> bool {
        let mut request = DeleteBackupRequest::default();
        request.labels_mut().insert(label::REQUESTED_BY.to_owned(), label::BY_RETENTION.to_owned());
        yields_to_restores(&request, phase_before_deletion(&self.backup()).as_ref())
    }
}

fn running_restore() -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "Restore", "metadata": {"name": "r"},
        "spec": {"backupName": "b"}, "status": {"phase": "InProgress"},
    })
}

#[tokio::test]
async fn restores_are_checked_again_after_a_check_that_failed() {
    for accepts_patches in [true, false] {
        let fake = FakeApi::new();
        let backup = fake.mark().await;
        assert_eq!(fake.phase(), "Deleting");
        fake.change(|state| {
            state.restores = None;
            state.accepts_patches = accepts_patches;
        });
        fake.marker().restore_in_use(&backup).await.expect_err("the list of restores fails");
        assert_eq!(fake.phase(), if accepts_patches { "Completed" } else { "Deleting" });
        assert!(fake.is_checked_next_time(), "accepts patches: {accepts_patches}");
        fake.change(|state| {
            state.restores = Some(vec![running_restore()]);
            state.accepts_patches = true;
        });
        let in_use = fake.marker().restore_in_use(&fake.backup()).await.unwrap();
        assert_eq!(in_use.as_deref(), Some("r"));
        assert_eq!(fake.phase(), "Completed");
        assert!(fake.backup().annotations().is_empty(), "{:?}", fake.backup().annotations());
    }
}

#[tokio::test]
async fn server_that_ends_before_the_check_leaves_it_to_the_next() {
    let fake = FakeApi::new();
    fake.mark().await;
    assert!(fake.is_checked_next_time());
    let backup = fake.mark().await;
    assert_eq!(phase_before_deletion(&backup), Some(BackupPhase::Completed));
}

#[tokio::test]
async fn confirmed_deletion_is_completed_whatever_is_restored() {
    let fake = FakeApi::new();
    let backup = fake.mark().await;
    assert_eq!(fake.marker().restore_in_use(&backup).await.unwrap(), None);
    let backup = fake.marker().confirm(&backup).await.unwrap().unwrap();
    assert!(!fake.is_checked_next_time());
    fake.change(|state| state.restores = Some(vec![running_restore()]));
    assert!(fake.marker().restore_in_use(&backup).await.unwrap().is_some());
    assert_eq!(fake.phase(), "Deleting", "part of the backup may be gone");
}
