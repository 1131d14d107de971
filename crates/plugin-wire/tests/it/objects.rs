//! Transfers of objects: in bounded memory, complete or not at all.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bowline_plugin::{ByteStream, Code, Config, Error, ObjectStore, Result};
use bowline_plugin_wire::client;
use bowline_plugin_wire::server::Plugins;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::fake::{name, serve};

const MIB: usize = 1 << 20;

/// The largest piece that either side sends.
const CHUNK: usize = 256 << 10;

/// Bytes in flight when the reader stops: windows and buffers of both sides.
const IN_FLIGHT: usize = 16 * MIB;

/// Outcome of a put.
#[derive(Debug, PartialEq, Eq)]
enum PutOutcome {
    Stored { bytes: usize, largest_piece: usize },
    Broken(String),
}

/// A store that reads an object only when allowed, in a task of its own, so that it continues to
/// read when the call is dropped, as a careless plugin would.
struct SlowStore {
    may_read: Arc<Semaphore>,
    /// Number of pieces that have arrived.
    arrived: Arc<watch::Sender<usize>>,
    puts: mpsc::UnboundedSender<PutOutcome>,
    bytes_given: Arc<AtomicUsize>,
}

#[async_trait]
impl ObjectStore for SlowStore {
    async fn init(&self, _: &Config) -> Result<()> {
        Ok(())
    }

    async fn put_object(&self, _: &str, _: &str, mut body: ByteStream) -> Result<()> {
        let (may_read, puts) = (self.may_read.clone(), self.puts.clone());
        let arrived = self.arrived.clone();
        let reading = tokio::spawn(async move {
            let (mut bytes, mut largest_piece) = (0, 0);
            while let Some(piece) = body.next().await {
                arrived.send_modify(|count| *count += 1);
                may_read.acquire().await.unwrap().forget();
                match piece {
                    Ok(piece) => {
                        bytes += piece.len();
                        largest_piece = largest_piece.max(piece.len());
                    }
                    Err(error) => return puts.send(PutOutcome::Broken(error.to_string())).unwrap(),
                }
            }
            puts.send(PutOutcome::Stored { bytes, largest_piece }).unwrap();
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
            _ => Ok(counted_body(64, self.bytes_given.clone())),
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

/// An object of this many pieces of a megabyte, and the number of its bytes that have been read.
fn counted_body(pieces: usize, bytes_taken: Arc<AtomicUsize>) -> ByteStream {
    Box::pin(stream::iter(0..pieces).map(move |_| {
        bytes_taken.fetch_add(MIB, Ordering::SeqCst);
        Ok(Bytes::from(vec![1; MIB]))
    }))
}

/// Waits until the number stands still, and returns it.
async fn wait_until_stable(number: &AtomicUsize) -> usize {
    let (mut last, mut still) = (0, 0);
    while still < 20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let now = number.load(Ordering::SeqCst);
        still = if now == last && now > 0 { still + 1 } else { 0 };
        last = now;
    }
    last
}

/// A store, and its behaviour.
struct ObjectTest {
    store: client::ObjectStore,
    may_read: Arc<Semaphore>,
    arrived: watch::Receiver<usize>,
    puts: mpsc::UnboundedReceiver<PutOutcome>,
    bytes_given: Arc<AtomicUsize>,
    plugin: crate::fake::Plugin,
}

async fn start(pieces_at_once: usize) -> ObjectTest {
    let (sender, puts) = mpsc::unbounded_channel();
    let may_read = Arc::new(Semaphore::new(pieces_at_once));
    let bytes_given = Arc::new(AtomicUsize::new(0));
    let (arrived_sender, arrived) = watch::channel(0);
    let slow = SlowStore {
        may_read: may_read.clone(),
        arrived: Arc::new(arrived_sender),
        puts: sender,
        bytes_given: bytes_given.clone(),
    };
    let mut plugins = Plugins::new("x");
    plugins.object_store(name(), Arc::new(slow)).unwrap();
    let plugin = serve(plugins).await;
    let store = client::ObjectStore::new(plugin.connection.clone(), name());
    ObjectTest { store, may_read, arrived, puts, bytes_given, plugin }
}

#[tokio::test]
async fn large_put_is_chunked_and_waits_for_a_slow_reader() {
    let mut test = start(1).await;
    let bytes_taken = Arc::new(AtomicUsize::new(0));
    let body = counted_body(64, bytes_taken.clone());
    let store = test.store.clone();
    let put = tokio::spawn(async move { store.put_object("b", "k", body).await });

    let bytes_taken_early = wait_until_stable(&bytes_taken).await;
    assert!(bytes_taken_early <= IN_FLIGHT, "{bytes_taken_early} bytes are in memory");
    test.may_read.add_permits(1 << 20);
    assert_eq!(put.await.unwrap(), Ok(()));
    let stored = PutOutcome::Stored { bytes: 64 * MIB, largest_piece: CHUNK };
    assert_eq!(test.puts.recv().await, Some(stored));
}

#[tokio::test]
async fn large_get_is_chunked_and_waits_for_a_slow_reader() {
    let test = start(0).await;
    let mut body = test.store.get_object("b", "large").await.unwrap();
    let first = body.next().await.unwrap().unwrap();
    assert_eq!(first.len(), CHUNK);

    let given_early = wait_until_stable(&test.bytes_given).await;
    assert!(given_early <= IN_FLIGHT, "{given_early} bytes are in memory");
    let sizes: Vec<usize> = body.map_ok(|piece| piece.len()).try_collect().await.unwrap();
    assert!(sizes.iter().all(|size| *size <= CHUNK));
    assert_eq!(sizes.iter().sum::<usize>(), 63 * MIB + MIB - CHUNK);
}

#[tokio::test]
async fn source_error_is_reported_and_nothing_is_stored() {
    for good_pieces in [0, 1, 100] {
        let mut test = start(1 << 20).await;
        let good = stream::iter(0..good_pieces).map(|_| Ok(Bytes::from_static(b"piece")));
        let bad = stream::iter([Err(io::Error::other("the disk cannot be read"))]);
        // Data after an error must not be sent either.
        let body = good.chain(bad).chain(stream::iter([Ok("end".into())]));
        let error = test.store.put_object("b", "k", Box::pin(body)).await.unwrap_err();
        assert_eq!(error.message(), "the disk cannot be read");

        // The call may not have begun at all.
        drop(test.store);
        drop(test.plugin.connection);
        let next_put = tokio::time::timeout(Duration::from_secs(1), test.puts.recv()).await;
        assert!(
            !matches!(next_put, Ok(Some(PutOutcome::Stored { .. }))),
            "{good_pieces} pieces: {next_put:?}"
        );
        if good_pieces == 100 {
            assert!(
                matches!(next_put, Ok(Some(PutOutcome::Broken(_)))),
                "it was on its way: {next_put:?}"
            );
        }
    }
}

#[tokio::test]
async fn dropped_put_stores_nothing() {
    let mut test = start(1 << 20).await;
    let endless = stream::iter([Ok("piece".into())]).chain(stream::pending());
    let put = test.store.put_object("b", "k", Box::pin(endless));
    tokio::select! {
        ended = put => panic!("the body has no end: {ended:?}"),
        arrived = test.arrived.wait_for(|count| *count > 0) => drop(arrived.unwrap()),
    }
    assert!(matches!(test.puts.recv().await, Some(PutOutcome::Broken(_))));
}

#[test]
fn host_killed_during_a_put_stores_nothing() {
    let plugins = tokio::runtime::Runtime::new().unwrap();
    let host = tokio::runtime::Runtime::new().unwrap();
    let mut test = plugins.block_on(start(1 << 20));
    let path = test.plugin.folder.path().join("socket");
    host.spawn(async move {
        let connection = bowline_plugin_wire::Connection::unix(path).await.unwrap();
        let store = client::ObjectStore::new(connection, name());
        let body = stream::iter([Ok("piece".into())]).chain(stream::pending());
        store.put_object("b", "k", Box::pin(body)).await
    });
    drop(plugins.block_on(test.arrived.wait_for(|count| *count > 0)).unwrap());
    // Closes the socket and says nothing.
    host.shutdown_background();
    assert!(matches!(plugins.block_on(test.puts.recv()), Some(PutOutcome::Broken(_))));
}

#[tokio::test]
async fn missing_object_fails_the_call_and_a_broken_one_fails_its_stream() {
    let test = start(0).await;
    let Err(error) = test.store.get_object("b", "missing").await else { panic!("found") };
    assert_eq!(error, Error::new(Code::NotFound, "NoSuchKey"));

    let mut broken = test.store.get_object("b", "broken").await.unwrap();
    assert_eq!(broken.next().await.unwrap().unwrap(), "half");
    let error = broken.next().await.unwrap().unwrap_err().downcast::<Error>().unwrap();
    assert_eq!(error, Error::new(Code::DataLoss, "the other half is gone"));
}
