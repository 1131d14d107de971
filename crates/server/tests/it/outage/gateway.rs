//! A connection to the S3 server that can be closed.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::bed::shared;

/// A proxy between a server and its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// All requests pass.
    Open,
    /// No request is answered.
    Away,
    /// Each request is refused.
    Refuses,
}

pub(super) struct Gateway {
    pub(super) address: SocketAddr,
    mode: watch::Sender<Mode>,
}

impl Gateway {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (mode, changes) = watch::channel(Mode::Open);
        tokio::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { continue };
                tokio::spawn(serve(client, changes.clone()));
            }
        });
        Self { address, mode }
    }

    pub(super) fn set(&self, mode: Mode) {
        self.mode.send(mode).unwrap();
    }
}

/// Serves one connection, until the mode is another.
async fn serve(mut client: TcpStream, mut changes: watch::Receiver<Mode>) {
    let mode = *changes.borrow_and_update();
    let served = async {
        match mode {
            Mode::Away => {}
            Mode::Open => {
                let server = shared().s3.url();
                let server = server.trim_start_matches("http://").trim_end_matches('/');
                let Ok(mut server) = TcpStream::connect(server).await else { return };
                let _ = copy_bidirectional(&mut client, &mut server).await;
            }
            Mode::Refuses => {
                let mut head = vec![0; 16 << 10];
                let _ = client.read(&mut head).await;
                let refusal =
                    "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                let _ = client.write_all(refusal.as_bytes()).await;
                let _ = client.shutdown().await;
                // A late body would cut off the answer.
                while client.read(&mut head).await.is_ok_and(|count| count > 0) {}
            }
        }
    };
    tokio::select! {
        () = served => {}
        _ = changes.changed() => {}
    }
}
