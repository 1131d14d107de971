use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use bowline_plugin_sdk::serde_json::{Value, json};
use bowline_plugin_sdk::{
    Backup, BackupItemAction, Class, Encoded, Item, Kind, Name, OperationId, Restore,
    RestoreItemAction, State, serde_json, tokio,
};
use bowline_plugin_wire::client;
use nix::sys::signal::Signal;

use crate::process::{Process, run_by_hand};

fn name(short_name: &str) -> Name {
    format!("example.io/{short_name}").parse().unwrap()
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
async fn started_by_hand_it_prints_usage() {
    let output = run_by_hand().await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, b"");
    let text = String::from_utf8(output.stderr).unwrap();
    for expected in
        ["BackupItemActionV2   example.io/export", "bowline plugin inspect /", "/plugins"]
    {
        assert!(text.contains(expected), "{text}");
    }
}

#[tokio::test]
async fn plugins_are_listed_under_the_command_that_started_them() {
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
async fn operation_survives_a_new_process_and_can_be_canceled_there() {
    let folder = tempfile::tempdir().unwrap();
    let first = Process::start(folder.path()).await;
    let action = client::BackupItemActionV2::new(first.connection.clone(), name("export"));
    let output = action.execute(&claim(), &backup()).await.unwrap();
    assert_eq!(output.item, claim());
    let operation = output.operation.unwrap();
    let again = action.execute(&claim(), &backup()).await.unwrap();
    assert_eq!(again.operation.as_ref(), Some(&operation));
    client::shutdown(&first.connection).await;
    let log = first.wait_for_end().await;
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
    second.wait_for_end().await;
}

#[tokio::test]
async fn restored_item_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path()).await;
    let action = client::RestoreItemActionV2::new(process.connection.clone(), name("origin"));
    let restore: Restore = serde_json::from_value(json!({"metadata": {"name": "r"}})).unwrap();
    let output = action.execute(&claim(), &claim(), &Encoded::new(restore)).await.unwrap();
    let object: Value = output.item.parse().unwrap();
    assert_eq!(object["metadata"]["annotations"], json!({"example.io/origin": "r"}));
}

#[tokio::test]
async fn interrupt_is_ignored_and_termination_ends_cleanly() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path()).await;
    assert_eq!(sockets(folder.path()), 1);
    process.signal(Signal::SIGINT);
    client::check_health(&process.connection).await.unwrap();
    process.signal(Signal::SIGTERM);
    process.wait_for_end().await;
    assert_eq!(sockets(folder.path()), 0);
}
