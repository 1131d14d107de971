//! Journals of runs on a real API server.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bowline_engine::journal::{BlockStarted, Journal as _, JournalEntry, Pod, recover};
use bowline_engine::phase::Stage;
use bowline_server::journal::{ConfigMapJournal, Error, JournalId, ListedJournal, list_journals};
use bowline_store::name::RunUid;
use futures::future::join_all;
use http::{Method, Request, Response, StatusCode, Uri};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::client::Body;
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;

use crate::bed::World;
use crate::fault_injection;

const LIMIT: Duration = Duration::from_mins(1);
const UID: &str = "8d0a3f6e-6f0c-4f35-9c3e-0d9a5a1b2c3d";

fn uid() -> RunUid {
    RunUid::new(UID).unwrap()
}

fn record(block: u64) -> JournalEntry {
    JournalEntry::BlockStarted(BlockStarted { block, ..BlockStarted::default() })
}

fn large(block: u64, bytes: usize) -> JournalEntry {
    let pod = Pod { name: "x".repeat(bytes), ..Pod::default() };
    JournalEntry::BlockStarted(BlockStarted { block, pods: vec![pod], ..BlockStarted::default() })
}

fn blocks(records: &[JournalEntry]) -> Vec<u64> {
    let block = |record: &JournalEntry| match record {
        JournalEntry::BlockStarted(started) => started.block,
        other => panic!("{other:?}"),
    };
    records.iter().map(block).collect()
}

type OpenedJournal = (ConfigMapJournal, Vec<JournalEntry>);

async fn open_as(world: &World, client: Client, name: &str) -> Result<OpenedJournal, Error> {
    let run = uid();
    let open = ConfigMapJournal::open(client, &world.namespace, &run, "Backup", name);
    tokio::time::timeout(LIMIT, open).await.expect("in time")
}

async fn try_open(world: &World, client: Client) -> Result<OpenedJournal, Error> {
    open_as(world, client, "nightly").await
}

async fn open(world: &World) -> OpenedJournal {
    try_open(world, world.client.clone()).await.unwrap()
}

/// The ConfigMaps in the cluster, by name.
async fn pages(world: &World) -> Vec<ConfigMap> {
    let params = ListParams::default().labels("bowline.io/journal");
    world.api::<ConfigMap>().list(&params).await.unwrap().items
}

/// Outcome of a write request.
#[derive(Clone, Copy)]
enum WriteOutcome {
    /// The request reaches the API server, and the answer returns.
    Passes,
    /// The request does not reach the API server; this is the answer.
    Lost(StatusCode),
    /// The request reaches the API server, but this is the answer.
    AnswerLost(StatusCode),
    /// The request hangs until its sender gives up.
    Held,
}

/// A line to the API server that is as good as the test wants it to be.
struct FaultyLine {
    outcome: Box<dyn Fn(usize) -> WriteOutcome + Send + Sync>,
    writes: AtomicUsize,
    write_held: Notify,
    /// Number of bytes of the last successful write and its answer.
    bytes: Mutex<(usize, usize)>,
}

impl FaultyLine {
    /// The outcome of a write depends on how many came before it.
    fn new(outcome: impl Fn(usize) -> WriteOutcome + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            outcome: Box::new(outcome),
            writes: AtomicUsize::new(0),
            write_held: Notify::new(),
            bytes: Mutex::default(),
        })
    }

    fn client(self: &Arc<Self>, inner: Client) -> Client {
        let namespace = inner.default_namespace().to_owned();
        let line = Arc::clone(self);
        let service = tower::service_fn(move |request| {
            let (inner, line) = (inner.clone(), Arc::clone(&line));
            async move { line.send(&inner, request).await }
        });
        Client::new(service, namespace)
    }

    fn writes(&self) -> usize {
        self.writes.load(Ordering::SeqCst)
    }

    async fn send(&self, inner: &Client, request: Request<Body>) -> kube::Result<Response<Body>> {
        if request.method() == Method::GET {
            return inner.send(request).await;
        }
        let mut answer = Response::new(Body::from(b"for this test".to_vec()));
        match (self.outcome)(self.writes.fetch_add(1, Ordering::SeqCst)) {
            WriteOutcome::Held => {
                self.write_held.notify_one();
                std::future::pending::<()>().await;
            }
            WriteOutcome::Lost(status) => *answer.status_mut() = status,
            WriteOutcome::AnswerLost(status) => {
                let (_, body) = inner.send(request).await?.into_parts();
                body.collect_bytes().await?;
                *answer.status_mut() = status;
            }
            WriteOutcome::Passes => {
                let (head, body) = request.into_parts();
                let sent = body.collect_bytes().await?;
                let request = Request::from_parts(head, Body::from(sent.to_vec()));
                let (head, body) = inner.send(request).await?.into_parts();
                let came = body.collect_bytes().await?;
                *self.bytes.lock() = (sent.len(), came.len());
                answer = Response::from_parts(head, Body::from(came.to_vec()));
            }
        }
        Ok(answer)
    }
}

#[tokio::test]
async fn records_come_back_in_order_after_reopening() {
    let world = World::without_server("journal-order").await;
    let (journal, before) = open(&world).await;
    assert!(before.is_empty());
    assert!(pages(&world).await.is_empty(), "opening creates nothing");
    for block in 0..3 {
        journal.append(&record(block)).await.unwrap();
    }
    let (journal, before) = open(&world).await;
    assert_eq!(blocks(&before), [0, 1, 2]);
    for block in 3..12 {
        journal.append(&record(block)).await.unwrap();
    }
    let (_, before) = open(&world).await;
    assert_eq!(blocks(&before), (0..12).collect::<Vec<_>>());
    let pages = pages(&world).await;
    let names: Vec<String> = pages.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, [0, 1].map(|page| format!("bowline-journal-{UID}-{page}")));
    for page in pages {
        assert_eq!(page.labels()["bowline.io/journal"], UID);
        assert!(page.owner_references().is_empty());
        let managed_fields = page.managed_fields();
        assert!(managed_fields.iter().all(|by| by.manager.as_deref() == Some("bowline")));
    }
}

#[tokio::test]
async fn many_appends_at_once_need_few_requests() {
    let world = World::without_server("journal-many").await;
    let line = FaultyLine::new(|_| WriteOutcome::Passes);
    let (journal, _) = try_open(&world, line.client(world.client.clone())).await.unwrap();
    let journal = Arc::new(journal);
    let append = |block| {
        let journal = Arc::clone(&journal);
        tokio::spawn(async move { journal.append(&record(block)).await })
    };
    let appended = join_all((0..200).map(append));
    for outcome in tokio::time::timeout(LIMIT, appended).await.expect("in time") {
        outcome.unwrap().unwrap();
    }
    assert!((1..=20).contains(&line.writes()), "{}", line.writes());
    let (_, records) = open(&world).await;
    let found: BTreeSet<u64> = blocks(&records).into_iter().collect();
    assert_eq!((records.len(), found), (200, (0..200).collect()));
}

#[tokio::test]
async fn next_page_starts_at_32_kib_and_small_records_are_small_requests() {
    let world = World::without_server("journal-pages").await;
    let line = FaultyLine::new(|_| WriteOutcome::Passes);
    let (journal, _) = try_open(&world, line.client(world.client.clone())).await.unwrap();
    for block in 0..5 {
        journal.append(&large(block, 12 * 1024)).await.unwrap();
    }
    let records = |page: &ConfigMap| page.data.as_ref().unwrap().len();
    assert_eq!(pages(&world).await.iter().map(records).collect::<Vec<_>>(), [2, 2, 1]);
    journal.append(&large(5, 12 * 1024)).await.unwrap();
    journal.append(&record(6)).await.unwrap();
    let (sent, answered) = *line.bytes.lock();
    assert!(sent < 500 && answered < 4000, "{sent} {answered}");
    // A record that is too large is refused, and no other.
    let refused = journal.append(&large(7, 256 * 1024)).await.unwrap_err().to_string();
    assert!(refused.contains("too large"), "{refused}");
    journal.append(&record(8)).await.unwrap();
    assert_eq!(pages(&world).await.iter().map(records).collect::<Vec<_>>(), [2, 2, 4]);
    assert_eq!(line.writes(), 8);
    let (_, records) = open(&world).await;
    assert_eq!(blocks(&records), [0, 1, 2, 3, 4, 5, 6, 8]);
}

#[tokio::test]
async fn removed_and_half_removed_journals_are_empty() {
    let world = World::without_server("journal-remove").await;
    let (journal, _) = open(&world).await;
    journal.append(&large(0, 15 * 1024)).await.unwrap();
    journal.append(&large(1, 15 * 1024)).await.unwrap();
    journal.append(&large(2, 15 * 1024)).await.unwrap();
    assert_eq!(pages(&world).await.len(), 2);
    journal.remove().await.unwrap();
    assert!(pages(&world).await.is_empty());

    // A server that dies when one of three pages is deleted.
    let line = FaultyLine::new(
        |writes| if writes < 8 { WriteOutcome::Passes } else { WriteOutcome::Held },
    );
    let (journal, before) = try_open(&world, line.client(world.client.clone())).await.unwrap();
    assert!(before.is_empty());
    for block in 0..6 {
        journal.append(&large(block, 15 * 1024)).await.unwrap();
    }
    assert_eq!(pages(&world).await.len(), 3);
    tokio::select! {
        removed = journal.remove() => panic!("{removed:?}"),
        () = line.write_held.notified() => {}
    }
    assert_eq!(pages(&world).await.len(), 2);
    let (_, before) = open(&world).await;
    assert!(before.is_empty(), "half a journal is none");
    assert!(pages(&world).await.is_empty());
}

#[tokio::test]
async fn orphaned_journals_are_listed_read_and_removed() {
    let world = World::without_server("journal-orphans").await;
    let deleted_run = RunUid::new("gone").unwrap();
    for (run, kind) in [(uid(), "Backup"), (deleted_run.clone(), "Restore")] {
        let client = world.client.clone();
        let opened = ConfigMapJournal::open(client, &world.namespace, &run, kind, "some-run").await;
        let journal = opened.unwrap().0.with_location("bucket-1");
        let journal = journal.with_bucket(Some("aws:/b/".to_owned()));
        journal.append(&record(7)).await.unwrap();
    }
    // An invalid journal does not hide the others.
    let labels = json!({"bowline.io/journal": "Not_a_uid"});
    world.create::<ConfigMap>(json!({"metadata": {"name": "a", "labels": labels}})).await;
    let find = || async {
        let mut all = list_journals(world.client.clone(), &world.namespace).await.unwrap();
        assert_eq!(all.iter().filter(|journal| journal.id.run == uid()).count(), 1, "{all:?}");
        all.retain(|journal| journal.id.run != uid());
        all
    };
    let found = find().await;
    let id =
        JournalId { run: deleted_run, kind: "Restore".to_owned(), name: "some-run".to_owned() };
    let expected = ListedJournal {
        id,
        location: Some("bucket-1".to_owned()),
        bucket: Some("aws:/b/".to_owned()),
        fingerprint: found[0].fingerprint,
    };
    assert_eq!(found, [expected]);
    let JournalId { run, kind, name } = &found[0].id;
    let opened =
        ConfigMapJournal::open(world.client.clone(), &world.namespace, run, kind, name).await;
    let (journal, records) = opened.unwrap();
    assert_eq!(blocks(&records), [7]);
    journal.remove().await.unwrap();
    assert!(find().await.is_empty());
    assert_eq!(
        blocks(&open_as(&world, world.client.clone(), "some-run").await.unwrap().1),
        [7],
        "the other is left"
    );
}

#[tokio::test]
async fn run_that_ends_without_its_bucket_reports_it_even_if_its_journal_is_unwritable() {
    let world = World::without_server("journal-abandoned").await;
    // The first page is written, and no other can be made, as with a quota.
    let line = FaultyLine::new(|writes| match writes {
        1 => WriteOutcome::Lost(StatusCode::FORBIDDEN),
        _ => WriteOutcome::Passes,
    });
    let (journal, _) = try_open(&world, line.client(world.client.clone())).await.unwrap();
    journal.append(&record(0)).await.unwrap();
    journal.end_without_bucket(Stage::Finalizing).await.unwrap();
    let (journal, records) = open(&world).await;
    let (marks, written) = records.split_at(1);
    assert_eq!(blocks(written), [0]);
    assert_eq!(recover(marks.to_vec()).ended_without_bucket, Some(Stage::Finalizing));
    journal.end_without_bucket(Stage::Waiting).await.unwrap();
    let records = open(&world).await.1;
    assert_eq!(
        recover(records).ended_without_bucket,
        Some(Stage::Waiting),
        "the entry that was appended counts"
    );
}

#[tokio::test]
async fn run_of_another_server_is_not_ended_by_the_server_that_lost_it() {
    let world = World::without_server("journal-lost").await;
    for has_written in [false, true] {
        let (lost, _) = open(&world).await;
        lost.append(&record(0)).await.unwrap();
        let (new, _) = open(&world).await;
        if has_written {
            new.append(&record(1)).await.unwrap();
        }
        lost.end_without_bucket(Stage::Items).await.expect_err("another server has the run");
        assert_eq!(recover(open(&world).await.1).ended_without_bucket, None);
    }
}

#[tokio::test]
async fn invalid_page_is_refused_by_name() {
    let world = World::without_server("journal-stranger").await;
    let (journal, _) = open(&world).await;
    journal.append(&record(0)).await.unwrap();
    let labels = json!({"bowline.io/journal": UID, "bowline.io/run-kind": "Backup"});
    world.create::<ConfigMap>(json!({"metadata": {"name": "odd", "labels": labels}})).await;
    let refused = try_open(&world, world.client.clone()).await.err().unwrap();
    assert!(matches!(&refused, Error::InvalidPage { page, .. } if page == "odd"), "{refused}");
    world.delete::<ConfigMap>("odd").await;
    let first = format!("bowline-journal-{UID}-0");
    world.patch::<ConfigMap>(&first, json!({"data": {"00000001": "{"}})).await;
    let refused = try_open(&world, world.client.clone()).await.err().unwrap();
    assert!(matches!(&refused, Error::InvalidPage { page, .. } if *page == first), "{refused}");
    world.patch::<ConfigMap>(&first, json!({"data": {"00000001": null}})).await;
    let refused = open_as(&world, world.client.clone(), "weekly").await.err().unwrap();
    assert!(matches!(&refused, Error::InvalidPage { page, .. } if *page == first), "{refused}");
    assert_eq!(blocks(&open(&world).await.1), [0]);
}

#[tokio::test]
async fn append_survives_a_short_api_server_outage() {
    let world = World::without_server("journal-away").await;
    let away = |asked: usize| [0, 1, 3].contains(&asked);
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let judge = move |_: &Method, _: &Uri| away(count.fetch_add(1, Ordering::SeqCst));
    let client = fault_injection::faulty_client(world.client.clone(), judge);
    let (journal, _) = try_open(&world, client).await.unwrap();
    journal.append(&record(0)).await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 5, "three lists and two creations");

    // The answers to the creation and to the change of a page are lost, and one request too.
    let line = FaultyLine::new(|writes| match writes {
        1 | 3 => WriteOutcome::AnswerLost(StatusCode::SERVICE_UNAVAILABLE),
        5 => WriteOutcome::Lost(StatusCode::SERVICE_UNAVAILABLE),
        _ => WriteOutcome::Passes,
    });
    let (journal, _) = try_open(&world, line.client(world.client.clone())).await.unwrap();
    for block in 1..5 {
        journal.append(&record(block)).await.unwrap();
    }
    assert_eq!(line.writes(), 8, "a signature, four records, and three of them twice");
    assert_eq!(blocks(&open(&world).await.1), [0, 1, 2, 3, 4]);
}

#[tokio::test]
async fn failed_append_may_exist_and_later_ones_do() {
    let world = World::without_server("journal-doubt").await;
    let line = FaultyLine::new(|writes| match writes {
        0 | 4 => WriteOutcome::AnswerLost(StatusCode::FORBIDDEN),
        3 => WriteOutcome::Lost(StatusCode::FORBIDDEN),
        _ => WriteOutcome::Passes,
    });
    let (journal, _) = try_open(&world, line.client(world.client.clone())).await.unwrap();
    let mut failed = Vec::new();
    for block in 0..6 {
        if let Err(error) = journal.append(&record(block)).await {
            assert!(error.to_string().contains("-0 of the journal cannot be written"), "{error}");
            failed.push(block);
        }
    }
    assert_eq!(failed, [0, 2, 3]);
    assert_eq!(blocks(&open(&world).await.1), [0, 1, 3, 4, 5]);
}

#[tokio::test]
async fn batch_of_a_dropped_task_is_finished_by_the_next() {
    let world = World::without_server("journal-dropped").await;
    let line = FaultyLine::new(
        |writes| if writes == 0 { WriteOutcome::Held } else { WriteOutcome::Passes },
    );
    let (journal, _) = try_open(&world, line.client(world.client.clone())).await.unwrap();
    let records = [record(0), record(1), record(2)];
    let mut first = journal.append(&records[0]);
    tokio::select! {
        outcome = &mut first => panic!("{outcome:?}"),
        () = line.write_held.notified() => {}
    }
    let (mut second, mut third) = (journal.append(&records[1]), journal.append(&records[2]));
    assert!(futures::poll!(&mut second).is_pending());
    assert!(futures::poll!(&mut third).is_pending());
    drop(first);
    let both = async { futures::join!(second, third) };
    let (second, third) = tokio::time::timeout(LIMIT, both).await.expect("in time");
    second.unwrap();
    third.unwrap();
    assert_eq!(line.writes(), 3, "the first one's, again, and the others' together");
    assert_eq!(blocks(&open(&world).await.1), [0, 1, 2]);
}

#[tokio::test]
async fn earlier_opener_can_no_longer_write() {
    let world = World::without_server("journal-taken").await;
    let (early, _) = open(&world).await;
    let (old, _) = open(&world).await;
    old.append(&record(0)).await.unwrap();
    // A page that arrives late is noticed by the process that opened the journal before.
    let refused = early.append(&record(1)).await.unwrap_err().to_string();
    assert!(refused.contains("another server has taken over"), "{refused}");
    let (new, before) = open(&world).await;
    assert_eq!(blocks(&before), [0]);
    let refused = old.append(&record(2)).await.unwrap_err().to_string();
    assert!(refused.contains("another server has taken over"), "{refused}");
    new.append(&record(3)).await.unwrap();
    assert_eq!(blocks(&open(&world).await.1), [0, 3]);
}

#[tokio::test]
async fn relabelled_page_is_written_and_deleted_page_is_not() {
    let world = World::without_server("journal-touched").await;
    let (journal, _) = open(&world).await;
    journal.append(&record(0)).await.unwrap();
    let first = format!("bowline-journal-{UID}-0");
    world.patch::<ConfigMap>(&first, json!({"metadata": {"labels": {"a": "b"}}})).await;
    journal.append(&record(1)).await.unwrap();
    assert_eq!(pages(&world).await[0].labels()["a"], "b");
    world.delete::<ConfigMap>(&first).await;
    let refused = journal.append(&record(2)).await.unwrap_err().to_string();
    assert!(refused.contains(&first), "{refused}");
    assert!(open(&world).await.1.is_empty());
}

#[tokio::test]
async fn uncreated_page_leaves_no_gap() {
    let world = World::without_server("journal-hole").await;
    let line = FaultyLine::new(|writes| match writes {
        0 | 1 => WriteOutcome::Lost(StatusCode::FORBIDDEN),
        2 => WriteOutcome::AnswerLost(StatusCode::FORBIDDEN),
        _ => WriteOutcome::Passes,
    });
    let (journal, _) = try_open(&world, line.client(world.client.clone())).await.unwrap();
    for block in 0..6 {
        // Two do not fit on a page.
        let appended = journal.append(&large(block, 20 * 1024)).await;
        assert_eq!(appended.is_err(), block < 3, "{block}: {appended:?}");
    }
    assert_eq!(blocks(&open(&world).await.1), [2, 3, 4, 5]);
}
