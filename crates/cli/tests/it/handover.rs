//! Two servers of which the one that works is killed, or paused past its Lease, again and again.
//!
//! What is true is read from the API server and from the bucket, and never from what the servers say. Where a
//! server is when it is interrupted is chosen at random, or by the request that it has just sent to the bucket:
//! the one that matters most is the commit.
//!
//! `BOWLINE_TEST_SEED` repeats the choices of a run.

mod bucket;
mod history;
mod late;
mod pair;
mod plan;
mod tap;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::time::{Duration, Instant};

use bowline_api::{Backup, BackupPhase, BackupStorageLocation, Schedule};
use bowline_testbed::{Bed, S3, s3};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::cluster::{Place, cluster};
use bucket::{Bucket, backup_of};
use history::History;
use pair::Pair;
use plan::{Dice, KILLS, Moment, PAUSES, RECORD};
use tap::Fate;

/// How long anything may take. The machine may be compiling beside us.
const LIMIT: Duration = Duration::from_mins(2);
const NAMESPACE: &str = "handover";
const BUCKET: &str = "handover";
/// The Schedules, how often each is due, and what it backs up.
const SCHEDULES: [(&str, i64, &str); 3] = [
    ("three", 3, "handover-left"),
    ("four", 4, "handover-right"),
    // It has to wait for both now and then.
    ("five", 5, "handover-left,handover-right"),
];
/// How many config maps each application has.
const MAPS: usize = 20;
/// How long a server is left alone before it is interrupted at a random moment, at most.
const ALONE: Duration = Duration::from_millis(1500);
/// How long a server whose request was broken off is left alone, at most.
const BEFORE_RETRY: Duration = Duration::from_millis(80);

/// Waits for something, for a while.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "hand-overs: {line}");
}

/// What the servers work on.
struct World {
    place: Place,
    bucket: Bucket,
    history: History,
}

impl World {
    fn set_up(s3: &S3) -> Self {
        let place = cluster().place(NAMESPACE);
        let bucket = Bucket(s3.create_bucket(BUCKET).unwrap());
        let history = History::of(&place);
        let credentials = std::fs::read_to_string(s3.credentials_file()).unwrap();
        cluster().apply(json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "s3", "namespace": NAMESPACE},
            "stringData": {"cloud": credentials},
        }));
        let config = json!({"region": s3::REGION, "s3ForcePathStyle": "true", "s3Url": s3.url()});
        place.put(
            "BackupStorageLocation",
            "default",
            json!({"spec": {
                "provider": "aws", "default": true, "objectStorage": {"bucket": BUCKET},
                "credential": {"name": "s3", "key": "cloud"}, "config": config,
            }}),
        );
        for app in ["handover-left", "handover-right"] {
            cluster().apply(json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": app},
            }));
            for number in 0..MAPS {
                cluster().apply(json!({
                    "apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "v"},
                    "metadata": {"name": format!("m{number}"), "namespace": app},
                }));
            }
        }
        Self { place, bucket, history }
    }

    fn schedule(&self) {
        for (name, pause, apps) in SCHEDULES {
            let apps: Vec<&str> = apps.split(',').collect();
            let spec = json!({
                "schedule": format!("@every {pause}s"), "skipImmediately": false,
                "template": {"includedNamespaces": apps, "includedResources": ["configmaps"]},
            });
            self.place.put("Schedule", name, json!({"spec": spec}));
        }
    }

    fn backups(&self) -> Vec<Backup> {
        let api = self.place.api::<Backup>();
        cluster().runtime.block_on(api.list(&ListParams::default())).unwrap().items
    }

    /// The versions of the Backups that have ended.
    fn ended(&self) -> BTreeMap<String, String> {
        let ended = self.backups().into_iter().filter(|backup| {
            let phase = backup.status.as_ref().and_then(|status| status.phase.as_ref());
            phase.is_some_and(BackupPhase::is_terminal)
        });
        ended.map(|backup| (backup.name_any(), backup.resource_version().unwrap())).collect()
    }

    /// Waits until each Schedule has done its work once more.
    fn until_schedules_go_on(&self, pair: &mut Pair<'_>) {
        let before = SCHEDULES.map(|(name, ..)| self.history.notes(name));
        until("each schedule goes on", || {
            pair.roles();
            let now = SCHEDULES.map(|(name, ..)| self.history.notes(name));
            now.iter().zip(&before).all(|(now, before)| now > before).then_some(())
        });
    }

    /// Waits until another backup has ended, and the one that a server was interrupted in, if any.
    fn until_another_ends(&self, interrupted: Option<&str>) {
        let before = self.ended().len();
        until("the other goes on with backups", || {
            let now = self.ended();
            let is_there = interrupted.is_none_or(|name| now.contains_key(name));
            (is_there && now.len() > before).then_some(())
        });
    }
}

/// A server has lost the Lease before it was interrupted.
struct TooLate;

/// Lets a server come to a moment. Returns the backup that it is at, as far as that is known.
fn come_to(
    moment: Moment,
    pair: &mut Pair<'_>,
    leader: usize,
    dice: &mut Dice,
) -> Result<Option<String>, TooLate> {
    let (Moment::Sent(trap) | Moment::TriesAgain(trap) | Moment::Late(trap)) = moment else {
        std::thread::sleep(dice.time(ALONE));
        return if pair.leads(leader) { Ok(None) } else { Err(TooLate) };
    };
    pair.servers[leader].tap.set(trap);
    let deadline = Instant::now() + LIMIT;
    loop {
        let caught = pair.servers[leader].tap.caught(Duration::from_millis(100));
        if let Some(path) = caught {
            let key = path.strip_prefix(&format!("/{BUCKET}/")).unwrap();
            return Ok(Some(backup_of(key).unwrap().to_owned()));
        }
        if !pair.leads(leader) {
            pair.servers[leader].tap.release(Fate::GoOn);
            return Err(TooLate);
        }
        assert!(Instant::now() < deadline, "no server comes to {moment:?}");
    }
}

/// Kills the server that works. Returns whether it came to that.
fn kill(world: &World, pair: &mut Pair<'_>, moment: Moment, dice: &mut Dice) -> bool {
    let (leader, other) = pair.roles();
    if come_to(moment, pair, leader, dice).is_err() {
        return false;
    }
    let was_killed = pair.servers[leader].kill();
    pair.servers[leader].tap.release(Fate::Break);
    pair.until_leads(other);
    pair.start_again(leader);
    // Now and then the next one follows at once.
    if dice.below(2) == 0 {
        world.until_another_ends(None);
    }
    was_killed
}

/// Pauses the server that works for longer than its Lease. Returns whether it came to that.
fn pause(world: &World, pair: &mut Pair<'_>, moment: Moment, dice: &mut Dice) -> bool {
    let (leader, other) = pair.roles();
    let Ok(interrupted) = come_to(moment, pair, leader, dice) else { return false };
    if let Moment::TriesAgain(_) = moment {
        pair.servers[leader].tap.release(Fate::Break);
        // It has to notice, and waits for a tenth of a second before it tries again.
        std::thread::sleep(dice.time(BEFORE_RETRY));
    }
    pair.servers[leader].signal(Signal::SIGSTOP);
    if let Moment::Sent(_) = moment {
        pair.servers[leader].tap.release(Fate::Break);
    }
    pair.until_leads(other);
    world.until_another_ends(interrupted.as_deref());

    let ended = world.ended();
    let objects = world.bucket.of(&ended);
    let goes_on = Instant::now();
    if let Moment::Late(_) = moment {
        pair.servers[leader].tap.release(Fate::GoOn);
    }
    pair.servers[leader].signal(Signal::SIGCONT);
    pair.servers[leader].until_it_ends();
    let sent = pair.servers[leader].tap.writes();
    let judged = late::judge(&sent, goes_on, BUCKET, &ended);
    judged.unwrap_or_else(|wrong| panic!("{moment:?}: {wrong}"));
    assert_eq!(world.bucket.of(&ended), objects, "{moment:?}: {interrupted:?} was written again");
    let mut now = world.ended();
    now.retain(|name, _| ended.contains_key(name));
    assert_eq!(now, ended, "{moment:?}: backups that had ended were changed");
    pair.start_again(leader);
    true
}

#[test]
fn no_hand_over_of_many_misses_doubles_or_spoils_a_backup() {
    let bed = Bed::new().unwrap();
    let s3 = cluster().runtime.block_on(S3::start(&bed)).unwrap();
    let world = World::set_up(&s3);
    let mut dice = Dice::from_environment();
    let mut pair = Pair::start(&world.place, &bed);
    until("the location is available", || {
        let status = world.place.get::<BackupStorageLocation>("default").status?;
        (status.phase?.as_str() == "Available").then_some(())
    });
    world.schedule();
    world.until_schedules_go_on(&mut pair);

    let (kills, pauses) = (dice.shuffled(&KILLS), dice.shuffled(&PAUSES));
    let began = Instant::now();
    for (at_kill, at_pause) in kills.into_iter().zip(pauses) {
        until("a server can be killed", || {
            kill(&world, &mut pair, at_kill, &mut dice).then_some(())
        });
        until("a server can be paused", || {
            pause(&world, &mut pair, at_pause, &mut dice).then_some(())
        });
    }
    let interruptions = KILLS.len() + PAUSES.len();
    world.until_schedules_go_on(&mut pair);
    say(&format!(
        "{interruptions} interruptions in {} s, and {} by themselves",
        began.elapsed().as_secs(),
        pair.lost
    ));

    let rest = Patch::Merge(json!({"spec": {"paused": true}}));
    for (name, ..) in SCHEDULES {
        let api = world.place.api::<Schedule>();
        let params = PatchParams::default();
        let patched = api.patch(name, &params, &rest);
        cluster().runtime.block_on(patched).unwrap();
    }
    until("every backup has ended, and nothing is left of their runs", || {
        pair.roles();
        let own = |name: &String| name != "kube-root-ca.crt";
        let journals = world.place.names::<ConfigMap>().into_iter().filter(own).count();
        let scratch = world.bucket.objects().into_keys().find(|key| backup_of(key).is_none());
        let are_over = world.ended().len() == world.backups().len();
        (are_over && journals == 0 && scratch.is_none()).then_some(())
    });
    world.history.each_backup_ends_once();
    for (name, pause, _) in SCHEDULES {
        let kept = world.history.keeps_its_times(name, pause);
        say(&format!("{name}: {kept:?}"));
        assert!(kept.backups > 0 && kept.not_noted <= interruptions + pair.lost, "{kept:?}");
    }
    are_as_they_say(&world, &pair);
}

/// Every Backup has its files, complete and committed once, and there are no others.
fn are_as_they_say(world: &World, pair: &Pair<'_>) {
    let backups = world.backups();
    let names: BTreeSet<String> = backups.iter().map(kube::ResourceExt::name_any).collect();
    let objects = world.bucket.objects();
    let stored: BTreeSet<String> =
        objects.keys().filter_map(|key| backup_of(key)).map(str::to_owned).collect();
    assert_eq!(stored, names);
    let mut commits = BTreeMap::<String, usize>::new();
    for write in pair.servers.iter().flat_map(|server| server.tap.writes()) {
        if let Some(folder) = write.path.strip_suffix(RECORD)
            && write.method == "PUT"
            && (200..300).contains(&write.status)
        {
            *commits.entry(folder.rsplit('/').next().unwrap().to_owned()).or_default() += 1;
        }
    }
    for backup in backups {
        let name = backup.name_any();
        assert_eq!(commits.get(&name), Some(&1), "{name} was committed so often");
        let apps = backup.spec.included_namespaces.iter();
        let maps = apps.flat_map(|app| (0..MAPS).map(move |number| format!("{app}/m{number}")));
        world.bucket.has(&backup, &maps.collect());
    }
}
