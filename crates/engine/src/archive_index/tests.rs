use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{ByteStream, Config, ObjectStore};
use bowline_store::backend::{Backend, Creation, Memory};
use bowline_store::{BackupFile, BackupName, BackupStore, Key, Prefix};
use bytes::Bytes;
use futures::TryStreamExt as _;
use proptest::prelude::*;

use super::decode::decode_leaf;
use super::*;
use crate::compression::GzipCompressors;

/// An archive and its index, of members with items.
#[derive(Default)]
struct Sample {
    archive: Vec<u8>,
    index: Vec<u8>,
}

fn path(number: usize) -> String {
    format!("resources/configmaps/namespaces/ns-{}/settings-{number}.json", number % 100)
}

fn json(number: usize) -> String {
    format!(r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{number}"}}}}"#)
}

/// The files of one member.
fn tar_of(numbers: Range<usize>) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for number in numbers {
        let mut header = tar::Header::new_ustar();
        header.set_size(json(number).len() as u64);
        tar.append_data(&mut header, path(number), json(number).as_bytes()).unwrap();
    }
    tar.into_inner().unwrap()
}

async fn bytes_of(index: &IndexFile) -> Vec<u8> {
    index.stream().try_collect::<Vec<Bytes>>().await.unwrap().concat()
}

/// An archive with so many items, and so many of them in each member.
async fn sample(items: usize, per_member: usize) -> Sample {
    sparse_sample(items, per_member, |_| true).await
}

/// The same, with content only in the members of which an item is needed.
async fn sparse_sample(
    items: usize,
    per_member: usize,
    is_needed: impl Fn(usize) -> bool,
) -> Sample {
    let compressors = GzipCompressors::default();
    let mut builder = IndexBuilder::create(&std::env::temp_dir()).unwrap();
    let mut archive = Vec::new();
    for begin in (0..items).step_by(per_member) {
        let numbers = begin..(begin + per_member).min(items);
        let needed = if numbers.clone().any(&is_needed) { numbers.clone() } else { 0..0 };
        let tar = tar_of(needed);
        let gzip = compressors.compress(&tar).unwrap();
        let member = builder.add_member(gzip.len(), tar.len(), numbers.len(), sha256(&gzip));
        for number in numbers {
            builder.add_entry(LeafEntry { key: ItemKey::of_path(&path(number)), member }).unwrap();
        }
        archive.extend(gzip);
    }
    let index = bytes_of(&builder.finish().unwrap().unwrap()).await;
    Sample { archive, index }
}

/// A bucket that counts the bytes that are read.
#[derive(Clone)]
struct CountingBucket {
    memory: Memory,
    requests: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
}

#[async_trait]
impl Backend for CountingBucket {
    async fn create_object(
        &self,
        bucket: &str,
        key: &str,
        content: Bytes,
    ) -> bowline_plugin::Result<Creation> {
        self.memory.create_object(bucket, key, content).await
    }

    async fn get_range(
        &self,
        bucket: &str,
        key: &str,
        range: Range<u64>,
    ) -> bowline_plugin::Result<ByteStream> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let bytes = Arc::clone(&self.bytes);
        let part = self.memory.get_range(bucket, key, range).await?;
        Ok(Box::pin(part.inspect_ok(move |piece| {
            bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
        })))
    }
}

#[async_trait]
impl ObjectStore for CountingBucket {
    async fn init(&self, config: &Config) -> bowline_plugin::Result<()> {
        self.memory.init(config).await
    }

    async fn put_object(
        &self,
        bucket: &str,
        key: &str,
        body: ByteStream,
    ) -> bowline_plugin::Result<()> {
        self.memory.put_object(bucket, key, body).await
    }

    async fn object_exists(&self, bucket: &str, key: &str) -> bowline_plugin::Result<bool> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.memory.object_exists(bucket, key).await
    }

    async fn get_object(&self, _: &str, key: &str) -> bowline_plugin::Result<ByteStream> {
        panic!("{key} is read as a whole")
    }

    async fn list_common_prefixes(
        &self,
        bucket: &str,
        prefix: &str,
        delimiter: &str,
    ) -> bowline_plugin::Result<Vec<String>> {
        self.memory.list_common_prefixes(bucket, prefix, delimiter).await
    }

    async fn list_objects(
        &self,
        bucket: &str,
        prefix: &str,
    ) -> bowline_plugin::Result<Vec<String>> {
        self.memory.list_objects(bucket, prefix).await
    }

    async fn delete_object(&self, bucket: &str, key: &str) -> bowline_plugin::Result<()> {
        self.memory.delete_object(bucket, key).await
    }

    async fn create_signed_url(
        &self,
        bucket: &str,
        key: &str,
        ttl: Duration,
    ) -> bowline_plugin::Result<String> {
        self.memory.create_signed_url(bucket, key, ttl).await
    }
}

/// A bucket with a backup.
struct World {
    bucket: CountingBucket,
    store: BackupStore,
    backup: BackupName,
}

impl World {
    async fn with(sample: &Sample) -> Self {
        let memory = Memory::with_bucket("b");
        let (requests, bytes) = Default::default();
        let bucket = CountingBucket { memory, requests, bytes };
        let store = BackupStore::new(Arc::new(bucket.clone()), "b", &Prefix::default());
        let world = Self { bucket, store, backup: "nightly".parse().unwrap() };
        world.put(BackupFile::Contents, &sample.archive).await;
        world.put(BackupFile::ArchiveIndex, &sample.index).await;
        world
    }

    async fn put(&self, file: BackupFile, content: &[u8]) {
        let content = Bytes::copy_from_slice(content);
        let stream = Box::pin(futures::stream::iter([Ok(content)]));
        self.store.put_stream(&Key::Backup(self.backup.clone(), file), stream).await.unwrap();
    }

    async fn read(&self, path: &str) -> Result<Option<String>, ReadItemError> {
        let item = read_item(&self.store, &self.backup, path).await?;
        Ok(item.map(|item| String::from_utf8(item.json().to_vec()).unwrap()))
    }

    /// Number of requests and bytes since the last time.
    fn counts(&self) -> (u64, u64) {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        (take(&self.bucket.requests), take(&self.bucket.bytes))
    }
}

#[tokio::test]
async fn one_of_300_000_objects_is_read_with_four_requests_and_two_mebibytes() {
    // Members like those of a real archive: 1 MiB of objects of 4 kB each, twice.
    let read = [0, 1, 129, 130, 150_000, 299_999];
    let sample = sparse_sample(300_000, 130, |number| read.contains(&number)).await;
    let world = World::with(&sample).await;
    for number in read {
        world.counts();
        assert_eq!(world.read(&path(number)).await.unwrap(), Some(json(number)));
        let (requests, bytes) = world.counts();
        // A member is at most 1 MiB, compressed or not.
        assert!(
            requests <= 4 && bytes + (1 << 20) <= 2 << 20,
            "{requests} requests, {bytes} bytes"
        );
    }
    assert_eq!(world.read("resources/pods/namespaces/a/b.json").await.unwrap(), None);
    let (requests, bytes) = world.counts();
    assert!(requests <= 4 && bytes <= 2 << 20, "{requests} requests, {bytes} bytes");
}

#[tokio::test]
async fn root_larger_than_the_first_read_needs_one_more_request() {
    let world = World::with(&sample(8_000, 1).await).await;
    assert_eq!(world.read(&path(7_999)).await.unwrap(), Some(json(7_999)));
    assert_eq!(world.counts().0, 4);
}

#[tokio::test]
async fn index_of_another_archive_is_noticed() {
    let [old, new] = [sample(1_000, 100).await, sample(1_001, 100).await];
    let world = World::with(&new).await;
    world.put(BackupFile::ArchiveIndex, &sample(1_000, 99).await.index).await;
    for path in [path(500), path(2_000)] {
        let error = world.read(&path).await.unwrap_err();
        assert!(matches!(error, ReadItemError::OtherArchive { .. }), "{error}");
    }
    // An object at the same path is the same object; added objects are not missing.
    world.put(BackupFile::ArchiveIndex, &old.index).await;
    assert_eq!(world.read(&path(500)).await.unwrap(), Some(json(500)));
}

#[tokio::test]
async fn missing_index_and_missing_archive_are_different_errors() {
    let world = World::with(&sample(10, 5).await).await;
    let key = |file| Key::Backup(world.backup.clone(), file);
    let delete = async |file| {
        let key = world.store.layout().key(&key(file));
        world.bucket.memory.delete_object("b", &key).await.unwrap();
    };
    delete(BackupFile::Contents).await;
    assert!(matches!(world.read(&path(1)).await, Err(ReadItemError::NoArchive)));
    delete(BackupFile::ArchiveIndex).await;
    assert!(matches!(world.read(&path(1)).await, Err(ReadItemError::NoIndex)));
}

#[tokio::test]
async fn damage_anywhere_is_an_error_and_never_another_object() {
    let sample = sample(300, 30).await;
    let world = World::with(&sample).await;
    let expected = Some(json(7));
    for (file, content) in
        [(BackupFile::ArchiveIndex, &sample.index), (BackupFile::Contents, &sample.archive)]
    {
        for place in (0..content.len()).step_by(content.len() / 200) {
            let mut damaged = content.clone();
            damaged[place] ^= 0x40;
            world.put(file, &damaged).await;
            if let Ok(found) = world.read(&path(7)).await {
                assert_eq!(found, expected, "byte {place} of {file:?}");
            }
            damaged.truncate(place);
            world.put(file, &damaged).await;
            if let Ok(found) = world.read(&path(7)).await {
                assert_eq!(found, expected, "{place} bytes of {file:?}");
            }
        }
        world.put(file, content).await;
    }
    assert_eq!(world.read(&path(7)).await.unwrap(), expected);
}

/// Changes the header of an index, and makes its digest fit.
fn with_header(index: &[u8], change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut index = index.to_vec();
    change(&mut index);
    let end = usize::try_from(Header::decode(&index).map_or(0, |header| header.root_end()));
    let end = end.unwrap().clamp(HEADER_BYTES, index.len());
    let digested = [&index[..DIGESTED_HEADER_BYTES], &index[HEADER_BYTES..end]].concat();
    index[DIGESTED_HEADER_BYTES..HEADER_BYTES].copy_from_slice(&sha256(&digested));
    index
}

#[tokio::test]
async fn hostile_numbers_are_refused_with_a_reason() {
    let Sample { index, .. } = sample(10, 5).await;
    assert!(Root::decode(&with_header(&index, |_| {})).is_ok());
    let number = |place: usize, number: u32| {
        with_header(&index, |index| {
            index[place..place + 4].copy_from_slice(&number.to_le_bytes());
        })
    };
    for (place, value, reason) in [
        (0, 0, "not an index"),
        (8, u32::MAX, "a number of members 4294967295"),
        (8, MAX_MEMBERS, "bytes long where"),
        (8, 0, "has no members"),
        (12, u32::MAX, "a number of leaves 4294967295"),
        (16, 11, "leaves do not have all entries"),
        (20, u32::MAX, "leaves do not have all entries"),
        (24, 1, "do not fill the archive"),
        (32, 1, "the list of members of the index is damaged"),
        (HEADER_BYTES, u32::MAX, "a member of length 4294967295"),
        (HEADER_BYTES + 4, u32::MAX, "a decompressed member of length 4294967295"),
        (HEADER_BYTES + 8, 0, "more entries than items"),
        (HEADER_BYTES + 2 * MEMBER_BYTES + 16, u32::MAX, "a leaf with entries: 4294967295"),
        (HEADER_BYTES + 2 * MEMBER_BYTES + 16, 0, "leaves are not in order"),
    ] {
        let error = Root::decode(&number(place, value)).unwrap_err().to_string();
        assert!(error.contains(reason), "{place}: {error}");
    }
    let root = Root::decode(&index).unwrap();
    let leaf = &root.leaves[0];
    let bytes = &index[usize::try_from(leaf.offset).unwrap()..];
    let refused = |bytes: &[u8], members| {
        let record = LeafRecord { sha256: sha256(bytes), ..*leaf };
        decode_leaf(bytes, &record, members).unwrap_err().to_string()
    };
    assert!(refused(bytes, 1).contains("names a member that does not exist"));
    assert!(refused(&bytes[20..], 2).contains("180 bytes long where 200"));
    let mut swapped = bytes[20..40].to_vec();
    swapped.extend_from_slice(&bytes[..20]);
    swapped.extend_from_slice(&bytes[40..]);
    assert!(refused(&swapped, 2).contains("not in order"));
    assert!(decode_leaf(&swapped, leaf, 2).unwrap_err().to_string().contains("digest differs"));
}

#[tokio::test]
async fn path_that_occurs_twice_has_one_entry_of_its_first_member() {
    let mut builder = IndexBuilder::create(&std::env::temp_dir()).unwrap();
    let key = ItemKey::of_path("a");
    for _ in 0..3 {
        let member = builder.add_member(10, 10, 1, [7; 32]);
        builder.add_entry(LeafEntry { key, member }).unwrap();
    }
    let index = bytes_of(&builder.finish().unwrap().unwrap()).await;
    let root = Root::decode(&index).unwrap();
    let leaf = root.leaf_of(key).unwrap();
    let entries = decode_leaf(&index[usize::try_from(leaf.offset).unwrap()..], leaf, 3).unwrap();
    assert_eq!(entries, [LeafEntry { key, member: 0 }]);
}

#[test]
fn archive_that_no_index_can_describe_has_none() {
    let mut builder = IndexBuilder::create(&std::env::temp_dir()).unwrap();
    builder.add_member(MAX_MEMBER_BYTES as usize + 1, 10, 1, [7; 32]);
    assert!(builder.finish().unwrap().is_none());
}

proptest! {
    #[test]
    fn every_item_is_found_in_its_member(
        members in proptest::collection::vec(proptest::collection::vec("[a-z]{1,3}", 0..40), 1..20),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut builder = IndexBuilder::create(&std::env::temp_dir()).unwrap();
        let mut first_member = std::collections::HashMap::new();
        for names in &members {
            let member = builder.add_member(names.len() + 1, 7, names.len(), [9; 32]);
            for name in names {
                first_member.entry(name).or_insert(member);
                builder.add_entry(LeafEntry { key: ItemKey::of_path(name), member }).unwrap();
            }
        }
        let index = runtime.block_on(bytes_of(&builder.finish().unwrap().unwrap()));
        let root = Root::decode(&index).unwrap();
        prop_assert_eq!(root.index_length(), index.len() as u64);
        prop_assert_eq!(root.members.len(), members.len());
        for (name, member) in first_member {
            let key = ItemKey::of_path(name);
            let leaf = root.leaf_of(key).unwrap();
            let begin = usize::try_from(leaf.offset).unwrap();
            let bytes = &index[begin..][..usize::try_from(leaf.length()).unwrap()];
            let entries = decode_leaf(bytes, leaf, root.header.members).unwrap();
            let has_entry = entries.contains(&LeafEntry { key, member });
            prop_assert!(has_entry);
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Root::decode(&bytes);
        let mut with_magic = MAGIC.to_vec();
        with_magic.extend_from_slice(&bytes);
        let _ = Root::decode(&with_magic);
        let _ = member_tar(&bytes, &MemberRecord { offset: 0, length: 0, unpacked: 7, items: 0, sha256: [0; 32] });
    }
}
