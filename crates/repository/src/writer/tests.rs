use std::sync::Mutex;

use async_trait::async_trait;
use bytes::Bytes;

use super::*;
use crate::blobs::memory::MemoryBlobs;
use crate::blobs::{self, BlobMetadata, Blobs, Operation};
use crate::create::create;
use crate::format::Password;

type Hook = Box<dyn FnMut(&BlobId) -> HookResult + Send>;

/// What happens after a blob was put.
enum HookResult {
    Ok,
    Fail,
    /// Another blob appears.
    Put(&'static str),
}

/// Blobs in memory; a hook sees each that is put.
#[derive(Default)]
struct HookedBlobs {
    memory: MemoryBlobs,
    hook: Mutex<Option<Hook>>,
}

impl HookedBlobs {
    fn on_put(&self, hook: impl FnMut(&BlobId) -> HookResult + Send + 'static) {
        *self.hook.lock().unwrap() = Some(Box::new(hook));
    }

    async fn names(&self, prefix: &str) -> Vec<String> {
        let listed = self.memory.list(prefix).await.unwrap();
        listed.into_iter().map(|blob| blob.id.to_string()).collect()
    }
}

#[async_trait]
impl Blobs for HookedBlobs {
    async fn get(&self, blob: &BlobId, max_length: u64) -> Result<Bytes, blobs::Error> {
        self.memory.get(blob, max_length).await
    }

    async fn get_range(
        &self,
        blob: &BlobId,
        offset: u64,
        length: u64,
    ) -> Result<Bytes, blobs::Error> {
        self.memory.get_range(blob, offset, length).await
    }

    async fn put(&self, blob: &BlobId, data: Bytes) -> Result<(), blobs::Error> {
        let result = self.hook.lock().unwrap().as_mut().map_or(HookResult::Ok, |hook| hook(blob));
        match result {
            HookResult::Ok => self.memory.put(blob, data).await,
            HookResult::Fail => Err(blobs::Error::Blob {
                operation: Operation::Put,
                blob: blob.clone(),
                source: std::io::Error::other("no space"),
            }),
            HookResult::Put(other) => {
                self.memory.put(blob, data).await?;
                self.memory.put(&other.parse().unwrap(), Bytes::new()).await
            }
        }
    }

    async fn delete(&self, blob: &BlobId) -> Result<(), blobs::Error> {
        self.memory.delete(blob).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<BlobMetadata>, blobs::Error> {
        self.memory.list(prefix).await
    }
}

/// A clock that a test sets, in seconds.
#[derive(Clone)]
struct TestClock(Arc<Mutex<i64>>);

impl TestClock {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(1_800_000_000)))
    }

    fn advance(&self, seconds: i64) {
        *self.0.lock().unwrap() += seconds;
    }

    fn clock(&self) -> Clock {
        let seconds = Arc::clone(&self.0);
        Arc::new(move || Timestamp::from_second(*seconds.lock().unwrap()).unwrap())
    }
}

struct Bed {
    blobs: Arc<HookedBlobs>,
    clock: TestClock,
    repository: Repository,
}

impl Bed {
    async fn new() -> Self {
        let (blobs, clock) = (Arc::new(HookedBlobs::default()), TestClock::new());
        let owner = SessionOwner::velero();
        let repository = create(blobs.clone(), &password(), owner, clock.clock()).await.unwrap();
        Self { blobs, clock, repository }
    }

    async fn writer(&self) -> Writer<'_> {
        let owner = SessionOwner::velero();
        Writer::new(&self.repository, owner, self.clock.clock()).await.unwrap()
    }

    async fn reopen(&self) -> Repository {
        let now = (self.clock.clock())();
        let key = self.repository.key().clone();
        Repository::open_with_key(self.blobs.clone(), key, now).await.unwrap()
    }
}

fn password() -> Password {
    Password::new("secret".to_owned())
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(length).collect()
}

#[tokio::test]
async fn what_was_flushed_is_read_by_another() {
    let bed = Bed::new().await;
    let mut writer = bed.writer().await;
    let large = noise(11 << 20);
    let mut object = writer.begin_object(None);
    for piece in large.chunks(100_000) {
        object.write(&mut writer, piece).await.unwrap();
    }
    let written = object.finish(&mut writer).await.unwrap();
    assert_eq!(written.length, 11 << 20);
    assert_eq!(written.object.depth(), 1);
    let empty = writer.write_object(None, b"").await.unwrap();
    let not_yet = bed.reopen().await.read_object(empty, 10).await;
    assert!(not_yet.is_err(), "nothing is there before the flush");
    writer.flush().await.unwrap();
    let repository = bed.reopen().await;
    assert!(repository.read_object(written.object, 11 << 20).await.unwrap() == large);
    assert_eq!(repository.open_object(written.object).await.unwrap().length(), Some(11 << 20));
    assert_eq!(repository.read_object(empty, 0).await.unwrap(), b"");
}

#[tokio::test]
async fn content_that_exists_is_not_written_again() {
    let bed = Bed::new().await;
    for _ in 0..2 {
        let mut writer = bed.writer().await;
        for _ in 0..2 {
            writer.write_object(None, b"the same").await.unwrap();
        }
        writer.flush().await.unwrap();
    }
    assert_eq!(bed.blobs.names("p").await.len(), 1);
    assert_eq!(bed.reopen().await.contents(None).len(), 1);
}

#[tokio::test]
async fn deleted_content_is_written_again_with_a_later_time() {
    let bed = Bed::new().await;
    let mut writer = bed.writer().await;
    let object = writer.write_object(None, b"back again").await.unwrap();
    writer.flush().await.unwrap();
    let first = bed.repository.find_content(&object.content()).unwrap();
    // Maintenance, an hour ahead by its clock.
    let deleted = IndexEntry { is_deleted: true, timestamp: first.timestamp + 3600, ..first };
    let mut maintenance = bed.writer().await;
    maintenance.write_object(None, b"other").await.unwrap();
    maintenance.entries.push(deleted.clone());
    maintenance.flush().await.unwrap();
    let mut writer = bed.writer().await;
    writer.write_object(None, b"back again").await.unwrap();
    writer.flush().await.unwrap();
    let found = bed.reopen().await.find_content(&object.content()).unwrap();
    assert!(!found.is_deleted);
    assert_eq!(found.timestamp, deleted.timestamp + 1);
    assert_ne!(found.pack, deleted.pack);
}

#[tokio::test]
async fn session_is_marked_from_before_its_first_pack_until_after_its_index() {
    let bed = Bed::new().await;
    let names = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&names);
    bed.blobs.on_put(move |blob| {
        recorded.lock().unwrap().push(blob.as_str().chars().next().unwrap());
        HookResult::Ok
    });
    let mut writer = bed.writer().await;
    writer.write_object(None, b"data").await.unwrap();
    assert_eq!(bed.blobs.names("s").await.len(), 1);
    writer.flush().await.unwrap();
    assert_eq!(*names.lock().unwrap(), ['s', 'p', 'x']);
    assert_eq!(bed.blobs.names("s").await, [""; 0]);
}

#[tokio::test]
async fn long_session_is_flushed_at_intervals() {
    let bed = Bed::new().await;
    let mut writer = bed.writer().await;
    let object = writer.write_object(None, b"first").await.unwrap();
    bed.clock.advance(601);
    writer.write_object(None, b"second").await.unwrap();
    assert_eq!(bed.reopen().await.read_object(object, 10).await.unwrap(), b"first");
}

#[tokio::test]
async fn failed_write_breaks_the_writer() {
    let bed = Bed::new().await;
    for letter in ["s", "p", "x"] {
        let mut writer = bed.writer().await;
        bed.blobs.on_put(move |blob| {
            let is_meant = blob.as_str().starts_with(letter);
            if is_meant { HookResult::Fail } else { HookResult::Ok }
        });
        let data = format!("data {letter}");
        let written = writer.write_object(None, data.as_bytes()).await;
        let flushed = writer.flush().await;
        assert!(written.is_err() || flushed.is_err(), "{letter}");
        bed.blobs.on_put(|_| HookResult::Ok);
        assert!(matches!(writer.flush().await, Err(Error::Broken)), "{letter}");
        assert!(matches!(writer.write_object(None, b"more").await, Err(Error::Broken)));
        // Another session writes it anew.
        let mut writer = bed.writer().await;
        let object = writer.write_object(None, data.as_bytes()).await.unwrap();
        writer.flush().await.unwrap();
        assert_eq!(bed.reopen().await.read_object(object, 10).await.unwrap(), data.as_bytes());
    }
}

#[tokio::test]
async fn index_moves_to_a_later_epoch_if_its_own_is_settled_meanwhile() {
    let bed = Bed::new().await;
    let mut markers = ["xe2"].into_iter();
    bed.blobs.on_put(move |blob| {
        let marker = blob.as_str().starts_with("xn").then(|| markers.next()).flatten();
        marker.map_or(HookResult::Ok, HookResult::Put)
    });
    let mut writer = bed.writer().await;
    let object = writer.write_object(None, b"data").await.unwrap();
    writer.flush().await.unwrap();
    assert_eq!(bed.blobs.names("xn0").await.len(), 1, "that of the creation");
    assert_eq!(bed.blobs.names("xn2").await.len(), 1);
    assert_eq!(bed.reopen().await.read_object(object, 10).await.unwrap(), b"data");
}

#[tokio::test]
async fn index_is_given_up_if_epochs_never_stand_still() {
    let bed = Bed::new().await;
    let mut markers = ["xe2", "xe4", "xe6"].into_iter();
    bed.blobs.on_put(move |blob| {
        let marker = blob.as_str().starts_with("xn").then(|| markers.next()).flatten();
        marker.map_or(HookResult::Ok, HookResult::Put)
    });
    let mut writer = bed.writer().await;
    writer.write_object(None, b"data").await.unwrap();
    assert!(matches!(writer.flush().await, Err(Error::EpochsAdvance)));
    assert_eq!(bed.blobs.names("xn").await.len(), 1, "the attempts are deleted");
}

#[tokio::test]
async fn manifest_is_added_and_deleted() {
    let bed = Bed::new().await;
    let mut writer = bed.writer().await;
    let labels: BTreeMap<_, _> = [("type".to_owned(), "test".to_owned())].into();
    let id = writer.add_manifest(labels.clone(), "{\"a\":1}".to_owned()).unwrap();
    writer.flush().await.unwrap();
    let manifests = bed.reopen().await.manifests().await.unwrap();
    assert_eq!(manifests[&id].labels, labels);
    assert_eq!(manifests[&id].data.as_ref().unwrap().get(), "{\"a\":1}");
    // The clock of this writer is behind.
    bed.clock.advance(-100);
    let mut writer = bed.writer().await;
    writer.delete_manifest(&manifests[&id]);
    writer.flush().await.unwrap();
    let manifests = bed.reopen().await.manifests().await.unwrap();
    assert!(!manifests.contains_key(&id));
    assert_eq!(manifests.len(), 1, "the parameters of maintenance");
}

#[tokio::test]
async fn repository_is_created_once() {
    let bed = Bed::new().await;
    let (password, owner) = (password(), SessionOwner::velero());
    let again = create(bed.blobs.clone(), &password, owner, bed.clock.clock());
    assert!(matches!(again.await, Err(Error::Exists)));
    let names = bed.blobs.names("").await;
    for name in ["kopia.repository", "kopia.blobcfg", "udmrepo.Repository"] {
        assert!(names.contains(&name.to_owned()), "{names:?}");
    }
}

#[tokio::test]
async fn writer_that_dies_at_any_blob_leaves_what_was_there() {
    let bed = Bed::new().await;
    let mut writer = bed.writer().await;
    let old = writer.write_object(None, b"old").await.unwrap();
    writer.flush().await.unwrap();
    // The marker of the session, a pack of data, one of metadata, the index.
    for survived in 0..4 {
        let mut puts = 0;
        bed.blobs.on_put(move |_| {
            puts += 1;
            if puts > survived { HookResult::Fail } else { HookResult::Ok }
        });
        let (data, labels) = (format!("new {survived}"), BTreeMap::new());
        let mut writer = bed.writer().await;
        let written = writer.write_object(None, data.as_bytes()).await;
        writer.add_manifest(labels.clone(), "{}".to_owned()).unwrap();
        let flushed = writer.flush().await;
        assert!(written.is_err() || flushed.is_err(), "died after {survived}");
        drop(writer);
        bed.blobs.on_put(|_| HookResult::Ok);

        let repository = bed.reopen().await;
        assert_eq!(repository.read_object(old, 10).await.unwrap(), b"old");
        let manifests = repository.manifests().await.unwrap().len();
        let mut writer = bed.writer().await;
        let again = writer.write_object(None, data.as_bytes()).await.unwrap();
        writer.add_manifest(labels, "{}".to_owned()).unwrap();
        writer.flush().await.unwrap();
        let repository = bed.reopen().await;
        assert_eq!(repository.read_object(again, 10).await.unwrap(), data.as_bytes());
        assert_eq!(repository.manifests().await.unwrap().len(), manifests + 1);
    }
    assert_eq!(bed.blobs.names("s").await.len(), 3, "markers of the dead");
}
