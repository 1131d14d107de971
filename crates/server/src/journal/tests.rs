use std::collections::BTreeMap;
use std::time::Duration;

use bowline_engine::journal::{BlockStarted, Pod};
use k8s_openapi::ByteString;
use tokio::time::Instant;

use super::page::WritePosition;
use super::page_writer::PackedRecords;
use super::*;

fn id() -> JournalId {
    JournalId {
        run: RunUid::new("0a-1b").unwrap(),
        kind: "Backup".to_owned(),
        name: "nightly".to_owned(),
    }
}

fn record(block: u64) -> JournalEntry {
    JournalEntry::BlockStarted(BlockStarted { block, ..BlockStarted::default() })
}

/// Page with records from a number on, each about the block of its number.
fn page(number: usize, records: std::ops::Range<u64>) -> ConfigMap {
    let text = |block| page::encode(&record(block)).unwrap();
    let records = records.map(|number| (format!("{number:08}"), text(number))).collect();
    id().page(number, "somebody", records)
}

type Change = fn(&mut ConfigMap);

fn pending_record(bytes: usize) -> (PendingRecord, oneshot::Receiver<AppendResult>) {
    let (done, outcome) = oneshot::channel();
    (PendingRecord { text: "x".repeat(bytes), is_packable: false, done }, outcome)
}

fn batch_keys(page_writer: &PageWriter) -> Vec<&str> {
    let records = page_writer.batch.iter().flat_map(|batch| batch.records.keys());
    records.map(String::as_str).collect()
}

#[test]
fn page_is_identified_by_name_and_labels() {
    let page = page(3, 0..1);
    assert_eq!(page.name_any(), "bowline-journal-0a-1b-3");
    assert_eq!(page.labels()["bowline.io/journal"], "0a-1b");
    assert_eq!(page.labels()["bowline.io/run-kind"], "Backup");
    assert_eq!(page.labels()["velero.io/exclude-from-backup"], "true");
    assert_eq!(page.annotations()["bowline.io/run-name"], "nightly");
    assert!(page.metadata.owner_references.is_none());
    for (name, number) in [
        ("bowline-journal-0a-1b-0", Some(0)),
        ("bowline-journal-0a-1b-63", Some(63)),
        ("bowline-journal-0a-1b-00", None),
        ("bowline-journal-0a-1b-+1", None),
        ("bowline-journal-0a-1b-", None),
        ("bowline-journal-0a-1c-0", None),
        ("bowline-journal-0a-0", None),
        ("0", None),
    ] {
        assert_eq!(id().page_number(name), number, "{name}");
    }
}

#[test]
fn batch_takes_pending_records_that_fit_on_a_page() {
    let mut page_writer = PageWriter { version: Some("7".to_owned()), ..PageWriter::default() };
    let mut queue = VecDeque::new();
    let mut outcomes = Vec::new();
    for kibibytes in [12, 12, 12, 6, 16, 100] {
        let (waiting, outcome) = pending_record(kibibytes * 1024);
        queue.push_back(waiting);
        outcomes.push(outcome);
    }
    page_writer.begin_batch(&mut queue);
    assert_eq!(
        (batch_keys(&page_writer), page_writer.place.page),
        (vec!["00000000", "00000001"], 0)
    );
    assert_eq!(page_writer.version.as_deref(), Some("7"), "it is the same page");
    // A caller that is gone gets no number.
    outcomes.remove(3);
    page_writer.begin_batch(&mut queue);
    assert_eq!(
        (batch_keys(&page_writer), page_writer.place.page),
        (vec!["00000002", "00000003"], 1)
    );
    assert_eq!(page_writer.version, None, "the next page is to be made");
    page_writer.begin_batch(&mut queue);
    assert_eq!(
        (batch_keys(&page_writer), page_writer.place.page),
        (vec!["00000004"], 2),
        "one that fills a page alone"
    );
    page_writer.begin_batch(&mut queue);
    assert!(page_writer.batch.is_none() && queue.is_empty());
}

#[test]
fn journal_is_full_after_its_last_page() {
    let mut page_writer = PageWriter::default();
    let mut written = 0;
    let refusal = loop {
        let (waiting, mut outcome) = pending_record(page::MAX_RECORD_BYTES - 100);
        page_writer.begin_batch(&mut VecDeque::from([waiting]));
        match outcome.try_recv() {
            Ok(outcome) => break outcome.unwrap_err(),
            Err(_) => written += 1,
        }
    };
    let fit = page::MAX_BYTES / page::MAX_RECORD_BYTES;
    assert_eq!(
        (written, page_writer.place.page),
        (fit, fit),
        "the page is turned, and the page is empty"
    );
    assert!(matches!(refusal, journal::Error::Full(_)), "{refusal}");
    assert!(page_writer.batch.is_none());
    // A small record still fits.
    let (waiting, _outcome) = pending_record(10);
    page_writer.begin_batch(&mut VecDeque::from([waiting]));
    assert_eq!(batch_keys(&page_writer), ["00000128"]);
}

#[test]
fn pages_are_read_in_order_and_writing_continues_after_them() {
    let mut pages: Vec<ConfigMap> = (0_u64..12)
        .map(|number| page(usize::try_from(number).unwrap(), number * 3..number * 3 + 2))
        .collect();
    pages[11].metadata.resource_version = Some("9".to_owned());
    // In the order of the API server: by name.
    pages.sort_by_key(kube::ResourceExt::name_any);
    let contents = id().read(pages).unwrap();
    let expected: Vec<JournalEntry> =
        (0..12).flat_map(|number| [record(number * 3), record(number * 3 + 1)]).collect();
    assert_eq!(contents.records, expected);
    let last = contents.last.unwrap();
    assert_eq!((&*last.name, last.version.as_deref()), ("bowline-journal-0a-1b-11", Some("9")));
    let mut page_writer = PageWriter { place: contents.position, ..PageWriter::default() };
    let (waiting, _outcome) = pending_record(1);
    page_writer.begin_batch(&mut VecDeque::from([waiting]));
    assert_eq!((batch_keys(&page_writer), page_writer.place.page), (vec!["00000035"], 12));
}

#[test]
fn a_journal_without_pages_is_empty() {
    let contents = id().read(Vec::new()).unwrap();
    assert!(contents.records.is_empty() && contents.last.is_none());
    assert_eq!(contents.position, WritePosition::default());
}

#[test]
fn invalid_page_is_refused_by_name() {
    let changes: [(&str, Change); 12] = [
        ("the name is not", |page| page.metadata.name = Some("stranger".to_owned())),
        ("the label does not", |page| page.metadata.labels = None),
        ("the annotation does not", |page| page.metadata.annotations = None),
        ("binary", |page| {
            page.binary_data = Some([("00000002".to_owned(), ByteString(vec![0]))].into());
        }),
        ("the page is empty", |page| page.data = None),
        ("the page is empty", |page| page.data = Some(BTreeMap::new())),
        ("\"note\" is not", |page| set_record(page, "note", "{}")),
        ("\"0000002\" is not", |page| set_record(page, "0000002", "{}")),
        ("\"+0000002\" is not", |page| set_record(page, "+0000002", "{}")),
        ("00000002 cannot be read", |page| set_record(page, "00000002", "{")),
        ("00000002 cannot be read", |page| set_record(page, "00000002", r#"{"what": "exec"}"#)),
        ("00000000 follows a later one", |page| {
            set_record(page, "00000000", r#"{"what": "thawed", "block": 1}"#);
        }),
    ];
    for (reason, change) in changes {
        let mut bad = page(1, 1..2);
        change(&mut bad);
        let name = bad.name_any();
        let error = id().read(vec![page(0, 0..1), bad]).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains(&name), "{reason}: {error}");
    }
}

fn set_record(page: &mut ConfigMap, key: &str, text: &str) {
    page.data.as_mut().unwrap().insert(key.to_owned(), text.to_owned());
}

#[test]
fn missing_page_is_an_error() {
    let error = id().read(vec![page(0, 0..1), page(2, 2..3)]).unwrap_err();
    assert!(matches!(&error, Error::Missing { page } if page.ends_with("-1")), "{error}");
    let error = id().read(vec![page(1, 0..1)]).unwrap_err();
    assert!(matches!(&error, Error::Missing { page } if page.ends_with("-0")), "{error}");
}

#[test]
fn too_many_pages_are_refused() {
    let pages = |count| (0..count).map(|number| page(number, 0..1)).collect();
    assert!(matches!(id().read(pages(page::MAX_PAGES + 1)), Err(Error::TooMany { .. })));
    assert!(matches!(id().read(pages(page::MAX_PAGES)), Err(Error::InvalidPage { .. })));
}

#[test]
fn oversized_record_is_refused() {
    let long = |bytes| {
        let pod = Pod { name: "x".repeat(bytes), ..Pod::default() };
        JournalEntry::BlockStarted(BlockStarted { pods: vec![pod], ..BlockStarted::default() })
    };
    let around = page::encode(&long(0)).unwrap().len();
    let fits = page::MAX_RECORD_BYTES - around;
    assert_eq!(page::encode(&long(fits)).unwrap().len(), page::MAX_RECORD_BYTES);
    let error = page::encode(&long(fits + 1)).unwrap_err();
    assert_eq!(error.to_string(), "journal entry too large: 262145 bytes, limit 262144");
}

#[tokio::test(start_paused = true)]
async fn append_is_retried_for_less_than_twenty_seconds() {
    for (pace, fewest, most) in [(Duration::ZERO, 6, 12), (Duration::from_hours(1), 3, 4)] {
        let begin = Instant::now();
        let mut attempts = Attempts::new(attempts::WRITE_LIMITS);
        let mut count = 0;
        loop {
            count += 1;
            let attempt = async {
                tokio::time::sleep(pace).await;
                Err::<(), _>(Error::Timeout)
            };
            let error = attempts.attempt(attempt).await.unwrap_err();
            if attempts.wait_before_retry(error).await.is_err() {
                break;
            }
        }
        assert!((fewest..=most).contains(&count), "{count}");
        let took = begin.elapsed();
        assert!(took > Duration::from_secs(10) && took < Duration::from_secs(20), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn permanent_failure_is_not_retried() {
    let begin = Instant::now();
    let status = |code| {
        let mut status = kube::core::Status::failure("no", "reason");
        status.code = code;
        kube::Error::Api(Box::new(status))
    };
    for (error, is_tried) in [
        (Error::Full, false),
        (Error::TakenOver { page: "p".to_owned() }, false),
        (Error::Write { page: "p".to_owned(), source: status(403) }, false),
        (Error::Write { page: "p".to_owned(), source: status(503) }, true),
        (Error::Read(status(410)), true),
        (Error::Read(status(404)), false),
    ] {
        let text = format!("{error:?}");
        let again = Attempts::new(attempts::WRITE_LIMITS).wait_before_retry(error).await;
        assert_eq!(again.is_ok(), is_tried, "{text}");
    }
    assert!(begin.elapsed() < Duration::from_secs(1));
}

#[test]
fn next_page_is_not_started_before_the_current_one_exists() {
    let mut page_writer = PageWriter::default();
    for (round, key) in [(0, "00000000"), (1, "00000001")] {
        let (waiting, _outcome) = pending_record(30 * 1024);
        page_writer.begin_batch(&mut VecDeque::from([waiting]));
        assert_eq!(
            (batch_keys(&page_writer), page_writer.place.page),
            (vec![key], 0),
            "round {round}"
        );
        // The API server refuses.
        page_writer.batch = None;
        page_writer.abandon_batch();
    }
    // An existing page is turned, also if nothing could be added to it.
    page_writer.version = Some("7".to_owned());
    for page in [0, 1] {
        let (waiting, _outcome) = pending_record(30 * 1024);
        page_writer.begin_batch(&mut VecDeque::from([waiting]));
        assert_eq!(page_writer.place.page, page);
        page_writer.batch = None;
        page_writer.abandon_batch();
    }
}

#[test]
fn salvage_reads_the_readable_part_of_a_damaged_journal() {
    let mut unknown = page(0, 0..3);
    set_record(&mut unknown, "00000001", r#"{"what": "of a later version"}"#);
    set_record(&mut unknown, "note", "{");
    let mut stranger = page(1, 3..4);
    stranger.metadata.name = Some("stranger".to_owned());
    // Page 1 is missing.
    let pages = vec![page(2, 7..8), stranger, unknown];
    assert!(id().read(pages.clone()).is_err());
    let salvaged = id().salvage(pages.clone());
    assert_eq!(salvaged.records, [record(0), record(2), record(7)]);
    assert!(!salvaged.is_thawed);
    let mut marked = pages;
    marked[0].annotations_mut().insert(page::THAWED.to_owned(), "true".to_owned());
    assert!(id().salvage(marked).is_thawed);
    let mut removed = page(0, 0..1);
    removed.annotations_mut().insert(page::REMOVED.to_owned(), "true".to_owned());
    assert!(id().salvage(vec![removed, page(1, 1..2)]).records.is_empty());
}

/// Journal as it would be in the cluster.
#[derive(Default)]
struct FakeCluster(BTreeMap<usize, ConfigMap>);

impl FakeCluster {
    /// Writes the batch of a page writer.
    fn write(&mut self, page_writer: &mut PageWriter) {
        let batch = page_writer.batch.take().unwrap();
        let page = self.0.entry(page_writer.place.page).or_insert_with(|| {
            assert!(page_writer.version.is_none());
            id().page(page_writer.place.page, "somebody", BTreeMap::new())
        });
        let patch = batch.as_patch();
        let data = page.data.get_or_insert_default();
        for (key, text) in patch["data"].as_object().unwrap() {
            match text.as_str() {
                Some(text) => data.insert(key.clone(), text.to_owned()),
                None => data.remove(key),
            };
        }
        if let Some(PackedRecords { bytes, .. }) = &batch.packed {
            page.binary_data = Some([(pack::KEY.to_owned(), bytes.clone())].into());
        }
        page_writer.written.record_batch(&batch);
        page_writer.version = Some("1".to_owned());
    }
}

fn append(
    page_writer: &mut PageWriter,
    cluster: &mut FakeCluster,
    record: &JournalEntry,
) -> AppendResult {
    let (done, mut outcome) = oneshot::channel();
    let text = page::encode(record).unwrap();
    let is_packable = !pack::must_stay_readable(record);
    page_writer.begin_batch(&mut VecDeque::from([PendingRecord { text, is_packable, done }]));
    if let Ok(refused) = outcome.try_recv() {
        return refused;
    }
    cluster.write(page_writer);
    Ok(())
}

/// Records of a restore about an item that an action of version 2 processes.
fn item_records(block: u64) -> [JournalEntry; 2] {
    use bowline_engine::journal::{BlockEnded, Intent, StoredBlock};
    use bowline_store::file::ResourceIdentifier;
    let item = ResourceIdentifier {
        group: "apps".to_owned(),
        resource: "deployments".to_owned(),
        namespace: format!("team-{}", block % 40),
        name: format!("service-{:x}", block.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
    };
    let plugin = "example.io/restore-item-action".to_owned();
    let intent = Intent { plugin, item: item.clone(), ..Intent::default() };
    let part = |n: u8| format!("{:016x}", RandomState::new().hash_one(n));
    let sha256 = [1, 2, 3, 4].map(part).concat();
    let ended = BlockEnded {
        block,
        visited: vec![item],
        kept: Some(StoredBlock { number: block, sha256 }),
        ..BlockEnded::default()
    };
    let begun = BlockStarted { block, intents: vec![intent], ..BlockStarted::default() };
    [JournalEntry::BlockStarted(begun), JournalEntry::BlockEnded(Box::new(ended))]
}

#[test]
fn full_page_is_packed_and_reads_back_unchanged() {
    let (mut page_writer, mut cluster) = (PageWriter::default(), FakeCluster::default());
    let mut records = Vec::new();
    for block in 0..600 {
        records.extend(item_records(block));
        if block % 100 == 7 {
            let pods = vec![Pod { name: "db".to_owned(), ..Pod::default() }];
            records.push(JournalEntry::BlockStarted(BlockStarted {
                block,
                pods,
                ..BlockStarted::default()
            }));
        }
    }
    for record in &records {
        append(&mut page_writer, &mut cluster, record).unwrap();
    }
    let pages: Vec<ConfigMap> = cluster.0.into_values().collect();
    assert!(pages.len() < 6, "{} pages", pages.len());
    assert!(pages.iter().all(|page| page::page_cost(page) <= 33 * 1024));
    let about_pods = |page: &ConfigMap| {
        let texts = page.data.iter().flat_map(BTreeMap::values);
        texts.filter(|text| text.contains(r#""pods""#)).count()
    };
    assert_eq!(pages.iter().map(about_pods).sum::<usize>(), 6, "people can read them");
    assert_eq!(id().salvage(pages.clone()).records, records);
    let contents = id().read(pages).unwrap();
    assert_eq!(contents.records, records);
    let mut next = PageWriter { place: contents.position, ..PageWriter::default() };
    let (waiting, _outcome) = pending_record(1);
    next.begin_batch(&mut VecDeque::from([waiting]));
    assert_eq!(batch_keys(&next), [format!("{:08}", records.len())]);
}

#[test]
fn journal_holds_two_hundred_thousand_items_with_actions() {
    let (mut page_writer, mut cluster) = (PageWriter::default(), FakeCluster::default());
    let (items, mut bytes) = (1500_u64, 0);
    for block in 0..items {
        for record in item_records(block) {
            bytes += page::record_cost(page::encode(&record).unwrap().len());
            append(&mut page_writer, &mut cluster, &record).unwrap();
        }
    }
    let items = usize::try_from(items).unwrap();
    let packed: usize = cluster.0.values().map(page::page_cost).sum();
    let fit = |most: usize, used: usize| most / (used / items);
    let unpacked = fit(page::MAX_UNPACKED_BYTES, bytes);
    let (stored, pages) = (fit(page::MAX_BYTES, packed), page::MAX_PAGES * items / cluster.0.len());
    assert!(unpacked >= 200_000 && stored >= 200_000, "{unpacked} {stored}");
    assert!(pages >= 200_000, "{pages}");
}
