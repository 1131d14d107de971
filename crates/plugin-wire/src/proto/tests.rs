//! Checks that the wire format is Velero's: every path and every number, written down a second time
//! by hand.

#![expect(clippy::needless_update, reason = "some messages have one field only")]

use std::collections::BTreeSet;

use prost::Message;

/// A value for a field of a type, and the encoding of a message with nothing else set.
macro_rules! sample {
    (text) => {
        ("x".into(), 2, &[1, b'x'])
    };
    (texts) => {
        (vec!["x".into()], 2, &[1, b'x'])
    };
    (flag) => {
        (true, 0, &[1])
    };
    (number) => {
        (1, 0, &[1])
    };
    (message) => {
        (Some(Default::default()), 2, &[0])
    };
    (messages) => {
        (vec![Default::default()], 2, &[0])
    };
    (map) => {
        ([("k".into(), "v".into())].into(), 2, &[6, 0x0a, 1, b'k', 0x12, 1, b'v'])
    };
}

/// Checks the field numbers of messages.
macro_rules! messages {
    ($($package:ident :: $name:ident { $($field:ident: $type:ident = $number:literal),* })*) => {
        $(
            // Fails to compile if a field is not in the table.
            let super::$package::$name { $($field: _),* } = Default::default();
            $(
                let (value, wire_type, encoded): (_, u8, &[u8]) = sample!($type);
                let message = super::$package::$name { $field: value, ..Default::default() };
                let tag: u8 = $number << 3 | wire_type;
                assert_eq!(
                    message.encode_to_vec(),
                    [&[tag], encoded].concat(),
                    "{}.{}", stringify!($name), stringify!($field),
                );
            )*
        )*
    };
}

#[test]
fn every_field_has_its_number_and_type() {
    messages! {
        generated::Stack { frames: messages = 1 }
        generated::StackFrame { file: text = 1, line: number = 2, function: text = 3 }
        generated::ResourceIdentifier { group: text = 1, resource: text = 2, namespace: text = 3, name: text = 4 }
        generated::ResourceSelector {
            included_namespaces: texts = 1, excluded_namespaces: texts = 2,
            included_resources: texts = 3, excluded_resources: texts = 4, selector: text = 5
        }
        generated::OperationProgress {
            completed: flag = 1, err: text = 2, n_completed: number = 3, n_total: number = 4,
            operation_units: text = 5, description: text = 6, started: message = 7, updated: message = 8
        }
        generated::ListPluginsResponse { plugins: messages = 1 }
        generated::PluginIdentifier { command: text = 1, kind: text = 2, name: text = 3 }

        generated::BackupItemActionAppliesToRequest { plugin: text = 1 }
        generated::BackupItemActionAppliesToResponse { resource_selector: message = 1 }
        generated::ExecuteRequest { plugin: text = 1, item: text = 2, backup: text = 3 }
        generated::ExecuteResponse { item: text = 1, additional_items: messages = 2 }
        v2::BackupItemActionAppliesToRequest { plugin: text = 1 }
        v2::BackupItemActionAppliesToResponse { resource_selector: message = 1 }
        v2::ExecuteRequest { plugin: text = 1, item: text = 2, backup: text = 3 }
        v2::ExecuteResponse { item: text = 1, additional_items: messages = 2, operation_id: text = 3, post_operation_items: messages = 4 }
        v2::BackupItemActionProgressRequest { plugin: text = 1, operation_id: text = 2, backup: text = 3 }
        v2::BackupItemActionProgressResponse { progress: message = 1 }
        v2::BackupItemActionCancelRequest { plugin: text = 1, operation_id: text = 2, backup: text = 3 }

        generated::RestoreItemActionAppliesToRequest { plugin: text = 1 }
        generated::RestoreItemActionAppliesToResponse { resource_selector: message = 1 }
        generated::RestoreItemActionExecuteRequest { plugin: text = 1, item: text = 2, restore: text = 3, item_from_backup: text = 4 }
        generated::RestoreItemActionExecuteResponse { item: text = 1, additional_items: messages = 2, skip_restore: flag = 3 }
        v2::RestoreItemActionAppliesToRequest { plugin: text = 1 }
        v2::RestoreItemActionAppliesToResponse { resource_selector: message = 1 }
        v2::RestoreItemActionExecuteRequest { plugin: text = 1, item: text = 2, restore: text = 3, item_from_backup: text = 4 }
        v2::RestoreItemActionExecuteResponse {
            item: text = 1, additional_items: messages = 2, skip_restore: flag = 3, operation_id: text = 4,
            wait_for_additional_items: flag = 5, additional_items_ready_timeout: message = 6
        }
        v2::RestoreItemActionProgressRequest { plugin: text = 1, operation_id: text = 2, restore: text = 3 }
        v2::RestoreItemActionProgressResponse { progress: message = 1 }
        v2::RestoreItemActionCancelRequest { plugin: text = 1, operation_id: text = 2, restore: text = 3 }
        v2::RestoreItemActionItemsReadyRequest { plugin: text = 1, restore: text = 2, additional_items: messages = 3 }
        v2::RestoreItemActionItemsReadyResponse { ready: flag = 1 }

        generated::DeleteItemActionAppliesToRequest { plugin: text = 1 }
        generated::DeleteItemActionAppliesToResponse { resource_selector: message = 1 }
        generated::DeleteItemActionExecuteRequest { plugin: text = 1, item: text = 2, backup: text = 3 }

        v1::ItemBlockActionAppliesToRequest { plugin: text = 1 }
        v1::ItemBlockActionAppliesToResponse { resource_selector: message = 1 }
        v1::ItemBlockActionGetRelatedItemsRequest { plugin: text = 1, item: text = 2, backup: text = 3 }
        v1::ItemBlockActionGetRelatedItemsResponse { related_items: messages = 1 }

        generated::VolumeSnapshotterInitRequest { plugin: text = 1, config: map = 2 }
        generated::CreateVolumeRequest { plugin: text = 1, snapshot_id: text = 2, volume_type: text = 3, volume_az: text = 4, iops: number = 5 }
        generated::CreateVolumeResponse { volume_id: text = 1 }
        generated::GetVolumeInfoRequest { plugin: text = 1, volume_id: text = 2, volume_az: text = 3 }
        generated::GetVolumeInfoResponse { volume_type: text = 1, iops: number = 2 }
        generated::CreateSnapshotRequest { plugin: text = 1, volume_id: text = 2, volume_az: text = 3, tags: map = 4 }
        generated::CreateSnapshotResponse { snapshot_id: text = 1 }
        generated::DeleteSnapshotRequest { plugin: text = 1, snapshot_id: text = 2 }
        generated::GetVolumeIdRequest { plugin: text = 1, persistent_volume: text = 2 }
        generated::GetVolumeIdResponse { volume_id: text = 1 }
        generated::SetVolumeIdRequest { plugin: text = 1, persistent_volume: text = 2, volume_id: text = 3 }
        generated::SetVolumeIdResponse { persistent_volume: text = 1 }
        generated::UploadSnapshotRequest { plugin: text = 1, snapshot_id: text = 2 }
        v2::VolumeSnapshotterProgressRequest { plugin: text = 1, snapshot_id: text = 2 }
        v2::VolumeSnapshotterProgressResponse { progress: message = 1 }
        v2::VolumeSnapshotterCancelRequest { plugin: text = 1, operation_id: text = 2 }

        generated::ObjectStoreInitRequest { plugin: text = 1, config: map = 2 }
        generated::PutObjectRequest { plugin: text = 1, bucket: text = 2, key: text = 3, body: text = 4 }
        generated::ObjectExistsRequest { plugin: text = 1, bucket: text = 2, key: text = 3 }
        generated::ObjectExistsResponse { exists: flag = 1 }
        generated::GetObjectRequest { plugin: text = 1, bucket: text = 2, key: text = 3 }
        generated::Bytes { data: text = 1 }
        generated::ListCommonPrefixesRequest { plugin: text = 1, bucket: text = 2, delimiter: text = 3, prefix: text = 4 }
        generated::ListCommonPrefixesResponse { prefixes: texts = 1 }
        generated::ListObjectsRequest { plugin: text = 1, bucket: text = 2, prefix: text = 3 }
        generated::ListObjectsResponse { keys: texts = 1 }
        generated::DeleteObjectRequest { plugin: text = 1, bucket: text = 2, key: text = 3 }
        generated::CreateSignedUrlRequest { plugin: text = 1, bucket: text = 2, key: text = 3, ttl: number = 4 }
        generated::CreateSignedUrlResponse { url: text = 1 }

        plugin::StdioData { channel: number = 1, data: text = 2 }
        health::HealthCheckRequest { service: text = 1 }
        health::HealthCheckResponse { status: number = 1 }
        rpc::Status { code: number = 1, message: text = 2, details: messages = 3 }
    }
}

#[test]
fn every_method_has_its_path() {
    let sources = [
        include_str!("../generated/generated.rs"),
        include_str!("../generated/v1.rs"),
        include_str!("../generated/v2.rs"),
        include_str!("../generated/plugin.rs"),
        include_str!("../generated/grpc.health.v1.rs"),
    ];
    let is_path = |text: &&str| text.starts_with('/') && !text.contains(char::is_whitespace);
    let paths: BTreeSet<&str> =
        sources.iter().flat_map(|source| source.split('"')).filter(is_path).collect();

    let snapshotter = "Init CreateVolumeFromSnapshot GetVolumeInfo CreateSnapshot DeleteSnapshot \
                       GetVolumeID SetVolumeID UploadSnapshot";
    let services = [
        ("generated.PluginLister", "ListPlugins"),
        ("generated.BackupItemAction", "AppliesTo Execute"),
        ("v2.BackupItemAction", "AppliesTo Execute Progress Cancel"),
        ("generated.RestoreItemAction", "AppliesTo Execute"),
        ("v2.RestoreItemAction", "AppliesTo Execute Progress Cancel AreAdditionalItemsReady"),
        ("generated.DeleteItemAction", "AppliesTo Execute"),
        ("v1.ItemBlockAction", "AppliesTo GetRelatedItems"),
        ("generated.VolumeSnapshotter", snapshotter),
        ("v2.VolumeSnapshotter", &format!("{snapshotter} Progress Cancel")),
        (
            "generated.ObjectStore",
            "Init PutObject ObjectExists GetObject ListCommonPrefixes ListObjects DeleteObject \
             CreateSignedURL",
        ),
        ("plugin.GRPCStdio", "StreamStdio"),
        ("plugin.GRPCController", "Shutdown"),
        ("grpc.health.v1.Health", "Check"),
    ];
    let expected: BTreeSet<String> = services
        .iter()
        .flat_map(|(service, methods)| {
            methods.split_whitespace().map(move |method| format!("/{service}/{method}"))
        })
        .collect();
    assert_eq!(paths, expected.iter().map(String::as_str).collect());
}

#[test]
fn generated_code_matches_the_proto_files() {
    use sha2::Digest as _;
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let files: BTreeSet<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let mut sums = Vec::new();
    for file in files {
        let sum = hex::encode(sha2::Sha256::digest(std::fs::read(&file).unwrap()));
        sums.push(format!("{sum}  {}\n", file.file_name().unwrap().to_str().unwrap()));
    }
    assert_eq!(
        sums.concat(),
        include_str!("../generated/SOURCES.sha256"),
        "run `cargo run --manifest-path crates/plugin-wire/codegen/Cargo.toml`"
    );
}
