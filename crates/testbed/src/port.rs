//! Ports on this machine's loopback address.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// A port that was free a moment ago.
///
/// Another process may take it before its user does; whoever starts a server on it tries again
/// with another one ([`crate::process::Error::is_port_conflict`]).
pub fn free() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Whether nobody listens on `port`.
pub fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
