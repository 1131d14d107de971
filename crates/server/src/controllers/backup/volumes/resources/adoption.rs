//! VolumePluginBackups that plugins have created: found by their backup, adopted, and otherwise left to the plugin.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline_api::{VolumePluginBackup, label};
use kube::ResourceExt as _;
use kube::api::ListParams;
use tokio::time::Instant;

use super::{ResourceOwner, SnapshotResources};
use crate::controllers::adoption::has_other_writer;
use crate::error_text::status_message;
use crate::patch;

/// Pauses between searches for resources that plugins have created: the first, which doubles, and the longest.
const FIRST_ADOPTION_PAUSE: Duration = Duration::from_secs(1);
const MAX_ADOPTION_PAUSE: Duration = Duration::from_secs(10);

/// Resources of plugins that belong to the backup.
#[derive(Debug)]
pub(super) struct AdoptedResources {
    /// Resources whose snapshot is not known yet, by name.
    pub(super) unmatched: BTreeMap<String, VolumePluginBackup>,
    /// Time of the next search, and the pause after it.
    next: Instant,
    pause: Duration,
    /// Number of snapshots at the last search. A higher number triggers an earlier search.
    snapshots: usize,
    /// True if the resources that an earlier process adopted have been listed.
    is_recalled: bool,
}

impl AdoptedResources {
    pub(super) fn new() -> Self {
        Self {
            unmatched: BTreeMap::new(),
            next: Instant::now(),
            pause: FIRST_ADOPTION_PAUSE,
            snapshots: 0,
            is_recalled: false,
        }
    }
}

impl SnapshotResources<'_> {
    /// Adopts resources that plugins have created for this backup, if a search is due.
    pub(super) async fn adopt(&self, snapshots: usize) {
        let is_recalled = {
            let mut adopted = self.adopted.lock();
            if adopted.snapshots != snapshots {
                adopted.snapshots = snapshots;
                adopted.pause = FIRST_ADOPTION_PAUSE;
                adopted.next = adopted.next.min(Instant::now() + FIRST_ADOPTION_PAUSE);
            }
            if Instant::now() < adopted.next {
                return;
            }
            adopted.next = Instant::now() + adopted.pause;
            adopted.pause = (adopted.pause * 2).min(MAX_ADOPTION_PAUSE);
            adopted.is_recalled
        };
        match self.adopt_listed(is_recalled).await {
            Ok(()) => self.adopted.lock().is_recalled = true,
            Err(error) if patch::is_not_found(&error) => {}
            Err(error) => {
                tracing::debug!(
                    "cannot search for VolumePluginBackups: {}",
                    status_message(&error)
                );
            }
        }
    }

    async fn adopt_listed(&self, is_recalled: bool) -> kube::Result<()> {
        let api = self.api();
        let unclaimed = format!("!{}", label::BACKUP_UID);
        // Served from the API server's cache: anything missing now is there the next time.
        let list = async |selector: &str| {
            api.list(&ListParams::default().labels(selector).match_any()).await
        };
        for found in list(&unclaimed).await? {
            if self.is_new_of_backup(&found) {
                let adopted = self.ownership.adopt(&api, found).await?;
                self.adopted.lock().unmatched.extend(adopted.map(|one| (one.name_any(), one)));
            }
        }
        if !is_recalled {
            let uid = self.backup.uid().unwrap_or_default();
            let own_selector = format!("{}={uid},!{}", label::BACKUP_UID, label::MANAGED);
            let found = list(&own_selector).await?.into_iter().map(|one| (one.name_any(), one));
            self.adopted.lock().unmatched.extend(found);
        }
        self.yield_to_plugins().await
    }

    /// Removes resources of the server for which a plugin has created one under another name.
    async fn yield_to_plugins(&self) -> kube::Result<()> {
        let unmatched = self.adopted.lock().unmatched.clone();
        for (name, found) in unmatched {
            let own_resource = self.owners.lock().iter().find_map(|(key, known)| match known {
                ResourceOwner::Server(ours) if self.is_about_snapshot(&found, &key.0, &key.1) => {
                    Some((key.clone(), ours.clone()))
                }
                ResourceOwner::Server(_) | ResourceOwner::Plugin(_) | ResourceOwner::Unmanaged => {
                    None
                }
            });
            if let Some((key, own_resource)) = own_resource {
                if own_resource.uid() != found.uid() {
                    patch::delete_by_uid(&self.api(), &*own_resource).await?;
                }
                self.adopted.lock().unmatched.remove(&name);
                self.owners.lock().insert(key, ResourceOwner::Plugin(name));
            }
        }
        Ok(())
    }

    /// True if a resource without labels is of this backup, and not of an earlier one of the same name.
    fn is_new_of_backup(&self, found: &VolumePluginBackup) -> bool {
        let (created, since) = (found.creation_timestamp(), self.backup.creation_timestamp());
        let is_new = created.zip(since).is_none_or(|(created, since)| created.0 >= since.0);
        found.spec.backup == self.backup.name_any() && is_new && is_owned_by_plugin(found)
    }

    pub(super) fn is_about_snapshot(
        &self,
        found: &VolumePluginBackup,
        volume: &str,
        snapshot: &str,
    ) -> bool {
        let of = found.status.as_ref().map(|status| status.snapshot_id.as_str());
        self.is_of_backup(found)
            && found.spec.volume == volume
            && of.is_none_or(|of| of.is_empty() || of == snapshot)
    }

    pub(super) fn is_of_backup(&self, found: &VolumePluginBackup) -> bool {
        let uid = found.labels().get(label::BACKUP_UID);
        found.spec.backup == self.backup.name_any()
            && uid.is_none_or(|uid| Some(uid) == self.backup.uid().as_ref())
    }
}

/// True if the plugin created the resource, or writes to it.
pub(super) fn is_owned_by_plugin(resource: &VolumePluginBackup) -> bool {
    !resource.labels().contains_key(label::MANAGED) || has_other_writer(resource)
}
