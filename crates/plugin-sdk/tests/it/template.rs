use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use bowline_plugin_sdk::serde_json::{Value, json};
use bowline_plugin_sdk::{
    Backup, BackupItemAction, Class, Encoded, Item, Kind, Name, OperationId, Restore,
    RestoreItemAction, State, serde_json, tokio,
};
use bowline_plugin_wire::client;
use nix::sys::signal::Signal;

use crate::process::{Process, by_hand};

fn name(own: &str) -> Name {
    format!("example.io/{own}").parse().unwrap()
}

fn claim() -> Item {
    let metadata = json!({"name": "data", "namespace": "app"});
    let object = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata});
    Item::from_object(&object).unwrap()
}

fn backup() -> Encoded<Backup> {
    Encoded::new(serde_json::from_value(json!({"metadata": {"name": "b"}})).unwrap())
}

fn sockets(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().file_type().unwrap().is_socket()).count()
}

#[tokio::test]
async fn a_person_who_starts_it_is_told_what_it_is() {
    let output = by_hand().await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, b"");
    let text = String::from_utf8(output.stderr).unwrap();
    for words in ["BackupItemActionV2   example.io/export", "bowline plugin inspect /", "/plugins"]
    {
        assert!(text.contains(words), "{text}");
    }
}

#[tokio::test]
async fn it_lists_its_plugins_under_the_command_it_was_started_by() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path()).await;
    client::check_health(&process.connection).await.unwrap();
    let listed = client::list_plugins(&process.connection).await.unwrap();
    let listed: Vec<_> = listed.into_iter().map(Result::unwrap).collect();
    let kinds: Vec<_> = listed.iter().map(|plugin| (plugin.kind, plugin.name.clone())).collect();
    let expected =
        [(Kind::BackupItemActionV2, name("export")), (Kind::RestoreItemActionV2, name("origin"))];
    assert_eq!(kinds, expected);
    assert!(listed.iter().all(|plugin| plugin.command.ends_with("/template")), "{listed:?}");
}

#[tokio::test]
async fn an_operation_goes_on_in_another_process_and_can_be_canceled_there() {
    let folder = tempfile::tempdir().unwrap();
    let first = Process::start(folder.path()).await;
    let action = client::BackupItemActionV2::new(first.connection.clone(), name("export"));
    let output = action.execute(&claim(), &backup()).await.unwrap();
    assert_eq!(output.item, claim());
    let operation = output.operation.unwrap();
    let again = action.execute(&claim(), &backup()).await.unwrap();
    assert_eq!(again.operation.as_ref(), Some(&operation));
    client::shutdown(&first.connection).await;
    let log = first.ended().await;
    let expected = json!({
        "@message": "export started", "@level": "info", "@logSourceSetBy": "plugin",
        "claim": "data", "operation": "b.app.data",
    });
    let mut line: Value = log[0].clone();
    let source = line.as_object_mut().unwrap().remove("logSource").unwrap();
    assert_eq!(line, expected);
    assert!(source.as_str().unwrap().contains("template.rs:"), "{source}");
    assert_eq!(log.len(), 2, "one for each call, and nothing of our libraries: {log:?}");

    let second = Process::start(folder.path()).await;
    let action = client::BackupItemActionV2::new(second.connection.clone(), name("export"));
    let progress = action.progress(&operation, &backup()).await.unwrap();
    assert_eq!((progress.state, progress.units.as_str()), (State::Running, "Seconds"));
    action.cancel(&operation, &backup()).await.unwrap();
    let progress = action.progress(&operation, &backup()).await.unwrap();
    assert_eq!(progress.state, State::Failed("canceled".to_owned()));
    let unknown = OperationId::new("unknown").unwrap();
    action.cancel(&unknown, &backup()).await.unwrap();
    let error = action.progress(&unknown, &backup()).await.unwrap_err();
    assert_eq!(error.class(), Class::Permanent, "{error}");
    client::shutdown(&second.connection).await;
    second.ended().await;
}

#[tokio::test]
async fn a_restored_item_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path()).await;
    let action = client::RestoreItemActionV2::new(process.connection.clone(), name("origin"));
    let restore: Restore = serde_json::from_value(json!({"metadata": {"name": "r"}})).unwrap();
    let output = action.execute(&claim(), &claim(), &Encoded::new(restore)).await.unwrap();
    let object: Value = output.item.parse().unwrap();
    assert_eq!(object["metadata"]["annotations"], json!({"example.io/origin": "r"}));
}

#[tokio::test]
async fn it_ignores_an_interrupt_and_ends_cleanly_when_it_is_terminated() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path()).await;
    assert_eq!(sockets(folder.path()), 1);
    process.signal(Signal::SIGINT);
    client::check_health(&process.connection).await.unwrap();
    process.signal(Signal::SIGTERM);
    process.ended().await;
    assert_eq!(sockets(folder.path()), 0);
}
