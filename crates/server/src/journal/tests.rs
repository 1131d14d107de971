use std::time::Duration;

use bowline_engine::journal::{Begun, Pod};
use tokio::time::Instant;

use super::*;

fn owner() -> Owner {
    Owner {
        run: RunUid::new("0a-1b").unwrap(),
        kind: "Backup".to_owned(),
        name: "nightly".to_owned(),
    }
}

fn record(block: u64) -> Record {
    Record::Begun(Begun { block, ..Begun::default() })
}

/// A page with records from a number on, each about the block of its number.
fn page(number: usize, records: std::ops::Range<u64>) -> ConfigMap {
    let text = |block| page::encode(&record(block)).unwrap();
    let records = records.map(|number| (format!("{number:08}"), text(number))).collect();
    owner().page(number, "somebody", records)
}

type Change = fn(&mut ConfigMap);

fn waiting(bytes: usize) -> (Waiting, oneshot::Receiver<Outcome>) {
    let (done, outcome) = oneshot::channel();
    (Waiting { text: "x".repeat(bytes), is_packable: false, done }, outcome)
}

fn keys(pen: &Pen) -> Vec<&str> {
    let records = pen.batch.iter().flat_map(|batch| batch.records.keys());
    records.map(String::as_str).collect()
}

#[test]
fn a_page_is_known_by_its_name_and_its_labels() {
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
        assert_eq!(owner().page_number(name), number, "{name}");
    }
}

#[test]
fn what_waits_is_taken_as_far_as_it_fits_on_a_page() {
    let mut pen = Pen { version: Some("7".to_owned()), ..Pen::default() };
    let mut queue = VecDeque::new();
    let mut outcomes = Vec::new();
    for kibibytes in [12, 12, 12, 6, 16, 100] {
        let (waiting, outcome) = waiting(kibibytes * 1024);
        queue.push_back(waiting);
        outcomes.push(outcome);
    }
    pen.take(&mut queue);
    assert_eq!((keys(&pen), pen.place.page), (vec!["00000000", "00000001"], 0));
    assert_eq!(pen.version.as_deref(), Some("7"), "it is the same page");
    // Who has gone does not get a number.
    outcomes.remove(3);
    pen.take(&mut queue);
    assert_eq!((keys(&pen), pen.place.page), (vec!["00000002", "00000003"], 1));
    assert_eq!(pen.version, None, "the next page is to be made");
    pen.take(&mut queue);
    assert_eq!((keys(&pen), pen.place.page), (vec!["00000004"], 2), "one that fills a page alone");
    pen.take(&mut queue);
    assert!(pen.batch.is_none() && queue.is_empty());
}

#[test]
fn the_last_page_is_filled_and_then_the_journal_is_full() {
    let mut pen = Pen::default();
    let mut written = 0;
    let refusal = loop {
        let (waiting, mut outcome) = waiting(page::LARGEST_RECORD - 100);
        pen.take(&mut VecDeque::from([waiting]));
        match outcome.try_recv() {
            Ok(outcome) => break outcome.unwrap_err(),
            Err(_) => written += 1,
        }
    };
    let fit = page::MOST_BYTES / page::LARGEST_RECORD;
    assert_eq!((written, pen.place.page), (fit, fit), "the page is turned, and nothing is on it");
    assert!(matches!(refusal, journal::Error::Full(_)), "{refusal}");
    assert!(pen.batch.is_none());
    // What is small has room still.
    let (waiting, _outcome) = waiting(10);
    pen.take(&mut VecDeque::from([waiting]));
    assert_eq!(keys(&pen), ["00000128"]);
}

#[test]
fn pages_are_read_in_order_and_writing_goes_on_behind_them() {
    let mut pages: Vec<ConfigMap> = (0_u64..12)
        .map(|number| page(usize::try_from(number).unwrap(), number * 3..number * 3 + 2))
        .collect();
    pages[11].metadata.resource_version = Some("9".to_owned());
    // As the API server orders them: by name.
    pages.sort_by_key(kube::ResourceExt::name_any);
    let contents = owner().read(pages).unwrap();
    let expected: Vec<Record> =
        (0..12).flat_map(|number| [record(number * 3), record(number * 3 + 1)]).collect();
    assert_eq!(contents.records, expected);
    let last = contents.last.unwrap();
    assert_eq!((&*last.name, last.version.as_deref()), ("bowline-journal-0a-1b-11", Some("9")));
    let mut pen = Pen { place: contents.place, ..Pen::default() };
    let (waiting, _outcome) = waiting(1);
    pen.take(&mut VecDeque::from([waiting]));
    assert_eq!((keys(&pen), pen.place.page), (vec!["00000035"], 12));
}

#[test]
fn a_journal_without_pages_is_empty() {
    let contents = owner().read(Vec::new()).unwrap();
    assert!(contents.records.is_empty() && contents.last.is_none());
    assert_eq!(contents.place, Place::default());
}

#[test]
fn what_is_not_a_page_is_refused_by_its_name() {
    let changes: [(&str, Change); 12] = [
        ("its name", |page| page.metadata.name = Some("stranger".to_owned())),
        ("labelled", |page| page.metadata.labels = None),
        ("annotated", |page| page.metadata.annotations = None),
        ("binary", |page| {
            page.binary_data = Some([("00000002".to_owned(), ByteString(vec![0]))].into());
        }),
        ("nothing is on it", |page| page.data = None),
        ("nothing is on it", |page| page.data = Some(BTreeMap::new())),
        ("\"note\" is not", |page| put(page, "note", "{}")),
        ("\"0000002\" is not", |page| put(page, "0000002", "{}")),
        ("\"+0000002\" is not", |page| put(page, "+0000002", "{}")),
        ("00000002 cannot be read", |page| put(page, "00000002", "{")),
        ("00000002 cannot be read", |page| put(page, "00000002", r#"{"what": "exec"}"#)),
        ("00000000 stands behind", |page| {
            put(page, "00000000", r#"{"what": "thawed", "block": 1}"#);
        }),
    ];
    for (reason, change) in changes {
        let mut bad = page(1, 1..2);
        change(&mut bad);
        let name = bad.name_any();
        let error = owner().read(vec![page(0, 0..1), bad]).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains(&name), "{reason}: {error}");
    }
}

fn put(page: &mut ConfigMap, key: &str, text: &str) {
    page.data.as_mut().unwrap().insert(key.to_owned(), text.to_owned());
}

#[test]
fn a_page_that_is_gone_is_missed() {
    let error = owner().read(vec![page(0, 0..1), page(2, 2..3)]).unwrap_err();
    assert!(matches!(&error, Error::Missing { page } if page.ends_with("-1")), "{error}");
    let error = owner().read(vec![page(1, 0..1)]).unwrap_err();
    assert!(matches!(&error, Error::Missing { page } if page.ends_with("-0")), "{error}");
}

#[test]
fn more_pages_than_a_journal_has_are_not_read() {
    let pages = |count| (0..count).map(|number| page(number, 0..1)).collect();
    assert!(matches!(owner().read(pages(page::MOST_PAGES + 1)), Err(Error::TooMany { .. })));
    assert!(matches!(owner().read(pages(page::MOST_PAGES)), Err(Error::Foreign { .. })));
}

#[test]
fn a_record_is_refused_for_its_size_alone() {
    let long = |bytes| {
        let pod = Pod { name: "x".repeat(bytes), ..Pod::default() };
        Record::Begun(Begun { pods: vec![pod], ..Begun::default() })
    };
    let around = page::encode(&long(0)).unwrap().len();
    let fits = page::LARGEST_RECORD - around;
    assert_eq!(page::encode(&long(fits)).unwrap().len(), page::LARGEST_RECORD);
    let error = page::encode(&long(fits + 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a record of 262145 bytes is too large: a journal takes 262144 at most"
    );
}

#[tokio::test(start_paused = true)]
async fn a_record_is_tried_a_few_times_and_for_less_than_twenty_seconds() {
    for (pace, fewest, most) in [(Duration::ZERO, 6, 12), (Duration::from_hours(1), 3, 4)] {
        let begin = Instant::now();
        let mut tries = Tries::new(tries::WRITING);
        let mut count = 0;
        loop {
            count += 1;
            let attempt = async {
                tokio::time::sleep(pace).await;
                Err::<(), _>(Error::Silent)
            };
            let error = tries.one(attempt).await.unwrap_err();
            if tries.again(error).await.is_err() {
                break;
            }
        }
        assert!((fewest..=most).contains(&count), "{count}");
        let took = begin.elapsed();
        assert!(took > Duration::from_secs(10) && took < Duration::from_secs(20), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_stays_as_it_is_is_not_tried_again() {
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
        let again = Tries::new(tries::WRITING).again(error).await;
        assert_eq!(again.is_ok(), is_tried, "{text}");
    }
    assert!(begin.elapsed() < Duration::from_secs(1));
}

#[test]
fn a_page_that_was_not_created_is_not_turned() {
    let mut pen = Pen::default();
    for (round, key) in [(0, "00000000"), (1, "00000001")] {
        let (waiting, _outcome) = waiting(30 * 1024);
        pen.take(&mut VecDeque::from([waiting]));
        assert_eq!((keys(&pen), pen.place.page), (vec![key], 0), "round {round}");
        // The API server refuses.
        pen.batch = None;
        pen.take_back();
    }
    // One that is there is turned, also if nothing could be added to it.
    pen.version = Some("7".to_owned());
    for page in [0, 1] {
        let (waiting, _outcome) = waiting(30 * 1024);
        pen.take(&mut VecDeque::from([waiting]));
        assert_eq!(pen.place.page, page);
        pen.batch = None;
        pen.take_back();
    }
}

#[test]
fn of_a_damaged_journal_what_can_be_read_is_read() {
    let mut unknown = page(0, 0..3);
    put(&mut unknown, "00000001", r#"{"what": "of a later version"}"#);
    put(&mut unknown, "note", "{");
    let mut stranger = page(1, 3..4);
    stranger.metadata.name = Some("stranger".to_owned());
    // Page 1 is missing.
    let pages = vec![page(2, 7..8), stranger, unknown];
    assert!(owner().read(pages.clone()).is_err());
    let salvaged = owner().salvage(pages.clone());
    assert_eq!(salvaged.records, [record(0), record(2), record(7)]);
    assert!(!salvaged.is_thawed);
    let mut marked = pages;
    marked[0].annotations_mut().insert(page::THAWED.to_owned(), "true".to_owned());
    assert!(owner().salvage(marked).is_thawed);
    let mut removed = page(0, 0..1);
    removed.annotations_mut().insert(page::REMOVED.to_owned(), "true".to_owned());
    assert!(owner().salvage(vec![removed, page(1, 1..2)]).records.is_empty());
}

/// A journal as it would be in the cluster.
#[derive(Default)]
struct Cluster(BTreeMap<usize, ConfigMap>);

impl Cluster {
    /// Writes what a pen has taken.
    fn write(&mut self, pen: &mut Pen) {
        let batch = pen.batch.take().unwrap();
        let page = self.0.entry(pen.place.page).or_insert_with(|| {
            assert!(pen.version.is_none());
            owner().page(pen.place.page, "somebody", BTreeMap::new())
        });
        let patch = batch.as_patch();
        let data = page.data.get_or_insert_default();
        for (key, text) in patch["data"].as_object().unwrap() {
            match text.as_str() {
                Some(text) => data.insert(key.clone(), text.to_owned()),
                None => data.remove(key),
            };
        }
        if let Some(Packed { bytes, .. }) = &batch.packed {
            page.binary_data = Some([(pack::KEY.to_owned(), bytes.clone())].into());
        }
        pen.written.add(&batch);
        pen.version = Some("1".to_owned());
    }
}

fn append(pen: &mut Pen, cluster: &mut Cluster, record: &Record) -> Outcome {
    let (done, mut outcome) = oneshot::channel();
    let text = page::encode(record).unwrap();
    let is_packable = !pack::stays_readable(record);
    pen.take(&mut VecDeque::from([Waiting { text, is_packable, done }]));
    if let Ok(refused) = outcome.try_recv() {
        return refused;
    }
    cluster.write(pen);
    Ok(())
}

/// What a restore notes of an item that an action of version 2 sees.
fn of_item(block: u64) -> [Record; 2] {
    use bowline_engine::journal::{Ended, Intent, Kept};
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
    let ended = Ended {
        block,
        visited: vec![item],
        kept: Some(Kept { number: block, sha256 }),
        ..Ended::default()
    };
    let begun = Begun { block, intents: vec![intent], ..Begun::default() };
    [Record::Begun(begun), Record::Ended(Box::new(ended))]
}

#[test]
fn a_full_page_is_packed_and_reads_as_it_was_written() {
    let (mut pen, mut cluster) = (Pen::default(), Cluster::default());
    let mut records = Vec::new();
    for block in 0..600 {
        records.extend(of_item(block));
        if block % 100 == 7 {
            let pods = vec![Pod { name: "db".to_owned(), ..Pod::default() }];
            records.push(Record::Begun(Begun { block, pods, ..Begun::default() }));
        }
    }
    for record in &records {
        append(&mut pen, &mut cluster, record).unwrap();
    }
    let pages: Vec<ConfigMap> = cluster.0.into_values().collect();
    assert!(pages.len() < 6, "{} pages", pages.len());
    assert!(pages.iter().all(|page| page::used(page) <= 33 * 1024));
    let about_pods = |page: &ConfigMap| {
        let texts = page.data.iter().flat_map(BTreeMap::values);
        texts.filter(|text| text.contains(r#""pods""#)).count()
    };
    assert_eq!(pages.iter().map(about_pods).sum::<usize>(), 6, "people can read them");
    assert_eq!(owner().salvage(pages.clone()).records, records);
    let contents = owner().read(pages).unwrap();
    assert_eq!(contents.records, records);
    let mut next = Pen { place: contents.place, ..Pen::default() };
    let (waiting, _outcome) = waiting(1);
    next.take(&mut VecDeque::from([waiting]));
    assert_eq!(keys(&next), [format!("{:08}", records.len())]);
}

#[test]
fn a_journal_holds_two_hundred_thousand_items_that_actions_see() {
    let (mut pen, mut cluster) = (Pen::default(), Cluster::default());
    let (items, mut bytes) = (1500_u64, 0);
    for block in 0..items {
        for record in of_item(block) {
            bytes += page::cost(page::encode(&record).unwrap().len());
            append(&mut pen, &mut cluster, &record).unwrap();
        }
    }
    let items = usize::try_from(items).unwrap();
    let packed: usize = cluster.0.values().map(page::used).sum();
    let fit = |most: usize, taken: usize| most / (taken / items);
    let unpacked = fit(page::MOST_UNPACKED, bytes);
    let (stored, pages) =
        (fit(page::MOST_BYTES, packed), page::MOST_PAGES * items / cluster.0.len());
    assert!(unpacked >= 200_000 && stored >= 200_000, "{unpacked} {stored}");
    assert!(pages >= 200_000, "{pages}");
}
