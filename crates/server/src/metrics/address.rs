//! Values of `--metrics-address`.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use tokio::net::TcpListener;

/// Listen address of metrics, in Go's syntax.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Address {
    /// None: `0`, or empty.
    #[default]
    Off,
    /// This port on all interfaces: `:8085`.
    AllInterfaces(u16),
    /// One address: `127.0.0.1:8085`.
    At(SocketAddr),
}

/// Invalid address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected IP:PORT, :PORT for all addresses, or 0 for none, not `{0}`")]
pub struct InvalidAddress(String);

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let invalid = || InvalidAddress(text.to_owned());
        if text.is_empty() || text == "0" {
            return Ok(Self::Off);
        }
        match text.strip_prefix(':') {
            // The number parser accepts a sign, which a port cannot have.
            Some(port) if port.starts_with(|c: char| c.is_ascii_digit()) => {
                port.parse().map(Self::AllInterfaces).map_err(|_| invalid())
            }
            Some(_) => Err(invalid()),
            None => text.parse().map(Self::At).map_err(|_| invalid()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("0"),
            Self::AllInterfaces(port) => write!(f, ":{port}"),
            Self::At(address) => address.fmt(f),
        }
    }
}

impl Address {
    /// Binds the address; `None` if there is none.
    pub(super) async fn listen(self) -> io::Result<Option<TcpListener>> {
        match self {
            Self::Off => Ok(None),
            Self::At(address) => TcpListener::bind(address).await.map(Some),
            // IPv4 and IPv6, if the machine has both.
            Self::AllInterfaces(port) => {
                match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
                    Err(error) if is_ipv6_unavailable(&error) => {
                        TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await.map(Some)
                    }
                    bound => bound.map(Some),
                }
            }
        }
    }
}

/// True if the machine has no IPv6, as opposed to an unavailable port.
fn is_ipv6_unavailable(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_printed_as_in_go() {
        let at = |text: &str| Address::At(text.parse().unwrap());
        for (text, expected) in [
            ("0", Address::Off),
            (":8085", Address::AllInterfaces(8085)),
            (":0", Address::AllInterfaces(0)),
            ("127.0.0.1:8085", at("127.0.0.1:8085")),
            ("[::1]:80", at("[::1]:80")),
        ] {
            assert_eq!(text.parse(), Ok(expected));
            assert_eq!(expected.to_string(), text);
        }
        assert_eq!("".parse(), Ok(Address::Off));
    }

    #[test]
    fn invalid_address_error_shows_the_expected_form() {
        for text in ["8085", ":", ":+1", ":-1", ":65536", ":http", "here", "127.0.0.1", "::1:80"] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains(":PORT"), "{error}");
        }
    }
}
