//! Makes a port inside a bed's network namespace reachable from outside.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crate::isolation::Isolation;

/// Loopback port of this machine whose connections end inside the namespace.
///
/// Uses plain threads, so that it serves clients on any runtime, or on none. Dropping it closes the port; open
/// connections last until one of their ends closes.
#[derive(Debug)]
pub(crate) struct Forward {
    address: SocketAddr,
    closed: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Forward {
    /// Forwards from `from`, or from a free port, to the port `to` of the namespace.
    pub(crate) fn start(isolation: Isolation, from: Option<u16>, to: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, from.unwrap_or(0)))?;
        let address = listener.local_addr()?;
        let closed = Arc::new(AtomicBool::new(false));
        let is_closed = Arc::clone(&closed);
        let acceptor = thread::Builder::new().name("forward".to_owned()).spawn(move || {
            for outside in listener.incoming() {
                if is_closed.load(Ordering::Acquire) {
                    return;
                }
                // A refused dial closes the client's connection, as a direct dial would have done.
                if let (Ok(outside), Ok(inside)) = (outside, isolation.connect(to)) {
                    let _ = connect_streams(outside, inside);
                }
            }
        })?;
        Ok(Self { address, closed, acceptor: Some(acceptor) })
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        // Wakes the acceptor, which waits for a connection.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

/// Copies in both directions until both ends have closed.
fn connect_streams(outside: TcpStream, inside: TcpStream) -> io::Result<()> {
    let back = (inside.try_clone()?, outside.try_clone()?);
    thread::Builder::new().spawn(move || copy(outside, inside))?;
    thread::Builder::new().spawn(move || copy(back.0, back.1))?;
    Ok(())
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}
