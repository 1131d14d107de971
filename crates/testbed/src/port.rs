//! Ports on this machine's loopback address.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use crate::Error;

/// How often a start is tried when a port that was free has been taken meanwhile.
const TRIES: usize = 3;

/// Different ports that were free a moment ago.
///
/// Another process may take one before its user does, who then tries again with others.
pub fn free<const N: usize>() -> io::Result<[u16; N]> {
    let mut held = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

/// Fails if a server cannot be started on `port`: it is taken, or needs more rights.
pub fn check(port: u16) -> io::Result<()> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(drop)
}

/// Starts servers on free ports, and again on others if one was taken meanwhile.
pub(crate) async fn with_free<const N: usize, T>(
    mut start: impl AsyncFnMut([u16; N]) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut tries = 1;
    loop {
        let ports = free().map_err(Error::Port)?;
        match start(ports).await {
            Err(Error::Process(error)) if error.is_port_conflict() && tries < TRIES => tries += 1,
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_are_different() {
        let mut ports: [u16; 20] = free().unwrap();
        ports.sort_unstable();
        assert!(ports.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn a_port_in_use_is_told() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let error = check(taken.local_addr().unwrap().port()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
