use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;

use super::*;

#[test]
fn reflink_falls_back_to_copy_only_where_unsupported() {
    for (errno, expected) in [
        (Errno::OPNOTSUPP, ReflinkFallback::CopyAll),
        (Errno::XDEV, ReflinkFallback::CopyAll),
        (Errno::NOTTY, ReflinkFallback::CopyAll),
        (Errno::INVAL, ReflinkFallback::CopyThis),
        (Errno::TXTBSY, ReflinkFallback::CopyThis),
        (Errno::NOSPC, ReflinkFallback::Fail),
        (Errno::IO, ReflinkFallback::Fail),
        (Errno::DQUOT, ReflinkFallback::Fail),
    ] {
        assert_eq!(reflink_fallback(errno), expected, "{errno:?}");
    }
}

/// A file of 3 MiB with data at its begin, in the middle, and none at the end.
fn sparse_file() -> File {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(b"begin", 0).unwrap();
    file.write_all_at(&[7; 5000], 1024 * 1024 + 3).unwrap();
    file.set_len(3 * 1024 * 1024).unwrap();
    file
}

fn bytes(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn a_copy_has_the_same_bytes_and_the_same_holes() {
    let from = sparse_file();
    let size = from.metadata().unwrap().len();
    for by_hand in [false, true] {
        let to = tempfile::tempfile().unwrap();
        let stop = StopSignal::default();
        if by_hand {
            assert!(copy_through_buffer(&from, &to, 0, size, &stop).unwrap());
        } else {
            copy_data(&from, &to, size, &stop).unwrap();
            let (had, has) = (from.metadata().unwrap().blocks(), to.metadata().unwrap().blocks());
            assert!(has <= had, "{has} blocks instead of {had}");
        }
        assert_eq!(bytes(&to), bytes(&from));
    }
}

#[test]
fn copy_of_a_shrinking_file_ends() {
    let from = tempfile::tempfile().unwrap();
    from.write_all_at(&[1; 100], 0).unwrap();
    let to = tempfile::tempfile().unwrap();
    // The file was longer when its size was read.
    copy_data(&from, &to, 10_000, &StopSignal::default()).unwrap();
    assert_eq!(to.metadata().unwrap().len(), 10_000);
    assert_eq!(bytes(&to)[..100], [1; 100]);
}

#[test]
fn copy_stops_when_cancelled() {
    let stop = StopSignal::default();
    stop.cancel();
    let (from, to) = (sparse_file(), tempfile::tempfile().unwrap());
    assert_eq!(copy_data(&from, &to, 100, &stop).unwrap_err().to_string(), "canceled");
    assert!(copy_through_buffer(&from, &to, 0, 100, &stop).is_err());
}

#[test]
fn zero_blocks_become_holes_for_any_write_size() {
    let expected = bytes(&sparse_file());
    for piece in [1000, 4096, 4097, 1024 * 1024, expected.len()] {
        let file = tempfile::tempfile().unwrap();
        let mut sparse = SparseWriter::new(&file);
        for part in expected.chunks(piece) {
            sparse.write_all(part).unwrap();
        }
        assert_eq!(sparse.finish().unwrap(), expected.len() as u64);
        assert_eq!(bytes(&file), expected, "{piece}");
        let blocks = file.metadata().unwrap().blocks();
        assert!(blocks <= 64, "{blocks} blocks in pieces of {piece}");
    }
}
