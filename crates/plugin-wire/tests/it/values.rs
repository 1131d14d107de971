//! Every value arrives, in both directions.

use bowline_api::{Backup, Restore};
use bowline_plugin::{
    BackupItemAction, BackupOutput, DeleteItemAction, Encoded, Error, ItemBlockAction, Kind,
    ObjectStore, OperationId, RestoreItemAction, RestoreOutput, SnapshotId, VolumeId, VolumeInfo,
    VolumeSnapshotter,
};
use bowline_plugin_wire::client::{self, ListedPlugin};
use futures::{TryStreamExt as _, stream};
use std::time::Duration;

use crate::fake::{
    Behaviour, Fake, backup_output, identifier, item, name, progress, restore_output, selector,
    serve_fake,
};

pub(crate) fn backup() -> Encoded<Backup> {
    let json = r#"{"metadata":{"name":"nightly"},"spec":{"ttl":"720h0m0s"}}"#;
    Encoded::from_json(json.into()).unwrap()
}

pub(crate) fn restore() -> Encoded<Restore> {
    Encoded::from_json(r#"{"metadata":{"name":"again"},"spec":{}}"#.into()).unwrap()
}

const POD: &str = r#"{"kind":"Pod"}"#;

#[tokio::test]
async fn listing_has_the_command_and_every_kind_in_veleros_order() {
    let plugin = serve_fake(&Fake::new(Behaviour::Answer)).await;
    let listing = client::list_plugins(&plugin.connection).await.unwrap();
    let expected = Kind::ALL
        .map(|kind| Ok(ListedPlugin { command: "/plugins/fake".to_owned(), kind, name: name() }));
    assert_eq!(listing, expected);
}

#[tokio::test]
async fn backup_item_action_round_trips_every_value_of_its_version() {
    let fake = Fake::new(Behaviour::Answer);
    let plugin = serve_fake(&fake).await;
    let operation = OperationId::new("op-9").unwrap();

    let v2 = client::BackupItemActionV2::new(plugin.connection.clone(), name());
    assert_eq!(v2.applies_to().await, Ok(selector()));
    assert_eq!(v2.execute(&item(POD), &backup()).await, Ok(backup_output()));
    assert_eq!(v2.progress(&operation, &backup()).await, Ok(progress()));
    assert_eq!(v2.cancel(&operation, &backup()).await, Ok(()));
    let expected_calls = [
        "applies_to",
        r#"execute {"kind":"Pod"} nightly"#,
        "progress op-9 nightly",
        "cancel op-9 nightly",
    ];
    assert_eq!(fake.take_calls(), expected_calls);

    let v1 = client::BackupItemActionV1::new(plugin.connection.clone(), name());
    assert_eq!(v1.applies_to().await, Ok(selector()));
    let expected =
        BackupOutput { operation: None, post_operation_items: vec![], ..backup_output() };
    assert_eq!(v1.execute(&item(POD), &backup()).await, Ok(expected));
    assert_eq!(v1.progress(&operation, &backup()).await, Err(Error::not_asynchronous()));
    assert_eq!(v1.cancel(&operation, &backup()).await, Ok(()));
    assert_eq!(fake.take_calls(), expected_calls[..2], "version 1 has no more than these two");
}

#[tokio::test]
async fn restore_item_action_round_trips_every_value_of_its_version() {
    let fake = Fake::new(Behaviour::Answer);
    let plugin = serve_fake(&fake).await;
    let operation = OperationId::new("op-9").unwrap();
    let before = item(r#"{"kind":"Before"}"#);
    let items = [identifier("a"), identifier("b")];

    let v2 = client::RestoreItemActionV2::new(plugin.connection.clone(), name());
    assert_eq!(v2.applies_to().await, Ok(selector()));
    assert_eq!(v2.execute(&item(POD), &before, &restore()).await, Ok(restore_output()));
    assert_eq!(v2.progress(&operation, &restore()).await, Ok(progress()));
    assert_eq!(v2.cancel(&operation, &restore()).await, Ok(()));
    assert_eq!(v2.are_additional_items_ready(&items, &restore()).await, Ok(false));
    let expected_calls = [
        "applies_to",
        r#"execute {"kind":"Pod"} {"kind":"Before"} again"#,
        "progress op-9 again",
        "cancel op-9 again",
        "ready deployments.apps/ns/a,deployments.apps/ns/b again",
    ];
    assert_eq!(fake.take_calls(), expected_calls);

    let v1 = client::RestoreItemActionV1::new(plugin.connection.clone(), name());
    assert_eq!(v1.applies_to().await, Ok(selector()));
    let expected = RestoreOutput { operation: None, wait: None, ..restore_output() };
    assert_eq!(v1.execute(&item(POD), &before, &restore()).await, Ok(expected));
    assert_eq!(v1.progress(&operation, &restore()).await, Err(Error::not_asynchronous()));
    assert_eq!(v1.cancel(&operation, &restore()).await, Ok(()));
    assert_eq!(v1.are_additional_items_ready(&items, &restore()).await, Ok(true));
    assert_eq!(fake.take_calls(), expected_calls[..2], "version 1 has no more than these two");
}

#[tokio::test]
async fn delete_and_item_block_actions_round_trip_every_value() {
    let fake = Fake::new(Behaviour::Answer);
    let plugin = serve_fake(&fake).await;

    let delete = client::DeleteItemAction::new(plugin.connection.clone(), name());
    assert_eq!(delete.applies_to().await, Ok(selector()));
    assert_eq!(delete.execute(&item(POD), &backup()).await, Ok(()));
    assert_eq!(fake.take_calls(), ["applies_to", r#"execute {"kind":"Pod"} nightly"#]);

    let block = client::ItemBlockAction::new(plugin.connection.clone(), name());
    assert_eq!(block.applies_to().await, Ok(selector()));
    let related = block.get_related_items(&item(POD), &backup()).await;
    assert_eq!(related, Ok(vec![identifier("related")]));
    assert_eq!(fake.take_calls(), ["applies_to", r#"get_related_items {"kind":"Pod"} nightly"#]);
}

#[tokio::test]
async fn volume_snapshotter_round_trips_every_value_of_its_version() {
    let fake = Fake::new(Behaviour::Answer);
    let plugin = serve_fake(&fake).await;
    let v1 = client::VolumeSnapshotterV1::new(plugin.connection.clone(), name());
    let v2 = client::VolumeSnapshotterV2::new(plugin.connection.clone(), name());
    let (volume, snapshot) = (VolumeId::new("vol-0").unwrap(), SnapshotId::new("snap-0").unwrap());
    let map = [("k".to_owned(), "v".to_owned())].into();
    let info = |iops| VolumeInfo { volume_type: "gp3".into(), iops };

    for snapshotter in [&v1 as &dyn VolumeSnapshotter, &v2] {
        assert_eq!(snapshotter.init(&map).await, Ok(()));
        assert_eq!(snapshotter.get_volume_id(&item(POD)).await, Ok(VolumeId::new("vol-1")));
        let changed = snapshotter.set_volume_id(&item(POD), &volume).await;
        assert_eq!(changed, Ok(item(r#"{"kind":"Changed"}"#)));
        assert_eq!(snapshotter.get_volume_info(&volume, "z").await, Ok(info(Some(3000))));
        let created = snapshotter.create_snapshot(&volume, "z", &map).await;
        assert_eq!(created, Ok(SnapshotId::new("snap-1").unwrap()));
        for iops in [None, Some(7)] {
            let created =
                snapshotter.create_volume_from_snapshot(&snapshot, &info(iops), "z").await;
            assert_eq!(created, Ok(VolumeId::new("vol-2").unwrap()));
        }
        assert_eq!(snapshotter.delete_snapshot(&snapshot).await, Ok(()));
        assert_eq!(snapshotter.upload_snapshot(&snapshot).await, Ok(()));
        assert_eq!(snapshotter.cancel(&snapshot).await, Ok(()));
        let mut calls = fake.take_calls();
        calls.retain(|call| call != "cancel snap-0");
        let expected = [
            r#"init {"k": "v"}"#,
            r#"get_volume_id {"kind":"Pod"}"#,
            r#"set_volume_id {"kind":"Pod"} vol-0"#,
            "get_volume_info vol-0 z",
            r#"create_snapshot vol-0 z {"k": "v"}"#,
            "create_volume snap-0 gp3 None z",
            "create_volume snap-0 gp3 Some(7) z",
            "delete_snapshot snap-0",
            "upload_snapshot snap-0",
        ];
        assert_eq!(calls, expected);
    }

    assert_eq!(v2.progress(&snapshot).await, Ok(progress()));
    assert_eq!(v2.cancel(&snapshot).await, Ok(()));
    assert_eq!(fake.take_calls(), ["progress snap-0", "cancel snap-0"]);
    assert_eq!(v1.progress(&snapshot).await, Err(Error::unimplemented("Progress")));
    assert_eq!(v1.cancel(&snapshot).await, Ok(()));
    assert!(fake.take_calls().is_empty(), "version 1 has neither");
}

#[tokio::test]
async fn object_store_round_trips_every_value() {
    let fake = Fake::new(Behaviour::Answer);
    let plugin = serve_fake(&fake).await;
    let store = client::ObjectStore::new(plugin.connection.clone(), name());
    let config = [("bucket".to_owned(), "b".to_owned())].into();

    assert_eq!(store.init(&config).await, Ok(()));
    let body = stream::iter(["1", "", "2"].map(|piece| Ok(piece.into())));
    assert_eq!(store.put_object("b", "k", Box::pin(body)).await, Ok(()));
    assert_eq!(store.put_object("b", "empty", Box::pin(stream::empty())).await, Ok(()));
    assert_eq!(store.object_exists("b", "k").await, Ok(true));
    let content: Vec<_> = store.get_object("b", "k").await.unwrap().try_collect().await.unwrap();
    assert_eq!(content.concat(), b"content");
    let prefixes = store.list_common_prefixes("b", "p", "/").await;
    assert_eq!(prefixes, Ok(vec!["a/".into(), "b/".into()]));
    assert_eq!(store.list_objects("b", "p").await, Ok(vec!["a/1".into()]));
    assert_eq!(store.delete_object("b", "k").await, Ok(()));
    let url = store.create_signed_url("b", "k", Duration::from_mins(10)).await;
    assert_eq!(url, Ok("https://example.io/o".into()));
    let expected = [
        r#"init {"bucket": "b"}"#,
        "put_object b k [49, 50]",
        "put_object b empty []",
        "object_exists b k",
        "get_object b k",
        "list_common_prefixes b p /",
        "list_objects b p",
        "delete_object b k",
        "create_signed_url b k 600s",
    ];
    assert_eq!(fake.take_calls(), expected);
}

#[tokio::test]
async fn item_of_six_megabytes_passes_both_ways() {
    struct Echo;
    #[async_trait::async_trait]
    impl BackupItemAction for Echo {
        async fn applies_to(&self) -> bowline_plugin::Result<bowline_plugin::ResourceSelector> {
            Ok(bowline_plugin::ResourceSelector::default())
        }
        async fn execute(
            &self,
            item: &bowline_plugin::Item,
            _: &Encoded<Backup>,
        ) -> bowline_plugin::Result<BackupOutput> {
            Ok(BackupOutput::unchanged(item))
        }
    }
    let mut plugins = bowline_plugin_wire::server::Plugins::new("x");
    plugins.backup_item_action_v2(name(), std::sync::Arc::new(Echo)).unwrap();
    let plugin = crate::fake::serve(plugins).await;
    let action = client::BackupItemActionV2::new(plugin.connection.clone(), name());
    let large = item(&format!(r#"{{"kind":"ConfigMap","data":"{}"}}"#, "x".repeat(6 << 20)));
    let output = action.execute(&large, &backup()).await.unwrap();
    assert!(output.item == large, "it has changed");
}
