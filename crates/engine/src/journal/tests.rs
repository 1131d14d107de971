use super::*;

fn request(block: u64, pods: &[&str]) -> JournalEntry {
    let pod = |name: &&str| Pod {
        namespace: "shop".into(),
        name: (*name).into(),
        uid: format!("uid-{name}"),
        ..Pod::default()
    };
    JournalEntry::BlockStarted(BlockStarted {
        block,
        pods: pods.iter().map(pod).collect(),
        ..BlockStarted::default()
    })
}

fn answer(block: u64) -> JournalEntry {
    JournalEntry::BlockEnded(Box::new(BlockEnded { block, ..BlockEnded::default() }))
}

#[test]
fn block_without_end_is_redone_and_its_pods_stay_frozen_until_thawed() {
    let attempt = || JournalEntry::Attempt { at: Timestamp::UNIX_EPOCH };
    let read = recover([
        attempt(),
        request(0, &["a"]),
        request(1, &["b"]),
        answer(0),
        request(2, &[]),
        request(3, &["c"]),
        attempt(),
        JournalEntry::Thawed { block: 1, errors: vec![JournaledMessage::default()] },
        attempt(),
        JournalEntry::AttemptLeft { at: Timestamp::UNIX_EPOCH },
    ]);
    let blocks = |list: &[BlockStarted]| list.iter().map(|block| block.block).collect::<Vec<_>>();
    assert_eq!(read.attempts, 2, "what was left in good order does not count");
    assert_eq!(read.thaw_errors.len(), 1);
    assert_eq!(read.finished.iter().map(|ended| ended.block).collect::<Vec<_>>(), [0]);
    assert_eq!(blocks(&read.unfinished), [1, 2, 3]);
    assert_eq!(read.frozen.keys().copied().collect::<Vec<_>>(), [3]);
    assert_eq!(read.next_block, 4);
    assert_eq!(recover([]), RecoveredRun::default());
}

#[test]
fn pods_not_reached_at_block_end_stay_frozen_until_thawed() {
    let pod = Pod { name: "a".into(), ..Pod::default() };
    let not_reached = JournalEntry::BlockEnded(Box::new(BlockEnded {
        block: 0,
        frozen: vec![pod.clone()],
        ..BlockEnded::default()
    }));
    let text = serde_json::to_string(&not_reached).unwrap();
    assert_eq!(serde_json::from_str::<JournalEntry>(&text).unwrap(), not_reached, "{text}");
    let mut records = vec![request(0, &["a", "b"]), not_reached];
    let read = recover(records.clone());
    assert_eq!(read.frozen, BTreeMap::from([(0, vec![pod])]));
    assert_eq!(read.unfinished, [], "it is over all the same");
    records.push(JournalEntry::Thawed { block: 0, errors: Vec::new() });
    assert_eq!(recover(records).frozen, BTreeMap::new());
}

#[test]
fn attempts_are_counted_per_stage_and_clean_exits_are_not_counted() {
    let at = Timestamp::UNIX_EPOCH;
    let stage = |stage| JournalEntry::StageAttempt { stage, at };
    let read = recover([
        JournalEntry::Attempt { at },
        stage(Stage::Waiting),
        stage(Stage::Waiting),
        JournalEntry::AttemptLeft { at },
        stage(Stage::Finalizing),
    ]);
    assert_eq!(read.attempts, 1);
    let expected = BTreeMap::from([(Stage::Waiting, 1), (Stage::Finalizing, 1)]);
    assert_eq!(read.stage_attempts, expected);
}

#[test]
fn bucket_outage_starts_at_first_failure_and_ends_when_bucket_is_back() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let bucket_lost =
        |second| JournalEntry::BucketLost { at: at(second), stage: Some(Stage::Waiting) };
    assert_eq!(recover([bucket_lost(5), bucket_lost(9)]).bucket_lost, Some(at(5)));
    let back = [bucket_lost(5), JournalEntry::BucketBack { at: at(7) }];
    assert_eq!(recover([bucket_lost(5)]).bucket_lost_at_stage, Some(Stage::Waiting));
    assert_eq!(recover(back.clone()).bucket_lost, None);
    assert_eq!(recover(back.clone()).bucket_lost_at_stage, None);
    assert_eq!(recover(back.into_iter().chain([bucket_lost(9)])).bucket_lost, Some(at(9)));
    let ended_without_bucket =
        JournalEntry::EndedWithoutBucket { stage: Stage::Waiting, at: at(6) };
    assert_eq!(
        recover([bucket_lost(5), ended_without_bucket]).ended_without_bucket,
        Some(Stage::Waiting)
    );
    assert_eq!(recover([bucket_lost(5)]).ended_without_bucket, None);
}

#[test]
fn duplicate_block_end_counts_once() {
    let read = recover([request(0, &[]), answer(0), answer(0)]);
    assert_eq!((read.finished.len(), read.unfinished.len()), (1, 0));
}

#[test]
fn volume_answers_are_matched_by_request_number() {
    let volume_requested = |block, name: &str| {
        JournalEntry::VolumeRequested(VolumeRequested {
            block,
            name: name.into(),
            ..VolumeRequested::default()
        })
    };
    let volume_answered = |block, volume: Option<&str>| {
        JournalEntry::VolumeAnswered(VolumeAnswered { block, volume: volume.map(str::to_owned) })
    };
    let read = recover([
        volume_requested(3, "pv-a"),
        volume_requested(4, "pv-b"),
        volume_requested(5, "pv-c"),
        volume_answered(5, None),
        volume_answered(3, Some("vol-1")),
        volume_answered(9, Some("of nobody")),
    ]);
    let answers: Vec<_> = read
        .volumes
        .iter()
        .map(|one| (one.started.name.as_str(), one.ended.as_ref().map(|end| end.volume.clone())))
        .collect();
    assert_eq!(
        answers,
        [("pv-a", Some(Some("vol-1".to_owned()))), ("pv-b", None), ("pv-c", Some(None))]
    );
    assert_eq!(read.next_block, 6);
    assert_eq!(read.unfinished, [], "it is no block");
}

#[test]
fn entries_round_trip_through_json() {
    let item = ResourceIdentifier { name: "db".into(), ..ResourceIdentifier::default() };
    let records = [
        JournalEntry::Attempt { at: Timestamp::UNIX_EPOCH },
        request(7, &["a"]),
        JournalEntry::BlockEnded(Box::new(BlockEnded {
            block: 7,
            visited: vec![item.clone()],
            stored: Some(StoredBlock { number: 3, sha256: "00".into() }),
            backup_operations: vec![BackupOperation::default()],
            errors: vec![JournaledMessage { item: Some(item), text: "no".into() }],
            hooks_attempted: 2,
            ..BlockEnded::default()
        })),
        JournalEntry::Thawed { block: 7, errors: Vec::new() },
        JournalEntry::PostHooks {
            block: 7,
            pod: "uid-a".into(),
            ran: vec![0, 2],
            is_thawed: false,
            errors: Vec::new(),
        },
        JournalEntry::InFlight {
            block: 7,
            intents: vec![Intent {
                snapshot: Some(SnapshotIntent::default()),
                ..Intent::default()
            }],
            operations: AbandonedOperations {
                backup_operations: vec![BackupOperation::default()],
                restore_operations: vec![RestoreOperation::default()],
            },
        },
        JournalEntry::Reclaimed { request: "r".into() },
        JournalEntry::AttemptLeft { at: Timestamp::UNIX_EPOCH },
        JournalEntry::VolumeRequested(VolumeRequested {
            block: 8,
            plugin: "example.io/disk".into(),
            snapshot: "snap-1".into(),
            item: ResourceIdentifier::default(),
            name: "pv".into(),
        }),
        JournalEntry::VolumeAnswered(VolumeAnswered { block: 8, volume: Some("vol-1".into()) }),
        JournalEntry::VolumeAnswered(VolumeAnswered { block: 8, volume: None }),
        JournalEntry::StageAttempt { stage: Stage::Waiting, at: Timestamp::UNIX_EPOCH },
        JournalEntry::BucketLost { at: Timestamp::UNIX_EPOCH, stage: None },
        JournalEntry::BucketLost { at: Timestamp::UNIX_EPOCH, stage: Some(Stage::Items) },
        JournalEntry::BucketBack { at: Timestamp::UNIX_EPOCH },
        JournalEntry::EndedWithoutBucket { stage: Stage::Items, at: Timestamp::UNIX_EPOCH },
    ];
    for record in records {
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<JournalEntry>(&text).unwrap(), record, "{text}");
    }
}
