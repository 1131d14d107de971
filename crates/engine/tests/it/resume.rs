//! Operations, and backups that another process resumes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bowline_api::{Backup, BackupPhase};
use bowline_engine::action::NamedAction;
use bowline_engine::backup::{
    self, FatalError, Recovery, ThawContext, ThawOutcome, ThawRetry, UnwrittenThaws, finalize,
    replace, thaw_leftover_pods,
};
use bowline_engine::cluster::{self, ExecOutcome, Fake};
use bowline_engine::journal::{
    BlockEnded, BlockStarted, FrozenByBlock, InMemory, JournalEntry, Pod, RecoveredRun, recover,
};
use bowline_engine::operation::{Counts, Operation, State};
use bowline_engine::report::Report;
use bowline_plugin::{
    BackupItemAction, BackupOutput, Code, Encoded, Error, Item, OperationId, ResourceIdentifier,
    ResourceSelector,
};
use bowline_store::BackupStore;
use bowline_store::backend::Memory;
use bowline_store::backend::memory::StoreCall;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::backup::{FinishedBackup, commands, run_and_read, run_of, store_in};
use crate::support::objects::{config_map, namespace, pod, with_hooks};

/// Begins an operation for every config map, and notes which it was shown.
#[derive(Default)]
struct OperationStartingAction {
    shown: Mutex<Vec<String>>,
}

#[async_trait]
impl BackupItemAction for OperationStartingAction {
    async fn applies_to(&self) -> bowline_plugin::Result<ResourceSelector> {
        Ok(ResourceSelector::resources(["configmaps"]))
    }

    async fn execute(
        &self,
        item: &Item,
        _: &Encoded<Backup>,
    ) -> bowline_plugin::Result<BackupOutput> {
        let object: Value = item.parse().unwrap();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        self.shown.lock().push(name.clone());
        let mut output = BackupOutput::unchanged(item);
        output.operation = OperationId::new(format!("op-{name}"));
        output.post_operation_items = vec![map_id(&name)];
        Ok(output)
    }
}

fn map_id(name: &str) -> ResourceIdentifier {
    ResourceIdentifier {
        group: String::new(),
        resource: "configmaps".into(),
        namespace: "shop".into(),
        name: name.into(),
    }
}

fn cluster() -> Arc<Fake> {
    let db = with_hooks(pod("shop", "db", &[]), "freeze", "thaw");
    let all = [namespace("shop"), config_map("shop", "a"), config_map("shop", "b"), db];
    Arc::new(all.into_iter().fold(Fake::usual(), Fake::with))
}

/// A backup that is resumed from a journal.
async fn resume_from(
    cluster: &Arc<Fake>,
    store: &BackupStore,
    records: Vec<JournalEntry>,
) -> (FinishedBackup, Arc<OperationStartingAction>, Vec<JournalEntry>) {
    let (action, journal) =
        (Arc::new(OperationStartingAction::default()), Arc::new(InMemory::default()));
    let mut run = run_of(cluster, json!({}), store.clone()).await;
    let name = "test.io/begins".parse().unwrap();
    run.backup_item_actions = vec![NamedAction::asynchronous(name, action.clone())];
    run.journal = Arc::clone(&journal) as _;
    run.recovery = Recovery { recovered: recover(records), report: Report::default() };
    (run_and_read(run).await, action, journal.records())
}

#[tokio::test]
async fn a_backup_with_operations_waits_for_them() {
    let (run, _, _) =
        resume_from(&cluster(), &store_in(Memory::with_bucket("b")), Vec::new()).await;
    assert_eq!(run.errors(), [""; 0]);
    assert_eq!(Counts::of(&run.outcome.operations).attempted, 2);
    assert!(run.outcome.operations.iter().all(|operation| operation.state == State::New));
    let status = finalize::status(&Backup::default(), &run.outcome);
    assert_eq!(status.phase, Some(BackupPhase::WaitingForPluginOperations));
    assert_eq!(status.backup_item_operations_attempted, 2);
    assert_eq!(status.backup_item_operations_failed, 0);
}

#[tokio::test]
async fn next_process_finishes_and_repeats_nothing_journaled() {
    let cluster = cluster();
    let memory = Memory::with_bucket("b");
    let store = store_in(memory);
    let (whole, _, records) = resume_from(&cluster, &store, Vec::new()).await;
    // Two items and a pod, each with an entry before and after.
    assert_eq!(records.len(), 6, "{records:#?}");
    for length in 0..=records.len() {
        let journaled = records[..length].to_vec();
        let recovered = recover(journaled.clone());
        let (run, action, _) = resume_from(&cluster, &store, journaled).await;
        assert_eq!(run.errors(), [""; 0], "after {length} journal entries");
        assert_eq!(run.stored(), whole.stored(), "after {length} journal entries");
        let ids = |run: &FinishedBackup| {
            let mut ids: Vec<_> =
                run.outcome.operations.iter().map(|operation| operation.id.to_string()).collect();
            ids.sort();
            ids
        };
        assert_eq!(ids(&run), ids(&whole), "no operation is lost or doubled");
        let shown = action.shown.lock().clone();
        for ended in &recovered.finished {
            for visited in &ended.visited {
                assert!(
                    !shown.contains(&visited.name),
                    "{visited:?} after {length} journal entries"
                );
            }
        }
        let unfinished = recovered.unfinished.iter().flat_map(|started| &started.intents).count();
        assert_eq!(run.warnings().len(), unfinished, "{:?}", run.warnings());
        assert_eq!(run.outcome.hooks, whole.outcome.hooks, "after {length} journal entries");
    }
}

#[tokio::test]
async fn messages_of_a_finished_block_are_reported_again() {
    let cluster = Fake::usual().with(namespace("shop")).with(with_hooks(
        pod("shop", "db", &[]),
        "freeze",
        "thaw",
    ));
    let cluster = Arc::new(cluster.with_exec_script(|exec| {
        let failure = (exec.command[0] == "thaw").then(|| "it is stuck".to_owned());
        Ok(ExecOutcome { output: String::new(), failure })
    }));
    let store = store_in(Memory::with_bucket("b"));
    let (first, _, records) = resume_from(&cluster, &store, Vec::new()).await;
    assert_eq!(first.errors().len(), 1);
    let before = commands(&cluster).len();
    let (again, _, _) = resume_from(&cluster, &store, records).await;
    assert_eq!(again.errors(), first.errors());
    assert_eq!(again.outcome.hooks, first.outcome.hooks);
    assert_eq!(commands(&cluster).len(), before, "nothing was run in the pod again");
}

#[tokio::test]
async fn bytes_that_were_tampered_with_are_an_error_and_not_in_the_archive() {
    let cluster = cluster();
    let store = store_in(Memory::with_bucket("b"));
    let (_, _, records) = resume_from(&cluster, &store, Vec::new()).await;
    let run = run_of(&cluster, json!({}), store.clone()).await;
    let stored_block = records.iter().find_map(|record| match record {
        JournalEntry::BlockEnded(ended) => ended.stored.clone(),
        _ => None,
    });
    let number = stored_block.unwrap().number;
    store.put_scratch(&run.request.uid, number, "{}".into()).await.unwrap();
    let (run, _, _) = resume_from(&cluster, &store, records).await;
    let errors = run.errors();
    assert!(errors[0].contains("was changed"), "{errors:?}");
}

#[tokio::test]
async fn frozen_pods_are_thawed_and_new_pods_of_the_same_name_are_not() {
    let mut db = with_hooks(pod("shop", "db", &[]), "freeze", "thaw");
    db["metadata"]["uid"] = json!("uid-1");
    for (uid, expected) in [("uid-1", vec!["thaw db".to_owned()]), ("uid-2", Vec::new())] {
        let cluster = Fake::usual().with(namespace("shop")).with(db.clone());
        let recovered = RecoveredRun {
            frozen: BTreeMap::from([(7, vec![frozen_pod("db", uid)])]),
            ..RecoveredRun::default()
        };
        let (journal, report) = (InMemory::default(), Report::default());
        let thawed = thaw(&cluster, &recovered.frozen, &journal, &report).await;
        assert!(thawed.error.is_none() && thawed.frozen.is_empty(), "{thawed:?}");
        assert_eq!(commands(&cluster), expected, "{uid}");
        assert_eq!(journal.records(), [JournalEntry::Thawed { block: 7, errors: Vec::new() }]);
        assert_eq!(report.error_count(), 0);
    }
}

#[tokio::test]
async fn items_that_operations_changed_are_replaced_in_the_archive_and_nothing_else_is() {
    let cluster = cluster();
    let store = store_in(Memory::with_bucket("b"));
    let (before, _, _) = resume_from(&cluster, &store, Vec::new()).await;
    finalize::write(
        &store,
        &run_of(&cluster, json!({}), store.clone()).await.request.name,
        &before.outcome,
        run_of(&cluster, json!({}), store.clone()).await.request.run_ref(),
        bytes::Bytes::new(),
    )
    .await
    .unwrap();
    let mut changed = config_map("shop", "a");
    changed["data"] = json!({"is": "final"});
    cluster.put(changed);
    cluster.put(config_map("shop", "new"));
    let journaled = replace::items_of(&before.outcome.operations);
    let mut items = journaled.clone();
    items.extend([map_id("new"), map_id("gone")]);
    let run = run_of(&cluster, json!({}), store.clone()).await;
    let name = run.request.name.clone();
    let replaced = replace::run(run, &items, &journaled, Timestamp::UNIX_EPOCH).await;
    assert_eq!(replaced.report.error_count(), 0);
    assert_eq!(replaced.outcome.unwrap(), 3);
    let after = crate::support::backup::archive_of(&store, &name).await;
    for (path, content) in &before.archive {
        if path.ends_with("/shop/a.json") {
            assert_eq!(after[path]["data"], json!({"is": "final"}), "{path}");
        } else {
            assert_eq!(after[path], *content, "{path}");
        }
    }
    let added: Vec<_> = after.keys().filter(|path| !before.archive.contains_key(*path)).collect();
    assert_eq!(added.len(), 2, "{added:?}");
    let list: bowline_store::file::ResourceList = store.get(&name).await.unwrap().unwrap();
    assert!(list.0["v1/ConfigMap"].contains(&"shop/new".to_owned()));
}

#[tokio::test]
async fn cancelled_backup_thaws_starts_nothing_and_reports_started_operations() {
    let cancel = CancellationToken::new();
    let canceling = cancel.clone();
    let db = with_hooks(pod("shop", "db", &[]), "freeze", "thaw");
    let all = [namespace("shop"), config_map("shop", "a"), db];
    let cluster = all.into_iter().fold(Fake::usual(), Fake::with).with_exec_script(move |_| {
        canceling.cancel();
        Ok(ExecOutcome { output: String::new(), failure: None })
    });
    let cluster = Arc::new(cluster);
    let mut run = run_of(&cluster, json!({}), store_in(Memory::with_bucket("b"))).await;
    run.cancel = cancel;
    let journal = Arc::new(InMemory::default());
    run.journal = Arc::clone(&journal) as _;
    let outcome = backup::run(run, Timestamp::UNIX_EPOCH).await;
    assert!(matches!(outcome.archive, Err(FatalError::Canceled)), "{:?}", outcome.archive);
    assert_eq!(commands(&cluster), ["freeze db", "thaw db"]);
    assert!(recover(journal.records()).frozen.is_empty());
}

/// A cluster with a pod that can be frozen. It is not reached afterwards, as long as `is_away`.
fn unreachable_after_freeze(is_away: &Arc<AtomicBool>, cancel: &CancellationToken) -> Arc<Fake> {
    let mut db = with_hooks(pod("shop", "db", &[]), "freeze", "thaw");
    db["metadata"]["uid"] = json!("uid-1");
    let (is_away, cancel) = (Arc::clone(is_away), cancel.clone());
    let cluster = Fake::usual().with(namespace("shop")).with(db);
    Arc::new(cluster.with_exec_script(move |exec| {
        if exec.command[0] == "thaw" && is_away.load(Ordering::Relaxed) {
            cancel.cancel();
            let (reason, message) = ("InternalError".into(), "error dialing backend".into());
            return Err(cluster::Error::Refused { code: 503, reason, message });
        }
        Ok(ExecOutcome { output: String::new(), failure: None })
    }))
}

#[tokio::test(start_paused = true)]
async fn unreached_pod_stays_in_the_journal_until_thawed() {
    // A run that is canceled meanwhile tries for some seconds, and any other for minutes.
    for (is_canceled, attempts) in [(false, 10), (true, 4)] {
        let (is_away, cancel) = (Arc::new(AtomicBool::new(true)), CancellationToken::new());
        let cluster = unreachable_after_freeze(&is_away, &cancel);
        let mut run = run_of(&cluster, json!({}), store_in(Memory::with_bucket("b"))).await;
        if is_canceled {
            run.cancel = cancel;
        }
        let journal = Arc::new(InMemory::default());
        run.journal = Arc::clone(&journal) as _;
        let outcome = backup::run(run, Timestamp::UNIX_EPOCH).await;
        assert_eq!(outcome.archive.is_err(), is_canceled, "{:?}", outcome.archive);
        assert!(outcome.may_leave_frozen);
        assert_eq!(outcome.hooks, (2, 1));
        assert!(commands(&cluster).len() > attempts, "{:?}", commands(&cluster));
        let (errors, _) = outcome.report.messages();
        assert!(errors[0].text.contains("the pod may still be frozen"), "{errors:?}");

        let recovered = recover(journal.records());
        assert_eq!(recovered.frozen.len(), 1, "{recovered:?}");
        assert_eq!(recovered.unfinished.len(), usize::from(is_canceled), "{recovered:?}");
        let report = Report::default();
        let thawed = thaw(&cluster, &recovered.frozen, &journal, &report).await;
        assert!(thawed.error.is_some(), "it is not reached yet");
        assert_eq!(thawed.frozen, recovered.frozen);
        assert_eq!(recover(journal.records()).frozen.len(), 1);

        is_away.store(false, Ordering::Relaxed);
        let thawed = thaw(&cluster, &recovered.frozen, &journal, &report).await;
        assert!(thawed.error.is_none() && thawed.frozen.is_empty(), "{thawed:?}");
        assert_eq!(commands(&cluster).last().unwrap(), "thaw db");
        assert!(recover(journal.records()).frozen.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn short_api_server_outage_leaves_no_pod_frozen() {
    let (is_away, attempted) = (Arc::new(AtomicBool::new(true)), CancellationToken::new());
    let cluster = unreachable_after_freeze(&is_away, &attempted);
    let mut run = run_of(&cluster, json!({}), store_in(Memory::with_bucket("b"))).await;
    let journal = Arc::new(InMemory::default());
    run.journal = Arc::clone(&journal) as _;
    let back = async {
        attempted.cancelled().await;
        is_away.store(false, Ordering::Relaxed);
    };
    let (outcome, ()) = futures::future::join(backup::run(run, Timestamp::UNIX_EPOCH), back).await;
    assert_eq!((outcome.report.error_count(), outcome.hooks), (0, (2, 0)));
    assert!(!outcome.may_leave_frozen);
    assert_eq!(commands(&cluster), ["freeze db", "thaw db", "thaw db"]);
    assert!(recover(journal.records()).frozen.is_empty());
}

#[tokio::test]
async fn pod_deleted_with_its_node_is_not_waited_for() {
    let (is_away, attempted) = (Arc::new(AtomicBool::new(true)), CancellationToken::new());
    let cluster = unreachable_after_freeze(&is_away, &attempted);
    let mut db = cluster.object("pods", "shop", "db").unwrap();
    db["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    cluster.put(db);
    let frozen = BTreeMap::from([(7, vec![frozen_pod("db", "uid-1")])]);
    let (journal, report) = (InMemory::default(), Report::default());
    let thawed = thaw(&cluster, &frozen, &journal, &report).await;
    assert!(thawed.error.is_none() && thawed.frozen.is_empty(), "{thawed:?}");
    assert_eq!(commands(&cluster), ["thaw db"]);
    assert_eq!(report.error_count(), 1);
}

fn frozen_pod(name: &str, uid: &str) -> Pod {
    Pod { namespace: "shop".into(), name: name.into(), uid: uid.into(), ..Pod::default() }
}

/// Thaws pods once, in a process that remembers nothing.
async fn thaw(
    cluster: &Fake,
    frozen: &FrozenByBlock,
    journal: &InMemory,
    report: &Report,
) -> ThawOutcome {
    let unwritten = UnwrittenThaws::default();
    thaw_with(cluster, frozen, journal, report, &unwritten, ThawRetry::Never).await
}

async fn thaw_with(
    cluster: &Fake,
    frozen: &FrozenByBlock,
    journal: &InMemory,
    report: &Report,
    unwritten: &UnwrittenThaws,
    retry: ThawRetry<'_>,
) -> ThawOutcome {
    let hooks = &Backup::default().spec.hooks;
    let thawing =
        ThawContext { cluster, run: "run-1", hooks: Ok(hooks), journal, unwritten, report };
    thaw_leftover_pods(thawing, frozen, retry).await
}

/// A cluster with pods that can be thawed, except for unreachable ones.
fn with_pods(names: &[&str], away: &Arc<Mutex<Vec<String>>>) -> Arc<Fake> {
    let pods = names.iter().map(|name| {
        let mut pod = with_hooks(pod("shop", name, &[]), "freeze", "thaw");
        pod["metadata"]["uid"] = json!(format!("uid-{name}"));
        pod
    });
    let away = Arc::clone(away);
    let cluster = pods.fold(Fake::usual().with(namespace("shop")), Fake::with);
    Arc::new(cluster.with_exec_script(move |exec| {
        if away.lock().contains(&exec.pod) {
            return Err(cluster::Error::Unreachable("no route to host".into()));
        }
        Ok(ExecOutcome { output: String::new(), failure: None })
    }))
}

fn frozen_in(blocks: &[(u64, &[&str])]) -> FrozenByBlock {
    let pods = |names: &[&str]| {
        names.iter().map(|name| frozen_pod(name, &format!("uid-{name}"))).collect()
    };
    blocks.iter().map(|(block, names)| (*block, pods(names))).collect()
}

fn sorted(mut commands: Vec<String>) -> Vec<String> {
    commands.sort();
    commands
}

#[tokio::test]
async fn unwritable_journal_neither_keeps_pods_frozen_nor_repeats_hooks() {
    let cluster = with_pods(&["a", "b", "c"], &Arc::default());
    let frozen = frozen_in(&[(0, &["a"]), (1, &["b"]), (2, &["c"])]);
    let is_full = Arc::new(AtomicBool::new(true));
    let refuses = Arc::clone(&is_full);
    let journal = InMemory::refusing(move |_| refuses.load(Ordering::Relaxed));
    let (report, unwritten) = (Report::default(), UnwrittenThaws::default());
    let all = ["thaw a", "thaw b", "thaw c"];
    for _ in 0..3 {
        let thawed =
            thaw_with(&cluster, &frozen, &journal, &report, &unwritten, ThawRetry::Never).await;
        assert!(thawed.unwritten.is_some() && thawed.frozen.is_empty(), "{thawed:?}");
        assert_eq!(sorted(commands(&cluster)), all);
    }
    is_full.store(false, Ordering::Relaxed);
    let thawed =
        thaw_with(&cluster, &frozen, &journal, &report, &unwritten, ThawRetry::Never).await;
    assert!(thawed.unwritten.is_none() && thawed.frozen.is_empty(), "{thawed:?}");
    assert_eq!(commands(&cluster).len(), 3);
    assert_eq!(journal.records().len(), 3, "{:?}", journal.records());
    let mut records = vec![];
    for (&block, pods) in &frozen {
        records.push(JournalEntry::BlockStarted(BlockStarted {
            block,
            pods: pods.clone(),
            ..BlockStarted::default()
        }));
    }
    records.extend(journal.records());
    assert_eq!(recover(records).frozen, FrozenByBlock::new());
}

#[tokio::test]
async fn reachable_pod_is_thawed_once_when_another_is_unreachable() {
    let away = Arc::new(Mutex::new(vec!["away".to_owned()]));
    let cluster = with_pods(&["away", "db"], &away);
    let frozen = frozen_in(&[(4, &["away", "db"])]);
    let (journal, report) = (InMemory::default(), Report::default());
    let started = BlockStarted { block: 4, pods: frozen[&4].clone(), ..BlockStarted::default() };
    let known = |journal: &InMemory| {
        let records =
            [JournalEntry::BlockStarted(started.clone())].into_iter().chain(journal.records());
        recover(records).frozen
    };
    for _ in 0..3 {
        // As another process would: it knows only the journal.
        let thawed = thaw(&cluster, &known(&journal), &journal, &report).await;
        assert_eq!(thawed.frozen, frozen_in(&[(4, &["away"])]), "{thawed:?}");
    }
    let run = |name: &str| commands(&cluster).iter().filter(|one| *one == name).count();
    assert_eq!((run("thaw db"), run("thaw away")), (1, 3));
    away.lock().clear();
    let thawed = thaw(&cluster, &known(&journal), &journal, &report).await;
    assert!(thawed.frozen.is_empty() && known(&journal).is_empty(), "{thawed:?}");
    assert_eq!((run("thaw db"), run("thaw away")), (1, 4));
}

#[tokio::test(start_paused = true)]
async fn unreached_pod_is_given_up_after_a_restart_as_in_a_running_backup() {
    let away = Arc::new(Mutex::new(vec!["away".to_owned()]));
    let cluster = with_pods(&["away", "db"], &away);
    let frozen = frozen_in(&[(0, &["away"]), (1, &["db"])]);
    let (journal, report) = (InMemory::default(), Report::default());
    let (unwritten, stop) = (UnwrittenThaws::default(), CancellationToken::new());
    let began = tokio::time::Instant::now();
    let retry = ThawRetry::DuringOutage(&stop);
    let thawed = thaw_with(&cluster, &frozen, &journal, &report, &unwritten, retry).await;
    let took = began.elapsed().as_secs();
    assert!((120..=140).contains(&took), "{took} s");
    assert_eq!(thawed.frozen, frozen_in(&[(0, &["away"])]), "{thawed:?}");
    let (errors, _) = report.messages();
    assert!(errors[0].text.contains("the pod may still be frozen"), "{errors:?}");
    assert_eq!(journal.records(), [JournalEntry::Thawed { block: 1, errors: Vec::new() }]);
}

#[tokio::test]
async fn pod_with_a_thaw_annotation_is_thawed_even_if_the_backup_hooks_are_unknown() {
    let away = Arc::default();
    let mut bare = pod("shop", "bare", &[]);
    bare["metadata"]["uid"] = json!("uid-bare");
    let cluster = Arc::into_inner(with_pods(&["db"], &away)).unwrap().with(bare);
    let frozen = frozen_in(&[(0, &["db"]), (1, &["bare"])]);
    let (journal, report) = (InMemory::default(), Report::default());
    let unwritten = UnwrittenThaws::default();
    let hooks = Err("ConfigMap kept contains no hooks");
    let thawing = ThawContext {
        cluster: &cluster,
        run: "run-1",
        hooks,
        journal: &journal,
        unwritten: &unwritten,
        report: &report,
    };
    let thawed = thaw_leftover_pods(thawing, &frozen, ThawRetry::Never).await;
    assert_eq!(commands(&cluster), ["thaw db"]);
    assert_eq!(thawed.frozen, frozen_in(&[(1, &["bare"])]), "it stays on the record");
    assert_eq!(journal.records(), [JournalEntry::Thawed { block: 0, errors: Vec::new() }]);
    let error = thawed.error.unwrap().to_string();
    assert!(error.contains("ConfigMap kept contains no hooks"), "{error}");
}

#[tokio::test]
async fn post_hooks_that_ran_before_a_restart_are_not_repeated() {
    let mut db = pod("shop", "db", &[]);
    db["metadata"]["uid"] = json!("uid-db");
    let is_away = Arc::new(AtomicBool::new(true));
    let away = Arc::clone(&is_away);
    let cluster = Fake::usual().with(namespace("shop")).with(db).with_exec_script(move |exec| {
        if exec.command[0] == "second" && away.load(Ordering::Relaxed) {
            return Err(cluster::Error::Unreachable("no route to host".into()));
        }
        Ok(ExecOutcome { output: String::new(), failure: None })
    });
    let exec = |command: &str| json!({"exec": {"command": [command]}});
    let hooks = json!({"resources": [{"name": "h", "post": [exec("first"), exec("second")]}]});
    let hooks: bowline_api::backup::BackupHooks = serde_json::from_value(hooks).unwrap();
    let (journal, report) = (InMemory::default(), Report::default());
    let unwritten = UnwrittenThaws::default();
    let started =
        BlockStarted { pods: vec![frozen_pod("db", "uid-db")], ..BlockStarted::default() };
    for is_back in [false, false, true] {
        is_away.store(!is_back, Ordering::Relaxed);
        let records =
            [JournalEntry::BlockStarted(started.clone())].into_iter().chain(journal.records());
        let frozen = recover(records).frozen;
        let thawing = ThawContext {
            cluster: &cluster,
            run: "run-1",
            hooks: Ok(&hooks),
            journal: &journal,
            unwritten: &unwritten,
            report: &report,
        };
        let thawed = thaw_leftover_pods(thawing, &frozen, ThawRetry::Never).await;
        assert_eq!(thawed.frozen.is_empty(), is_back, "{thawed:?}");
    }
    assert_eq!(commands(&cluster), ["first db", "second db", "second db", "second db"]);
}

#[tokio::test]
async fn block_that_cannot_be_stored_still_journals_its_thawed_pods() {
    let cluster = cluster();
    let store = store_in(Memory::with_bucket("b"));
    // As if the results of the block did not fit into a record.
    let journal =
        Arc::new(InMemory::refusing(|record| matches!(record, JournalEntry::BlockEnded(_))));
    let mut run = run_of(&cluster, json!({}), store).await;
    run.journal = Arc::clone(&journal) as _;
    let outcome = backup::run(run, Timestamp::UNIX_EPOCH).await;
    assert!(outcome.archive.is_ok(), "{:?}", outcome.archive);
    let recovered = recover(journal.records());
    assert_eq!(recovered.frozen, FrozenByBlock::new(), "its post-hook would be run again");
    assert_eq!(recovered.unfinished.len(), 1);
}

#[tokio::test]
async fn operations_of_a_block_that_cannot_be_saved_are_named_for_the_next_attempt() {
    // A bucket without room for the items of a block, and a journal without room for the end of one.
    let no_room = |call, _: &str| {
        (call == StoreCall::Put).then(|| Error::new(Code::ResourceExhausted, "full"))
    };
    let full_bucket = Memory::with_bucket("b").failing(no_room);
    let refusing = || InMemory::refusing(|record| matches!(record, JournalEntry::BlockEnded(_)));
    for (memory, journal) in
        [(full_bucket, InMemory::default()), (Memory::with_bucket("b"), refusing())]
    {
        let mut run = run_of(&cluster(), json!({}), store_in(memory)).await;
        let name = "test.io/begins".parse().unwrap();
        let action = Arc::new(OperationStartingAction::default());
        run.backup_item_actions = vec![NamedAction::asynchronous(name, action)];
        let journal = Arc::new(journal);
        run.journal = Arc::clone(&journal) as _;
        let outcome = backup::run(run, Timestamp::UNIX_EPOCH).await;
        let ids = |operations: &[Operation]| -> BTreeSet<String> {
            operations.iter().map(|one| one.id.to_string()).collect()
        };
        let started = ids(&outcome.operations);
        assert_eq!(started.len(), 2, "{:?}", outcome.operations);
        let mut recovered = recover(journal.records());
        assert_eq!(recovered.unfinished.len(), 3, "all of it is repeated");
        let abandoned = |recovered: &RecoveredRun| {
            backup::abandoned_operations(recovered, Duration::ZERO, Timestamp::UNIX_EPOCH)
        };
        assert_eq!(ids(&abandoned(&recovered)), started);
        // Also a run that is not resumed has to cancel them.
        let reason = String::new();
        let given_up = backup::BackupOutcome::not_resumed(
            reason,
            &recovered,
            Duration::ZERO,
            Timestamp::UNIX_EPOCH,
        );
        assert_eq!(ids(&given_up.operations), started);
        // A block whose end is in the journal after all is not repeated.
        let ends = recovered.unfinished.iter().map(|started| {
            let block = started.block;
            JournalEntry::BlockEnded(Box::new(BlockEnded { block, ..BlockEnded::default() }))
        });
        recovered = recover(journal.records().into_iter().chain(ends.collect::<Vec<_>>()));
        assert!(abandoned(&recovered).is_empty());
    }
}

#[test]
fn a_pod_that_a_later_block_has_thawed_is_not_thawed_for_an_earlier_one() {
    let pods = vec![frozen_pod("db", "uid-db")];
    let block_started = |block| {
        JournalEntry::BlockStarted(BlockStarted {
            block,
            pods: pods.clone(),
            ..BlockStarted::default()
        })
    };
    let ended =
        JournalEntry::BlockEnded(Box::new(BlockEnded { block: 1, ..BlockEnded::default() }));
    assert_eq!(recover([block_started(0), block_started(1)]).frozen.len(), 2);
    assert_eq!(recover([block_started(0), block_started(1), ended]).frozen, FrozenByBlock::new());
}
