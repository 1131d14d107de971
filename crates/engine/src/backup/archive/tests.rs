use std::collections::BTreeMap;
use std::io::{Read, Write as _};
use std::process::{Command, Stdio};

use flate2::read::{GzDecoder, MultiGzDecoder};
use futures::TryStreamExt as _;

use super::*;
use crate::archive_index::Root;

const MODES: [CompressionMode; 2] =
    [CompressionMode::Inline, CompressionMode::Workers(std::num::NonZeroUsize::new(3).unwrap())];

fn entry(kind: &str, name: usize, bytes: usize) -> Entry {
    let json = format!(r#"{{"kind":"{kind}","n":{name},"pad":"{}"}}"#, "x".repeat(bytes));
    let paths = ["", "v1-preferredversion/"]
        .map(|version| format!("resources/{kind}/{version}namespaces/n/{name}.json"));
    Entry { paths, item: Item::from_json(json).unwrap(), name_bytes: 0, _budget: None }
}

struct Written {
    gzip: Vec<u8>,
    root: Root,
    sealed: SealedArchive,
}

/// Writes an archive of several lists, one after the other.
async fn write(lists: Vec<Vec<Entry>>, mode: CompressionMode) -> Written {
    let now = Timestamp::UNIX_EPOCH;
    let (archive, stream, writer) = start(now, &std::env::temp_dir(), mode).unwrap();
    let fill = async {
        for entries in lists {
            let list = archive.for_list();
            for entry in entries {
                list.append(entry).await.unwrap();
            }
            list.end_list().await.unwrap();
        }
        archive.finish().await.unwrap();
    };
    let ((), pieces) = futures::future::join(fill, stream.try_collect::<Vec<_>>()).await;
    let sealed = writer.finish(|_| Ok(())).await.unwrap();
    let index = sealed.index.as_ref().unwrap().stream().try_collect::<Vec<_>>().await.unwrap();
    Written { gzip: pieces.unwrap().concat(), root: Root::decode(&index.concat()).unwrap(), sealed }
}

fn files(mut tar: impl Read) -> Vec<(String, Vec<u8>)> {
    let mut archive = tar::Archive::new(&mut tar);
    let files = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        (String::from_utf8(entry.path_bytes().into_owned()).unwrap(), content)
    });
    files.collect()
}

/// The files of each member.
fn members(written: &Written) -> Vec<Vec<(String, Vec<u8>)>> {
    let members = written.root.members.iter().map(|member| {
        let begin = usize::try_from(member.offset).unwrap();
        let gzip = &written.gzip[begin..][..member.length as usize];
        let mut tar = Vec::new();
        let mut decoder = GzDecoder::new(gzip);
        decoder.read_to_end(&mut tar).unwrap();
        assert_eq!(tar.len(), member.unpacked as usize);
        let files = files(&tar[..]);
        let items = files.iter().filter(|(path, _)| path.contains("/namespaces/")).count() / 2;
        assert_eq!(items, member.items as usize);
        files
    });
    members.collect()
}

#[tokio::test]
async fn members_one_after_the_other_are_one_archive_with_each_item_twice() {
    for mode in MODES {
        let lists =
            (0..3).map(|list| (0..500).map(|n| entry(&format!("k{list}"), n, 2_000)).collect());
        let written = write(lists.collect(), mode).await;
        assert_eq!(
            (written.sealed.items, written.sealed.bytes),
            (1_500, written.gzip.len() as u64)
        );
        let all = files(MultiGzDecoder::new(&written.gzip[..]));
        assert_eq!(all[0], ("metadata/version".to_owned(), b"1.1.0\n".to_vec()));
        assert_eq!(all.len(), 1 + 2 * 1_500);
        for pair in all[1..].chunks(2) {
            assert_eq!(path_without_version(&pair[1].0), pair[0].0);
            assert_eq!(pair[1].1, pair[0].1);
        }
        let expected: BTreeMap<String, Vec<u8>> = (0..3)
            .flat_map(|list| (0..500).map(move |n| entry(&format!("k{list}"), n, 2_000)))
            .flat_map(|entry| entry.paths.map(|path| (path, entry.item.json().to_vec())))
            .collect();
        assert_eq!(all[1..].iter().cloned().collect::<BTreeMap<_, _>>(), expected);
        let members = members(&written);
        assert_eq!(members.concat(), all);
        let kinds_of = |member: &[(String, Vec<u8>)]| {
            let kinds = member.iter().map(|(path, _)| path.split('/').nth(1).unwrap().to_owned());
            kinds.collect::<std::collections::HashSet<_>>().len()
        };
        let of_one_list: Vec<_> = members[1..].iter().filter(|one| kinds_of(one) == 1).collect();
        assert!(members.len() - of_one_list.len() <= 3, "only the ends of lists are mixed");
        for member in of_one_list {
            let size = member.iter().map(|(_, content)| content.len()).sum::<usize>();
            assert!((MEMBER_BYTES / 3..MEMBER_BYTES).contains(&size), "{size}");
        }
    }
}

#[tokio::test]
async fn hundreds_of_lists_with_one_object_share_a_member() {
    let lists = (0..200).map(|list| vec![entry(&format!("k{list}"), 0, 1_000)]).collect();
    let written = write(lists, CompressionMode::Inline).await;
    let sizes: Vec<usize> = members(&written).iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, 400]);
}

#[tokio::test]
async fn object_larger_than_a_member_has_its_own() {
    let large = entry("large", 0, MEMBER_BYTES);
    let path = large.paths[0].clone();
    let list = vec![entry("small", 1, 10), large, entry("small", 2, 10)];
    let written = write(vec![list], CompressionMode::default()).await;
    let members = members(&written);
    let names: Vec<Vec<&str>> = members
        .iter()
        .map(|files| files.iter().step_by(2).map(|(path, _)| path.as_str()).collect())
        .collect();
    let [of_one, of_two] = [1, 2].map(|n| format!("resources/small/namespaces/n/{n}.json"));
    let expected = [vec!["metadata/version"], vec![&*path], vec![&*of_one, &*of_two]];
    assert_eq!(names, expected);
}

#[tokio::test]
async fn last_member_ends_the_tar() {
    let written = write(vec![vec![entry("k", 0, 10)]], CompressionMode::Inline).await;
    let mut tar = Vec::new();
    MultiGzDecoder::new(&written.gzip[..]).read_to_end(&mut tar).unwrap();
    assert!(tar[tar.len() - 1024..].iter().all(|byte| *byte == 0));
    assert!(tar[tar.len() - 1536..].iter().any(|byte| *byte != 0), "once");
    assert_eq!(written.root.members.last().unwrap().items, 1, "with the last items");
}

#[tokio::test]
async fn list_that_is_dropped_by_a_bug_loses_no_items() {
    let now = Timestamp::UNIX_EPOCH;
    let (archive, stream, writer) =
        start(now, &std::env::temp_dir(), CompressionMode::Inline).unwrap();
    let list = archive.for_list();
    list.append(entry("k", 0, 10)).await.unwrap();
    drop(list);
    let (_, pieces) = futures::future::join(archive.finish(), stream.try_collect::<Vec<_>>()).await;
    assert_eq!(files(MultiGzDecoder::new(&pieces.unwrap().concat()[..])).len(), 3);
    assert_eq!(writer.finish(|_| Ok(())).await.unwrap().items, 1);
}

#[tokio::test]
async fn archive_that_is_aborted_or_not_finished_ends_in_an_error() {
    for is_aborted in [true, false] {
        let now = Timestamp::UNIX_EPOCH;
        let (archive, stream, writer) =
            start(now, &std::env::temp_dir(), CompressionMode::default()).unwrap();
        let fill = async move {
            archive.append(entry("k", 0, 10)).await.unwrap();
            if is_aborted {
                archive.abort().await;
            }
        };
        let ((), pieces) = futures::future::join(fill, stream.try_collect::<Vec<_>>()).await;
        let error = pieces.unwrap_err().to_string();
        let expected = if is_aborted { "was aborted" } else { "not written completely" };
        assert!(error.contains(expected), "{error}");
        assert!(writer.finish(|_| Ok(())).await.is_err());
    }
}

#[tokio::test]
async fn archive_is_closed_when_the_upload_has_ended() {
    let now = Timestamp::UNIX_EPOCH;
    let (archive, stream, _writer) =
        start(now, &std::env::temp_dir(), CompressionMode::default()).unwrap();
    drop(stream);
    let large = entry("k", 0, MEMBER_BYTES);
    assert_eq!(archive.append(large).await, Err(ArchiveClosed));
    assert_eq!(archive.finish().await, Err(ArchiveClosed));
}

#[tokio::test]
async fn append_waits_while_the_upload_does_not_continue() {
    let now = Timestamp::UNIX_EPOCH;
    let (archive, mut stream, _writer) =
        start(now, &std::env::temp_dir(), CompressionMode::Inline).unwrap();
    let fill = async {
        for n in 0..20 {
            archive.append(entry("k", n, MEMBER_BYTES)).await.unwrap();
        }
    };
    let mut fill = std::pin::pin!(fill);
    // The queue holds the version, so the first large member waits.
    assert!(futures::poll!(&mut fill).is_pending());
    assert!(stream.try_next().await.unwrap().is_some());
    assert!(futures::poll!(&mut fill).is_pending(), "the next one waits in turn");
}

#[tokio::test]
async fn the_tar_program_reads_the_archive() {
    let list = (0..1_000).map(|n| entry("k", n, 2_000)).collect();
    let written = write(vec![list], CompressionMode::default()).await;
    let mut command = Command::new("tar");
    command.args(["-tzf", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Not every system has it.
    let Ok(mut tar) = command.spawn() else { return };
    let mut stdin = tar.stdin.take().unwrap();
    let gzip = written.gzip.clone();
    let writing = std::thread::spawn(move || stdin.write_all(&gzip));
    let output = tar.wait_with_output().unwrap();
    writing.join().unwrap().unwrap();
    let complaints = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && complaints.is_empty(), "{complaints}");
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 2_001);
}
