//! Paths, ids and repositories that try to escape their folder.

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
use crate::test_env::{PASSWORD, TestEnv, id_of, persistent_volume};

#[tokio::test]
async fn persistent_volume_outside_the_roots_is_refused() {
    let env = TestEnv::new().await;
    fs::create_dir(env.path("secret")).unwrap();
    symlink("../secret", env.path("root/link")).unwrap();
    symlink("/proc/self/root", env.path("root/magic")).unwrap();
    let root = env.path("root");
    for (path, words) in [
        ("/etc".to_owned(), "outside of the configured"),
        ("/".to_owned(), "the path is /"),
        ("etc".to_owned(), "not an absolute path"),
        (String::new(), "not an absolute path"),
        (format!("{}/../secret", root.display()), "has a part"),
        (format!("{}/link", root.display()), "leaves its root"),
        (format!("{}/magic/etc", root.display()), "leaves its root"),
        (format!("{}/.bowline-snapshots", root.display()), "is reserved for the plugin"),
        (root.display().to_string(), "is a root itself"),
        (format!("{}x", root.display()), "outside of the configured"),
    ] {
        for kind in ["local", "hostPath"] {
            let item = persistent_volume(kind, &path);
            let error = env.plugin.get_volume_id(&item).await.unwrap_err();
            assert!(error.message().contains(words), "{path}: {error}");
            assert_eq!(error.class(), Class::Permanent, "{error}");
        }
        // Nor when the id comes from a backup of somebody else.
        let Some(volume) = VolumeId::new(path.clone()) else { continue };
        let tags = std::collections::BTreeMap::new();
        assert!(env.plugin.create_snapshot(&volume, "", &tags).await.is_err(), "{path}");
        assert!(env.plugin.get_volume_info(&volume, "").await.is_err(), "{path}");
        if !path.ends_with("link") && !path.contains("magic") {
            let item = persistent_volume("local", "/x");
            assert!(env.plugin.set_volume_id(&item, &volume).await.is_err(), "{path}");
        }
    }
    assert_eq!(names(&env.state()), [""; 0], "nothing was made");
}

#[tokio::test]
async fn links_in_a_volume_are_cloned_and_never_followed() {
    let env = TestEnv::new().await;
    fs::create_dir(env.path("secret")).unwrap();
    fs::write(env.path("secret/file"), "secret").unwrap();
    symlink(env.path("secret"), env.volume().join("folder")).unwrap();
    symlink(env.path("secret/file"), env.volume().join("file")).unwrap();
    let snapshot = env.snapshot("r-1").await.unwrap();
    env.plugin.upload_snapshot(&snapshot).await.unwrap();
    let restored = env.restore(&snapshot).await.unwrap();
    for name in ["folder", "file"] {
        assert!(fs::symlink_metadata(restored.join(name)).unwrap().is_symlink(), "{name}");
    }
    env.plugin.delete_snapshot(&snapshot).await.unwrap();
    assert_eq!(fs::read_to_string(env.path("secret/file")).unwrap(), "secret");
}

#[tokio::test]
async fn foreign_ids_are_refused_without_side_effects() {
    let env = TestEnv::new().await;
    fs::create_dir_all(env.path("root/precious")).unwrap();
    for text in ["../precious", "..", "/etc", "lv-", "lv-../../precious", "snap-1", "lv-é"] {
        let id = SnapshotId::new(text).unwrap();
        let error = env.plugin.delete_snapshot(&id).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert_eq!(env.plugin.upload_snapshot(&id).await.unwrap_err().code(), error.code());
        assert_eq!(env.restore(&id).await.unwrap_err().code(), error.code());
        assert_eq!(env.plugin.progress(&id).await.unwrap_err().class(), Class::Permanent);
        env.plugin.cancel(&id).await.unwrap();
    }
    assert!(env.path("root/precious").exists());
}

#[tokio::test]
async fn volume_containing_a_mount_is_refused() {
    let env = TestEnv::new().await;
    let inner = env.volume().join("inner");
    fs::create_dir(&inner).unwrap();
    let mounted = crate::filesystems::MountedFilesystem::tmpfs(&inner, "1m");
    let error = env.snapshot("r-1").await.unwrap_err();
    assert!(error.message().contains("another filesystem is mounted at \"inner\""), "{error}");
    drop(mounted);
    env.snapshot("r-1").await.unwrap();
}

#[tokio::test]
async fn repository_entries_that_escape_the_volume_are_refused() {
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
        let env = TestEnv::new().await;
        let snapshot = env.snapshot("r-1").await.unwrap();
        // Makes the repository, with a snapshot that is replaced by the evil one.
        env.plugin.upload_snapshot(&snapshot).await.unwrap();
        let file = evil(name, NodeType::File);
        let repository = env.path("repository");
        let id = snapshot.clone();
        tokio::task::spawn_blocking(move || plant_malicious_snapshot(&repository, &id, file))
            .await
            .unwrap();
        let before = names(&env.path("."));
        let error = env.restore(&snapshot).await.unwrap_err();
        assert_eq!(error.code(), Code::DataLoss, "{name}: {error}");
        assert!(error.message().contains("name is not a valid file name"), "{name}: {error}");
        assert_eq!(names(&env.path(".")), before);
        assert_eq!(names(&env.path("root")), [".bowline-snapshots", "vol"], "{name}");
        assert!(!PathBuf::from("/evil").exists());
    }
}

/// Puts a snapshot with a later time into a repository, with one file of the given node.
fn plant_malicious_snapshot(repository: &std::path::Path, id: &SnapshotId, file: Node) {
    struct MaliciousSource(Node);
    impl ReadSource for MaliciousSource {
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
    let backends = RepositoryBackends::new(Arc::new(FolderBackend::open(repository)), None);
    let options = RepositoryOptions::default().no_cache(true);
    let opened = rustic_core::Repository::new(&options, &backends).unwrap();
    let opened = opened.open(&Credentials::password(PASSWORD)).unwrap();
    let indexed = opened.to_indexed_ids().unwrap();
    let snapshot = SnapshotOptions::default().add_tags(id.as_str()).unwrap().to_snapshot().unwrap();
    let options = BackupOptions::default().parent_opts(ParentOptions::default().force(true));
    indexed
        .archive(&options, &MaliciousSource(file), snapshot, &[PathBuf::from("/data/vol")])
        .unwrap();
}

/// A folder as somebody else would use it.
struct FolderBackend(LocalFileSystem, tokio::runtime::Runtime);

impl FolderBackend {
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

impl ReadBackend for FolderBackend {
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

impl WriteBackend for FolderBackend {
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
async fn snapshots_of_two_volumes_are_separate() {
    let env = TestEnv::new().await;
    fs::create_dir(env.path("root/other")).unwrap();
    fs::write(env.volume().join("file"), "one").unwrap();
    fs::write(env.path("root/other/file"), "two").unwrap();
    let first_snapshot = env.snapshot("r-1").await.unwrap();
    let second_snapshot = env.snapshot_of(&env.path("root/other"), "r-2").await.unwrap();
    let (first, second) = tokio::join!(
        env.plugin.upload_snapshot(&first_snapshot),
        env.plugin.upload_snapshot(&second_snapshot)
    );
    first.unwrap();
    second.unwrap();
    env.plugin.delete_snapshot(&first_snapshot).await.unwrap();
    let restored = env.restore(&second_snapshot).await.unwrap();
    assert_eq!(fs::read_to_string(restored.join("file")).unwrap(), "two");
    assert!(env.plugin.get_volume_info(&id_of(&restored), "").await.is_ok());
}
