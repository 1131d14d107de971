use bowline_api::DownloadRequestStatus;
use bowline_api::download_request::DownloadTargetKind;
use bowline_store::Prefix;
use bowline_store::backend::Memory;
use bowline_store::file::Results;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn request(phase: Option<&str>, expiration: Option<i64>) -> DownloadRequest {
    let mut request = DownloadRequest::default();
    request.metadata.creation_timestamp = Some(Time(at(1000)));
    request.status = Some(DownloadRequestStatus {
        phase: phase.map(Into::into),
        expiration: expiration.map(|second| Time(at(second))),
        ..Default::default()
    });
    request
}

#[test]
fn request_is_answered_once_and_deleted_after_expiry() {
    let in_seconds = |seconds| RequestStep::Delete(Due::In(Duration::from_secs(seconds)));
    for (phase, expiration, expected) in [
        (None, None, RequestStep::Answer),
        (Some(""), None, RequestStep::Answer),
        (Some("New"), None, RequestStep::Answer),
        (Some("New"), Some(2000), RequestStep::Answer),
        (Some("New"), Some(1009), RequestStep::Delete(Due::Now)),
        (Some("Processed"), Some(1010), RequestStep::Delete(Due::Now)),
        (Some("Processed"), Some(1030), in_seconds(20)),
        (Some("Processed"), None, in_seconds(590)),
        (Some("Dreaming"), None, RequestStep::Leave),
    ] {
        assert_eq!(decide(&request(phase, expiration), at(1010)), expected, "{phase:?}");
    }
    assert_eq!(decide(&DownloadRequest::default(), at(1010)), RequestStep::Answer);
    let old = request(Some("Processed"), None);
    assert_eq!(decide(&old, at(1600)), RequestStep::Delete(Due::Now));
    let mut deleted = request(None, None);
    deleted.metadata.deletion_timestamp = Some(Time(at(1001)));
    assert_eq!(decide(&deleted, at(1010)), RequestStep::Leave);
}

#[test]
fn only_young_requests_are_retried() {
    let young = |now| is_young(&request(None, None), at(now));
    assert_eq!([999, 1000, 1009, 1010].map(young), [true, true, true, false]);
}

/// `trials.md`, P5: the reason came when `describe` had just given up.
#[test]
fn refused_request_is_answered_before_the_client_times_out() {
    // Retries come after 1, 2, 4 and 8 seconds.
    let last_try = Duration::from_secs(1 + 2 + 4 + 8);
    assert!(RETRY_WINDOW < last_try && last_try < Duration::from_secs(20), "clients wait 30 s");
}

#[test]
fn every_answer_is_terminal_and_states_the_error() {
    let now = at(0);
    let answer = |answer: DownloadAnswer| {
        let value = answer_patch(&answer, now);
        let status = &value["status"];
        assert_eq!(
            (&status["phase"], &status["expiration"]),
            (&json!("Processed"), &json!("1970-01-01T00:10:00Z"))
        );
        (status["downloadURL"].clone(), value["metadata"]["annotations"][ERROR].clone())
    };
    let text = |text: &str| text.to_owned();
    assert_eq!(answer(DownloadAnswer::Link(text("u"))), (json!("u"), Value::Null));
    assert_eq!(answer(DownloadAnswer::DeadLink(text("u"), text("r"))), (json!("u"), json!("r")));
    assert_eq!(answer(DownloadAnswer::Refused(text("r"))), (Value::Null, json!("r")));
}

#[tokio::test]
async fn link_to_a_missing_file_states_the_error() {
    let memory = Arc::new(Memory::with_bucket("bucket"));
    let store = BackupStore::new(memory, "bucket", &Prefix::default());
    let name = "b".parse().unwrap();
    store.put(&name, &Results::default()).await.unwrap();
    let link = async |kind: DownloadTargetKind| {
        let target = DownloadTarget { kind, name: "b".to_owned(), ..Default::default() };
        super::download_link(&store, &target, &Key::try_from(&target).unwrap()).await.unwrap()
    };
    let found = link(DownloadTargetKind::BackupResults).await;
    assert!(
        matches!(&found, DownloadAnswer::Link(url) if url.contains("b-results.gz")),
        "{found:?}"
    );
    let missing = link(DownloadTargetKind::BackupLog).await;
    let DownloadAnswer::DeadLink(url, reason) = &missing else { panic!("{missing:?}") };
    assert!(url.contains("b-logs.gz"), "{url}");
    assert_eq!(reason, "\"backups/b/b-logs.gz\" is not in the storage location");
}
