//! What happens in a simulation: a function of its seed.

use std::time::Duration;

use bowline_engine::failpoint::Failpoint;
use serde_json::{Value, json};

use crate::fault::{Fault, FaultKind};
use crate::plugins::PROVIDERS;
use crate::pods::{FREEZE, THAW};
use crate::prng::Prng;
use crate::world::Kill;

/// Namespace of the server.
pub(crate) const NAMESPACE: &str = "velero";
/// Applications that are backed up.
pub(crate) const APPS: [&str; 3] = ["app-a", "app-b", "app-c"];
/// Namespace into which is restored.
pub(crate) const RESTORED: &str = "restored";
/// Backup that is restored.
pub(crate) const BASE: &str = "base";
const SNAPSHOT_LOCATION: &str = "disks";
/// Most faults begin within this time.
const BUSY_SECONDS: u64 = 240;

/// When something is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// After so many seconds.
    At(u64),
    /// When the run of this kind and name has ended.
    Ended(&'static str, String),
}

/// Something that a user does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UserAction {
    Create(Value),
    Cancel(&'static str, String),
    DeleteBackup(String),
    /// With `kubectl delete`, so that only the Backup is deleted.
    Remove(String),
}

/// What users do, what goes wrong, and when servers are killed.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) user_actions: Vec<(Moment, UserAction)>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) kills: Vec<Kill>,
    /// Workers of a backup, and backups and restores at a time.
    pub(crate) workers: usize,
    pub(crate) concurrent_runs: usize,
    /// The next server has the identity of the one before, and need not wait for its lease.
    pub(crate) keeps_identity: bool,
    provider: &'static str,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Prng::new(seed);
        let mut user_actions = Vec::new();
        let mut names = vec![BASE.to_owned()];
        let extra = random.between(2, 4);
        names.extend((1..=extra).map(|number| format!("backup-{number}")));
        for (place, name) in names.iter().enumerate() {
            let at = if place == 0 { 2 } else { random.between(1, 150) };
            let app = if place == 0 { APPS[0] } else { random.pick(&APPS) };
            let spec = json!({
                "includedNamespaces": [app], "snapshotVolumes": true,
                "volumeSnapshotLocations": [SNAPSHOT_LOCATION],
            });
            user_actions.push((Moment::At(at), UserAction::Create(object("Backup", name, spec))));
        }
        let spec = json!({"backupName": BASE, "namespaceMapping": {APPS[0]: RESTORED}});
        let restore = UserAction::Create(object("Restore", "restore", spec));
        user_actions.push((Moment::Ended("Backup", BASE.to_owned()), restore));
        let doomed = names[1].clone();
        let moment = if random.percent(50) {
            Moment::Ended("Backup", doomed.clone())
        } else {
            Moment::At(random.between(20, 200))
        };
        user_actions.push((moment, UserAction::DeleteBackup(doomed)));
        if random.percent(50) {
            let target = if random.percent(30) {
                ("Restore", "restore".to_owned())
            } else {
                ("Backup", names[2].clone())
            };
            user_actions
                .push((Moment::At(random.between(3, 200)), UserAction::Cancel(target.0, target.1)));
        }
        if random.percent(30) {
            user_actions
                .push((Moment::At(random.between(3, 60)), UserAction::Remove(names[2].clone())));
        }
        let faults = (0..random.between(3, 6)).map(|_| fault(&mut random)).collect();
        let kills = (0..random.between(1, 4)).map(|_| kill(&mut random)).collect();
        Self {
            user_actions,
            faults,
            kills,
            workers: usize::try_from(random.between(1, 3)).unwrap_or(1),
            concurrent_runs: usize::try_from(random.between(1, 3)).unwrap_or(1),
            keeps_identity: random.percent(70),
            provider: random.pick(&PROVIDERS),
        }
    }

    /// Objects that exist before the first server does.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let definitions = bowline_api::crds::all().into_iter();
        let mut all: Vec<Value> = definitions
            .filter_map(|definition| {
                let mut value = serde_json::to_value(definition).ok()?;
                value["kind"] = json!("CustomResourceDefinition");
                Some(value)
            })
            .collect();
        for name in [NAMESPACE].iter().chain(&APPS) {
            all.push(json!({"kind": "Namespace", "metadata": {"name": name}}));
        }
        let location = json!({
            "provider": "simulated", "default": true, "objectStorage": {"bucket": "bucket"},
        });
        all.push(object("BackupStorageLocation", "default", location));
        let location = json!({"provider": self.provider});
        all.push(object("VolumeSnapshotLocation", SNAPSHOT_LOCATION, location));
        for app in APPS {
            add_application(app, &mut all);
        }
        all
    }
}

/// Object in the server's namespace.
fn object(kind: &str, name: &str, spec: Value) -> Value {
    let mut object = json!({"kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}});
    object["spec"] = spec;
    object
}

/// Objects of an application, each as its resource and name.
pub(crate) fn contents(app: &str) -> Vec<(&'static str, String)> {
    let numbered = |resource, word: &str, count: u32| {
        let names = (1..=count).map(|number| format!("{app}-{word}-{number}"));
        names.map(|name| (resource, name)).collect::<Vec<_>>()
    };
    let mut all = numbered("configmaps", "map", 3);
    all.extend(numbered("pods", "pod", 2));
    all.extend(numbered("persistentvolumeclaims", "claim", 2));
    all
}

/// Two pods with hooks, each with a volume, and some ConfigMaps.
fn add_application(app: &str, all: &mut Vec<Value>) {
    for number in 1..=3 {
        all.push(json!({
            "kind": "ConfigMap",
            "metadata": {"name": format!("{app}-map-{number}"), "namespace": app},
            "data": {"number": number.to_string()},
        }));
    }
    for number in 1..=2 {
        let (pod, claim) = (format!("{app}-pod-{number}"), format!("{app}-claim-{number}"));
        let volume = format!("{app}-volume-{number}");
        all.push(json!({
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "simulated",
                "csi": {"driver": "simulated.io", "volumeHandle": format!("{volume}-disk")},
            },
        }));
        all.push(json!({
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim, "namespace": app},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "simulated",
                "resources": {"requests": {"storage": "1Gi"}}, "volumeName": volume,
            },
        }));
        let command = |word: &str| json!([word]).to_string();
        all.push(json!({
            "kind": "Pod",
            "metadata": {"name": pod, "namespace": app, "annotations": {
                "pre.hook.backup.velero.io/command": command(FREEZE),
                "post.hook.backup.velero.io/command": command(THAW),
            }},
            "spec": {
                "containers": [{
                    "name": "main", "image": "app",
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            },
        }));
    }
}

fn fault(random: &mut Prng) -> Fault {
    let kind = random.pick(FaultKind::ALL);
    let begin = random.between(1, BUSY_SECONDS);
    let (longest, chance) = match kind {
        // Enough to lose the lease now and then.
        FaultKind::ApiPartition => (40, 100),
        FaultKind::ApiError | FaultKind::ApiLostAnswer | FaultKind::ApiSlow => {
            (60, random.between(5, 50))
        }
        FaultKind::BucketHang | FaultKind::BucketFull | FaultKind::BucketRefuses => {
            (400, random.pick(&[30, 100]))
        }
        FaultKind::BucketError | FaultKind::BucketLostAnswer | FaultKind::BucketSlow => {
            (300, random.pick(&[20, 50, 100]))
        }
        FaultKind::PluginError
        | FaultKind::PluginLostAnswer
        | FaultKind::PluginSlow
        | FaultKind::PluginHang
        | FaultKind::PluginLies => (200, random.between(10, 60)),
        FaultKind::ExecError | FaultKind::ExecLostAnswer | FaultKind::ExecHang => {
            (120, random.pick(&[30, 100]))
        }
        FaultKind::LeaseTaken => (1, 100),
        FaultKind::ClockJump => (600, 100),
    };
    let end = begin + random.between(1, longest);
    Fault { kind, begin: Duration::from_secs(begin), end: Duration::from_secs(end), chance }
}

fn kill(random: &mut Prng) -> Kill {
    match random.below(10) {
        0..4 => Kill::Step(random.between(40, 1500)),
        4..9 => {
            let passing = u32::try_from(random.between(1, 3)).unwrap_or(1);
            Kill::Point(random.pick(Failpoint::ALL), passing)
        }
        _ => Kill::After(random.between(1, 200)),
    }
}
