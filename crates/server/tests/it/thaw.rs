//! Pods that backups have left frozen, and journals that are kept because of leftovers. No node is needed:
//! the tests check which commands the API server is asked to run, and what the journal records.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bowline_api::{Backup, BackupPhase, label};
use bowline_engine::journal::{BlockStarted, Journal as _, JournalEntry};
use bowline_server::journal::ConfigMapJournal;
use bowline_store::name::RunUid;
use http::{Method, Uri};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt as _;
use kube::api::ListParams;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::bed::{World, eventually, filesystem_spec};
use crate::fault_injection;
use crate::support::operations::OperationWorld;
use crate::support::runs::{is_over, is_waiting};

type Commands = Arc<Mutex<Vec<String>>>;

/// Notes which commands are to be run in pods.
fn recording_commands(
    commands: &Commands,
) -> impl Fn(&Method, &Uri) -> bool + Send + Sync + 'static {
    let commands = Arc::clone(commands);
    move |_, uri| {
        if uri.path().ends_with("/exec") {
            let query = uri.query().unwrap_or_default();
            let words = query.split('&').filter_map(|word| word.strip_prefix("command="));
            let pod = uri.path().rsplit('/').nth(1).unwrap_or_default();
            let command = words.collect::<Vec<_>>().join(" ");
            commands.lock().push(format!("{command} {pod}"));
        }
        false
    }
}

async fn pod(world: &World, name: &str) -> bowline_engine::journal::Pod {
    let containers = json!([{"name": "main", "image": "none"}]);
    let pod = json!({"metadata": {"name": name}, "spec": {"containers": containers}});
    let pod = world.create::<Pod>(pod).await;
    bowline_engine::journal::Pod {
        namespace: world.namespace.clone(),
        name: name.to_owned(),
        uid: pod.uid().unwrap(),
        ..bowline_engine::journal::Pod::default()
    }
}

fn hooks(command: &str) -> Value {
    let post = json!([{"exec": {"command": [command]}}]);
    json!({"resources": [{"name": "quiesce", "post": post}]})
}

/// The journal of a run whose server ended while pods were frozen.
async fn put_journal(
    world: &World,
    uid: &str,
    name: &str,
    pods: Vec<bowline_engine::journal::Pod>,
) {
    let (client, run) = (world.client.clone(), RunUid::new(uid).unwrap());
    let opened = ConfigMapJournal::open(client, &world.namespace, &run, "Backup", name).await;
    let journal = opened.unwrap().0.with_location("away");
    journal
        .append(&JournalEntry::BlockStarted(BlockStarted { pods, ..BlockStarted::default() }))
        .await
        .unwrap();
}

/// Entries of the journal of a run.
async fn read_records(world: &World, uid: &str, name: &str) -> Vec<JournalEntry> {
    let (client, run) = (world.client.clone(), RunUid::new(uid).unwrap());
    ConfigMapJournal::open(client, &world.namespace, &run, "Backup", name).await.unwrap().1
}

/// Size of all pages of a journal. Opening the journal would take it away from the server.
async fn journal_size(world: &World, uid: &str) -> usize {
    let pages = ListParams::default().labels(&format!("{}={uid}", label::JOURNAL));
    let pages = world.api::<ConfigMap>().list(&pages).await.unwrap().items;
    let text =
        pages.iter().flat_map(|page| page.data.iter().flatten()).map(|(_, value)| value.len());
    let packed = pages.iter().flat_map(|page| page.binary_data.iter().flatten());
    text.chain(packed.map(|(_, value)| value.0.len())).sum()
}

#[tokio::test]
async fn frozen_pods_are_thawed_without_bucket_and_backup() {
    let mut world = World::without_server("thaw-away").await;
    // A bucket that cannot be opened: the server serves no folders.
    world.location("away", filesystem_spec("b")).await;
    let (finished, orphaned) =
        (pod(&world, "of-one-that-is-over").await, pod(&world, "of-one-gone").await);
    let spec = json!({"storageLocation": "away", "hooks": hooks("let-go")});
    let status = json!({"phase": "Completed"});
    let backup = json!({"metadata": {"name": "over"}, "spec": spec, "status": status});
    let backup = world.create::<Backup>(backup).await.uid().unwrap();
    put_journal(&world, &backup, "over", vec![finished]).await;
    // The hooks of a deleted backup were saved.
    let deleted = "0d9a5a1b-6f0c-4f35-9c3e-8d0a3f6e2c3d";
    put_journal(&world, deleted, "gone", vec![orphaned]).await;
    let saved_hooks = json!({"hooks.json": hooks("go-on").to_string()});
    let name = format!("bowline-hooks-{deleted}");
    world.create::<ConfigMap>(json!({"metadata": {"name": name}, "data": saved_hooks})).await;

    let sizes = (journal_size(&world, &backup).await, journal_size(&world, deleted).await);
    let commands = Commands::default();
    let options = bowline_server::Options { filesystem_root: None, ..world.options() };
    let between = recording_commands(&commands);
    world.run_through(options, move |client| fault_injection::faulty_client(client, between));
    let asked = || {
        let mut commands = commands.lock().clone();
        commands.sort();
        commands
    };
    // The server writes to the journal after the command has ended.
    eventually("both are thawed", async || {
        let has_grown = journal_size(&world, &backup).await > sizes.0
            && journal_size(&world, deleted).await > sizes.1;
        asked().len() >= 2 && has_grown
    })
    .await;
    world.end().await.unwrap();
    assert_eq!(asked(), ["go-on of-one-gone", "let-go of-one-that-is-over"]);
    for (uid, name) in [(backup.as_str(), "over"), (deleted, "gone")] {
        let records = read_records(&world, uid, name).await;
        let is_noted = matches!(records.last(), Some(JournalEntry::Thawed { block: 0, .. }));
        assert!(is_noted, "{name}: {records:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_pod_is_thawed_while_its_backup_waits_for_operations() {
    let mut trial = OperationWorld::start("thaw-waiting").await;
    trial.add_claim("sdk", "c", "operation=600000").await;
    let spec = json!({"itemOperationTimeout": "1h", "hooks": hooks("let-go")});
    let uid = trial.back_up("b", spec).await.uid().unwrap();
    trial.world.until::<Backup>("b", is_waiting).await;
    trial.world.end().await.unwrap();
    // As if its node had been unreachable at the end of the items.
    let pods = vec![pod(&trial.world, "db").await];
    let (client, run) = (trial.world.client.clone(), RunUid::new(&*uid).unwrap());
    let opened = ConfigMapJournal::open(client, &trial.world.namespace, &run, "Backup", "b").await;
    let started = BlockStarted { block: 1000, pods, ..BlockStarted::default() };
    let journal = opened.unwrap().0.with_location("default");
    journal.append(&JournalEntry::BlockStarted(started)).await.unwrap();

    let calls = trial.world.path("sdk").join("calls");
    let polls = || {
        let calls = std::fs::read_to_string(&calls).unwrap_or_default();
        calls.lines().filter(|line| line.split(' ').nth(2) == Some("progress")).count()
    };
    let (before, commands) = (polls(), Commands::default());
    let is_reached = Arc::new(AtomicBool::new(false));
    let (reached, record) = (Arc::clone(&is_reached), recording_commands(&commands));
    trial.world.run_through(trial.world.options(), move |client| {
        fault_injection::faulty_client(client, move |method, uri| {
            let is_exec = uri.path().ends_with("/exec");
            if is_exec && !reached.load(Ordering::Relaxed) { true } else { record(method, uri) }
        })
    });
    eventually("its operation is followed again", async || polls() > before).await;
    let size = journal_size(&trial.world, &uid).await;
    is_reached.store(true, Ordering::Relaxed);
    // The server writes to the journal after the command has ended.
    eventually("it is thawed", async || {
        let has_grown = journal_size(&trial.world, &uid).await > size;
        has_grown && !commands.lock().is_empty()
    })
    .await;
    assert!(is_waiting(&trial.world.api::<Backup>().get("b").await.unwrap()));
    trial.world.end().await.unwrap();
    assert_eq!(*commands.lock(), ["let-go db"]);
    let records = read_records(&trial.world, &uid, "b").await;
    let is_thawed =
        |record: &JournalEntry| matches!(record, JournalEntry::Thawed { block: 1000, .. });
    assert!(records.iter().any(is_thawed), "{records:?}");
}

#[tokio::test]
async fn damaged_journal_thaws_its_readable_pods_and_ends_its_run() {
    let mut world = World::without_server("thaw-damaged").await;
    world.filesystem_store("default").await;
    world.location("default", filesystem_spec("default")).await;
    let frozen = pod(&world, "db").await;
    let spec = json!({
        "storageLocation": "default", "includedNamespaces": ["none"], "hooks": hooks("let-go"),
    });
    let status = json!({"phase": "InProgress"});
    let backup = json!({"metadata": {"name": "b"}, "spec": spec, "status": status});
    let uid = world.create::<Backup>(backup).await.uid().unwrap();
    put_journal(&world, &uid, "b", vec![frozen]).await;
    let page = format!("bowline-journal-{uid}-0");
    // As a later version of the server would write.
    let unknown = json!({"what": "somethingNew", "block": 1}).to_string();
    world.patch::<ConfigMap>(&page, json!({"data": {"00000001": unknown}})).await;

    let commands = Commands::default();
    let (options, between) = (world.options(), recording_commands(&commands));
    world.run_through(options, move |client| fault_injection::faulty_client(client, between));
    let ended = world.until::<Backup>("b", is_over).await.status.unwrap();
    assert_eq!(ended.phase, Some(BackupPhase::Failed));
    assert_eq!(*commands.lock(), ["let-go db"], "once, before it ended");
    let marked = world.until::<ConfigMap>(&page, |page| {
        page.annotations().contains_key("bowline.io/journal-thawed")
    });
    marked.await;
    world.end().await.unwrap();
}

#[tokio::test]
async fn hooks_are_saved_beside_the_journal_and_removed_before_it() {
    let mut world = World::without_server("thaw-hooks").await;
    let is_of_hooks = |method: &Method, uri: &Uri| {
        *method == Method::DELETE && uri.path().contains("/configmaps/bowline-hooks-")
    };
    world.run_through(world.options(), move |client| {
        fault_injection::faulty_client(client, is_of_hooks)
    });
    world.filesystem_location("default").await;
    let spec = json!({
        "storageLocation": "default", "hooks": hooks("let-go"),
        "includedNamespaces": [world.namespace], "includedResources": ["services"],
    });
    let backup = world.create::<Backup>(json!({"metadata": {"name": "b"}, "spec": spec})).await;
    let (uid, over) = (backup.uid().unwrap(), world.until::<Backup>("b", is_over).await);
    assert_eq!(over.status.unwrap().phase, Some(BackupPhase::Completed));
    world.end().await.unwrap();
    // The API server did not let them go, so that the journal is there still.
    let name = format!("bowline-hooks-{uid}");
    let saved_hooks = world.api::<ConfigMap>().get(&name).await.unwrap();
    assert_eq!(saved_hooks.labels()["velero.io/exclude-from-backup"], "true");
    assert!(saved_hooks.data.unwrap()["hooks.json"].contains("let-go"));
    let page = format!("bowline-journal-{uid}-0");
    assert!(world.api::<ConfigMap>().get_opt(&page).await.unwrap().is_some());
    world.run(world.options());
    world.until_gone::<ConfigMap>(&page).await;
    assert!(world.api::<ConfigMap>().get_opt(&name).await.unwrap().is_none());
    world.end().await.unwrap();
}

#[tokio::test]
async fn journal_is_kept_until_scratch_files_are_deleted() {
    let mut world = World::start("thaw-scratch").await;
    world.filesystem_location("default").await;
    // A bucket that does not show where scratch files are: links are not followed.
    let scratch = world.path("root").join("default/plugins");
    std::os::unix::fs::symlink(world.path("scratch"), &scratch).unwrap();
    let spec = json!({
        "storageLocation": "default",
        "includedNamespaces": [world.namespace], "includedResources": ["services"],
    });
    let backup = world.create::<Backup>(json!({"metadata": {"name": "b"}, "spec": spec})).await;
    world.until::<Backup>("b", is_over).await;
    world.end().await.unwrap();
    let page = format!("bowline-journal-{}-0", backup.uid().unwrap());
    let is_there = world.api::<ConfigMap>().get_opt(&page).await.unwrap().is_some();
    assert!(is_there, "nobody else knows of the files");
    std::fs::remove_file(&scratch).unwrap();
    world.run(world.options());
    world.until_gone::<ConfigMap>(&page).await;
    world.end().await.unwrap();
}
