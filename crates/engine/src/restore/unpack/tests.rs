use std::io::Write as _;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::path::{self, Entry, VersionFolder};
use super::*;

/// A tar whose paths are not checked by the one who writes it.
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

fn unpacked(archive: &[u8], limits: Limits) -> Result<Contents, UnpackError> {
    let scratch = tempfile::tempdir().unwrap();
    let contents = unpack(archive, scratch.path(), limits);
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "nothing has a name");
    contents
}

const FILE: tar::EntryType = tar::EntryType::Regular;

fn pods() -> GroupResource {
    GroupResource::new("", "pods")
}

fn pod(name: &str) -> Vec<u8> {
    format!(r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}","namespace":"a"}}}}"#)
        .into_bytes()
}

#[test]
fn paths_become_keys_or_are_refused() {
    let item = |path: &str| match path::parse(path) {
        Ok(Entry::Item(place)) => (
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
        // A namespace may be called so.
        ("resources/pods/namespaces/cluster/x.json", row("pods", "", "cluster", "x")),
    ] {
        assert_eq!(item(path), expected, "{path}");
    }
    assert_eq!(path::parse("metadata/version"), Ok(Entry::FormatVersion));
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
    let contents = unpacked(&archive, Limits::default()).unwrap();
    assert_eq!(contents.refusals, [] as [&str; 0]);
    assert_eq!(contents.format_version, "1.1.0");
    assert_eq!(contents.namespaces(), ["a"]);
    let kind = contents.kind(&pods()).unwrap();
    assert_eq!(kind.items().collect::<Vec<_>>(), [("a", "x")]);
    assert_eq!(kind.versions().collect::<Vec<_>>(), ["v1", "v2"]);
    assert_eq!(contents.read(&pods(), None, "a", "x").unwrap().json().to_vec(), pod("x"));
    assert!(matches!(contents.read(&pods(), None, "a", "y"), Err(ReadError::Missing)));
}

#[test]
fn hostile_entries_are_refused_and_the_rest_is_read() {
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
    let contents = unpacked(&archive, Limits { entry: 2000, ..Limits::default() }).unwrap();
    assert_eq!(contents.refusals.len(), 7, "{:#?}", contents.refusals);
    assert_eq!(contents.read(&pods(), None, "a", "x").unwrap().json().to_vec(), pod("x"));
    let resource = Arc::new(Resource {
        id: pods(),
        version: "v1".into(),
        kind: "Pod".into(),
        singular: "pod".into(),
        short_names: Vec::new(),
        is_namespaced: true,
        verbs: Vec::new(),
    });
    assert!(contents.object(&resource, None, "a", "x").is_ok());
    assert!(matches!(contents.object(&resource, None, "a", "bad"), Err(ReadError::Object(_))));
    assert!(matches!(contents.object(&resource, None, "a", "liar"), Err(ReadError::Lies(_))));
}

#[test]
fn of_a_broken_archive_what_comes_before_the_break_is_read() {
    let paths: Vec<String> =
        (0..50).map(|n| format!("resources/pods/namespaces/a/p{n}.json")).collect();
    // Content that does not compress, so that a cut is a cut in the middle.
    let contents: Vec<Vec<u8>> = (0..50_u64)
        .map(|n| {
            let noise = (0..400).map(|i| (n * 7919 + i * 104_729).wrapping_mul(2_654_435_761));
            pod(&noise.map(|number| number.to_string()).collect::<String>())
        })
        .collect();
    let entries: Vec<_> =
        paths.iter().zip(&contents).map(|(path, pod)| (path.as_str(), FILE, &pod[..])).collect();
    let archive = gzip(&tar(&entries));
    let cut = unpacked(&archive[..archive.len() / 2], Limits::default()).unwrap();
    let kept = cut.kind(&pods()).unwrap().len();
    assert!((10..40).contains(&kept), "{kept}");
    assert!(cut.refusals.last().unwrap().contains("breaks off"), "{:?}", cut.refusals);
    let nonsense = unpacked(b"this is no archive at all", Limits::default()).unwrap();
    assert_eq!(nonsense.kinds().count(), 0);
    assert!(nonsense.refusals[0].contains("breaks off"), "{:?}", nonsense.refusals);
}

#[test]
fn what_expands_without_end_is_refused() {
    let entry = vec![b' '; 4 << 20];
    let paths: Vec<String> =
        (0..40).map(|n| format!("resources/pods/namespaces/a/p{n}.json")).collect();
    let entries: Vec<_> = paths.iter().map(|path| (path.as_str(), FILE, &entry[..])).collect();
    let archive = gzip(&tar(&entries));
    let limits = Limits { ratio: 100, ..Limits::default() };
    let error = unpacked(&archive, limits).unwrap_err();
    assert!(error.to_string().contains("100 times"), "{error}");
    let error = unpacked(&archive, Limits { total: 10 << 20, ..Limits::default() }).unwrap_err();
    assert!(error.to_string().contains("more than 10485760 bytes"), "{error}");
    let error = unpacked(&archive, Limits { entries: 3, ..Limits::default() }).unwrap_err();
    assert!(error.to_string().contains("more than 3 entries"), "{error}");
}

#[test]
fn refusals_are_told_up_to_a_number() {
    let entries: Vec<_> = (0..5).map(|_| ("elsewhere/x", FILE, &b"x"[..])).collect();
    let limits = Limits { refusals: 2, ..Limits::default() };
    let contents = unpacked(&gzip(&tar(&entries)), limits).unwrap();
    assert_eq!(contents.refusals.len(), 3);
    assert_eq!(contents.refusals[2], "and 3 more entries were refused");
}
