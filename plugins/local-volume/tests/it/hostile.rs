//! Paths, ids and repositories that want to lead elsewhere.

use std::fs;
use std::io::Cursor;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;

use bowline_plugin_sdk::{Class, Code, SnapshotId, VolumeId, VolumeSnapshotter as _};
use object_store::ObjectStoreExt as _;
use object_store::local::LocalFileSystem;
use rustic_core::repofile::{Metadata, Node, NodeType};
use rustic_core::{
    BackupOptions, BytesList, Credentials, FileType, Id, ParentOptions, ReadBackend, ReadSource,
    ReadSourceEntry, RepositoryBackends, RepositoryOptions, RusticResult, SnapshotOptions,
    WriteBackend,
};

use crate::listing::names;
use crate::place::{PASSWORD, Place, id_of, persistent_volume};

#[tokio::test]
async fn a_persistent_volume_that_leads_out_of_the_roots_is_refused() {
    let place = Place::new().await;
    fs::create_dir(place.path("secret")).unwrap();
    symlink("../secret", place.path("root/link")).unwrap();
    symlink("/proc/self/root", place.path("root/magic")).unwrap();
    let root = place.path("root");
    for (path, words) in [
        ("/etc".to_owned(), "not below an allowed root"),
        ("/".to_owned(), "the root of all filesystems"),
        ("etc".to_owned(), "not an absolute path"),
        (String::new(), "not an absolute path"),
        (format!("{}/../secret", root.display()), "has a part"),
        (format!("{}/link", root.display()), "leads out of its root"),
        (format!("{}/magic/etc", root.display()), "leads out of its root"),
        (format!("{}/.bowline-snapshots", root.display()), "keeps for itself"),
        (root.display().to_string(), "is a root itself"),
        (format!("{}x", root.display()), "not below an allowed root"),
    ] {
        for kind in ["local", "hostPath"] {
            let item = persistent_volume(kind, &path);
            let error = place.plugin.get_volume_id(&item).await.unwrap_err();
            assert!(error.message().contains(words), "{path}: {error}");
            assert_eq!(error.class(), Class::Permanent, "{error}");
        }
        // Nor when the id comes from a backup of somebody else.
        let Some(volume) = VolumeId::new(path.clone()) else { continue };
        let tags = std::collections::BTreeMap::new();
        assert!(place.plugin.create_snapshot(&volume, "", &tags).await.is_err(), "{path}");
        assert!(place.plugin.get_volume_info(&volume, "").await.is_err(), "{path}");
        if !path.ends_with("link") && !path.contains("magic") {
            let item = persistent_volume("local", "/x");
            assert!(place.plugin.set_volume_id(&item, &volume).await.is_err(), "{path}");
        }
    }
    assert_eq!(names(&place.state()), [""; 0], "nothing was made");
}

#[tokio::test]
async fn links_in_a_volume_are_cloned_and_never_followed() {
    let place = Place::new().await;
    fs::create_dir(place.path("secret")).unwrap();
    fs::write(place.path("secret/file"), "secret").unwrap();
    symlink(place.path("secret"), place.volume().join("folder")).unwrap();
    symlink(place.path("secret/file"), place.volume().join("file")).unwrap();
    let snapshot = place.snapshot("r-1").await.unwrap();
    place.plugin.upload_snapshot(&snapshot).await.unwrap();
    let made = place.restore(&snapshot).await.unwrap();
    for name in ["folder", "file"] {
        assert!(fs::symlink_metadata(made.join(name)).unwrap().is_symlink(), "{name}");
    }
    place.plugin.delete_snapshot(&snapshot).await.unwrap();
    assert_eq!(fs::read_to_string(place.path("secret/file")).unwrap(), "secret");
}

#[tokio::test]
async fn ids_that_are_not_ours_are_refused_and_touch_nothing() {
    let place = Place::new().await;
    fs::create_dir_all(place.path("root/precious")).unwrap();
    for text in ["../precious", "..", "/etc", "lv-", "lv-../../precious", "snap-1", "lv-é"] {
        let id = SnapshotId::new(text).unwrap();
        let error = place.plugin.delete_snapshot(&id).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert_eq!(place.plugin.upload_snapshot(&id).await.unwrap_err().code(), error.code());
        assert_eq!(place.restore(&id).await.unwrap_err().code(), error.code());
        assert_eq!(place.plugin.progress(&id).await.unwrap_err().class(), Class::Permanent);
        place.plugin.cancel(&id).await.unwrap();
    }
    assert!(place.path("root/precious").exists());
}

#[tokio::test]
async fn a_volume_with_another_filesystem_in_it_is_refused() {
    let place = Place::new().await;
    let inner = place.volume().join("inner");
    fs::create_dir(&inner).unwrap();
    let mounted = crate::filesystems::Mounted::tmpfs(&inner, "1m");
    let error = place.snapshot("r-1").await.unwrap_err();
    assert!(error.message().contains("another filesystem is mounted at \"inner\""), "{error}");
    drop(mounted);
    place.snapshot("r-1").await.unwrap();
}

#[tokio::test]
async fn entries_of_a_repository_that_lead_elsewhere_are_refused() {
    let evil = |name: &str, kind: NodeType| {
        let meta = Metadata {
            mode: Some(0o644),
            mtime: Some(rustic_core::jiff::Timestamp::UNIX_EPOCH),
            uid: Some(0),
            gid: Some(0),
            size: 4,
            ..Metadata::default()
        };
        Node { name: name.to_owned(), ..Node::new_node("x".as_ref(), kind, meta) }
    };
    for name in ["../../../evil", "/evil", "..", "a/b", "\\x2fevil"] {
        let place = Place::new().await;
        let snapshot = place.snapshot("r-1").await.unwrap();
        // Makes the repository, with a snapshot that is replaced by the evil one.
        place.plugin.upload_snapshot(&snapshot).await.unwrap();
        let file = evil(name, NodeType::File);
        let repository = place.path("repository");
        let id = snapshot.clone();
        tokio::task::spawn_blocking(move || plant(&repository, &id, file)).await.unwrap();
        let before = names(&place.path("."));
        let error = place.restore(&snapshot).await.unwrap_err();
        assert_eq!(error.code(), Code::DataLoss, "{name}: {error}");
        assert!(error.message().contains("name is that of no entry"), "{name}: {error}");
        assert_eq!(names(&place.path(".")), before);
        assert_eq!(names(&place.path("root")), [".bowline-snapshots", "vol"], "{name}");
        assert!(!PathBuf::from("/evil").exists());
    }
}

/// Puts a snapshot with a later time into a repository, with one file of the given node.
fn plant(repository: &std::path::Path, id: &SnapshotId, file: Node) {
    struct Evil(Node);
    impl ReadSource for Evil {
        type Open = Cursor<&'static [u8]>;
        type Iter = std::vec::IntoIter<RusticResult<ReadSourceEntry<Self::Open>>>;
        fn size(&self) -> RusticResult<Option<u64>> {
            Ok(None)
        }
        fn entries(&self) -> Self::Iter {
            let dir_meta = Metadata { size: 0, ..self.0.meta.clone() };
            let dir = Node::new_node("data".as_ref(), NodeType::Dir, dir_meta);
            let entry = |path: &str, node: Node, open| {
                Ok(ReadSourceEntry { path: PathBuf::from(path), node, open })
            };
            let content = Cursor::new(&b"evil"[..]);
            vec![entry("data", dir, None), entry("data/x", self.0.clone(), Some(content))]
                .into_iter()
        }
    }
    let backends = RepositoryBackends::new(Arc::new(Folder::open(repository)), None);
    let options = RepositoryOptions::default().no_cache(true);
    let opened = rustic_core::Repository::new(&options, &backends).unwrap();
    let opened = opened.open(&Credentials::password(PASSWORD)).unwrap();
    let indexed = opened.to_indexed_ids().unwrap();
    let snapshot = SnapshotOptions::default().add_tags(id.as_str()).unwrap().to_snapshot().unwrap();
    let options = BackupOptions::default().parent_opts(ParentOptions::default().force(true));
    indexed.archive(&options, &Evil(file), snapshot, &[PathBuf::from("/data/vol")]).unwrap();
}

/// A folder as somebody else would use it.
struct Folder(LocalFileSystem, tokio::runtime::Runtime);

impl Folder {
    fn open(path: &std::path::Path) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        Self(LocalFileSystem::new_with_prefix(path).unwrap(), runtime)
    }

    fn path(kind: FileType, id: &Id) -> object_store::path::Path {
        let hex = id.to_hex();
        match kind {
            FileType::Config => "config".into(),
            FileType::Pack => format!("data/{}/{}", &hex[..2], &*hex).into(),
            kind => format!("{}/{}", kind.dirname(), &*hex).into(),
        }
    }
}

impl ReadBackend for Folder {
    fn location(&self) -> String {
        "test".to_owned()
    }
    fn list_with_size(&self, kind: FileType) -> RusticResult<Vec<(Id, u32)>> {
        use bowline_plugin_sdk::futures_util::TryStreamExt as _;
        if kind == FileType::Config {
            return Ok(vec![(Id::default(), 0)]);
        }
        let listed = object_store::ObjectStore::list(&self.0, Some(&kind.dirname().into()));
        let files: Vec<_> = self.1.block_on(listed.try_collect()).unwrap();
        let entry = |file: object_store::ObjectMeta| {
            let id = Id::parse_some(file.location.filename().unwrap(), kind)?;
            Some((id, u32::try_from(file.size).unwrap()))
        };
        Ok(files.into_iter().filter_map(entry).collect())
    }
    fn read_full(&self, kind: FileType, id: &Id) -> RusticResult<bytes::Bytes> {
        let path = Self::path(kind, id);
        Ok(self.1.block_on(async { self.0.get(&path).await.unwrap().bytes().await }).unwrap())
    }
    fn read_partial(
        &self,
        kind: FileType,
        id: &Id,
        _: bool,
        offset: u32,
        length: u32,
    ) -> RusticResult<bytes::Bytes> {
        let begin = offset as usize;
        Ok(self.read_full(kind, id)?.slice(begin..begin + length as usize))
    }
    fn warmup_path(&self, _: FileType, _: &Id) -> String {
        String::new()
    }
}

impl WriteBackend for Folder {
    fn write_bytes(
        &self,
        kind: FileType,
        id: &Id,
        _: bool,
        content: BytesList,
    ) -> RusticResult<()> {
        let payload: object_store::PutPayload = content.into_vec().into_iter().collect();
        self.1.block_on(self.0.put(&Self::path(kind, id), payload)).unwrap();
        Ok(())
    }
    fn remove(&self, _: FileType, _: &Id, _: bool) -> RusticResult<()> {
        Ok(())
    }
}

#[tokio::test]
async fn two_volumes_do_not_see_each_others_snapshots() {
    let place = Place::new().await;
    fs::create_dir(place.path("root/other")).unwrap();
    fs::write(place.volume().join("file"), "one").unwrap();
    fs::write(place.path("root/other/file"), "two").unwrap();
    let one = place.snapshot("r-1").await.unwrap();
    let two = place.snapshot_of(&place.path("root/other"), "r-2").await.unwrap();
    let (first, second) =
        tokio::join!(place.plugin.upload_snapshot(&one), place.plugin.upload_snapshot(&two));
    first.unwrap();
    second.unwrap();
    place.plugin.delete_snapshot(&one).await.unwrap();
    let made = place.restore(&two).await.unwrap();
    assert_eq!(fs::read_to_string(made.join("file")).unwrap(), "two");
    assert!(place.plugin.get_volume_info(&id_of(&made), "").await.is_ok());
}
