use super::*;

fn entry(content: &str, pack: &str) -> IndexEntry {
    IndexEntry {
        content: content.parse().unwrap(),
        timestamp: 1_700_000_000,
        is_deleted: false,
        pack: pack.parse().unwrap(),
        offset: 32,
        packed_length: 100,
        length: Some(72),
        compressor: None,
        format_version: 3,
        encryption_key: 0,
    }
}

fn id(number: u8) -> String {
    hex::encode([number; 16])
}

fn parse(entries: &[IndexEntry]) -> Index {
    Index::parse(build(entries.to_vec()).unwrap().into()).unwrap()
}

#[test]
fn index_that_was_built_is_read() {
    let deleted = IndexEntry { is_deleted: true, ..entry(&format!("k{}", id(1)), "q1") };
    let compressed = IndexEntry {
        compressor: Some(Compressor::ZSTD_FASTEST),
        length: Some((1 << 28) - 1),
        packed_length: (1 << 27) + 5,
        offset: (1 << 30) - 1,
        ..entry(&format!("x{}", id(0)), "q2")
    };
    let entries = [entry(&id(1), "p1"), entry(&id(9), "p2"), deleted, compressed];
    let mut reversed = entries.to_vec();
    reversed.reverse();
    let index = parse(&reversed);
    assert_eq!(index.entries().collect::<Vec<_>>(), entries);
    assert_eq!(index.len(), 4);
    for entry in &entries {
        assert_eq!(index.get(&entry.content).as_ref(), Some(entry));
    }
    assert_eq!(index.get(&id(2).parse().unwrap()), None);
    let with_prefix = |letter| index.entries_with_prefix(letter).collect::<Vec<_>>();
    assert_eq!(with_prefix(None), entries[..2]);
    assert_eq!(with_prefix(Some(b'k')), entries[2..3]);
    assert_eq!(with_prefix(Some(b'm')), []);
}

#[test]
fn more_packs_than_two_bytes_count_are_named() {
    let count = MAX_SHORT_PACKS + 3;
    let entries: Vec<_> = (0..count)
        .map(|number| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
            entry(&hex::encode(bytes), &format!("p{number}"))
        })
        .collect();
    let index = parse(&entries);
    assert_eq!(index.entries().last().unwrap().pack.as_str(), format!("p{}", count - 1));
    assert!(index.entries().eq(entries));
}

const MAX_SHORT_PACKS: usize = 1 << 16;

/// An index of version 1 with one deleted entry.
fn index_v1() -> Vec<u8> {
    let mut data = vec![1, 17, 0, 20, 0, 0, 0, 1];
    data.push(b'k');
    data.extend_from_slice(&[7; 16]);
    data.extend_from_slice(&[0, 0, 0x65, 0x53, 0xf1, 0]);
    data.extend_from_slice(&[1, 3, 0, 0, 0, 45]);
    data.extend_from_slice(&[0x80, 0, 0, 32, 0, 0, 0, 99]);
    data.extend_from_slice(b"q77");
    data
}

#[test]
fn index_of_version_1_is_read() {
    let index = Index::parse(index_v1().into()).unwrap();
    let expected = IndexEntry {
        timestamp: 0x6553_f100,
        is_deleted: true,
        packed_length: 99,
        length: None,
        format_version: 1,
        ..entry(&format!("k{}", id(7)), "q77")
    };
    assert_eq!(index.entries().collect::<Vec<_>>(), [expected]);
}

#[test]
fn damaged_index_is_refused() {
    let v2 = build([entry(&id(1), "p1"), entry(&id(2), "p2")]).unwrap();
    for data in [index_v1(), v2.clone()] {
        for length in 0..data.len() {
            assert!(Index::parse(data[..length].to_vec().into()).is_err(), "{length} bytes");
        }
    }
    let damaged = |position: usize, byte: u8| {
        let mut data = v2.clone();
        data[position] = byte;
        Index::parse(data.into()).unwrap_err()
    };
    assert_eq!(damaged(0, 3), Error::UnsupportedVersion(3));
    assert_eq!(damaged(1, 1), Error::InvalidHeader);
    assert_eq!(damaged(3, 15), Error::InvalidHeader);
    assert_eq!(damaged(4, 0xff), Error::InvalidHeader);
    assert_eq!(damaged(8, 0xff), Error::InvalidHeader);
    assert_eq!(damaged(HEADER, b'a'), Error::InvalidKey(0));
    assert_eq!(damaged(HEADER + 17 + 15, 9), Error::InvalidReference(0));
    assert_eq!(damaged(HEADER + 33 + 1, 0), Error::Order(1));
    assert!(matches!(damaged(v2.len() - 1, b'/'), Error::InvalidPack(_)));
}

const HEADER: usize = 17;

#[test]
fn entries_that_do_not_fit_are_not_written() {
    let build_one = |entry: IndexEntry| build([entry]).unwrap_err();
    assert_eq!(build([]).unwrap_err(), BuildError::Empty);
    let long = IndexEntry { length: Some(1 << 28), ..entry(&id(1), "p") };
    assert_eq!(build_one(long), BuildError::OutOfRange);
    let far = IndexEntry { offset: 1 << 30, ..entry(&id(1), "p") };
    assert_eq!(build_one(far), BuildError::OutOfRange);
    let hashes = build([entry(&id(1), "p"), entry("00", "p")]);
    assert_eq!(hashes.unwrap_err(), BuildError::HashLength);
}

#[test]
fn later_entry_wins_then_the_one_that_is_not_deleted_then_the_greater_pack() {
    let early = entry(&id(1), "p9");
    let late = IndexEntry { timestamp: early.timestamp + 1, ..entry(&id(1), "p1") };
    let deleted = IndexEntry { is_deleted: true, ..entry(&id(1), "pz") };
    let lesser = entry(&id(1), "p1");
    for (winner, loser) in [(&late, &early), (&early, &deleted), (&early, &lesser)] {
        assert!(winner.wins_over(loser) && !loser.wins_over(winner));
        for entries in [[winner, loser], [loser, winner]] {
            let indexes = entries.map(|entry| Arc::new(parse(std::slice::from_ref(entry))));
            let set = IndexSet::new(indexes.into(), 0);
            assert_eq!(set.get(&winner.content).as_ref(), Some(winner));
            assert_eq!(set.entries_with_prefix(None), std::slice::from_ref(winner));
        }
    }
}

#[test]
fn content_deleted_up_to_the_watermark_is_absent() {
    let deleted = IndexEntry { is_deleted: true, ..entry(&id(1), "p1") };
    let set =
        |watermark| IndexSet::new(vec![Arc::new(parse(std::slice::from_ref(&deleted)))], watermark);
    assert_eq!(set(deleted.timestamp).get(&deleted.content), None);
    assert_eq!(set(deleted.timestamp).entries_with_prefix(None), []);
    assert!(set(deleted.timestamp - 1).get(&deleted.content).is_some());
}
