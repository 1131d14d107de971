//! The handshake between a host and a plugin process: the environment that the plugin is started
//! in, and the one line that it prints.
//!
//! ```text
//! 1|2|unix|/tmp/plugin123456|grpc|
//! │ │ │    │                 │    └ a certificate, with TLS; never here
//! │ │ │    │                 └ the protocol
//! │ │ └ where it listens
//! │ └ the version of Velero's protocol
//! └ the version of this line
//! ```

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

use bowline_plugin::Kind;

/// The variable that shows a plugin that a host has started it, and not a person.
pub const COOKIE_ENV: &str = "VELERO_PLUGIN";
/// Value of [`COOKIE_ENV`].
pub const COOKIE: &str = "hello";
/// Protocol versions of the host, separated by commas.
pub const VERSIONS_ENV: &str = "PLUGIN_PROTOCOL_VERSIONS";
/// The lowest port for a plugin that would listen on one.
pub const MIN_PORT_ENV: &str = "PLUGIN_MIN_PORT";
/// The highest port for a plugin that would listen on one.
pub const MAX_PORT_ENV: &str = "PLUGIN_MAX_PORT";
/// Folder for the plugin's socket; the folder for temporary files if not set.
pub const SOCKET_DIR_ENV: &str = "PLUGIN_UNIX_SOCKET_DIR";
/// Kinds that the host knows beyond those of Velero, separated by commas. A plugin lists such a
/// kind only if it is among them: Velero refuses to start if a plugin lists a kind that it does not
/// know.
pub const KINDS_ENV: &str = "BOWLINE_PLUGIN_KINDS";

/// Version of the handshake line.
pub const CORE_VERSION: u32 = 1;
/// Version of the plugin protocol.
pub const APP_VERSION: u32 = 2;
/// Name of a plugin in the health service.
pub const SERVICE: &str = "plugin";

/// Variables that the host sets for a plugin, in addition to its own.
pub const ENVIRONMENT: [(&str, &str); 5] = [
    (COOKIE_ENV, COOKIE),
    (VERSIONS_ENV, "2"),
    (MIN_PORT_ENV, "10000"),
    (MAX_PORT_ENV, "25000"),
    (KINDS_ENV, "VolumeSnapshotterV2"),
];

/// Variables that must not be set for a plugin: they would request TLS, or several connections
/// multiplexed over one.
pub const REMOVED_FROM_ENVIRONMENT: [&str; 2] = ["PLUGIN_CLIENT_CERT", "PLUGIN_MULTIPLEX_GRPC"];

/// Maximum length of a socket path: the system's 108 bytes without the final zero.
const PATH_MAX: usize = 107;

/// go-plugin ignores a shorter sixth field, so a shorter one is not a certificate.
const CERTIFICATE_MIN: usize = 50;

/// Address of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(PathBuf);

impl Address {
    /// The path of the unix socket.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// Errors in the first line of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Something else was printed.
    #[error("the first line on standard output is not a handshake: `{0}`")]
    NotAHandshake(Excerpt),
    /// Unsupported version of the line.
    #[error("unsupported go-plugin protocol version {0}: expected {CORE_VERSION}")]
    CoreVersion(u32),
    /// Unsupported version of the protocol.
    #[error("unsupported plugin protocol version {0}: expected {APP_VERSION}")]
    AppVersion(u32),
    /// The plugin listens on a TCP port.
    #[error("the plugin listens on the network at {0}; only unix sockets are supported")]
    Tcp(Excerpt),
    /// The plugin listens on an unknown network.
    #[error("the plugin listens on `{0}`; only unix sockets are supported")]
    Network(Excerpt),
    /// The plugin uses go-plugin's old protocol.
    #[error("the plugin speaks net/rpc; only gRPC is supported")]
    NetRpc,
    /// The plugin uses an unknown protocol.
    #[error("the plugin speaks `{0}`; only gRPC is supported")]
    Protocol(Excerpt),
    /// No socket path.
    #[error("the path of the plugin's socket is empty")]
    NoPath,
    /// The socket path is too long.
    #[error("the path of the plugin's socket has {0} bytes, more than {PATH_MAX}")]
    LongPath(usize),
    /// The plugin requires TLS, which was not requested.
    #[error("the plugin requires TLS, which is not supported")]
    Tls,
    /// The plugin multiplexes connections, which was not requested.
    #[error("the plugin requires a multiplexed connection, which is not supported")]
    Multiplexed,
}

/// The beginning of a plugin's output, safe to show in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt(String);

impl Excerpt {
    const CHARS: usize = 200;

    fn of(text: &str) -> Self {
        Self(text.chars().take(Self::CHARS).collect())
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '`' => f.write_char(c)?,
                _ => write!(f, "{}", c.escape_debug())?,
            }
        }
        Ok(())
    }
}

/// Reads the first line that a plugin printed.
pub fn parse(line: &str) -> Result<Address, HandshakeError> {
    let not_one = || HandshakeError::NotAHandshake(Excerpt::of(line));
    let fields: Vec<&str> = line.trim().split('|').collect();
    let [core, app, network, path, rest @ ..] = fields.as_slice() else { return Err(not_one()) };
    let version = |text: &str| text.parse::<u32>().map_err(|_| not_one());

    match (version(core)?, version(app)?) {
        (CORE_VERSION, APP_VERSION) => {}
        (CORE_VERSION, app) => return Err(HandshakeError::AppVersion(app)),
        (core, _) => return Err(HandshakeError::CoreVersion(core)),
    }
    match *network {
        "unix" => {}
        "tcp" => return Err(HandshakeError::Tcp(Excerpt::of(path))),
        other => return Err(HandshakeError::Network(Excerpt::of(other))),
    }
    match rest.first() {
        Some(&"grpc") => {}
        None | Some(&("" | "netrpc")) => return Err(HandshakeError::NetRpc),
        Some(other) => return Err(HandshakeError::Protocol(Excerpt::of(other))),
    }
    if rest.get(1).is_some_and(|certificate| certificate.len() > CERTIFICATE_MIN) {
        return Err(HandshakeError::Tls);
    }
    if rest.get(2) == Some(&"true") {
        return Err(HandshakeError::Multiplexed);
    }
    match path.len() {
        0 => Err(HandshakeError::NoPath),
        length if length > PATH_MAX => Err(HandshakeError::LongPath(length)),
        _ => Ok(Address(path.into())),
    }
}

/// The line that a plugin prints, without its line feed, once it listens at `socket`.
pub fn format(socket: &Path) -> String {
    format!("{CORE_VERSION}|{APP_VERSION}|unix|{}|grpc|", socket.display())
}

/// True if a host knows a kind, so that a plugin may list it; `kinds` is the value of
/// [`KINDS_ENV`].
pub fn host_knows(kind: Kind, kinds: Option<&str>) -> bool {
    kind != Kind::VolumeSnapshotterV2
        || kinds.unwrap_or_default().split(',').any(|known| known.trim() == kind.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshake_line_is_an_address_or_a_clear_error() {
        let long = "x".repeat(108);
        let certificate = "A".repeat(51);
        for (line, expected) in [
            ("1|2|unix|/tmp/plugin1|grpc|\n", Ok("/tmp/plugin1")),
            ("1|2|unix|/tmp/plugin1|grpc", Ok("/tmp/plugin1")),
            ("  1|2|unix|/tmp/plugin1|grpc|\r\n", Ok("/tmp/plugin1")),
            ("1|2|unix|/tmp/plugin1|grpc|short", Ok("/tmp/plugin1")),
            ("1|2|unix|/tmp/plugin1|grpc||false", Ok("/tmp/plugin1")),
            (&format!("1|2|unix|{}|grpc|", &long[1..]), Ok(&long[1..])),
            ("", Err("the first line on standard output is not a handshake: ``")),
            ("\u{1b}[31mhello", Err("is not a handshake: `\\u{1b}[31mhello`")),
            ("time=\"…\" level=info msg=\"a|b|c|d\"", Err("is not a handshake")),
            ("1|2|unix", Err("is not a handshake")),
            ("one|2|unix|/p|grpc|", Err("is not a handshake")),
            ("1|two|unix|/p|grpc|", Err("is not a handshake")),
            ("1|-2|unix|/p|grpc|", Err("is not a handshake")),
            ("2|2|unix|/p|grpc|", Err("unsupported go-plugin protocol version 2: expected 1")),
            ("1|1|unix|/p|grpc|", Err("unsupported plugin protocol version 1: expected 2")),
            ("1|2|tcp|127.0.0.1:10000|grpc|", Err("on the network at 127.0.0.1:10000")),
            ("1|2|vsock|3|grpc|", Err("listens on `vsock`")),
            ("1|2|unix|/p", Err("net/rpc")),
            ("1|2|unix|/p|netrpc|", Err("net/rpc")),
            ("1|2|unix|/p|http|", Err("speaks `http`")),
            ("1|2|unix||grpc|", Err("socket is empty")),
            (&format!("1|2|unix|{long}|grpc|"), Err("has 108 bytes, more than 107")),
            (&format!("1|2|unix|/p|grpc|{certificate}"), Err("TLS")),
            ("1|2|unix|/p|grpc||true", Err("multiplexed connection")),
        ] {
            match (parse(line), expected) {
                (Ok(address), Ok(path)) => assert_eq!(address.path(), Path::new(path)),
                (Err(error), Err(expected_text)) => {
                    assert!(error.to_string().contains(expected_text), "{line}: {error}");
                }
                (got, _) => panic!("{line}: {got:?}"),
            }
        }
    }

    #[test]
    fn handshake_line_round_trips() {
        let line = format(Path::new("/tmp/plugin1"));
        assert_eq!(line, "1|2|unix|/tmp/plugin1|grpc|", "six fields, as from Go");
        assert_eq!(parse(&line).unwrap().path(), Path::new("/tmp/plugin1"));
    }

    #[test]
    fn error_quotes_only_the_beginning_of_the_output() {
        let error = parse(&"x".repeat(1 << 20)).unwrap_err();
        assert!(error.to_string().len() < 300);
    }

    #[test]
    fn snapshotter_v2_is_known_only_to_hosts_that_announce_it() {
        for (kinds, expected) in [
            (None, false),
            (Some(""), false),
            (Some("VolumeSnapshotter"), false),
            (Some("VolumeSnapshotterV2"), true),
            (Some("Other, VolumeSnapshotterV2"), true),
        ] {
            assert_eq!(host_knows(Kind::VolumeSnapshotterV2, kinds), expected, "{kinds:?}");
            assert!(host_knows(Kind::ObjectStore, kinds));
        }
    }

    #[test]
    fn host_that_sets_the_environment_knows_snapshotter_v2() {
        let (_, kinds) = ENVIRONMENT.iter().find(|(name, _)| *name == KINDS_ENV).unwrap();
        assert!(host_knows(Kind::VolumeSnapshotterV2, Some(kinds)));
    }
}
