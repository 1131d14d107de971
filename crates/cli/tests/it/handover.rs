//! Two servers, of which the active one is killed, or paused past its Lease, again and again.
//!
//! The truth is read from the API server and the bucket, never from the servers. The instant of an interruption is
//! random, or follows from the request that the server has just sent to the bucket; the most important one is the
//! commit.
//!
//! `BOWLINE_TEST_SEED` repeats the choices of a run.

mod bucket;
mod history;
mod interruptions;
mod late_writes;
mod recording_proxy;
mod server_pair;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::time::{Duration, Instant};

use bowline_api::{Backup, BackupPhase, BackupStorageLocation, Schedule};
use bowline_testbed::{Bed, S3, eventually_blocking, s3};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::cluster::{TestEnv, cluster};
use bucket::{Bucket, backup_name_of};
use history::History;
use interruptions::{InterruptionPoint, KILLS, PAUSES, RECORD, SeededRandom};
use recording_proxy::ReleaseMode;
use server_pair::ServerPair;

/// Time limit of a step. The machine may be busy with a compiler.
const TIMEOUT: Duration = Duration::from_mins(2);
const NAMESPACE: &str = "handover";
const BUCKET: &str = "handover";
/// The Schedules, with their interval and their namespaces.
const SCHEDULES: [(&str, i64, &str); 3] = [
    ("three", 3, "handover-left"),
    ("four", 4, "handover-right"),
    // Each server has to wait for both now and then.
    ("five", 5, "handover-left,handover-right"),
];
/// Number of ConfigMaps of each application.
const CONFIG_MAPS: usize = 20;
/// Longest time before a server is interrupted at a random instant.
const MAX_UNDISTURBED: Duration = Duration::from_millis(1500);
/// Longest time for which a server runs after its request was broken off.
const MAX_RETRY_DELAY: Duration = Duration::from_millis(80);

fn log_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "hand-overs: {line}");
}

/// Cluster and bucket of the servers.
struct World {
    env: TestEnv,
    bucket: Bucket,
    history: History,
}

impl World {
    fn set_up(s3: &S3) -> Self {
        let env = cluster().test_env(NAMESPACE);
        let bucket = Bucket(s3.create_bucket(BUCKET).unwrap());
        let history = History::watch_namespace(&env);
        let credentials = std::fs::read_to_string(s3.credentials_file()).unwrap();
        cluster().apply(json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "s3", "namespace": NAMESPACE},
            "stringData": {"cloud": credentials},
        }));
        let config = json!({"region": s3::REGION, "s3ForcePathStyle": "true", "s3Url": s3.url()});
        env.apply_velero_object(
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
            for number in 0..CONFIG_MAPS {
                cluster().apply(json!({
                    "apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "v"},
                    "metadata": {"name": format!("m{number}"), "namespace": app},
                }));
            }
        }
        Self { env, bucket, history }
    }

    fn create_schedules(&self) {
        for (name, pause, apps) in SCHEDULES {
            let apps: Vec<&str> = apps.split(',').collect();
            let spec = json!({
                "schedule": format!("@every {pause}s"), "skipImmediately": false,
                "template": {"includedNamespaces": apps, "includedResources": ["configmaps"]},
            });
            self.env.apply_velero_object("Schedule", name, json!({"spec": spec}));
        }
    }

    fn backups(&self) -> Vec<Backup> {
        let api = self.env.api::<Backup>();
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
    fn wait_for_schedules(&self, pair: &mut ServerPair<'_>) {
        let before = SCHEDULES.map(|(name, ..)| self.history.advance_count(name));
        eventually_blocking("each schedule goes on", TIMEOUT, || {
            pair.active_and_standby();
            let now = SCHEDULES.map(|(name, ..)| self.history.advance_count(name));
            now.iter().zip(&before).all(|(now, before)| now > before).then_some(())
        });
    }

    /// Waits until another backup has ended, and also the one that a server was interrupted in.
    fn wait_for_another_backup(&self, interrupted: Option<&str>) {
        let before = self.ended().len();
        eventually_blocking("the other goes on with backups", TIMEOUT, || {
            let now = self.ended();
            let is_there = interrupted.is_none_or(|name| now.contains_key(name));
            (is_there && now.len() > before).then_some(())
        });
    }
}

/// A server has lost the Lease before it was interrupted.
struct LeaseLost;

/// Lets a server come to a moment. Returns the backup that it is at, as far as that is known.
fn run_until(
    point: InterruptionPoint,
    pair: &mut ServerPair<'_>,
    active: usize,
    random: &mut SeededRandom,
) -> Result<Option<String>, LeaseLost> {
    let (InterruptionPoint::RequestSent(trap)
    | InterruptionPoint::BeforeRetry(trap)
    | InterruptionPoint::RequestDelayed(trap)) = point
    else {
        std::thread::sleep(random.time(MAX_UNDISTURBED));
        return if pair.is_active(active) { Ok(None) } else { Err(LeaseLost) };
    };
    pair.servers[active].proxy.hold_next(trap);
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let caught = pair.servers[active].proxy.wait_for_held(Duration::from_millis(100));
        if let Some(path) = caught {
            let key = path.strip_prefix(&format!("/{BUCKET}/")).unwrap();
            return Ok(Some(backup_name_of(key).unwrap().to_owned()));
        }
        if !pair.is_active(active) {
            pair.servers[active].proxy.release(ReleaseMode::Forward);
            return Err(LeaseLost);
        }
        assert!(Instant::now() < deadline, "no server comes to {point:?}");
    }
}

/// Kills the server that works. Returns whether it came to that.
fn kill_active(
    world: &World,
    pair: &mut ServerPair<'_>,
    point: InterruptionPoint,
    random: &mut SeededRandom,
) -> bool {
    let (active, standby) = pair.active_and_standby();
    if run_until(point, pair, active, random).is_err() {
        return false;
    }
    let was_killed = pair.servers[active].kill();
    pair.servers[active].proxy.release(ReleaseMode::Disconnect);
    pair.wait_until_active(standby);
    pair.restart(active);
    // Now and then the next one follows at once.
    if random.below(2) == 0 {
        world.wait_for_another_backup(None);
    }
    was_killed
}

/// Pauses the server that works for longer than its Lease. Returns whether it came to that.
fn pause_active(
    world: &World,
    pair: &mut ServerPair<'_>,
    point: InterruptionPoint,
    random: &mut SeededRandom,
) -> bool {
    let (active, standby) = pair.active_and_standby();
    let Ok(interrupted) = run_until(point, pair, active, random) else { return false };
    if let InterruptionPoint::BeforeRetry(_) = point {
        pair.servers[active].proxy.release(ReleaseMode::Disconnect);
        // The server notices the failure, and retries after a tenth of a second.
        std::thread::sleep(random.time(MAX_RETRY_DELAY));
    }
    pair.servers[active].signal(Signal::SIGSTOP);
    if let InterruptionPoint::RequestSent(_) = point {
        pair.servers[active].proxy.release(ReleaseMode::Disconnect);
    }
    pair.wait_until_active(standby);
    world.wait_for_another_backup(interrupted.as_deref());

    let ended = world.ended();
    let objects = world.bucket.objects_of(&ended);
    let resumed_at = Instant::now();
    if let InterruptionPoint::RequestDelayed(_) = point {
        pair.servers[active].proxy.release(ReleaseMode::Forward);
    }
    pair.servers[active].signal(Signal::SIGCONT);
    pair.servers[active].wait_for_end();
    let sent = pair.servers[active].proxy.writes();
    let checked = late_writes::check_late_writes(&sent, resumed_at, BUCKET, &ended);
    checked.unwrap_or_else(|wrong| panic!("{point:?}: {wrong}"));
    assert_eq!(
        world.bucket.objects_of(&ended),
        objects,
        "{point:?}: {interrupted:?} was written again"
    );
    let mut now = world.ended();
    now.retain(|name, _| ended.contains_key(name));
    assert_eq!(now, ended, "{point:?}: backups that had ended were changed");
    pair.restart(active);
    true
}

#[test]
fn repeated_handovers_neither_miss_duplicate_nor_damage_backups() {
    let bed = Bed::new().unwrap();
    let s3 = cluster().runtime.block_on(S3::start(&bed)).unwrap();
    let world = World::set_up(&s3);
    let mut random = SeededRandom::from_environment();
    let mut pair = ServerPair::start(&world.env, &bed);
    eventually_blocking("the location is available", TIMEOUT, || {
        let status = world.env.get::<BackupStorageLocation>("default").status?;
        (status.phase?.as_str() == "Available").then_some(())
    });
    world.create_schedules();
    world.wait_for_schedules(&mut pair);

    let (kills, pauses) = (random.shuffled(&KILLS), random.shuffled(&PAUSES));
    let started = Instant::now();
    for (at_kill, at_pause) in kills.into_iter().zip(pauses) {
        eventually_blocking("a server can be killed", TIMEOUT, || {
            kill_active(&world, &mut pair, at_kill, &mut random).then_some(())
        });
        eventually_blocking("a server can be paused", TIMEOUT, || {
            pause_active(&world, &mut pair, at_pause, &mut random).then_some(())
        });
    }
    let interruptions = KILLS.len() + PAUSES.len();
    world.wait_for_schedules(&mut pair);
    log_line(&format!(
        "{interruptions} interruptions in {} s, and {} by themselves",
        started.elapsed().as_secs(),
        pair.lost_leases
    ));

    let pause_patch = Patch::Merge(json!({"spec": {"paused": true}}));
    for (name, ..) in SCHEDULES {
        let api = world.env.api::<Schedule>();
        let params = PatchParams::default();
        let patched = api.patch(name, &params, &pause_patch);
        cluster().runtime.block_on(patched).unwrap();
    }
    eventually_blocking(
        "every backup has ended, and nothing is left of their runs",
        TIMEOUT,
        || {
            pair.active_and_standby();
            let own = |name: &String| name != "kube-root-ca.crt";
            let journals = world.env.names::<ConfigMap>().into_iter().filter(own).count();
            let scratch =
                world.bucket.objects().into_keys().find(|key| backup_name_of(key).is_none());
            let are_over = world.ended().len() == world.backups().len();
            (are_over && journals == 0 && scratch.is_none()).then_some(())
        },
    );
    world.history.assert_each_backup_ends_once();
    for (name, pause, _) in SCHEDULES {
        let summary = world.history.assert_schedule_is_kept(name, pause);
        log_line(&format!("{name}: {summary:?}"));
        assert!(
            summary.backups > 0 && summary.unrecorded <= interruptions + pair.lost_leases,
            "{summary:?}"
        );
    }
    assert_backups_are_complete(&world, &pair);
}

/// Every Backup has its files, complete and committed once, and there are no others.
fn assert_backups_are_complete(world: &World, pair: &ServerPair<'_>) {
    let backups = world.backups();
    let names: BTreeSet<String> = backups.iter().map(kube::ResourceExt::name_any).collect();
    let objects = world.bucket.objects();
    let stored: BTreeSet<String> =
        objects.keys().filter_map(|key| backup_name_of(key)).map(str::to_owned).collect();
    assert_eq!(stored, names);
    let mut commits = BTreeMap::<String, usize>::new();
    for write in pair.servers.iter().flat_map(|server| server.proxy.writes()) {
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
        let maps =
            apps.flat_map(|app| (0..CONFIG_MAPS).map(move |number| format!("{app}/m{number}")));
        world.bucket.assert_backup_is_complete(&backup, &maps.collect());
    }
}
