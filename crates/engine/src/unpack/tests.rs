use std::io::Write as _;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::path::{self, ArchiveEntry, VersionFolder};
use super::*;
use crate::resource::Resource;

/// A tar archive whose writer does not validate paths.
fn tar(entries: &[(&str, tar::EntryType, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, kind, content) in entries {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(*kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        if kind.is_symlink() || kind.is_hard_link() {
            header.set_link_name("/etc/passwd").unwrap();
        }
        header.set_cksum();
        builder.append(&header, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn texts(defects: &[Defect]) -> Vec<String> {
    defects.iter().map(ToString::to_string).collect()
}

fn unpacked(archive: &[u8], limits: UnpackLimits) -> Result<Contents, UnpackError> {
    let scratch = tempfile::tempdir().unwrap();
    let contents = unpack(archive, scratch.path(), limits);
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "nothing has a name");
    contents
}

const FILE: tar::EntryType = tar::EntryType::Regular;

fn pods() -> GroupResource {
    GroupResource::new("", "pods")
}

fn pod_resource() -> Arc<Resource> {
    Arc::new(Resource {
        id: pods(),
        version: "v1".into(),
        kind: "Pod".into(),
        singular: "pod".into(),
        short_names: Vec::new(),
        is_namespaced: true,
        verbs: Vec::new(),
    })
}

fn pod(name: &str) -> Vec<u8> {
    format!(r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}","namespace":"a"}}}}"#)
        .into_bytes()
}

#[test]
fn paths_become_keys_or_are_refused() {
    let item = |path: &str| match path::parse(path) {
        Ok(ArchiveEntry::Item(place)) => (
            place.resource.to_string(),
            match place.version {
                VersionFolder::None => String::new(),
                VersionFolder::Preferred(version) => format!("{version}!"),
                VersionFolder::Other(version) => version,
            },
            place.namespace,
            place.name,
        ),
        other => panic!("{path}: {other:?}"),
    };
    let row = |a: &str, b: &str, c: &str, d: &str| {
        (a.to_owned(), b.to_owned(), c.to_owned(), d.to_owned())
    };
    for (path, expected) in [
        ("resources/pods/namespaces/a/x.json", row("pods", "", "a", "x")),
        ("./resources/pods/namespaces/a/x.y.json", row("pods", "", "a", "x.y")),
        ("resources/pods/v1-preferredversion/namespaces/a/x.json", row("pods", "v1!", "a", "x")),
        ("resources/things.a.io/v1beta1/cluster/x.json", row("things.a.io", "v1beta1", "", "x")),
        ("resources/clusterroles.rbac/cluster/a:b.json", row("clusterroles.rbac", "", "", "a:b")),
        // `cluster` is a valid name for a namespace.
        ("resources/pods/namespaces/cluster/x.json", row("pods", "", "cluster", "x")),
    ] {
        assert_eq!(item(path), expected, "{path}");
    }
    assert_eq!(path::parse("metadata/version"), Ok(ArchiveEntry::FormatVersion));
    for path in [
        "/etc/passwd",
        "../../etc/passwd",
        "resources/pods/namespaces/../x.json",
        "resources/pods/namespaces/a/../../x.json",
        "resources/pods/namespaces/a/.json",
        "resources/pods/namespaces/a/x.yaml",
        "resources/pods/namespaces/a/b/x.json",
        "resources/pods/namespaces/x.json",
        "resources/pods/v1/v2/cluster/x.json",
        "resources//namespaces/a/x.json",
        "resources/pods",
        "resources",
        "metadata/other",
        "elsewhere/x.json",
        "",
    ] {
        assert!(path::parse(path).is_err(), "{path}");
    }
}

#[test]
fn an_archive_is_read_into_an_index() {
    let archive = gzip(&tar(&[
        ("metadata/version", FILE, b"1.1.0\n"),
        ("resources/pods/namespaces/a/x.json", FILE, &pod("x")),
        ("resources/pods/v1-preferredversion/namespaces/a/x.json", FILE, &pod("x")),
        ("resources/pods/v2/namespaces/a/x.json", FILE, &pod("x")),
        ("resources/nodes/cluster/n.json", FILE, b"{\"kind\":\"Node\"}"),
    ]));
    let contents = unpacked(&archive, UnpackLimits::default()).unwrap();
    assert_eq!(texts(&contents.refusals), [] as [&str; 0]);
    assert_eq!(contents.format_version, "1.1.0");
    assert_eq!(contents.namespaces(), ["a"]);
    let kind = contents.kind(&pods()).unwrap();
    assert_eq!(kind.items().collect::<Vec<_>>(), [("a", "x")]);
    assert_eq!(kind.versions().collect::<Vec<_>>(), ["v1", "v2"]);
    assert_eq!(contents.read(&pods(), None, "a", "x").unwrap().json().to_vec(), pod("x"));
    assert!(matches!(contents.read(&pods(), None, "a", "y"), Err(ReadError::Missing)));
}

#[test]
fn invalid_entries_are_refused_and_the_rest_is_read() {
    let archive = gzip(&tar(&[
        ("../../../../tmp/evil", FILE, b"x"),
        ("/tmp/evil", FILE, b"x"),
        ("resources/pods/namespaces/a/link.json", tar::EntryType::Symlink, b""),
        ("resources/pods/namespaces/a/hard.json", tar::EntryType::Link, b""),
        ("resources/pods/namespaces/a/fifo.json", tar::EntryType::Fifo, b""),
        ("resources/pods/namespaces/a/x.json", FILE, &pod("x")),
        ("resources/pods/namespaces/a/x.json", FILE, &pod("other")),
        ("resources/pods/namespaces/a/bad.json", FILE, b"{"),
        ("resources/pods/namespaces/a/liar.json", FILE, &pod("truth")),
        ("resources/pods/namespaces/a/long.json", FILE, &[b' '; 3000]),
    ]));
    let contents =
        unpacked(&archive, UnpackLimits { entry: 2000, ..UnpackLimits::default() }).unwrap();
    assert_eq!(contents.refusals.len(), 7, "{:#?}", contents.refusals);
    assert_eq!(contents.read(&pods(), None, "a", "x").unwrap().json().to_vec(), pod("x"));
    let resource = pod_resource();
    assert!(contents.object(&resource, None, "a", "x").is_ok());
    assert!(matches!(contents.object(&resource, None, "a", "bad"), Err(ReadError::Object(_))));
    assert!(matches!(contents.object(&resource, None, "a", "liar"), Err(ReadError::Mismatch(_))));
}

#[test]
fn the_size_of_an_item_is_known_without_reading_it() {
    let archive = gzip(&tar(&[("resources/pods/namespaces/a/x.json", FILE, &pod("x"))]));
    let contents = unpacked(&archive, UnpackLimits::default()).unwrap();
    let id = |name: &str| ResourceIdentifier {
        group: String::new(),
        resource: "pods".into(),
        namespace: "a".into(),
        name: name.into(),
    };
    assert_eq!([contents.size(&id("x")), contents.size(&id("y"))], [pod("x").len(), 0]);
}

#[test]
fn object_whose_kind_differs_from_its_folder_is_refused() {
    let fields = r#""metadata":{"name":"x","namespace":"a"}"#;
    for (kind, api_version, is_true) in [
        ("Pod", "v1", true),
        // Old archives do not record the version.
        ("Pod", "v9", true),
        ("Secret", "v1", false),
        ("Pod", "example.io/v1", false),
    ] {
        let object = format!(r#"{{"apiVersion":"{api_version}","kind":"{kind}",{fields}}}"#);
        let path = "resources/pods/namespaces/a/x.json";
        let archive = gzip(&tar(&[(path, FILE, object.as_bytes())]));
        let contents = unpacked(&archive, UnpackLimits::default()).unwrap();
        let read = contents.object(&pod_resource(), None, "a", "x");
        assert_eq!(read.is_ok(), is_true, "{object}");
        assert!(is_true || matches!(read, Err(ReadError::Mismatch(_))), "{object}");
    }
}

#[test]
fn paths_must_be_utf8_and_within_the_length_limit() {
    let mut latin = tar(&[("resources/pods/namespaces/a/u.json", FILE, &pod("u"))]);
    latin[28] = 0xfc;
    // With the recomputed checksum of the header.
    let sum: u32 = latin[..148].iter().chain(&latin[156..512]).map(|&byte| u32::from(byte)).sum();
    latin[148..156].copy_from_slice(format!("{:06o}\0 ", sum + 8 * 32).as_bytes());
    let contents = unpacked(&gzip(&latin), UnpackLimits::default()).unwrap();
    assert_eq!(contents.kinds().count(), 0);
    let refusals = texts(&contents.refusals);
    assert!(refusals[0].contains("the path is not valid UTF-8"), "{refusals:?}");

    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    let name = "x".repeat(5000);
    let path = format!("resources/pods/namespaces/a/{name}.json");
    builder.append_data(&mut header, path, &[][..]).unwrap();
    let contents =
        unpacked(&gzip(&builder.into_inner().unwrap()), UnpackLimits::default()).unwrap();
    assert_eq!(contents.kinds().count(), 0);
    let refusal = contents.refusals[0].to_string();
    assert!(refusal.contains("the path is too long") && refusal.len() < 400, "{refusal}");
}

#[test]
fn entries_before_the_break_of_an_archive_are_read() {
    let paths: Vec<String> =
        (0..50).map(|n| format!("resources/pods/namespaces/a/p{n}.json")).collect();
    // Incompressible content, so that a cut lies in the middle of the data.
    let contents: Vec<Vec<u8>> = (0..50_u64)
        .map(|n| {
            let noise = (0..400).map(|i| (n * 7919 + i * 104_729).wrapping_mul(2_654_435_761));
            pod(&noise.map(|number| number.to_string()).collect::<String>())
        })
        .collect();
    let entries: Vec<_> =
        paths.iter().zip(&contents).map(|(path, pod)| (path.as_str(), FILE, &pod[..])).collect();
    let archive = gzip(&tar(&entries));
    let cut = unpacked(&archive[..archive.len() / 2], UnpackLimits::default()).unwrap();
    let item_count = cut.kind(&pods()).unwrap().len();
    assert!((10..40).contains(&item_count), "{item_count}");
    let refusals = texts(&cut.refusals);
    assert!(refusals.last().unwrap().contains("ends early"), "{refusals:?}");
    for nonsense in [&b"this is no archive at all"[..], b"", &gzip(b"nor is this"), &gzip(b"")] {
        let nonsense = unpacked(nonsense, UnpackLimits::default()).unwrap();
        assert_eq!(nonsense.kinds().count(), 0);
        assert!(nonsense.broken.is_some());
        let refusals = texts(&nonsense.refusals);
        assert!(refusals[0].contains("ends early"), "{refusals:?}");
    }
}

/// An uncompressed archive with one pod.
fn one_pod() -> Vec<u8> {
    tar(&[("resources/pods/namespaces/a/x.json", FILE, &pod("x"))])
}

/// The defect of an archive whose pod can be read.
fn break_reason(archive: &[u8]) -> Option<String> {
    let contents = unpacked(archive, UnpackLimits::default()).unwrap();
    assert_eq!(contents.read(&pods(), None, "a", "x").unwrap().json().to_vec(), pod("x"));
    assert!(contents.refusals.len() < 2, "{:?}", contents.refusals);
    let broken = contents.broken.map(|broken| broken.to_string());
    assert!(broken.is_none() || broken == texts(&contents.refusals).pop());
    broken
}

#[test]
fn truncated_gzip_trailer_is_detected() {
    let whole = gzip(&one_pod());
    assert_eq!(break_reason(&whole), None);
    for missing in 1..=8 {
        let cut = break_reason(&whole[..whole.len() - missing]).expect("it is noticed");
        assert!(cut.contains("ends early: "), "{missing}: {cut}");
    }
    // The checksum is in the last eight bytes, followed by the length.
    for offset in [8, 1] {
        let mut wrong = whole.clone();
        let at = wrong.len() - offset;
        wrong[at] ^= 1;
        let wrong = break_reason(&wrong).expect("it is noticed");
        assert!(wrong.contains("ends early: "), "{offset}: {wrong}");
    }
}

#[test]
fn multi_member_gzip_is_read_to_the_end() {
    let tar = one_pod();
    let (head, tail) = tar.split_at(1024);
    let (first, second) = (gzip(head), gzip(tail));
    let whole = [&first[..], &second].concat();
    assert_eq!(break_reason(&whole), None);
    // The part with the end of the archive is missing, or only its trailer.
    let cut = break_reason(&first).expect("it is noticed");
    assert!(cut.contains("the end is missing"), "{cut}");
    for missing in [1, 8] {
        let cut = break_reason(&whole[..whole.len() - missing]).expect("it is noticed");
        assert!(cut.contains("ends early: "), "{missing}: {cut}");
    }
    let third = gzip(&[0; 9000]);
    let padded = [&whole[..], &third].concat();
    assert_eq!(break_reason(&padded), None);
    let cut = break_reason(&padded[..padded.len() - 3]).expect("it is noticed");
    assert!(cut.contains("ends early: "), "{cut}");
    let wrong = break_reason(&[&whole[..], b"nonsense"].concat()).expect("it is noticed");
    assert!(wrong.contains("ends early: "), "{wrong}");
}

#[test]
fn data_after_the_end_of_the_archive_is_reported() {
    let glued = gzip(&[one_pod(), one_pod()].concat());
    let contents = unpacked(&glued, UnpackLimits::default()).unwrap();
    assert_eq!(contents.kind(&pods()).unwrap().len(), 1);
    let refusals = texts(&contents.refusals);
    assert_eq!(refusals, ["data follows the end of the archive"]);
    assert!(contents.broken.is_none());
}

#[test]
fn truncated_entry_is_not_indexed() {
    let mut tar = one_pod();
    tar.truncate(512 + pod("x").len() - 1);
    let contents = unpacked(&gzip(&tar), UnpackLimits::default()).unwrap();
    assert!(contents.read(&pods(), None, "a", "x").is_err());
    assert!(contents.broken.unwrap().to_string().contains("ends early in"));
}

#[test]
fn read_error_of_the_bucket_is_no_damage() {
    struct BrokenReader<'a>(&'a [u8]);
    impl Read for BrokenReader<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err(io::Error::other("connection reset")),
                count => Ok(count),
            }
        }
    }
    let archive = gzip(&one_pod());
    for length in [0, 5, archive.len() / 2, archive.len() - 3] {
        let broken = BrokenReader(&archive[..length]);
        let error = unpack(broken, &std::env::temp_dir(), UnpackLimits::default()).unwrap_err();
        assert!(matches!(&error, UnpackError::Source(_)), "{length}: {error}");
        assert!(error.to_string().contains("connection reset"), "{error}");
    }
}

#[test]
fn decompression_bomb_is_refused() {
    let entry = vec![b' '; 8 << 10];
    let paths: Vec<String> =
        (0..40).map(|n| format!("resources/pods/namespaces/a/p{n}.json")).collect();
    let entries: Vec<_> = paths.iter().map(|path| (path.as_str(), FILE, &entry[..])).collect();
    let archive = gzip(&tar(&entries));
    let free = 1 << 17;
    let error = unpacked(
        &archive,
        UnpackLimits { free_expansion: free, ratio: 20, ..UnpackLimits::default() },
    )
    .unwrap_err();
    assert!(error.to_string().contains("20 times"), "{error}");
    let error =
        unpacked(&archive, UnpackLimits { total: free, ..UnpackLimits::default() }).unwrap_err();
    assert!(error.to_string().contains("more than 131072 bytes"), "{error}");
    let error =
        unpacked(&archive, UnpackLimits { entries: 3, ..UnpackLimits::default() }).unwrap_err();
    assert!(error.to_string().contains("more than 3 entries"), "{error}");
    assert!(
        unpacked(&archive, UnpackLimits { ratio: 20, ..UnpackLimits::default() }).is_ok(),
        "it is small"
    );
}

#[test]
fn refused_entries_count_towards_the_limits() {
    let limits = UnpackLimits {
        free_expansion: 1 << 16,
        ratio: 20,
        entry: 1 << 16,
        ..UnpackLimits::default()
    };
    let bomb = vec![b' '; 1 << 18];
    let small = "resources/pods/namespaces/a/x.json";
    // A refused path, an entry that is too large, and a directory with content.
    for (path, kind) in [("elsewhere", FILE), (small, FILE), ("dir", tar::EntryType::Directory)] {
        let archive = gzip(&tar(&[(path, kind, &bomb), (small, FILE, b"{}")]));
        let error = unpacked(&archive, limits).unwrap_err();
        assert!(error.to_string().contains("20 times"), "{path}: {error}");
    }
    // Data after the end counts, too.
    let error = unpacked(&gzip(&[one_pod(), vec![0; 1 << 18]].concat()), limits).unwrap_err();
    assert!(error.to_string().contains("20 times"), "{error}");
}

#[test]
fn header_size_is_limited() {
    let long = vec![b'x'; (1 << 20) + 4096];
    let x = "resources/pods/namespaces/a/x.json";
    for kind in [tar::EntryType::GNULongName, tar::EntryType::GNULongLink, tar::EntryType::XHeader]
    {
        let entries = [(x, FILE, &pod("x")[..]), ("long", kind, &long), (x, FILE, &pod("x"))];
        let broken = break_reason(&gzip(&tar(&entries))).expect("it is noticed");
        assert!(broken.contains("the headers are longer than"), "{broken}");
    }
}

#[test]
fn number_of_reported_refusals_is_limited() {
    let entries: Vec<_> = (0..5).map(|_| ("elsewhere/x", FILE, &b"x"[..])).collect();
    let limits = UnpackLimits { refusals: 2, ..UnpackLimits::default() };
    let contents = unpacked(&gzip(&tar(&entries)), limits).unwrap();
    assert_eq!(contents.refusals.len(), 3);
    assert_eq!(contents.refusals[2].to_string(), "and 3 more entries were refused");
}

#[test]
fn names_are_no_longer_than_kubernetes_allows() {
    let long = |length: usize| "x".repeat(length);
    for (path, is_item) in [
        (format!("resources/pods/namespaces/a/{}.json", long(253)), true),
        (format!("resources/pods/namespaces/a/{}.json", long(254)), false),
        (format!("resources/pods/namespaces/{}/x.json", long(63)), true),
        (format!("resources/pods/namespaces/{}/x.json", long(64)), false),
        (format!("resources/pods/{}/namespaces/a/x.json", long(64)), false),
        (format!("resources/{}/cluster/x.json", long(400)), false),
    ] {
        assert_eq!(path::parse(&path).is_ok(), is_item, "{path}");
    }
}

#[test]
fn index_and_spool_size_are_limited() {
    let paths: Vec<String> =
        (0..40).map(|n| format!("resources/pods/namespaces/a/p{n}.json")).collect();
    let entries: Vec<_> = paths.iter().map(|path| (path.as_str(), FILE, &b"{}"[..])).collect();
    let archive = gzip(&tar(&entries));
    assert!(unpacked(&archive, UnpackLimits::default()).is_ok());
    let error =
        unpacked(&archive, UnpackLimits { index: 4000, ..UnpackLimits::default() }).unwrap_err();
    assert!(
        error.to_string().contains("the index of the archive needs more than 4000 bytes of memory"),
        "{error}"
    );
    let error =
        unpacked(&archive, UnpackLimits { spool: 70, ..UnpackLimits::default() }).unwrap_err();
    assert!(error.to_string().contains("the items need more than 70 bytes"), "{error}");
    // Limits that fit a pod of 512 MiB and the disk of its node.
    let UnpackLimits { entry, index, spool, .. } = UnpackLimits::default();
    assert!(entry <= 8 << 20 && index <= 256 << 20 && spool <= 8 << 30);
}

#[test]
fn item_damage_is_known_after_unpacking() {
    let archive = gzip(&tar(&[
        ("resources/pods/namespaces/a/x.json", FILE, &pod("x")),
        ("resources/pods/namespaces/a/bad.json", FILE, b"{"),
        ("resources/pods/namespaces/a/liar.json", FILE, &pod("truth")),
        ("resources/pods/namespaces/a/link.json", tar::EntryType::Symlink, b""),
        ("metadata/other", FILE, b"x"),
    ]));
    let contents = unpacked(&archive, UnpackLimits::default()).unwrap();
    assert_eq!((contents.damage.len(), contents.lost), (3, 3), "{:#?}", contents.damage);
    for (damage, words) in contents.damage.iter().zip(["bad.json", "liar.json", "link.json"]) {
        assert!(damage.to_string().contains(words), "{damage}");
    }
    assert_eq!(contents.refusals.len(), 2, "{:#?}", contents.refusals);
}

/// The parser quotes a value of the wrong type, and an archive may have a thousand of several megabytes.
#[test]
fn message_about_an_item_is_short_whatever_the_item_contains() {
    let long = format!(r#"{{"kind":"Pod","metadata":"{}"}}"#, "x".repeat(1 << 20));
    let paths: Vec<String> =
        (0..4).map(|n| format!("resources/pods/namespaces/a/p{n}.json")).collect();
    let entries: Vec<_> = paths.iter().map(|path| (path.as_str(), FILE, long.as_bytes())).collect();
    let contents = unpacked(&gzip(&tar(&entries)), UnpackLimits::default()).unwrap();
    assert_eq!(contents.damage.len(), 4);
    for damage in texts(&contents.damage) {
        assert!(damage.contains("not a JSON object: invalid type: string"), "{damage:.99}");
        assert!(damage.len() < 1000, "{}", damage.len());
    }
}
