//! Objects on their way: in bounded memory, and whole or not at all.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{ByteStream, Code, Config, Error, ObjectStore, Result};
use bowline_plugin_wire::client;
use bowline_plugin_wire::server::Plugins;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::sync::{Semaphore, mpsc};

use crate::fake::{name, serve};

const MIB: usize = 1 << 20;

/// The largest piece that either side sends.
const CHUNK: usize = 256 << 10;

/// What may be on its way when the reader stands still: windows and buffers of both sides.
const IN_FLIGHT: usize = 16 * MIB;

/// What became of a put.
#[derive(Debug, PartialEq, Eq)]
enum Put {
    Stored { bytes: usize, largest_piece: usize },
    Broken(String),
}

/// A store that reads an object only when it may, in a task of its own, so that it goes on reading
/// when the call is dropped, as a careless plugin would.
struct Slow {
    may_read: Arc<Semaphore>,
    puts: mpsc::UnboundedSender<Put>,
    given: Arc<AtomicUsize>,
}

#[async_trait]
impl ObjectStore for Slow {
    async fn init(&self, _: &Config) -> Result<()> {
        Ok(())
    }

    async fn put_object(&self, _: &str, _: &str, mut body: ByteStream) -> Result<()> {
        let (may_read, puts) = (self.may_read.clone(), self.puts.clone());
        let reading = tokio::spawn(async move {
            let (mut bytes, mut largest_piece) = (0, 0);
            while let Some(piece) = body.next().await {
                may_read.acquire().await.unwrap().forget();
                match piece {
                    Ok(piece) => {
                        bytes += piece.len();
                        largest_piece = largest_piece.max(piece.len());
                    }
                    Err(error) => return puts.send(Put::Broken(error.to_string())).unwrap(),
                }
            }
            puts.send(Put::Stored { bytes, largest_piece }).unwrap();
        });
        reading.await.map_err(|error| Error::unknown(error.to_string()))
    }

    async fn object_exists(&self, _: &str, _: &str) -> Result<bool> {
        Ok(true)
    }

    async fn get_object(&self, _: &str, key: &str) -> Result<ByteStream> {
        match key {
            "missing" => Err(Error::new(Code::NotFound, "NoSuchKey")),
            "broken" => Ok(Box::pin(stream::iter([
                Ok(Bytes::from_static(b"half")),
                Err(io::Error::other(Error::new(Code::DataLoss, "the other half is gone"))),
            ]))),
            _ => Ok(counted(64, self.given.clone())),
        }
    }

    async fn list_common_prefixes(&self, _: &str, _: &str, _: &str) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    async fn list_objects(&self, _: &str, _: &str) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    async fn delete_object(&self, _: &str, _: &str) -> Result<()> {
        Ok(())
    }

    async fn create_signed_url(&self, _: &str, _: &str, _: Duration) -> Result<String> {
        Ok(String::new())
    }
}

/// An object of so many pieces of a megabyte, and how many bytes of it have been taken.
fn counted(pieces: usize, taken: Arc<AtomicUsize>) -> ByteStream {
    Box::pin(stream::iter(0..pieces).map(move |_| {
        taken.fetch_add(MIB, Ordering::SeqCst);
        Ok(Bytes::from(vec![1; MIB]))
    }))
}

/// Waits until the number stands still, and returns it.
async fn settled(number: &AtomicUsize) -> usize {
    let (mut last, mut still) = (0, 0);
    while still < 20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let now = number.load(Ordering::SeqCst);
        still = if now == last && now > 0 { still + 1 } else { 0 };
        last = now;
    }
    last
}

/// A store, and what it does.
struct Test {
    store: client::ObjectStore,
    may_read: Arc<Semaphore>,
    puts: mpsc::UnboundedReceiver<Put>,
    given: Arc<AtomicUsize>,
    plugin: crate::fake::Plugin,
}

async fn start(pieces_at_once: usize) -> Test {
    let (sender, puts) = mpsc::unbounded_channel();
    let may_read = Arc::new(Semaphore::new(pieces_at_once));
    let given = Arc::new(AtomicUsize::new(0));
    let slow = Slow { may_read: may_read.clone(), puts: sender, given: given.clone() };
    let mut plugins = Plugins::new("x");
    plugins.object_store(name(), Arc::new(slow)).unwrap();
    let plugin = serve(plugins).await;
    let store = client::ObjectStore::new(plugin.connection.clone(), name());
    Test { store, may_read, puts, given, plugin }
}

#[tokio::test]
async fn a_large_object_is_put_in_small_pieces_and_waits_for_a_slow_reader() {
    let mut test = start(1).await;
    let taken = Arc::new(AtomicUsize::new(0));
    let body = counted(64, taken.clone());
    let store = test.store.clone();
    let put = tokio::spawn(async move { store.put_object("b", "k", body).await });

    let taken_early = settled(&taken).await;
    assert!(taken_early <= IN_FLIGHT, "{taken_early} bytes are in memory");
    test.may_read.add_permits(1 << 20);
    assert_eq!(put.await.unwrap(), Ok(()));
    let stored = Put::Stored { bytes: 64 * MIB, largest_piece: CHUNK };
    assert_eq!(test.puts.recv().await, Some(stored));
}

#[tokio::test]
async fn a_large_object_is_got_in_small_pieces_and_waits_for_a_slow_reader() {
    let test = start(0).await;
    let mut body = test.store.get_object("b", "large").await.unwrap();
    let first = body.next().await.unwrap().unwrap();
    assert_eq!(first.len(), CHUNK);

    let given_early = settled(&test.given).await;
    assert!(given_early <= IN_FLIGHT, "{given_early} bytes are in memory");
    let sizes: Vec<usize> = body.map_ok(|piece| piece.len()).try_collect().await.unwrap();
    assert!(sizes.iter().all(|size| *size <= CHUNK));
    assert_eq!(sizes.iter().sum::<usize>(), 63 * MIB + MIB - CHUNK);
}

#[tokio::test]
async fn an_error_in_the_source_is_reported_and_nothing_is_stored() {
    for good_pieces in [0, 1, 100] {
        let mut test = start(1 << 20).await;
        let good = stream::iter(0..good_pieces).map(|_| Ok(Bytes::from_static(b"piece")));
        let bad = stream::iter([Err(io::Error::other("the disk cannot be read"))]);
        // What follows an error must not be sent either.
        let body = good.chain(bad).chain(stream::iter([Ok("end".into())]));
        let error = test.store.put_object("b", "k", Box::pin(body)).await.unwrap_err();
        assert_eq!(error.message(), "the disk cannot be read");

        // The call may not have begun at all.
        drop(test.store);
        drop(test.plugin.connection);
        let left = tokio::time::timeout(Duration::from_secs(1), test.puts.recv()).await;
        assert!(!matches!(left, Ok(Some(Put::Stored { .. }))), "{good_pieces} pieces: {left:?}");
        if good_pieces == 100 {
            assert!(matches!(left, Ok(Some(Put::Broken(_)))), "it was on its way: {left:?}");
        }
    }
}

#[tokio::test]
async fn a_put_that_is_dropped_stores_nothing() {
    let mut test = start(1 << 20).await;
    let endless = stream::iter([Ok("piece".into())]).chain(stream::pending());
    let put = test.store.put_object("b", "k", Box::pin(endless));
    let limited = tokio::time::timeout(Duration::from_millis(200), put).await;
    assert!(limited.is_err());
    assert!(matches!(test.puts.recv().await, Some(Put::Broken(_))));
}

#[test]
fn a_host_that_dies_while_it_puts_stores_nothing() {
    let plugins = tokio::runtime::Runtime::new().unwrap();
    let host = tokio::runtime::Runtime::new().unwrap();
    let mut test = plugins.block_on(start(1 << 20));
    let path = test.plugin.folder.path().join("socket");
    let sent = Arc::new(Mutex::new(0));
    let counter = sent.clone();
    host.spawn(async move {
        let connection = bowline_plugin_wire::Connection::unix(path).await.unwrap();
        let store = client::ObjectStore::new(connection, name());
        let body = stream::iter([Ok("piece".into())]).chain(stream::pending());
        let body = body.inspect(move |_| *counter.lock().unwrap() += 1);
        store.put_object("b", "k", Box::pin(body)).await
    });
    while *sent.lock().unwrap() == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(100));
    // Closes the socket and says nothing.
    host.shutdown_background();
    assert!(matches!(plugins.block_on(test.puts.recv()), Some(Put::Broken(_))));
}

#[tokio::test]
async fn a_missing_object_is_told_by_the_call_and_a_broken_one_by_its_content() {
    let test = start(0).await;
    let Err(error) = test.store.get_object("b", "missing").await else { panic!("found") };
    assert_eq!(error, Error::new(Code::NotFound, "NoSuchKey"));

    let mut broken = test.store.get_object("b", "broken").await.unwrap();
    assert_eq!(broken.next().await.unwrap().unwrap(), "half");
    let error = broken.next().await.unwrap().unwrap_err().downcast::<Error>().unwrap();
    assert_eq!(error, Error::new(Code::DataLoss, "the other half is gone"));
}
