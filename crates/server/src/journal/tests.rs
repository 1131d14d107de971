use std::time::Duration;

use bowline_engine::journal::{Begun, Pod};
use k8s_openapi::ByteString;
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
    (Waiting { text: "x".repeat(bytes), done }, outcome)
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
    assert!(refusal.contains("full"), "{refusal}");
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
