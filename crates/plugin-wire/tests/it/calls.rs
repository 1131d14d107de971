//! Errors of every method, unchanged.

use bowline_plugin::{
    BackupItemAction, Code, DeleteItemAction, Error, ItemBlockAction, Name, ObjectStore,
    OperationId, Origin, RestoreItemAction, SnapshotId, VolumeId, VolumeInfo, VolumeSnapshotter,
};
use bowline_plugin_wire::{Connection, client};
use futures::stream;
use std::time::Duration;

use crate::fake::{Behaviour, Fake, item, name, serve_fake};
use crate::values::{backup, restore};

/// Calls every method of the protocol, and collects the errors.
async fn errors_of_all_methods(
    connection: &Connection,
    name: &Name,
) -> Vec<(&'static str, Option<Error>)> {
    let mut errors = Vec::new();
    macro_rules! call {
        ($adapter:ident: $($method:ident($($argument:expr),*)),*) => {
            let plugin = client::$adapter::new(connection.clone(), name.clone());
            $(
                let called = concat!(stringify!($adapter), "::", stringify!($method));
                errors.push((called, plugin.$method($($argument),*).await.err()));
            )*
        };
    }
    let (operation, snapshot) = (OperationId::new("o").unwrap(), SnapshotId::new("s").unwrap());
    let (volume, info) = (VolumeId::new("v").unwrap(), VolumeInfo::default());
    let (pod, backup, restore) = (item(r#"{"kind":"Pod"}"#), backup(), restore());
    let map = std::collections::BTreeMap::new();

    call!(BackupItemActionV1: applies_to(), execute(&pod, &backup));
    call!(BackupItemActionV2: applies_to(), execute(&pod, &backup), progress(&operation, &backup),
        cancel(&operation, &backup));
    call!(RestoreItemActionV1: applies_to(), execute(&pod, &pod, &restore));
    call!(RestoreItemActionV2: applies_to(), execute(&pod, &pod, &restore),
        progress(&operation, &restore), cancel(&operation, &restore),
        are_additional_items_ready(&[], &restore));
    call!(DeleteItemAction: applies_to(), execute(&pod, &backup));
    call!(ItemBlockAction: applies_to(), get_related_items(&pod, &backup));
    call!(VolumeSnapshotterV1: init(&map), get_volume_id(&pod), set_volume_id(&pod, &volume),
        get_volume_info(&volume, "z"), create_snapshot(&volume, "z", &map),
        create_volume_from_snapshot(&snapshot, &info, "z"), delete_snapshot(&snapshot),
        upload_snapshot(&snapshot));
    call!(VolumeSnapshotterV2: init(&map), get_volume_id(&pod), set_volume_id(&pod, &volume),
        get_volume_info(&volume, "z"), create_snapshot(&volume, "z", &map),
        create_volume_from_snapshot(&snapshot, &info, "z"), delete_snapshot(&snapshot),
        progress(&snapshot), cancel(&snapshot), upload_snapshot(&snapshot));
    call!(ObjectStore: init(&map), put_object("b", "k", Box::pin(stream::empty())),
        object_exists("b", "k"), get_object("b", "k"), list_common_prefixes("b", "p", "/"),
        list_objects("b", "p"), delete_object("b", "k"),
        create_signed_url("b", "k", Duration::from_secs(1)));
    errors
}

#[tokio::test]
async fn error_of_any_method_keeps_code_text_and_origin() {
    let origin = Origin { file: "aws/store.go:42".into(), function: "main.put".into() };
    for error in [
        Error::new(Code::NotFound, "no such thing").from_origin(Some(origin.clone())),
        Error::unknown("Fehler: «äöü» 100 %\n\tzweite Zeile"),
        Error::unimplemented("This"),
        Error::unknown(""),
    ] {
        let plugin = serve_fake(&Fake::new(Behaviour::Fail(error.clone()))).await;
        for (method, got) in errors_of_all_methods(&plugin.connection, &name()).await {
            assert_eq!(got.as_ref(), Some(&error), "{method}");
        }
    }
}

#[tokio::test]
async fn error_text_of_40_kb_and_its_origin_survive() {
    let text = "stack ".repeat((40 << 10) / 6);
    let origin = Origin { file: "a.go:1".into(), function: "f".into() };
    let error = Error::unknown(text).from_origin(Some(origin));
    let plugin = serve_fake(&Fake::new(Behaviour::Fail(error.clone()))).await;
    let action = client::DeleteItemAction::new(plugin.connection.clone(), name());
    let got = action.execute(&item(r#"{"kind":"Pod"}"#), &backup()).await.unwrap_err();
    assert!(got == error, "it is {} bytes long", got.message().len());
}

#[tokio::test]
async fn panic_in_any_method_is_an_error_and_the_plugin_keeps_serving() {
    let plugin = serve_fake(&Fake::new(Behaviour::Panic)).await;
    for (method, error) in errors_of_all_methods(&plugin.connection, &name()).await {
        let expected = Error::new(Code::Aborted, "plugin panicked: index out of bounds");
        assert_eq!(error, Some(expected), "{method}");
    }
    assert_eq!(client::check_health(&plugin.connection).await, Ok(()));
}

#[tokio::test]
async fn unknown_plugin_name_is_reported_with_veleros_text() {
    let plugin = serve_fake(&Fake::new(Behaviour::Answer)).await;
    let other: Name = "example.io/other".parse().unwrap();
    for (method, error) in errors_of_all_methods(&plugin.connection, &other).await {
        let error = error.unwrap_or_else(|| panic!("{method} went well"));
        assert_eq!(error.code(), Code::Unknown, "{method}");
        let expected = " plugin: example.io/other was not found";
        assert!(error.message().contains(expected), "{method}: {error}");
    }
}

#[tokio::test]
async fn all_methods_succeed_by_default() {
    let plugin = serve_fake(&Fake::new(Behaviour::Answer)).await;
    let errors = errors_of_all_methods(&plugin.connection, &name()).await;
    assert_eq!(errors.len(), 43);
    assert!(errors.iter().all(|(_, error)| error.is_none()), "{errors:?}");
}
