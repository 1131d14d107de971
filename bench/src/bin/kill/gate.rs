//! Connection to the bucket, which can be closed.

use std::net::SocketAddr;

use anyhow::Context as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Port that forwards its connections to another while it is open.
#[derive(Debug)]
pub(crate) struct ConnectionGate {
    address: SocketAddr,
    is_open: watch::Sender<bool>,
    acceptor: JoinHandle<()>,
}

impl ConnectionGate {
    /// Creates an open gate.
    pub(crate) async fn open_to(target: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot open a port")?;
        let address = listener.local_addr().context("cannot open a port")?;
        let (is_open, open_state) = watch::channel(true);
        let acceptor = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // An unreachable bucket looks like a dropped connection.
                if *open_state.borrow() {
                    tokio::spawn(forward(client, target, open_state.clone()));
                }
            }
        });
        Ok(Self { address, is_open, acceptor })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn open(&self) {
        self.is_open.send_replace(true);
    }

    /// Also ends the existing connections.
    pub(crate) fn close(&self) {
        self.is_open.send_replace(false);
    }
}

impl Drop for ConnectionGate {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

async fn forward(mut client: TcpStream, target: SocketAddr, mut state: watch::Receiver<bool>) {
    let Ok(mut there) = TcpStream::connect(target).await else { return };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut there) => {}
        _ = state.wait_for(|is_open| !is_open) => {}
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn closed_gate_drops_all_connections() {
        let echo = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gate = ConnectionGate::open_to(echo.local_addr().unwrap()).await.unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = echo.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        let ask = async |stream: &mut TcpStream| {
            stream.write_all(b"x").await.ok()?;
            let mut answer = [0];
            stream.read_exact(&mut answer).await.ok().map(|_| answer[0])
        };
        let mut old = TcpStream::connect(gate.address).await.unwrap();
        assert_eq!(ask(&mut old).await, Some(b'x'));
        gate.close();
        assert_eq!(ask(&mut old).await, None);
        let mut new = TcpStream::connect(gate.address).await.unwrap();
        assert_eq!(ask(&mut new).await, None);
        gate.open();
        let mut new = TcpStream::connect(gate.address).await.unwrap();
        assert_eq!(ask(&mut new).await, Some(b'x'));
    }
}
