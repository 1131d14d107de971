//! Options for running plugins.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_plugin_wire::Connection;

use crate::environment::InheritedEnvironment;
use crate::registry::Plugin;

/// Options for finding, starting and calling plugins.
#[derive(Clone, Debug)]
pub struct Options {
    /// The plugin folder.
    pub plugin_dir: PathBuf,
    /// Arguments of every plugin: those of the server, verbatim, as in Velero.
    pub arguments: Vec<OsString>,
    /// Environment variables that plugins inherit.
    pub inherited_environment: InheritedEnvironment,
    /// Additional environment variables for plugins.
    pub environment: Vec<(OsString, OsString)>,
    /// True if the host announces the kinds that it knows beyond those of Velero. If false, plugins
    /// must list what Velero would accept.
    pub announces_own_kinds: bool,
    /// Number of concurrent calls to one plugin process.
    pub concurrency: usize,
    /// Item actions that get one call at a time, by name, as in `example.io/my-action`, or by the
    /// name of their binary; `*` means all. All actions of a binary share a process, so that naming
    /// one of them is enough. Progress and cancel calls for operations are not delayed.
    pub serial: Vec<String>,
    /// Maximum size of a message to or from a plugin, in bytes. Together with
    /// [`concurrency`](Self::concurrency) it bounds the memory that a plugin can make the host use.
    pub message_limit: usize,
    /// Time limits.
    pub limits: Limits,
}

/// Time limits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From the start of a process to its handshake.
    pub start: Duration,
    /// From the first failure to list the plugins of binaries until the host gives up. In between
    /// it retries.
    pub relist: Duration,
    /// A call that looks up or records something: `Init`, `Progress`, `Cancel`.
    pub metadata: Duration,
    /// `AppliesTo`; after the start of a process, the calls for all its actions together.
    pub applies_to: Duration,
    /// `Execute` and `GetRelatedItems`.
    pub execute: Duration,
    /// A call that may move the data of a volume: `CreateSnapshot`, `CreateVolumeFromSnapshot`,
    /// `UploadSnapshot`, `DeleteSnapshot`. A last resort: callers have the deadline of their run,
    /// which its user sets.
    pub volume: Duration,
    /// The longest time that a stream may pass without a byte.
    pub stream_silence: Duration,
    /// From the request to stop until the process is killed.
    pub stop: Duration,
    /// The time after which a process without calls is ended.
    pub idle: Duration,
}

impl Options {
    /// True if the process of a binary with these item actions gets one call at a time.
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
