//! Ports on this machine's loopback address.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use crate::Error;

/// Number of attempts to start when another process takes a port that was free.
const MAX_ATTEMPTS: usize = 3;

/// Distinct ports that were free a moment ago.
///
/// Another process may take one before the caller does, who then retries with others.
pub fn free_ports<const N: usize>() -> io::Result<[u16; N]> {
    let mut listeners = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        listeners.push(listener);
    }
    Ok(ports)
}

/// Fails if a server cannot be started on `port`: it is in use, or needs more rights.
pub fn check_free(port: u16) -> io::Result<()> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(drop)
}

/// Starts servers on free ports, and retries on others if one was taken meanwhile.
pub(crate) async fn with_free_ports<const N: usize, T>(
    mut start: impl AsyncFnMut([u16; N]) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut tries = 1;
    loop {
        let ports = free_ports().map_err(Error::Port)?;
        match start(ports).await {
            Err(Error::Process(error)) if error.is_port_conflict() && tries < MAX_ATTEMPTS => {
                tries += 1;
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_are_different() {
        let mut ports: [u16; 20] = free_ports().unwrap();
        ports.sort_unstable();
        assert!(ports.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn port_in_use_is_an_error() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let error = check_free(listener.local_addr().unwrap().port()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
