//! The socket that a plugin listens on.

use std::ffi::OsString;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use bowline_plugin_wire::handshake::{self, HandshakeError, SOCKET_DIR_ENV};
use tokio::net::{UnixListener, UnixSocket};

/// Number of connections that may wait to be accepted.
const BACKLOG: u32 = 64;

/// Number of names that are tried. One is enough unless another process guesses them.
const MAX_ATTEMPTS: usize = 16;

/// Reasons why there is no socket.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The path would be unreadable for hosts.
    #[error(
        "cannot create a socket in {}: {source}; set {SOCKET_DIR_ENV} to another directory",
        folder.display()
    )]
    Folder { folder: PathBuf, source: HandshakeError },
    /// The path contains characters that the handshake cannot represent.
    #[error(
        "cannot create a socket in {}: the path contains characters that the handshake cannot \
         represent; set {SOCKET_DIR_ENV} to another directory",
        folder.display()
    )]
    Signs { folder: PathBuf },
    /// The system refused.
    #[error("cannot listen on {}: {source}", path.display())]
    Listen { path: PathBuf, source: io::Error },
}

/// The folder for sockets; `env` looks up a variable. As in Go, an empty one counts as not set.
pub(crate) fn folder(env: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let set = [SOCKET_DIR_ENV, "TMPDIR"].into_iter().filter_map(env).find(|dir| !dir.is_empty());
    set.map_or_else(|| PathBuf::from("/tmp"), PathBuf::from)
}

/// A socket in the file system, removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
}

impl Socket {
    /// Listens at a new path in `folder`, where only the same user can connect.
    pub(crate) fn listen(folder: &Path) -> Result<(Self, UnixListener), Error> {
        let mut tries = 0;
        loop {
            let path = new_path(folder)?;
            tries += 1;
            match listen(&path) {
                Ok(listening) => return Ok(listening),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries < MAX_ATTEMPTS => {}
                Err(source) => return Err(Error::Listen { path, source }),
            }
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Same pattern as in Go.
fn new_path(folder: &Path) -> Result<PathBuf, Error> {
    let random = RandomState::new().hash_one(std::process::id()) % 10_000_000_000;
    let path = folder.join(format!("plugin{random}"));
    match handshake::parse(&handshake::format(&path)) {
        Ok(address) if address.path() == path => Ok(path),
        Ok(_) => Err(Error::Signs { folder: folder.to_owned() }),
        Err(source) => Err(Error::Folder { folder: folder.to_owned(), source }),
    }
}

fn listen(path: &Path) -> io::Result<(Socket, UnixListener)> {
    let unbound = UnixSocket::new_stream()?;
    unbound.bind(path)?;
    let socket = Socket { path: path.to_owned() };
    // Set before listening, so that no connection is accepted with other permissions.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok((socket, unbound.listen(BACKLOG)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_folder_is_the_hosts_then_the_users_then_the_systems() {
        for (host, user, expected) in [
            (Some("/a"), Some("/b"), "/a"),
            (None, Some("/b"), "/b"),
            (Some(""), Some("/b"), "/b"),
            (None, Some(""), "/tmp"),
            (None, None, "/tmp"),
        ] {
            let env = |name: &str| if name == "TMPDIR" { user } else { host }.map(OsString::from);
            assert_eq!(folder(env), Path::new(expected));
        }
    }

    #[tokio::test]
    async fn socket_is_private_and_removed_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let (one, _listener) = Socket::listen(folder.path()).unwrap();
        let (other, _other) = Socket::listen(folder.path()).unwrap();
        assert_ne!(one.path(), other.path());
        let mode = std::fs::metadata(one.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop((one, other));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn unusable_socket_folder_is_named_with_a_hint() {
        for (folder, expected_text) in [
            ("/none/such", "cannot listen on /none/such/plugin"),
            (&*format!("/{}", "x".repeat(100)), "more than 107; set PLUGIN_UNIX_SOCKET_DIR"),
            ("/a|b", "set PLUGIN_UNIX_SOCKET_DIR"),
        ] {
            let error = Socket::listen(Path::new(folder)).unwrap_err().to_string();
            assert!(error.contains(expected_text), "{error}");
        }
    }
}
