//! The rules for volume snapshotters: the life of a snapshot, and what they say of what they do not
//! know.

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_api::annotation;
use bowline_plugin::{
    Class, Error, Item, Kind, SnapshotId, State, VolumeId, VolumeInfo, VolumeSnapshotter,
};

use super::operation::{POLL, is_permanent, told};
use super::rule::{HOLDS, Judge, Outcome, Rule, Subject, Unmet};
use super::{Bench, Input, Restart, sample};
use crate::Plugin;
use crate::handle::Handle;
use crate::slot::{Purpose, Slot};

const V2: &[Kind] = &[Kind::VolumeSnapshotterV2];

const RULES: &[Rule<Trial>] = &[
    Rule::new("takes its configuration", |it| Box::pin(it.takes_its_configuration())),
    Rule::new("knows no volume behind the PersistentVolume of another driver", |it| {
        Box::pin(it.leaves_others_alone())
    }),
    Rule::new("tells the type of a volume", |it| Box::pin(it.tells_volume_info())),
    Rule::new("takes a snapshot", |it| Box::pin(it.takes_a_snapshot())),
    Rule::only(V2, "returns the same snapshot for the same request", |it| {
        Box::pin(it.recognises_a_request())
    }),
    Rule::only(V2, "tells the progress of a snapshot until it is complete", |it| {
        Box::pin(it.completes_a_snapshot())
    }),
    Rule::new("uploads a snapshot, and again after a restart of its process", |it| {
        Box::pin(it.uploads_a_snapshot())
    }),
    Rule::new("makes a volume from a snapshot", |it| Box::pin(it.makes_a_volume())),
    Rule::new("finds the volume that it put behind a PersistentVolume", |it| {
        Box::pin(it.finds_what_it_set())
    }),
    Rule::new("deletes a snapshot, twice", |it| Box::pin(it.deletes_a_snapshot())),
    Rule::only(V2, "tells a permanent error as the progress of an unknown snapshot", |it| {
        Box::pin(it.refuses_unknown_snapshot())
    }),
    Rule::only(V2, "accepts the cancellation of an unknown snapshot", |it| {
        Box::pin(it.accepts_cancel_of_unknown_snapshot())
    }),
];

/// What it means that `Progress` is not implemented.
const SYNCHRONOUS: &str = "it has no progress: a snapshot is complete when it has been taken";

const CLEAN_UP: Rule<Trial> =
    Rule::new("deletes all snapshots of the check", |it| Box::pin(it.clean_up()));

/// A snapshotter on trial, in a process of its own.
struct Trial {
    plugin: Plugin,
    snapshotter: Arc<dyn VolumeSnapshotter>,
    process: Arc<dyn Restart>,
    input: Arc<Input>,
    is_configured: Option<bool>,
    info: VolumeInfo,
    /// Snapshots that have not been deleted; the first one is what the rules are about.
    snapshots: Vec<SnapshotId>,
    /// Whether a snapshot may have been made whose id we never learnt.
    may_have_lost_one: bool,
    made: Option<VolumeId>,
}

impl Subject for Trial {
    fn plugin(&self) -> Option<&Plugin> {
        Some(&self.plugin)
    }

    fn is_stuck(&self) -> Option<&str> {
        (self.is_configured == Some(false)).then_some("it has not taken its configuration")
    }
}

pub(super) async fn check(judge: &mut Judge<'_>, Bench { plugin, options, input }: Bench) {
    let purpose = Purpose::Configured { plugin: plugin.clone(), config: input.config.clone() };
    let slot = Arc::new(Slot::new(&plugin.command, options, purpose));
    let handle = Arc::new(Handle::new(Arc::clone(&slot), &plugin));
    let process = Arc::clone(&slot) as Arc<dyn Restart>;
    Trial::new(plugin, handle, process, input).examine(judge).await;
    slot.close().await;
}

impl Trial {
    fn new(
        plugin: Plugin,
        snapshotter: Arc<dyn VolumeSnapshotter>,
        process: Arc<dyn Restart>,
        input: Arc<Input>,
    ) -> Self {
        Self {
            plugin,
            snapshotter,
            process,
            input,
            is_configured: None,
            info: VolumeInfo::default(),
            snapshots: Vec::new(),
            may_have_lost_one: false,
            made: None,
        }
    }

    async fn examine(mut self, judge: &mut Judge<'_>) {
        judge.judge(RULES, &mut self).await;
        if !self.snapshots.is_empty() || self.may_have_lost_one {
            judge.judge_always(&CLEAN_UP, &mut self).await;
        }
    }

    async fn takes_its_configuration(&mut self) -> Outcome {
        self.is_configured = Some(false);
        self.snapshotter.init(&self.input.config).await?;
        self.is_configured = Some(true);
        HOLDS
    }

    async fn leaves_others_alone(&mut self) -> Outcome {
        match self.snapshotter.get_volume_id(&foreign_volume()?).await? {
            None => HOLDS,
            Some(volume) => Err(Unmet::Broken(format!("it says that it is its volume {volume}"))),
        }
    }

    async fn tells_volume_info(&mut self) -> Outcome {
        let volume = self.volume()?;
        self.info = self.snapshotter.get_volume_info(&volume, &self.input.zone).await?;
        HOLDS
    }

    async fn takes_a_snapshot(&mut self) -> Outcome {
        self.create_snapshot().await?;
        HOLDS
    }

    async fn recognises_a_request(&mut self) -> Outcome {
        let first = self.snapshot()?;
        let second = self.create_snapshot().await?;
        if first == second {
            return HOLDS;
        }
        Err(Unmet::Broken(format!("it made {first}, then {second}")))
    }

    async fn completes_a_snapshot(&mut self) -> Outcome {
        let snapshot = self.snapshot()?;
        loop {
            let progress = match self.snapshotter.progress(&snapshot).await {
                Err(error) if error.class() == Class::Unimplemented => {
                    return Ok(Some(SYNCHRONOUS.to_owned()));
                }
                progress => progress?,
            };
            match progress.state {
                State::Running => tokio::time::sleep(POLL).await,
                State::Succeeded => return HOLDS,
                State::Failed(_) => return Err(Unmet::Broken(told(&progress.state))),
            }
        }
    }

    async fn uploads_a_snapshot(&mut self) -> Outcome {
        let snapshot = self.snapshot()?;
        match self.snapshotter.upload_snapshot(&snapshot).await {
            Err(error) if error.class() == Class::Unimplemented => {
                return Ok(Some("it has no upload stage".to_owned()));
            }
            uploaded => uploaded?,
        }
        self.process.restart().await;
        self.snapshotter.upload_snapshot(&snapshot).await?;
        HOLDS
    }

    async fn makes_a_volume(&mut self) -> Outcome {
        let snapshot = self.snapshot()?;
        let zone = &self.input.zone;
        let volume =
            self.snapshotter.create_volume_from_snapshot(&snapshot, &self.info, zone).await?;
        let note = format!("volume {volume} is left: no plugin can be asked to delete a volume");
        self.made = Some(volume);
        Ok(Some(note))
    }

    async fn finds_what_it_set(&mut self) -> Outcome {
        let given = self.input.persistent_volume.clone();
        let is_ours = given.is_none();
        let own = "it is not for the sample; give one of its own with --persistent-volume";
        let persistent_volume = given.map_or_else(foreign_volume, Ok)?;
        let made_up = || VolumeId::new(sample::NAME);
        let Some(volume) = self.made.clone().or_else(made_up) else {
            return Err(Unmet::skipped("there is no volume"));
        };
        let changed = match self.snapshotter.set_volume_id(&persistent_volume, &volume).await {
            Err(_) if is_ours => return Err(Unmet::skipped(own)),
            changed => changed?,
        };
        match self.snapshotter.get_volume_id(&changed).await? {
            Some(found) if found == volume => HOLDS,
            None if is_ours => Err(Unmet::skipped(own)),
            Some(found) => Err(Unmet::Broken(format!("it put {volume} there and found {found}"))),
            None => Err(Unmet::Broken(format!("it put {volume} there and found none"))),
        }
    }

    async fn deletes_a_snapshot(&mut self) -> Outcome {
        let snapshot = self.snapshot()?;
        self.snapshotter.delete_snapshot(&snapshot).await?;
        self.snapshots.retain(|left| *left != snapshot);
        self.snapshotter.delete_snapshot(&snapshot).await?;
        HOLDS
    }

    async fn refuses_unknown_snapshot(&mut self) -> Outcome {
        let unknown = self.unknown_snapshot()?;
        match self.snapshotter.progress(&unknown).await {
            Err(error) if error.class() == Class::Unimplemented => Ok(Some(SYNCHRONOUS.to_owned())),
            progress => is_permanent(progress),
        }
    }

    async fn accepts_cancel_of_unknown_snapshot(&mut self) -> Outcome {
        let unknown = self.unknown_snapshot()?;
        self.snapshotter.cancel(&unknown).await?;
        HOLDS
    }

    async fn clean_up(&mut self) -> Outcome {
        let mut left = Vec::new();
        for snapshot in std::mem::take(&mut self.snapshots) {
            // An upload of it may go on that nobody waits for any more.
            let _ = self.snapshotter.cancel(&snapshot).await;
            if let Err(error) = self.snapshotter.delete_snapshot(&snapshot).await {
                left.push(format!("snapshot {snapshot} is left: {error}"));
            }
        }
        if self.may_have_lost_one {
            let tag = format!("{}={}", annotation::REQUEST_ID, self.request());
            left.push(format!("a snapshot with the tag {tag} may be left"));
        }
        if left.is_empty() { HOLDS } else { Err(Unmet::Broken(left.join("; "))) }
    }

    /// Makes a snapshot; each time with the same request.
    async fn create_snapshot(&mut self) -> Result<SnapshotId, Unmet> {
        let volume = self.volume()?;
        let tags = BTreeMap::from([
            (annotation::REQUEST_ID.to_owned(), self.request()),
            ("velero.io/backup".to_owned(), sample::NAME.to_owned()),
            ("velero.io/pv".to_owned(), sample::NAME.to_owned()),
        ]);
        self.may_have_lost_one = true;
        let created = self.snapshotter.create_snapshot(&volume, &self.input.zone, &tags).await;
        self.may_have_lost_one = created.as_ref().is_err_and(is_unclear);
        let snapshot = created?;
        if !self.snapshots.contains(&snapshot) {
            self.snapshots.push(snapshot.clone());
        }
        Ok(snapshot)
    }

    fn request(&self) -> String {
        format!("bowline-check-{}", self.input.id)
    }

    fn volume(&self) -> Result<VolumeId, Unmet> {
        let none = || Unmet::skipped("no volume is given; name one with --volume");
        self.input.volume.clone().ok_or_else(none)
    }

    fn snapshot(&self) -> Result<SnapshotId, Unmet> {
        self.volume()?;
        let none = || Unmet::skipped("there is no snapshot");
        self.snapshots.first().cloned().ok_or_else(none)
    }

    fn unknown_snapshot(&self) -> Result<SnapshotId, Unmet> {
        SnapshotId::new(format!("bowline-check-{}-unknown", self.input.id))
            .ok_or_else(|| Unmet::skipped("there is no such id"))
    }
}

/// Whether the outcome of a call is not known: the plugin did not answer.
fn is_unclear(error: &Error) -> bool {
    error.class() == Class::Transient
}

fn foreign_volume() -> Result<Item, Unmet> {
    sample::persistent_volume().map_err(|error| Unmet::Broken(error.to_string()))
}

#[cfg(test)]
mod tests;
