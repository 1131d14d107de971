//! How plugins are run.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_plugin_wire::Connection;

use crate::environment::InheritedEnvironment;
use crate::registry::Plugin;

/// How plugins are found, started and called.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder that plugins are looked for in.
    pub plugin_dir: PathBuf,
    /// What every plugin gets as arguments: those of the server, word for word, as in Velero.
    pub arguments: Vec<OsString>,
    /// Which variables of our own environment plugins get.
    pub inherited_environment: InheritedEnvironment,
    /// Variables that plugins get beside those.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether plugins are told which kinds we know beyond those of Velero. If not, they must list
    /// what Velero would accept.
    pub announces_own_kinds: bool,
    /// How many calls one plugin process answers at a time.
    pub concurrency: usize,
    /// Item actions that get one call at a time, by their names, as in `example.io/my-action`, or the
    /// names of their binaries; `*` means all. All actions of a binary share a process, so that naming
    /// one of them is enough. Questions about operations under way are not held up.
    pub serial: Vec<String>,
    /// How large a message to or from a plugin may be, in bytes. With [`concurrency`](Self::concurrency) it bounds the
    /// memory that a plugin can make us use.
    pub message_limit: usize,
    /// How long things may take.
    pub limits: Limits,
}

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From the start of a process to its handshake.
    pub start: Duration,
    /// From the first failure to list the plugins of binaries until that is given up. Meanwhile it is tried again.
    pub relist: Duration,
    /// A call that looks something up or notes something: `Init`, `Progress`, `Cancel`.
    pub metadata: Duration,
    /// `AppliesTo`; after the start of a process, that of all its actions together.
    pub applies_to: Duration,
    /// `Execute` and `GetRelatedItems`.
    pub execute: Duration,
    /// A call that may move the data of a volume: `CreateSnapshot`, `CreateVolumeFromSnapshot`,
    /// `UploadSnapshot`, `DeleteSnapshot`. A last resort: callers have the deadline of their run, which
    /// its user sets.
    pub volume: Duration,
    /// A stream of bytes without a byte.
    pub stream_silence: Duration,
    /// From the request to stop until the process is killed.
    pub stop: Duration,
    /// How long a process without calls is kept.
    pub idle: Duration,
}

impl Options {
    /// Whether the process of a binary with these item actions gets one call at a time.
    pub(crate) fn is_serial(&self, command: &Path, plugins: &[Plugin]) -> bool {
        self.serial.iter().any(|name| {
            name == "*"
                || command.file_name() == Some(OsStr::new(name))
                || plugins.iter().any(|plugin| plugin.name.as_str() == name)
        })
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            plugin_dir: PathBuf::from("/plugins"),
            arguments: Vec::new(),
            inherited_environment: InheritedEnvironment::default(),
            environment: Vec::new(),
            announces_own_kinds: true,
            concurrency: 32,
            serial: Vec::new(),
            message_limit: Connection::MESSAGE_LIMIT,
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            start: Duration::from_mins(1),
            relist: Duration::from_mins(1),
            metadata: Duration::from_mins(1),
            applies_to: Duration::from_mins(1),
            execute: Duration::from_mins(10),
            volume: Duration::from_hours(30 * 24),
            stream_silence: Duration::from_mins(5),
            stop: Duration::from_secs(2),
            idle: Duration::from_mins(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use bowline_plugin::{Kind, Name};

    use super::*;

    #[test]
    fn plugin_is_serial_by_name_binary_or_wildcard() {
        let command = Path::new("/plugins/some-binary");
        let name = Name::of_provider("example.io/action").unwrap();
        let plugin = Plugin { kind: Kind::BackupItemAction, name, command: command.to_owned() };
        for (serial, expected) in [
            ("example.io/action", true),
            ("some-binary", true),
            ("*", true),
            ("example.io/other", false),
            ("action", false),
            ("/plugins/some-binary", false),
        ] {
            let options = Options { serial: vec![serial.to_owned()], ..Options::default() };
            assert_eq!(
                options.is_serial(command, std::slice::from_ref(&plugin)),
                expected,
                "{serial}"
            );
        }
        assert!(!Options::default().is_serial(command, std::slice::from_ref(&plugin)));
    }
}
