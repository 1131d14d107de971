use std::collections::BTreeMap;

use bowline_plugin::{
    Config, Encoded, Item, ResourceIdentifier, ResourceSelector, Result, SnapshotId, VolumeId,
    VolumeInfo,
};

use super::*;
use crate::{Backup, BackupOutput, Error, Restore, RestoreOutput, async_trait};

/// Implements all kinds, and does nothing.
struct Idle;

#[async_trait]
impl BackupItemAction for Idle {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::default())
    }

    async fn execute(&self, item: &Item, _: &Encoded<Backup>) -> Result<BackupOutput> {
        Ok(BackupOutput::unchanged(item))
    }
}

#[async_trait]
impl RestoreItemAction for Idle {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::default())
    }

    async fn execute(&self, item: &Item, _: &Item, _: &Encoded<Restore>) -> Result<RestoreOutput> {
        Ok(RestoreOutput::unchanged(item))
    }
}

#[async_trait]
impl DeleteItemAction for Idle {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::default())
    }

    async fn execute(&self, _: &Item, _: &Encoded<Backup>) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl ItemBlockAction for Idle {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::default())
    }

    async fn get_related_items(
        &self,
        _: &Item,
        _: &Encoded<Backup>,
    ) -> Result<Vec<ResourceIdentifier>> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl VolumeSnapshotter for Idle {
    async fn init(&self, _: &Config) -> Result<()> {
        Ok(())
    }

    async fn get_volume_id(&self, _: &Item) -> Result<Option<VolumeId>> {
        Ok(None)
    }

    async fn set_volume_id(&self, item: &Item, _: &VolumeId) -> Result<Item> {
        Ok(item.clone())
    }

    async fn get_volume_info(&self, _: &VolumeId, _: &str) -> Result<VolumeInfo> {
        Ok(VolumeInfo::default())
    }

    async fn create_snapshot(
        &self,
        _: &VolumeId,
        _: &str,
        _: &BTreeMap<String, String>,
    ) -> Result<SnapshotId> {
        Err(Error::unknown("no"))
    }

    async fn create_volume_from_snapshot(
        &self,
        _: &SnapshotId,
        _: &VolumeInfo,
        _: &str,
    ) -> Result<VolumeId> {
        Err(Error::unknown("no"))
    }

    async fn delete_snapshot(&self, _: &SnapshotId) -> Result<()> {
        Ok(())
    }
}

/// The plugins listed to a host that knows these kinds.
fn listed_plugins(plugin: Plugin, kinds: Option<&str>) -> Vec<String> {
    let plugins = plugin.plugins_for_host(kinds).unwrap_or_else(|mistakes| panic!("{mistakes:?}"));
    plugins.list().iter().map(|(kind, name)| format!("{kind} {name}")).collect()
}

fn mistakes(plugin: Plugin) -> Vec<String> {
    // The errors are the same for every host.
    plugin.plugins_for_host(None).err().unwrap().iter().map(ToString::to_string).collect()
}

#[test]
fn plugins_are_listed_by_kind_and_name() {
    let plugin = Plugin::new()
        .item_block_action("a.io/block", Idle)
        .delete_item_action("a.io/delete", Idle)
        .restore_item_action("a.io/restore", Idle)
        .restore_item_action_v1("a.io/restore", Idle)
        .volume_snapshotter_v1("a.io/snapshot-v1", Idle)
        .backup_item_action("a.io/z", Idle)
        .backup_item_action("a.io/a", Idle)
        .backup_item_action_v1("a.io/a", Idle);
    let expected = [
        "BackupItemAction a.io/a",
        "BackupItemActionV2 a.io/a",
        "BackupItemActionV2 a.io/z",
        "VolumeSnapshotter a.io/snapshot-v1",
        "RestoreItemAction a.io/restore",
        "RestoreItemActionV2 a.io/restore",
        "DeleteItemAction a.io/delete",
        "ItemBlockAction a.io/block",
    ];
    assert_eq!(listed_plugins(plugin, None), expected);
}

#[test]
fn snapshotter_is_version_2_only_for_hosts_that_know_it() {
    for (kinds, expected) in [
        (None, "VolumeSnapshotter a.io/x"),
        (Some("Other"), "VolumeSnapshotter a.io/x"),
        (Some("Other,VolumeSnapshotterV2"), "VolumeSnapshotterV2 a.io/x"),
    ] {
        let plugin = Plugin::new().volume_snapshotter("a.io/x", Idle);
        assert_eq!(listed_plugins(plugin, kinds), [expected]);
    }
}

#[test]
fn all_registration_errors_are_reported_together() {
    let plugin = Plugin::new()
        .backup_item_action("label", Idle)
        .backup_item_action("a.io/twice", Idle)
        .backup_item_action("a.io/twice", Idle)
        .volume_snapshotter("a.io/", Idle)
        .volume_snapshotter("a.io/vs", Idle)
        .volume_snapshotter("a.io/vs", Idle)
        .volume_snapshotter_v1("a.io/vs", Idle);
    assert_eq!(
        mistakes(plugin),
        [
            "`label` is not a plugin name: expected <DNS name>/<name>",
            "BackupItemActionV2 a.io/twice is registered twice",
            "`a.io/` is not a plugin name: nothing follows the slash",
            "VolumeSnapshotterV2 a.io/vs is registered twice",
            "VolumeSnapshotter a.io/vs is registered twice: to servers without v2, the v2 plugin \
             is served as v1",
        ]
    );
}

#[test]
fn binary_without_plugins_is_an_error() {
    assert_eq!(mistakes(Plugin::new()), ["no plugin is registered"]);
}
