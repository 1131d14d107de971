use std::collections::{BTreeMap, HashSet};

use bowline_plugin::{Code, Item};
use bowline_store::Prefix;
use bowline_store::backend::Memory;
use bowline_store::backend::memory::StoreCall;
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use futures::TryStreamExt as _;

use super::*;
use crate::archive_index::{ReadItemError, Root, read_item};
use crate::backup::archive::{MemberBuffer, Message, start_members};

const MODE: CompressionMode = CompressionMode::Inline;

fn paths(name: &str) -> [String; 2] {
    ["", "v1-preferredversion/"]
        .map(|version| format!("resources/pods/{version}namespaces/a/{name}.json"))
}

fn json(name: &str, revision: usize) -> String {
    format!(r#"{{"kind":"Pod","name":"{name}","revision":{revision}}}"#)
}

struct World {
    memory: Memory,
    store: BackupStore,
    backup: BackupName,
    spool: Spool,
}

impl World {
    /// A bucket with an archive of pods, and its index.
    async fn with(members: &[&[&str]]) -> Self {
        let memory = Memory::with_bucket("b");
        let store = BackupStore::new(Arc::new(memory.clone()), "b", &Prefix::default());
        let spool = Spool::create(&std::env::temp_dir()).unwrap();
        let world = Self { memory, store, backup: "nightly".parse().unwrap(), spool };
        let (sender, stream, writer) = start_members(&std::env::temp_dir(), MODE).unwrap();
        let send = async {
            for (number, names) in members.iter().enumerate() {
                let mut buffer = MemberBuffer::default();
                for name in *names {
                    buffer.append_item(&paths(name), json(name, 0).as_bytes(), 7).unwrap();
                }
                let is_last = number + 1 == members.len();
                if is_last {
                    buffer.append_end();
                }
                let message = if is_last { Message::End(buffer) } else { Message::Member(buffer) };
                sender.send(message).await.unwrap();
            }
        };
        let upload = world.store.put_contents(&world.backup, stream);
        let ((), uploaded) = futures::future::join(send, upload).await;
        uploaded.unwrap();
        world.target().write_index(writer.finish(|_| Ok(())).await.unwrap().index).await;
        world
    }

    fn target(&self) -> Target<'_> {
        Target { store: &self.store, backup: &self.backup, scratch: Path::new("/tmp") }
    }

    fn replacements(&self, names: &[&str]) -> Replacements {
        let items = names.iter().map(|name| {
            let place = self.spool.put(&Item::from_json(json(name, 1)).unwrap()).unwrap();
            Replacement { paths: paths(name), place }
        });
        Replacements::new(self.spool.clone(), items.collect())
    }

    async fn replace(&self, names: &[&str]) {
        let (target, replacements) = (self.target(), self.replacements(names));
        let mode = CompressionMode::default();
        target.rewrite(replacements, Timestamp::UNIX_EPOCH, mode).await.unwrap();
    }

    async fn file(&self, file: BackupFile) -> Vec<u8> {
        let stream = self.store.get_stream(&Key::Backup(self.backup.clone(), file)).await;
        stream.unwrap().unwrap().try_collect::<Vec<_>>().await.unwrap().concat()
    }

    async fn put(&self, file: BackupFile, content: Vec<u8>) {
        let stream = Box::pin(futures::stream::iter([Ok(Bytes::from(content))]));
        self.store.put_stream(&Key::Backup(self.backup.clone(), file), stream).await.unwrap();
    }

    async fn delete_index(&self) {
        let key = self.store.layout().key(&self.target().index_key());
        bowline_plugin::ObjectStore::delete_object(&self.memory, "b", &key).await.unwrap();
    }

    async fn root(&self) -> Root {
        Root::decode(&self.file(BackupFile::ArchiveIndex).await).unwrap()
    }

    /// The compressed members of the archive.
    async fn members(&self) -> Vec<Vec<u8>> {
        let archive = self.file(BackupFile::Contents).await;
        let member = |begin: u64, length: u32| {
            archive[usize::try_from(begin).unwrap()..][..length as usize].to_vec()
        };
        let root = self.root().await;
        root.members.iter().map(|one| member(one.offset, one.length)).collect()
    }

    async fn read(&self, name: &str) -> Result<Option<String>, ReadItemError> {
        let item = read_item(&self.store, &self.backup, &paths(name)[0]).await?;
        Ok(item.map(|item| String::from_utf8(item.json().to_vec()).unwrap()))
    }

    /// Checks that the archive has these pods, each twice and in its revision, and that the index finds them.
    async fn assert_has(&self, expected: &[(&str, usize)]) {
        let archive = self.file(BackupFile::Contents).await;
        let mut tar = tar::Archive::new(MultiGzDecoder::new(&archive[..]));
        let files: Vec<(String, String)> = tar
            .entries()
            .unwrap()
            .map(|entry| {
                let mut entry = entry.unwrap();
                let path = entry.path().unwrap().to_str().unwrap().to_owned();
                (path, io::read_to_string(&mut entry).unwrap())
            })
            .collect();
        let wanted: BTreeMap<String, String> = expected
            .iter()
            .flat_map(|(name, revision)| paths(name).map(|path| (path, json(name, *revision))))
            .collect();
        assert_eq!(files.len(), wanted.len(), "none twice");
        assert_eq!(files.into_iter().collect::<BTreeMap<_, _>>(), wanted);
        for (name, revision) in expected {
            assert_eq!(self.read(name).await.unwrap(), Some(json(name, *revision)));
        }
        assert_eq!(self.read("none").await.unwrap(), None);
        assert_eq!(self.root().await.header.entries, expected.len() as u64);
    }
}

#[tokio::test]
async fn members_without_replaced_items_are_copied_as_they_are() {
    for (replaced, touched) in [(&["b"][..], 1), (&["d"], 3), (&["a", "c2"], 0)] {
        let world = World::with(&[&["a"], &["b", "b2"], &["c", "c2"], &["d"]]).await;
        let before = world.members().await;
        world.replace(replaced).await;
        let after: HashSet<Vec<u8>> = world.members().await.into_iter().collect();
        assert!(!after.contains(&before[touched]));
        let copied = before.iter().filter(|member| after.contains(*member)).count();
        assert_eq!(copied, before.len() - replaced.len());
        let revision = |name: &str| usize::from(replaced.contains(&name));
        world
            .assert_has(&["a", "b", "b2", "c", "c2", "d"].map(|name| (name, revision(name))))
            .await;
    }
}

#[tokio::test]
async fn items_that_the_archive_lacks_are_added_before_its_end() {
    let world = World::with(&[&["a"], &["b"]]).await;
    let before = world.members().await;
    world.replace(&["x", "y"]).await;
    let after = world.members().await;
    assert_eq!([&after[0], after.last().unwrap()], [&before[0], &before[1]]);
    world.assert_has(&[("a", 0), ("b", 0), ("x", 1), ("y", 1)]).await;
    // Repeated, together with items of the last member.
    world.replace(&["b", "y", "z"]).await;
    world.assert_has(&[("a", 0), ("b", 1), ("x", 1), ("y", 1), ("z", 1)]).await;
}

#[tokio::test]
async fn archive_without_index_is_copied_as_a_whole_and_gets_one() {
    let world = World::with(&[&["a"], &["b"]]).await;
    world.delete_index().await;
    world.replace(&["b", "x"]).await;
    world.assert_has(&[("a", 0), ("b", 1), ("x", 1)]).await;
}

#[tokio::test]
async fn index_that_is_damaged_or_of_another_archive_is_not_used() {
    let other = World::with(&[&["a", "b"], &["c"]]).await.file(BackupFile::ArchiveIndex).await;
    for index in [b"no index".to_vec(), other[..100].to_vec(), other] {
        let world = World::with(&[&["a"], &["b", "c"]]).await;
        world.put(BackupFile::ArchiveIndex, index).await;
        world.replace(&["b"]).await;
        world.assert_has(&[("a", 0), ("b", 1), ("c", 0)]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn readers_notice_an_index_that_could_not_be_replaced() {
    let world = World::with(&[&["a"], &["b"]]).await;
    let failing = world.memory.failing(|call, key| {
        let is_index = call == StoreCall::Put && key.ends_with("-bowline-index");
        is_index.then(|| bowline_plugin::Error::new(Code::Unavailable, "no"))
    });
    let store = BackupStore::new(Arc::new(failing), "b", &Prefix::default());
    let target = Target { store: &store, ..world.target() };
    let replacements = world.replacements(&["a", "x"]);
    target.rewrite(replacements, Timestamp::UNIX_EPOCH, MODE).await.unwrap();
    for name in ["a", "b", "x"] {
        let error = world.read(name).await.unwrap_err();
        assert!(matches!(error, ReadItemError::OtherArchive { .. }), "{name}: {error}");
    }
    // The next attempt repairs it.
    world.replace(&["a"]).await;
    world.assert_has(&[("a", 1), ("b", 0), ("x", 1)]).await;
}

#[tokio::test]
async fn archive_is_unchanged_if_it_cannot_be_read() {
    let world = World::with(&[&["a"], &["b"]]).await;
    world.delete_index().await;
    let mut archive = world.file(BackupFile::Contents).await;
    archive.truncate(archive.len() - 30);
    world.put(BackupFile::Contents, archive.clone()).await;
    let (target, replacements) = (world.target(), world.replacements(&["a"]));
    let rewritten = target.rewrite(replacements, Timestamp::UNIX_EPOCH, MODE);
    assert!(matches!(rewritten.await, Err(FatalError::Archive(_))));
    assert_eq!(world.file(BackupFile::Contents).await, archive);
}
