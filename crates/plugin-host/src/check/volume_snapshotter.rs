//! The rules for volume snapshotters: the life of a snapshot, and what they say of what they do not
//! know.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bowline_api::annotation;
use bowline_plugin::{
    Class, Config, Error, Item, Kind, SnapshotId, State, VolumeId, VolumeInfo, VolumeSnapshotter,
};

use super::configured::{self, Made};
use super::operation::{POLL, is_permanent, told};
use super::rule::{HOLDS, Outcome, Rule, Unmet};
use super::{Input, is_unclear, sample};
use crate::handle::Handle;

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
    Rule::new("leaves no snapshot, and no volume that it has not named", |it| {
        Box::pin(it.clean_up())
    });

type Trial = configured::Trial<Snapshots>;

/// What a check had a snapshotter make.
#[derive(Default)]
pub(super) struct Snapshots {
    info: VolumeInfo,
    /// Snapshots that have not been deleted; the first one is what the rules are about.
    ids: Vec<SnapshotId>,
    /// Whether a snapshot may have been made whose id we never learnt.
    may_have_lost_one: bool,
    volume: Option<VolumeId>,
    /// The snapshot that a volume may have been made of whose id we never learnt.
    may_have_lost_volume_of: Option<SnapshotId>,
}

#[async_trait]
impl Made for Snapshots {
    type Plugin = dyn VolumeSnapshotter;

    const RULES: &'static [Rule<Trial>] = RULES;
    const CLEAN_UP: Rule<Trial> = CLEAN_UP;

    fn plugin(handle: Handle) -> Arc<Self::Plugin> {
        Arc::new(handle)
    }

    fn config(input: &Input) -> Config {
        input.config.clone()
    }

    async fn init(plugin: &Self::Plugin, config: &Config) -> Result<(), Error> {
        plugin.init(config).await
    }

    fn left(&self, input: &Input) -> Vec<String> {
        let mut left: Vec<String> = self.ids.iter().map(|id| format!("snapshot {id}")).collect();
        if self.may_have_lost_one {
            let tag = format!("{}={}", annotation::REQUEST_ID, input.name());
            left.push(format!("maybe a snapshot with the tag {tag}"));
        }
        if let Some(snapshot) = &self.may_have_lost_volume_of {
            left.push(format!("maybe a volume made from the snapshot {snapshot}"));
        }
        left
    }
}

impl Trial {
    async fn leaves_others_alone(&mut self) -> Outcome {
        match self.called.get_volume_id(&foreign_volume()?).await? {
            None => HOLDS,
            Some(volume) => Err(Unmet::Broken(format!("it says that it is its volume {volume}"))),
        }
    }

    async fn tells_volume_info(&mut self) -> Outcome {
        let volume = self.volume()?;
        self.made.info = self.called.get_volume_info(&volume, &self.input.zone).await?;
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
            let progress = match self.called.progress(&snapshot).await {
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
        match self.called.upload_snapshot(&snapshot).await {
            Err(error) if error.class() == Class::Unimplemented => {
                return Ok(Some("it has no upload stage".to_owned()));
            }
            uploaded => uploaded?,
        }
        self.process.restart().await;
        self.called.upload_snapshot(&snapshot).await?;
        HOLDS
    }

    async fn makes_a_volume(&mut self) -> Outcome {
        let snapshot = self.snapshot()?;
        let zone = &self.input.zone;
        self.made.may_have_lost_volume_of = Some(snapshot.clone());
        let made = self.called.create_volume_from_snapshot(&snapshot, &self.made.info, zone).await;
        if !made.as_ref().is_err_and(is_unclear) {
            self.made.may_have_lost_volume_of = None;
        }
        let volume = made?;
        let note = format!("volume {volume} is left: no plugin can be asked to delete a volume");
        self.made.volume = Some(volume);
        Ok(Some(note))
    }

    async fn finds_what_it_set(&mut self) -> Outcome {
        let given = self.input.persistent_volume.clone();
        let is_ours = given.is_none();
        let own = "it is not for the sample; give one of its own with --persistent-volume";
        let persistent_volume = given.map_or_else(foreign_volume, Ok)?;
        let made_up = || VolumeId::new(sample::NAME);
        let Some(volume) = self.made.volume.clone().or_else(made_up) else {
            return Err(Unmet::skipped("there is no volume"));
        };
        let changed = match self.called.set_volume_id(&persistent_volume, &volume).await {
            Err(_) if is_ours => return Err(Unmet::skipped(own)),
            changed => changed?,
        };
        match self.called.get_volume_id(&changed).await? {
            Some(found) if found == volume => HOLDS,
            None if is_ours => Err(Unmet::skipped(own)),
            Some(found) => Err(Unmet::Broken(format!("it put {volume} there and found {found}"))),
            None => Err(Unmet::Broken(format!("it put {volume} there and found none"))),
        }
    }

    async fn deletes_a_snapshot(&mut self) -> Outcome {
        let snapshot = self.snapshot()?;
        self.called.delete_snapshot(&snapshot).await?;
        self.made.ids.retain(|left| *left != snapshot);
        self.called.delete_snapshot(&snapshot).await?;
        HOLDS
    }

    async fn refuses_unknown_snapshot(&mut self) -> Outcome {
        let unknown = self.unknown_snapshot()?;
        match self.called.progress(&unknown).await {
            Err(error) if error.class() == Class::Unimplemented => Ok(Some(SYNCHRONOUS.to_owned())),
            progress => is_permanent(progress),
        }
    }

    async fn accepts_cancel_of_unknown_snapshot(&mut self) -> Outcome {
        let unknown = self.unknown_snapshot()?;
        self.called.cancel(&unknown).await?;
        HOLDS
    }

    async fn clean_up(&mut self) -> Outcome {
        let mut failure = None;
        for snapshot in self.made.ids.clone() {
            // An upload of it may go on that nobody waits for any more.
            let _ = self.called.cancel(&snapshot).await;
            match self.called.delete_snapshot(&snapshot).await {
                Ok(()) => self.made.ids.retain(|left| *left != snapshot),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(HOLDS, |error| Err(error.into()))
    }

    /// Makes a snapshot; each time with the same request.
    async fn create_snapshot(&mut self) -> Result<SnapshotId, Unmet> {
        let volume = self.volume()?;
        let tags = BTreeMap::from([
            (annotation::REQUEST_ID.to_owned(), self.input.name()),
            ("velero.io/backup".to_owned(), self.input.name()),
            ("velero.io/pv".to_owned(), sample::NAME.to_owned()),
        ]);
        self.made.may_have_lost_one = true;
        let created = self.called.create_snapshot(&volume, &self.input.zone, &tags).await;
        self.made.may_have_lost_one = created.as_ref().is_err_and(is_unclear);
        let snapshot = created?;
        if !self.made.ids.contains(&snapshot) {
            self.made.ids.push(snapshot.clone());
        }
        Ok(snapshot)
    }

    fn volume(&self) -> Result<VolumeId, Unmet> {
        let none = || Unmet::skipped("no volume is given; name one with --volume");
        self.input.volume.clone().ok_or_else(none)
    }

    fn snapshot(&self) -> Result<SnapshotId, Unmet> {
        self.volume()?;
        let none = || Unmet::skipped("there is no snapshot");
        self.made.ids.first().cloned().ok_or_else(none)
    }

    fn unknown_snapshot(&self) -> Result<SnapshotId, Unmet> {
        SnapshotId::new(format!("{}-unknown", self.input.name()))
            .ok_or_else(|| Unmet::skipped("there is no such id"))
    }
}

fn foreign_volume() -> Result<Item, Unmet> {
    sample::persistent_volume().map_err(|error| Unmet::Broken(error.to_string()))
}

#[cfg(test)]
mod tests;
