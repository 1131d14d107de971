//! A cluster is switched from real Velero to Bowline with the same plugins and flags, and back.

mod application;
pub(crate) mod stage;

use std::collections::BTreeSet;

use bowline_api::{Backup, Schedule};
use bowline_testbed::program::Program;
use bowline_testbed::{Velero, s3, velero};
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::{Value, json};

use application::Application;
use stage::{MigrationEnv, Server};

/// The flags that Velero's server has in its Deployment. Two of them mean nothing to ours.
const FLAGS: [&str; 12] = [
    "--client-qps=50",
    "--client-burst=60",
    "--uploader-type=kopia",
    "--default-backup-ttl=48h",
    "--default-volume-snapshot-locations=aws:disks",
    "--backup-sync-period=2s",
    "--store-validation-frequency=2s",
    "--garbage-collection-frequency=30m",
    "--item-block-worker-count=2",
    "--log-level=debug",
    "--log-format=json",
    "--metrics-address=127.0.0.1:0",
];
/// Flags that carry over.
const SUPPORTED_FLAG_COUNT: usize = FLAGS.len() - 2;
/// The image of the plugin that both servers have.
const PLUGIN: &str = "velero/velero-plugin-for-aws:v1.14.3";
/// A schedule that becomes due during the test, and one that does not.
const OFTEN: &str = "often";
const HOURLY: &str = "hourly";
/// The namespace of which [`OFTEN`] makes backups.
const OFFICE: &str = "office";
/// Namespaces with a claim that a plugin takes its time for: ten minutes, and one after the backup, half
/// of one within it.
const SLOW: &str = "app-slow";
const WAITING: &str = "app-begun";
const MIDDLE: &str = "app-middle";

#[test]
fn cluster_migrates_from_velero_to_bowline_and_back() {
    let env = MigrationEnv::start(&[Program::VeleroPluginForAws, Program::FixturePlugins]);
    let application = Application::create(&env);
    create_other_namespaces(&env);
    let before = application::objects(&env);

    let running = env.start_velero(&FLAGS);
    deploy_velero(&env, 1);
    use_velero(&env, &running, &application);
    let by_velero = wait_for_scheduled_backup(&env, &BTreeSet::new());
    assert_refused_beside_velero(&env);
    let (install, flags) = run_migrate_check(&env);
    start_backups_with_velero(&env, &running);

    env.kubectl(&["scale", "deployment", "velero", "-n", velero::NAMESPACE, "--replicas=0"]);
    drop(running);
    env.ok(&install.iter().map(String::as_str).collect::<Vec<_>>());
    let server = env.start_bowline(&flags);
    assert_expired_backup_deleted(&env, &application);
    assert_velero_objects_shown(&env, &application);
    application.delete_all(&env);
    env.ok(&["restore", "create", "back", "--from-backup=by-velero", "--wait"]);
    assert_eq!(application::objects(&env), before);
    application.assert_data_restored(&env);
    use_bowline(&env);
    for name in ["begun", "middle"] {
        wait_for_phase(&env, name, "Completed");
    }
    assert_refused_with_active_run(&env);
    let by_bowline = wait_for_scheduled_backup(&env, &by_velero);
    switch_back(&env, server);

    let running = env.start_velero(&FLAGS);
    deploy_velero(&env, 1);
    assert_velero_shows_backups(&env, &running);
    application.delete_all(&env);
    let from = ["restore", "create", "forth", "--from-backup=by-bowline", "--wait"];
    env.velero(&running, &from);
    let listed = env.velero(&running, &["restore", "get", "forth"]);
    assert!(listed.contains("Completed"), "{listed}");
    assert_eq!(application::objects(&env), before);
    application.assert_data_restored(&env);
    wait_for_scheduled_backup(&env, &by_bowline);
    env.velero(&running, &["backup", "delete", "by-bowline", "--confirm"]);
    application.wait_until_backup_deleted(&env, "by-bowline");
}

fn create_other_namespaces(env: &MigrationEnv) {
    for name in [OFFICE, SLOW, WAITING, MIDDLE] {
        env.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    }
    env.apply(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "desk", "namespace": OFFICE}, "data": {"drawer": "full"},
    }));
    for (namespace, verb) in
        [(SLOW, "operation=600000"), (WAITING, "operation=60000"), (MIDDLE, "sleep=30000")]
    {
        env.apply(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": "data", "namespace": namespace,
                "annotations": {"fixture.bowline.io/do": verb},
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
                "resources": {"requests": {"storage": "1Mi"}},
            },
        }));
    }
}

/// The Deployment of Velero's server. There is no node for its pods, so the server runs beside the cluster.
fn deploy_velero(env: &MigrationEnv, replicas: i32) {
    let labels = json!({"deploy": "velero"});
    let arguments: Vec<&str> = std::iter::once("server").chain(FLAGS).collect();
    env.apply(json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "velero", "namespace": velero::NAMESPACE},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "initContainers": [{"name": "aws", "image": PLUGIN}],
                    "containers": [{
                        "name": "velero", "image": "velero/velero:v1.18.3",
                        "command": ["/velero"], "args": arguments,
                    }],
                },
            },
        },
    }));
}

/// Locations, schedules, backups and a restore, all made with Velero's own commands.
fn use_velero(env: &MigrationEnv, running: &Velero, application: &Application) {
    env.s3.create_bucket("offsite").unwrap();
    let config =
        format!("--config=region={},s3ForcePathStyle=true,s3Url={}", s3::REGION, env.s3.url());
    let velero = |arguments: &[&str]| env.velero(running, arguments);
    velero(&[
        "backup-location",
        "create",
        "offsite",
        "--provider=aws",
        "--bucket=offsite",
        "--prefix=main",
        &config,
    ]);
    application.create_snapshot_secret(env);
    velero(&[
        "snapshot-location",
        "create",
        "disks",
        "--provider=aws",
        &format!("--config=region={}", s3::REGION),
        "--credential=ec2=cloud",
    ]);
    velero(&[
        "schedule",
        "create",
        HOURLY,
        "--schedule=@every 1h",
        "--include-namespaces=office",
        "--use-owner-references-in-backup",
        "--ttl=24h",
    ]);
    let office = format!("--include-namespaces={OFFICE}");
    velero(&["schedule", "create", OFTEN, "--schedule=* * * * *", &office]);
    env.eventually("the other location is available", || {
        velero(&["backup-location", "get", "offsite"]).contains("Available").then_some(())
    });
    let shop = format!("--include-namespaces={}", application::NAMESPACE);
    for (name, flags) in [
        ("by-velero", &[shop.as_str()][..]),
        ("brief", &[&shop, "--ttl=1s"]),
        ("away", &[&shop, "--storage-location=offsite", "--snapshot-volumes=false"]),
        ("of-hourly", &["--from-schedule=hourly"]),
    ] {
        velero(&[&["backup", "create", name, "--wait"], flags].concat());
        let listed = velero(&["backup", "get", name]);
        assert!(listed.contains("Completed"), "{listed}");
    }
    velero(&[
        "restore",
        "create",
        "copy",
        "--from-backup=by-velero",
        "--namespace-mappings=shop:copy",
        "--restore-volumes=false",
        "--wait",
    ]);
    assert_eq!(application.snapshots().len(), 2);
}

/// Waits for a backup of the schedule that is not among the known ones, and returns all of them. No
/// minute has two.
fn wait_for_scheduled_backup(env: &MigrationEnv, previous: &BTreeSet<String>) -> BTreeSet<String> {
    let backups_of_schedule = |schedule: &str| {
        let params = ListParams::default().labels(&format!("velero.io/schedule-name={schedule}"));
        env.runtime.block_on(env.api::<Backup>().list(&params)).unwrap().items
    };
    let new = env.eventually("the schedule has made another backup", || {
        let is_new = |backup: &Backup| {
            let phase = backup.status.as_ref().and_then(|status| status.phase.as_ref());
            phase.is_some_and(|phase| phase.as_str() == "Completed")
                && !previous.contains(&backup.name_any())
        };
        backups_of_schedule(OFTEN).into_iter().find(is_new)
    });
    let all: BTreeSet<String> =
        backups_of_schedule(OFTEN).iter().map(kube::ResourceExt::name_any).collect();
    assert!(previous.is_subset(&all), "{previous:?} {all:?}");
    // `often-20260115013000`, up to the minute.
    let minutes: BTreeSet<&str> = all.iter().map(|name| &name[..name.len() - 2]).collect();
    assert_eq!(minutes.len(), all.len(), "a time has two backups: {all:?}");
    let schedule: Schedule = env.runtime.block_on(env.api().get(OFTEN)).unwrap();
    let last = schedule.status.unwrap().last_backup.unwrap().0.strftime("%Y%m%d%H%M%S");
    assert!(format!("{OFTEN}-{last}") >= new.name_any(), "{last} {}", new.name_any());
    // The other schedule is not due, for either server.
    let others: Vec<String> =
        backups_of_schedule(HOURLY).iter().map(kube::ResourceExt::name_any).collect();
    assert!(others.iter().all(|name| name.starts_with("of-hourly")), "{others:?}");
    all
}

/// A server of ours does not start where Velero's runs.
fn assert_refused_beside_velero(env: &MigrationEnv) {
    env.eventually("Velero's pod is there", || {
        let pods = env.kubectl(&["get", "pods", "-n", velero::NAMESPACE, "-o", "name"]);
        pods.contains("pod/velero-").then_some(())
    });
    let ended = env.run(&["server", "--plugin-dir=/nowhere", "--metrics-address=0"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    let last = ended.stderr.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("error: ") && last.contains("`velero server` runs"),
        "{}",
        ended.stderr
    );
}

/// Output of `migrate check`: the words of the install command, and the flags that carry over.
fn run_migrate_check(env: &MigrationEnv) -> (Vec<String>, Vec<String>) {
    // A backup of the schedule may be open.
    let text = env.eventually("nothing speaks against the switch", || {
        let ended = env.run(&["migrate", "check"]);
        (ended.code == Some(0)).then_some(ended.stdout)
    });
    let document = env.run(&["migrate", "check", "-o", "json"]).stdout;
    let document: Value = serde_json::from_str(&document).unwrap();
    let findings = document["findings"].as_array().unwrap();
    let with_verdict = |verdict: &str| -> Vec<String> {
        let matching = findings.iter().filter(|finding| finding["verdict"] == verdict);
        matching.map(|finding| finding["what"].as_str().unwrap().to_owned()).collect()
    };
    let carried = with_verdict("carries");
    for what in ["2 schedules", "2 backup locations", "1 snapshot location"] {
        assert!(carried.iter().any(|found| found == what), "{what}: {document:#}");
    }
    assert!(carried.contains(&format!("plugin {PLUGIN}")), "{document:#}");
    let flags: Vec<String> = carried
        .iter()
        .filter_map(|what| what.strip_prefix("server flag "))
        .map(str::to_owned)
        .collect();
    assert_eq!(flags.len(), SUPPORTED_FLAG_COUNT, "{document:#}");
    for flag in &FLAGS[..2] {
        assert!(with_verdict("differs").contains(&format!("server flag {flag}")), "{document:#}");
    }
    let line = text.split('`').find(|part| part.starts_with("bowline install ")).unwrap();
    assert!(line.contains(&flags.join(" ")) && line.contains(PLUGIN), "{line}");
    let words = line.replace("REGISTRY", "registry.example");
    (words.split_whitespace().skip(1).map(str::to_owned).collect(), flags)
}

/// A backup that a plugin is still at work for when Velero is stopped, and one that Velero is in the
/// middle of.
fn start_backups_with_velero(env: &MigrationEnv, running: &Velero) {
    for (name, namespace, phase) in
        [("begun", WAITING, "WaitingForPluginOperations"), ("middle", MIDDLE, "InProgress")]
    {
        let include_flag = format!("--include-namespaces={namespace}");
        env.velero(running, &["backup", "create", name, &include_flag]);
        wait_for_phase(env, name, phase);
        assert_reported_as_active(env, &["migrate", "check"], &format!("backup {name} ({phase})"));
    }
}

/// True if a check fails and names an unfinished run.
fn assert_reported_as_active(env: &MigrationEnv, check: &[&str], expected: &str) {
    let ended = env.run(check);
    assert_eq!(ended.code, Some(1), "{}", ended.stdout);
    assert!(ended.stdout.contains(expected), "{expected}: {}", ended.stdout);
}

/// Waits until a backup is in a phase.
fn wait_for_phase(env: &MigrationEnv, name: &str, phase: &str) {
    env.eventually(&format!("{name} is {phase}"), || {
        let backup: Backup = env.runtime.block_on(env.api().get(name)).unwrap();
        (backup.status?.phase?.as_str() == phase).then_some(())
    });
}

/// An expired backup of Velero is deleted, with its files and its snapshot.
fn assert_expired_backup_deleted(env: &MigrationEnv, application: &Application) {
    application.wait_until_backup_deleted(env, "brief");
    let offsite = env.s3.create_bucket("offsite").unwrap();
    assert!(offsite.join("main/backups/away/velero-backup.json").exists());
}

/// Our commands show what Velero has made.
fn assert_velero_objects_shown(env: &MigrationEnv, application: &Application) {
    let listed = env.ok(&["backup", "get"]);
    for name in ["by-velero", "away", "of-hourly", "often-"] {
        assert!(listed.contains(name), "{name}: {listed}");
    }
    assert!(!listed.contains("brief"), "{listed}");
    let described = env.ok(&["backup", "describe", "by-velero", "--details"]);
    let snapshots = application.snapshots();
    let [snapshot] = snapshots.as_slice() else { panic!("not one: {snapshots:?}") };
    for words in ["Completed", snapshot, "shop/settings", "v1/ConfigMap"] {
        assert!(described.contains(words), "{words}: {described}");
    }
    assert!(env.ok(&["backup", "describe", "away"]).contains("offsite"));
    let logs = env.ok(&["backup", "logs", "by-velero"]);
    assert!(logs.contains("velero/by-velero"), "{logs}");
    let file = env.bed.dir().join("by-velero.tar.gz");
    env.ok(&["backup", "download", "by-velero", "-o", file.to_str().unwrap()]);
    let stored = env.s3.create_bucket(velero::NAMESPACE).unwrap();
    let stored = stored.join("backups/by-velero/by-velero.tar.gz");
    assert!(std::fs::read(file).unwrap() == std::fs::read(stored).unwrap());
    let restored = env.ok(&["restore", "describe", "copy", "--details"]);
    assert!(restored.contains("Completed") && restored.contains("by-velero"), "{restored}");
    env.ok(&["restore", "logs", "copy"]);
    let schedules = env.ok(&["schedule", "get"]);
    assert!(schedules.contains("@every 1h") && schedules.contains("* * * * *"), "{schedules}");
    assert!(env.ok(&["schedule", "describe", HOURLY]).contains("Enabled"));
    let locations = env.ok(&["backup-location", "get"]);
    assert_eq!(locations.matches("Available").count(), 2, "{locations}");
    assert!(env.ok(&["snapshot-location", "get"]).contains("disks"));
}

/// Backups for Velero to find.
fn use_bowline(env: &MigrationEnv) {
    let shop = format!("--include-namespaces={}", application::NAMESPACE);
    env.ok(&["backup", "create", "by-bowline", &shop, "--wait"]);
    env.ok(&["backup", "create", "of-hourly-2", "--from-schedule=hourly", "--wait"]);
    let owners = ["of-hourly", "of-hourly-2"].map(|name| {
        let backup: Backup = env.runtime.block_on(env.api().get(name)).unwrap();
        backup.owner_references().to_vec()
    });
    assert_eq!(owners[0], owners[1]);
    assert_eq!(owners[0].len(), 1);
}

/// The way back is closed until the run is over.
fn assert_refused_with_active_run(env: &MigrationEnv) {
    env.ok(&["backup", "create", "slow", &format!("--include-namespaces={SLOW}")]);
    wait_for_phase(env, "slow", "WaitingForPluginOperations");
    let named = "backup slow (WaitingForPluginOperations)";
    assert_reported_as_active(env, &["migrate", "check", "--back"], named);
    env.ok(&["backup", "cancel", "slow", "--wait"]);
}

fn switch_back(env: &MigrationEnv, server: Server) {
    env.eventually("the way back is open", || {
        let ended = env.run(&["migrate", "check", "--back"]);
        (ended.code == Some(0)).then_some(())
    });
    server.stop(env);
    env.ok(&["uninstall", "--confirm"]);
}

/// Velero's commands show what Bowline has made.
fn assert_velero_shows_backups(env: &MigrationEnv, running: &Velero) {
    let listed = env.velero(running, &["backup", "get"]);
    let line = |name: &str| {
        let mut lines = listed.lines().filter(|line| line.starts_with(&format!("{name} ")));
        lines.next().unwrap_or_else(|| panic!("no {name} in {listed}")).to_owned()
    };
    for name in ["by-velero", "away", "of-hourly", "begun", "middle", "by-bowline", "of-hourly-2"] {
        assert!(line(name).contains("Completed"), "{listed}");
    }
    assert!(line("slow").contains("Failed") && !listed.contains("brief"), "{listed}");
    let describe = ["backup", "describe", "by-bowline", "--details", "--colorized=false"];
    let described = env.velero(running, &describe);
    for words in ["Phase:  Completed", "shop/settings", "Snapshot ID:", "Result:", "succeeded"] {
        assert!(described.contains(words), "{words}: {described}");
    }
    assert!(!env.velero(running, &["backup", "logs", "by-bowline"]).is_empty());
    let restores = env.velero(running, &["restore", "get"]);
    assert!(restores.contains("copy") && restores.contains("back "), "{restores}");
    let schedules = env.velero(running, &["schedule", "get"]);
    assert_eq!(schedules.matches("Enabled").count(), 2, "{schedules}");
    assert!(schedules.contains(HOURLY) && schedules.contains(OFTEN), "{schedules}");
}
