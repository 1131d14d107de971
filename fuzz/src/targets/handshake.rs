//! The first line that a plugin prints, and the names that it lists.

use bowline_plugin::{Kind, Name};
use bowline_plugin_wire::handshake;

use super::assert_harmless;

/// Longest path of a socket.
const MAX_PATH: usize = 107;
/// Longest message about a line of any length.
const MAX_MESSAGE: usize = 4096;

pub(super) fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    match handshake::parse(&text) {
        Ok(address) => {
            let path = address.path();
            assert!((1..=MAX_PATH).contains(&path.as_os_str().len()));
            assert_eq!(handshake::parse(&handshake::format(path)), Ok(address.clone()));
        }
        Err(error) => {
            let message = error.to_string();
            assert!(message.len() <= MAX_MESSAGE, "{} bytes", message.len());
            assert_harmless(&message);
            assert!(!message.contains('\n'), "{message}");
        }
    }
    if let Ok(name) = text.parse::<Name>() {
        assert_eq!(name.as_str().parse::<Name>().ok(), Some(name));
    }
    if let Ok(kind) = text.parse::<Kind>() {
        assert_eq!(kind.as_str(), text);
    }
    assert!(handshake::host_knows(Kind::ObjectStore, Some(&text)));
}
