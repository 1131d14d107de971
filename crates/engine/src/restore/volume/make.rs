//! Has a plugin make a volume from a snapshot.
//!
//! The call may take hours, and nothing of it can be asked again later: there is no id for it. So it
//! is noted before and after; it is bounded by the time that operations have; a restore that is
//! cancelled tells the plugin, and waits a moment for what it says. Where nobody knows whether a volume
//! was made, that is told.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bowline_plugin::{
    Class, Code, Item, Progress, ResourceIdentifier, SnapshotId, VolumeId, VolumeInfo,
};
use bowline_store::file::Snapshot;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::super::Context;
use super::witness::{Bytes, End, Making, Units, Witness};
use crate::journal::VolumeBegun;
use crate::point::{self, Point};
use crate::snapshotter::{OpenError, Snapshotter, Snapshotters};

/// How often a location is opened, and a plugin asked to put a volume behind a PersistentVolume, where
/// another try may help; and the pause before the second try, which doubles.
const TRIES: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// How often a plugin is asked how far it is.
const PROGRESS_PAUSE: Duration = Duration::from_secs(1);
/// How long the pause becomes at most with a plugin that does not say.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How long it may take to say so, and a witness to show it.
const PROGRESS_LIMIT: Duration = Duration::from_secs(10);
/// After how many errors in a row it is not asked any more.
const PROGRESS_ERRORS: u32 = 5;
/// How long a server that ends waits for a volume, before it tells the plugin to stop.
const LAST_CHANCE: Duration = Duration::from_secs(20);
/// How long a plugin may take to hear that it shall stop.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);
/// How long it may take to say what came of it then.
const LAST_WORD: Duration = Duration::from_secs(5);

/// Who makes volumes, and who is told.
pub(in crate::restore) struct Maker {
    snapshotters: Arc<dyn Snapshotters>,
    witness: Arc<dyn Witness>,
    /// By location. Each is opened once.
    opened: Mutex<HashMap<String, Arc<OnceCell<Opened>>>>,
}

type Opened = Result<Snapshotter, OpenError>;

impl Maker {
    pub(in crate::restore) fn new(
        snapshotters: Arc<dyn Snapshotters>,
        witness: Arc<dyn Witness>,
    ) -> Self {
        Self { snapshotters, witness, opened: Mutex::default() }
    }

    async fn open(&self, location: &str) -> Opened {
        let cell = {
            let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(opened.entry(location.to_owned()).or_default())
        };
        cell.get_or_init(|| self.open_patiently(location)).await.clone()
    }

    async fn open_patiently(&self, location: &str) -> Opened {
        let mut pause = FIRST_PAUSE;
        for _ in 1..TRIES {
            match self.snapshotters.open(location).await {
                Err(error) if error.is_retryable => {
                    tracing::warn!("trying again in {pause:?}: {error}");
                }
                opened => return opened,
            }
            sleep(pause).await;
            pause *= 2;
        }
        self.snapshotters.open(location).await
    }
}

/// A volume that is wanted.
pub(super) struct Order<'a> {
    context: &'a Context,
    maker: &'a Maker,
    /// The PersistentVolume, as the backup has it.
    id: &'a ResourceIdentifier,
    snapshot: &'a Snapshot,
    snapshot_id: SnapshotId,
    /// What the PersistentVolume will be called.
    target: &'a str,
    /// Whether it was told that it cannot be shown how it goes.
    is_unseen_told: AtomicBool,
}

/// A PersistentVolume with a volume behind it.
pub(super) struct Filled {
    pub(super) volume: VolumeId,
    pub(super) plugin: String,
    pub(super) value: Value,
}

/// What a plugin answered that was asked for a volume.
enum Answer {
    /// This one.
    Made(VolumeId),
    /// None, for this reason.
    Refused(String),
    /// It was told to stop and has made none.
    Stopped(Break, String),
    /// Nothing: it was told to stop. It may have made one.
    Silent(Break),
    /// Nothing: it has died, or the way to it is lost. It may have made one.
    Lost(bowline_plugin::Error),
}

/// Why a plugin is told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Break {
    /// The restore was cancelled.
    Canceled,
    /// It took longer than operations may.
    TooLong,
    /// The server ends. Another goes on with the restore.
    Leaving,
}

const LEFT_OVER: &str = "a volume that it had begun, if any, may be left over";

impl<'a> Order<'a> {
    pub(super) fn new(
        context: &'a Context,
        maker: &'a Maker,
        id: &'a ResourceIdentifier,
        snapshot: &'a Snapshot,
        target: &'a str,
    ) -> Result<Self, String> {
        let snapshot_id = SnapshotId::new(&snapshot.status.provider_snapshot_id)
            .ok_or("its snapshot has no id")?;
        let is_unseen_told = AtomicBool::new(false);
        Ok(Self { context, maker, id, snapshot, snapshot_id, target, is_unseen_told })
    }

    /// Puts a volume behind a PersistentVolume: what an earlier process had made for it, else a new one.
    pub(super) async fn fill(
        &self,
        value: Value,
        made: Option<VolumeId>,
    ) -> Result<Filled, String> {
        let by = self.maker.open(&self.snapshot.spec.location).await;
        let by = by.map_err(|error| error.to_string())?;
        let volume = match made {
            Some(volume) => {
                // The process that had it made may have ended before it could show that.
                let end = End::Completed(volume.clone());
                self.say(self.maker.witness.ended(&self.making(&by), &end)).await;
                volume
            }
            None => self.make(&by).await?,
        };
        let plugin = by.plugin.to_string();
        let set = self.set(&by, value, &volume).await;
        let value = set.map_err(|error| {
            let snapshot = &self.snapshot_id;
            format!(
                "the plugin {plugin} made the volume {volume} from the snapshot {snapshot}, but \
                 cannot put it behind the PersistentVolume, so that it is left over: {error}"
            )
        })?;
        Ok(Filled { volume, plugin, value })
    }

    fn making(&self, by: &Snapshotter) -> Making {
        Making {
            persistent_volume: self.id.name.clone(),
            target: self.target.to_owned(),
            snapshot: self.snapshot_id.clone(),
            plugin: by.plugin.to_string(),
            began: Timestamp::now(),
        }
    }

    /// Has a volume made, and shows how that goes.
    async fn make(&self, by: &Snapshotter) -> Result<VolumeId, String> {
        let making = self.making(by);
        let deadline = Instant::now() + self.context.request.timeouts.item_operation;
        let answer = self.ask(by, &making, deadline).await?;
        let answer = match answer {
            Answer::Lost(error) if error.code() == Code::Unavailable => {
                self.ask_again(by, &making, deadline, error).await?
            }
            answer => answer,
        };
        let end = self.end_of(&making, answer);
        match end {
            // The process that goes on shows how it ends.
            None => Err("stopped before its volume was made".to_owned()),
            Some(end) => {
                self.say(self.maker.witness.ended(&making, &end)).await;
                match end {
                    End::Completed(volume) => Ok(volume),
                    End::Failed(reason) | End::Canceled(reason) => Err(reason),
                }
            }
        }
    }

    /// What an answer means for the volume; none if that is found out by another process.
    fn end_of(&self, making: &Making, answer: Answer) -> Option<End> {
        let Making { plugin, snapshot, .. } = making;
        let limit = self.context.request.timeouts.item_operation.as_secs();
        let failed = |why: String| {
            format!("the plugin {plugin} made no volume from the snapshot {snapshot}: {why}")
        };
        let canceled = "the restore was canceled";
        let too_long = format!("it took longer than {limit} s");
        Some(match answer {
            Answer::Made(volume) => End::Completed(volume),
            Answer::Refused(error) => End::Failed(failed(error)),
            Answer::Lost(error) => End::Failed(failed(format!("{error}; {LEFT_OVER}"))),
            Answer::Stopped(Break::Canceled, error) => {
                End::Canceled(failed(format!("{canceled}: {error}")))
            }
            Answer::Stopped(Break::TooLong, error) => {
                End::Failed(failed(format!("{too_long}: {error}")))
            }
            Answer::Silent(Break::Canceled) => {
                End::Canceled(failed(format!("{canceled}; {LEFT_OVER}")))
            }
            Answer::Silent(Break::TooLong) => {
                End::Failed(failed(format!("{too_long}; {LEFT_OVER}")))
            }
            Answer::Stopped(Break::Leaving, _) | Answer::Silent(Break::Leaving) => return None,
        })
    }

    /// Asks a second time after the plugin has died, maybe of another volume: alone, so that one that
    /// kills the plugin again takes no other such volume with it.
    async fn ask_again(
        &self,
        by: &Snapshotter,
        making: &Making,
        deadline: Instant,
        error: bowline_plugin::Error,
    ) -> Result<Answer, String> {
        let context = self.context;
        let _alone = context.once.alone().await;
        if context.has_stopped() || Instant::now() >= deadline {
            return Ok(Answer::Lost(error));
        }
        let Making { plugin, snapshot, .. } = making;
        let text = format!(
            "the plugin {plugin} is asked again for a volume from the snapshot {snapshot}: what it \
             had made, if anything, may be left over: {error}"
        );
        context.report.warning(self.id, text);
        self.ask(by, making, deadline).await
    }

    /// Asks for a volume, with a note before and after.
    async fn ask(
        &self,
        by: &Snapshotter,
        making: &Making,
        deadline: Instant,
    ) -> Result<Answer, String> {
        let context = self.context;
        if context.has_stopped() {
            return Err("stopped before its volume was made".to_owned());
        }
        let begun = VolumeBegun {
            block: 0,
            plugin: making.plugin.clone(),
            snapshot: making.snapshot.to_string(),
            item: self.id.clone().into(),
            name: self.target.to_owned(),
        };
        let noted = match &context.notes {
            Some(notes) => Some((notes, notes.begin_volume(begun).await?)),
            None => None,
        };
        let over = CancellationToken::new();
        let answered = async {
            point::pass(Point::CreateVolume);
            let answer = self.call(by, deadline).await;
            point::pass(Point::VolumeCreated);
            if let Some((notes, number)) = noted {
                match &answer {
                    Answer::Made(volume) => notes.end_volume(number, Some(volume)).await,
                    Answer::Refused(_) | Answer::Stopped(..) => {
                        notes.end_volume(number, None).await;
                    }
                    // Nobody knows.
                    Answer::Silent(_) | Answer::Lost(_) => {}
                }
            }
            over.cancel();
            answer
        };
        let (answer, ()) = tokio::join!(answered, self.tell(by, making, &over));
        Ok(answer)
    }

    async fn call(&self, by: &Snapshotter, deadline: Instant) -> Answer {
        let spec = &self.snapshot.spec;
        let info = VolumeInfo { volume_type: spec.volume_type.clone(), iops: spec.volume_iops };
        let call = by.calls.create_volume_from_snapshot(&self.snapshot_id, &info, &spec.volume_az);
        let mut call = std::pin::pin!(call);
        let why = tokio::select! {
            biased;
            made = &mut call => return answer(made, None),
            why = self.broken_off(deadline) => why,
        };
        tracing::warn!(item = %self.id, "the plugin {} is told to stop: {why:?}", by.plugin);
        let stopping = async {
            let asked = timeout(CANCEL_LIMIT, by.calls.cancel(&self.snapshot_id)).await;
            if !matches!(asked, Ok(Ok(()))) {
                tracing::warn!(item = %self.id, "the plugin {} did not hear that", by.plugin);
            }
            sleep(LAST_WORD).await;
        };
        tokio::select! {
            biased;
            made = &mut call => answer(made, Some(why)),
            () = stopping => Answer::Silent(why),
        }
    }

    /// Waits until there is a reason not to wait for the plugin any longer.
    async fn broken_off(&self, deadline: Instant) -> Break {
        let leaving = async {
            self.context.stop.cancelled().await;
            sleep(LAST_CHANCE).await;
        };
        tokio::select! {
            biased;
            () = self.context.cancel.cancelled() => Break::Canceled,
            () = sleep_until(deadline) => Break::TooLong,
            () = leaving => Break::Leaving,
        }
    }

    /// Tells how it goes until it is over. What the witness has begun to show, it shows to the end, so
    /// that nothing of it comes after what it is told next.
    async fn tell(&self, by: &Snapshotter, making: &Making, over: &CancellationToken) {
        let witness = &self.maker.witness;
        self.say(witness.began(making)).await;
        let (mut errors, mut told) = (0, None);
        // One that does not tell how it goes may show it in another way.
        let (mut is_asked, mut pause) = (true, PROGRESS_PAUSE);
        loop {
            let asked = async {
                sleep(pause).await;
                if !is_asked {
                    return None;
                }
                Some(timeout(PROGRESS_LIMIT, by.calls.progress(&self.snapshot_id)).await)
            };
            let Some(asked) = over.run_until_cancelled(asked).await else { return };
            match asked {
                None => pause = (pause * 2).min(LONGEST_PAUSE),
                Some(Ok(Ok(progress))) => {
                    errors = 0;
                    self.tell_progress(making, &progress, &mut told).await;
                }
                Some(Ok(Err(error)))
                    if matches!(error.class(), Class::Unimplemented | Class::Permanent) =>
                {
                    tracing::debug!(item = %self.id, "no progress is told: {error}");
                    is_asked = false;
                }
                Some(Ok(Err(_)) | Err(_)) => {
                    errors += 1;
                    is_asked = errors < PROGRESS_ERRORS;
                }
            }
            self.say(witness.goes_on(making)).await;
        }
    }

    /// Lets the witness show how far a plugin is, if that is news.
    async fn tell_progress(
        &self,
        making: &Making,
        progress: &Progress,
        told: &mut Option<(i64, i64)>,
    ) {
        let witness = &self.maker.witness;
        let (bytes, units) = (Bytes::of(progress), Units::of(progress));
        let amount = bytes.map(|bytes| (bytes.done, bytes.total));
        let amount = amount.or(units.as_ref().map(|units| (units.done, units.total)));
        if amount.is_none() || amount == *told {
            return;
        }
        *told = amount;
        if let Some(bytes) = bytes {
            self.say(witness.progressed(making, bytes)).await;
        } else if let Some(units) = units {
            self.say(witness.counted(making, &units)).await;
        }
    }

    /// Lets the witness show something. That it cannot is told once for a volume.
    async fn say(&self, said: impl Future<Output = Result<(), String>>) {
        let error = match timeout(PROGRESS_LIMIT, said).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => format!("no answer within {} s", PROGRESS_LIMIT.as_secs()),
        };
        if self.is_unseen_told.swap(true, Ordering::Relaxed) {
            tracing::debug!(item = %self.id, "its VolumePluginRestore cannot be written: {error}");
            return;
        }
        let text = format!("its VolumePluginRestore cannot be written: {error}");
        self.context.report.warning(self.id, text);
    }

    /// Puts a volume behind a PersistentVolume. That may be done twice.
    async fn set(
        &self,
        by: &Snapshotter,
        value: Value,
        volume: &VolumeId,
    ) -> Result<Value, String> {
        let item = Item::from_object(&value).map_err(|error| error.to_string())?;
        let mut pause = FIRST_PAUSE;
        let mut tries = 1..TRIES;
        let set = loop {
            match by.calls.set_volume_id(&item, volume).await {
                Err(error) if error.class() == Class::Transient && tries.next().is_some() => {
                    tracing::warn!(item = %self.id, "trying again in {pause:?}: {error}");
                    sleep(pause).await;
                    pause *= 2;
                }
                set => break set.map_err(|error| error.to_string())?,
            }
        };
        let changed: Value = set.parse().map_err(|error| error.to_string())?;
        // What it becomes is written with the rights of the server.
        let is_same = |field: &str| changed.get(field) == value.get(field);
        if is_same("kind") && is_same("apiVersion") {
            Ok(changed)
        } else {
            Err("it returned something that is no PersistentVolume".to_owned())
        }
    }
}

fn answer(made: bowline_plugin::Result<VolumeId>, told_to_stop: Option<Break>) -> Answer {
    match (made, told_to_stop) {
        (Ok(volume), _) => Answer::Made(volume),
        (Err(error), None) if is_lost(&error) => Answer::Lost(error),
        (Err(error), Some(why)) if is_lost(&error) => Answer::Silent(why),
        (Err(error), None) => Answer::Refused(error.to_string()),
        (Err(error), Some(why)) => Answer::Stopped(why, error.to_string()),
    }
}

/// Whether an error is not the plugin's answer but the lack of one. One that never reached it is none
/// of these.
fn is_lost(error: &bowline_plugin::Error) -> bool {
    matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded) && !error.is_undelivered()
}
