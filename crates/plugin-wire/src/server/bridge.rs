//! Adapter from a version 2 snapshotter to version 1.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{
    Class, Config, Error, Item, Result, SnapshotId, State, VolumeId, VolumeInfo, VolumeSnapshotter,
};
use tokio::time::Instant;

/// The first pause between two polls of the creation of a snapshot; it doubles with each.
const POLL_FIRST: Duration = Duration::from_millis(50);
/// The longest pause.
const POLL_MAX: Duration = Duration::from_secs(1);

/// Time for which polling may fail before the snapshot is given up.
const FAILING_MAX: Duration = Duration::from_mins(2);

/// Makes a snapshotter behave as version 1, for hosts that know no other: `create_snapshot` returns
/// when the snapshot has been created and uploaded, so that there is no progress left to report.
///
/// A snapshot that could not be completed is deleted again, since its id never reaches the host.
pub fn v1_with_upload(plugin: Arc<dyn VolumeSnapshotter>) -> Arc<dyn VolumeSnapshotter> {
    Arc::new(V1Bridge(plugin))
}

struct V1Bridge(Arc<dyn VolumeSnapshotter>);

impl V1Bridge {
    async fn complete(&self, snapshot: &SnapshotId) -> Result<()> {
        self.wait_until_created(snapshot).await?;
        match self.0.upload_snapshot(snapshot).await {
            Err(error) if error.class() == Class::Unimplemented => Ok(()),
            result => result,
        }
    }

    /// Waits for the end of the creation.
    async fn wait_until_created(&self, snapshot: &SnapshotId) -> Result<()> {
        let mut failing_since: Option<Instant> = None;
        let mut pause = POLL_FIRST;
        loop {
            match self.0.progress(snapshot).await {
                Ok(progress) => match progress.state {
                    State::Succeeded => return Ok(()),
                    State::Failed(reason) => return Err(Error::unknown(reason)),
                    State::Running => failing_since = None,
                },
                Err(error) => match error.class() {
                    Class::Unimplemented => return Ok(()),
                    Class::Permanent => return Err(error),
                    Class::Transient | Class::Unclear => {
                        let since = *failing_since.get_or_insert_with(Instant::now);
                        if since.elapsed() >= FAILING_MAX {
                            return Err(error);
                        }
                        pause = POLL_MAX;
                    }
                },
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(POLL_MAX);
        }
    }
}

#[async_trait]
impl VolumeSnapshotter for V1Bridge {
    async fn create_snapshot(
        &self,
        volume: &VolumeId,
        zone: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<SnapshotId> {
        let snapshot = self.0.create_snapshot(volume, zone, tags).await?;
        match self.complete(&snapshot).await {
            Ok(()) => Ok(snapshot),
            Err(error) => Err(match self.0.delete_snapshot(&snapshot).await {
                Ok(()) => error.context(format_args!("completing snapshot {snapshot}")),
                Err(leftover) => error.context(format_args!(
                    "cannot complete snapshot {snapshot}, or delete it ({leftover})"
                )),
            }),
        }
    }

    async fn init(&self, config: &Config) -> Result<()> {
        self.0.init(config).await
    }

    async fn get_volume_id(&self, persistent_volume: &Item) -> Result<Option<VolumeId>> {
        self.0.get_volume_id(persistent_volume).await
    }

    async fn set_volume_id(&self, persistent_volume: &Item, volume: &VolumeId) -> Result<Item> {
        self.0.set_volume_id(persistent_volume, volume).await
    }

    async fn get_volume_info(&self, volume: &VolumeId, zone: &str) -> Result<VolumeInfo> {
        self.0.get_volume_info(volume, zone).await
    }

    async fn create_volume_from_snapshot(
        &self,
        snapshot: &SnapshotId,
        info: &VolumeInfo,
        zone: &str,
    ) -> Result<VolumeId> {
        self.0.create_volume_from_snapshot(snapshot, info, zone).await
    }

    async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<()> {
        self.0.delete_snapshot(snapshot).await
    }
}
