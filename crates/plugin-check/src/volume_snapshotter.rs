//! Rules for volume snapshotters: the life of a snapshot, and the answers for unknown ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::annotation;
use bowline_plugin::{
    Class, Config, Error, Item, Kind, SnapshotId, State, VolumeId, VolumeInfo, VolumeSnapshotter,
};
use bowline_plugin_host::Handle;

use super::configured_plugin::{self, CreatedResources};
use super::operation::{PROGRESS_POLL_INTERVAL, expect_permanent_error, state_text};
use super::rule::{HOLDS, Rule, RuleFailure, RuleOutcome};
use super::{Input, is_outcome_unknown, sample};

const V2: &[Kind] = &[Kind::VolumeSnapshotterV2];

const RULES: &[Rule<SnapshotterCheck>] = &[
    Rule::new("Init accepts the configuration", |check| {
        Box::pin(check.accepts_its_configuration())
    }),
    Rule::new("GetVolumeID ignores PersistentVolumes of other drivers", |check| {
        Box::pin(check.ignores_foreign_volumes())
    }),
    Rule::new("GetVolumeInfo returns the type of the volume", |check| {
        Box::pin(check.returns_volume_info())
    }),
    Rule::new("CreateSnapshot creates a snapshot", |check| Box::pin(check.creates_a_snapshot())),
    Rule::for_kinds(V2, "CreateSnapshot returns the same snapshot for the same request", |check| {
        Box::pin(check.returns_same_snapshot_for_same_request())
    }),
    Rule::for_kinds(V2, "Progress reports the snapshot until it is complete", |it| {
        Box::pin(it.completes_a_snapshot())
    }),
    Rule::new("UploadSnapshot works, and again after a restart of the process", |check| {
        Box::pin(check.uploads_a_snapshot())
    }),
    Rule::new("CreateVolumeFromSnapshot creates a volume", |check| {
        Box::pin(check.creates_a_volume())
    }),
    Rule::new("GetVolumeID returns the volume that SetVolumeID has set", |it| {
        Box::pin(it.finds_the_volume_it_set())
    }),
    Rule::new("DeleteSnapshot can be repeated", |check| Box::pin(check.deletes_a_snapshot())),
    Rule::for_kinds(V2, "Progress of an unknown snapshot returns a permanent error", |check| {
        Box::pin(check.refuses_unknown_snapshot())
    }),
    Rule::for_kinds(V2, "Cancel accepts an unknown snapshot", |check| {
        Box::pin(check.accepts_cancel_of_unknown_snapshot())
    }),
];

/// Remark for a plugin that does not implement `Progress`.
const NO_PROGRESS_NOTE: &str =
    "Progress is not implemented: a snapshot is complete when CreateSnapshot returns";

const CLEAN_UP: Rule<SnapshotterCheck> =
    Rule::new("the check leaves no snapshot and no unknown volume", |it| Box::pin(it.clean_up()));

type SnapshotterCheck = configured_plugin::ConfiguredCheck<CreatedSnapshots>;

/// Snapshots that a check created.
#[derive(Default)]
pub(super) struct CreatedSnapshots {
    info: VolumeInfo,
    /// Snapshots that have not been deleted; the rules are about the first one.
    ids: Vec<SnapshotId>,
    /// True if a snapshot may exist whose id is unknown.
    may_have_unknown_snapshot: bool,
    volume: Option<VolumeId>,
    /// The snapshot from which a volume with unknown id may have been created.
    snapshot_with_unknown_volume: Option<SnapshotId>,
}

#[async_trait]
impl CreatedResources for CreatedSnapshots {
    type Plugin = dyn VolumeSnapshotter;

    const RULES: &'static [Rule<SnapshotterCheck>] = RULES;
    const CLEAN_UP: Rule<SnapshotterCheck> = CLEAN_UP;

    fn plugin(handle: Handle) -> Arc<Self::Plugin> {
        Arc::new(handle)
    }

    fn config(input: &Input) -> Config {
        input.config.clone()
    }

    async fn init(plugin: &Self::Plugin, config: &Config) -> Result<(), Error> {
        plugin.init(config).await
    }

    fn leftovers(&self, input: &Input) -> Vec<String> {
        let mut leftovers: Vec<String> =
            self.ids.iter().map(|id| format!("snapshot {id}")).collect();
        if self.may_have_unknown_snapshot {
            let tag = format!("{}={}", annotation::REQUEST_ID, input.name());
            leftovers.push(format!("possibly a snapshot with the tag {tag}"));
        }
        if let Some(snapshot) = &self.snapshot_with_unknown_volume {
            leftovers.push(format!("possibly a volume created from the snapshot {snapshot}"));
        }
        leftovers
    }
}

impl SnapshotterCheck {
    async fn ignores_foreign_volumes(&mut self) -> RuleOutcome {
        match self.api.get_volume_id(&foreign_volume()?).await? {
            None => HOLDS,
            Some(volume) => {
                Err(RuleFailure::Broken(format!("GetVolumeID returned the volume {volume}")))
            }
        }
    }

    async fn returns_volume_info(&mut self) -> RuleOutcome {
        let volume = self.require_volume()?;
        self.created.info = self.api.get_volume_info(&volume, &self.input.zone).await?;
        HOLDS
    }

    async fn creates_a_snapshot(&mut self) -> RuleOutcome {
        self.create_snapshot().await?;
        HOLDS
    }

    async fn returns_same_snapshot_for_same_request(&mut self) -> RuleOutcome {
        let first = self.require_snapshot()?;
        let second = self.create_snapshot().await?;
        if first == second {
            return HOLDS;
        }
        Err(RuleFailure::Broken(format!("CreateSnapshot returned {first}, then {second}")))
    }

    async fn completes_a_snapshot(&mut self) -> RuleOutcome {
        let snapshot = self.require_snapshot()?;
        loop {
            let progress = match self.api.progress(&snapshot).await {
                Err(error) if error.class() == Class::Unimplemented => {
                    return Ok(Some(NO_PROGRESS_NOTE.to_owned()));
                }
                progress => progress?,
            };
            match progress.state {
                State::Running => tokio::time::sleep(PROGRESS_POLL_INTERVAL).await,
                State::Succeeded => return HOLDS,
                State::Failed(_) => return Err(RuleFailure::Broken(state_text(&progress.state))),
            }
        }
    }

    async fn uploads_a_snapshot(&mut self) -> RuleOutcome {
        let snapshot = self.require_snapshot()?;
        match self.api.upload_snapshot(&snapshot).await {
            Err(error) if error.class() == Class::Unimplemented => {
                return Ok(Some("the plugin has no upload stage".to_owned()));
            }
            uploaded => uploaded?,
        }
        self.process.restart().await;
        self.api.upload_snapshot(&snapshot).await?;
        HOLDS
    }

    async fn creates_a_volume(&mut self) -> RuleOutcome {
        let snapshot = self.require_snapshot()?;
        let zone = &self.input.zone;
        self.created.snapshot_with_unknown_volume = Some(snapshot.clone());
        let volume =
            self.api.create_volume_from_snapshot(&snapshot, &self.created.info, zone).await;
        if !volume.as_ref().is_err_and(is_outcome_unknown) {
            self.created.snapshot_with_unknown_volume = None;
        }
        let volume = volume?;
        let remark = format!("volume {volume} is left over: no plugin call deletes a volume");
        self.created.volume = Some(volume);
        Ok(Some(remark))
    }

    async fn finds_the_volume_it_set(&mut self) -> RuleOutcome {
        let given = self.input.persistent_volume.clone();
        let is_ours = given.is_none();
        let skip_reason =
            "the sample PersistentVolume is not of this plugin; pass one with --persistent-volume";
        let persistent_volume = given.map_or_else(foreign_volume, Ok)?;
        let made_up = || VolumeId::new(sample::NAME);
        let Some(volume) = self.created.volume.clone().or_else(made_up) else {
            return Err(RuleFailure::skipped("no volume was created"));
        };
        let changed = match self.api.set_volume_id(&persistent_volume, &volume).await {
            Err(_) if is_ours => return Err(RuleFailure::skipped(skip_reason)),
            changed => changed?,
        };
        match self.api.get_volume_id(&changed).await? {
            Some(found) if found == volume => HOLDS,
            None if is_ours => Err(RuleFailure::skipped(skip_reason)),
            Some(found) => Err(RuleFailure::Broken(format!(
                "SetVolumeID set {volume}, and GetVolumeID returned {found}"
            ))),
            None => Err(RuleFailure::Broken(format!(
                "SetVolumeID set {volume}, and GetVolumeID returned none"
            ))),
        }
    }

    async fn deletes_a_snapshot(&mut self) -> RuleOutcome {
        let snapshot = self.require_snapshot()?;
        self.api.delete_snapshot(&snapshot).await?;
        self.created.ids.retain(|id| *id != snapshot);
        self.api.delete_snapshot(&snapshot).await?;
        HOLDS
    }

    async fn refuses_unknown_snapshot(&mut self) -> RuleOutcome {
        let unknown = self.unknown_snapshot()?;
        match self.api.progress(&unknown).await {
            Err(error) if error.class() == Class::Unimplemented => {
                Ok(Some(NO_PROGRESS_NOTE.to_owned()))
            }
            progress => expect_permanent_error(progress),
        }
    }

    async fn accepts_cancel_of_unknown_snapshot(&mut self) -> RuleOutcome {
        let unknown = self.unknown_snapshot()?;
        self.api.cancel(&unknown).await?;
        HOLDS
    }

    async fn clean_up(&mut self) -> RuleOutcome {
        let mut failure = None;
        for snapshot in self.created.ids.clone() {
            // An upload of the snapshot may still be running, without a caller.
            let _ = self.api.cancel(&snapshot).await;
            match self.api.delete_snapshot(&snapshot).await {
                Ok(()) => self.created.ids.retain(|id| *id != snapshot),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(HOLDS, |error| Err(error.into()))
    }

    /// Creates a snapshot; each time with the same request id.
    async fn create_snapshot(&mut self) -> Result<SnapshotId, RuleFailure> {
        let volume = self.require_volume()?;
        let tags = BTreeMap::from([
            (annotation::REQUEST_ID.to_owned(), self.input.name()),
            ("velero.io/backup".to_owned(), self.input.name()),
            ("velero.io/pv".to_owned(), sample::NAME.to_owned()),
        ]);
        self.created.may_have_unknown_snapshot = true;
        let created = self.api.create_snapshot(&volume, &self.input.zone, &tags).await;
        self.created.may_have_unknown_snapshot = created.as_ref().is_err_and(is_outcome_unknown);
        let snapshot = created?;
        if !self.created.ids.contains(&snapshot) {
            self.created.ids.push(snapshot.clone());
        }
        Ok(snapshot)
    }

    fn require_volume(&self) -> Result<VolumeId, RuleFailure> {
        let none = || RuleFailure::skipped("no volume is given; pass one with --volume");
        self.input.volume.clone().ok_or_else(none)
    }

    fn require_snapshot(&self) -> Result<SnapshotId, RuleFailure> {
        self.require_volume()?;
        let none = || RuleFailure::skipped("no snapshot was created");
        self.created.ids.first().cloned().ok_or_else(none)
    }

    fn unknown_snapshot(&self) -> Result<SnapshotId, RuleFailure> {
        SnapshotId::new(format!("{}-unknown", self.input.name()))
            .ok_or_else(|| RuleFailure::skipped("no unknown id can be generated"))
    }
}

fn foreign_volume() -> Result<Item, RuleFailure> {
    sample::persistent_volume().map_err(|error| RuleFailure::Broken(error.to_string()))
}

#[cfg(test)]
mod tests;
