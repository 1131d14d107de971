//! Standard error of plugins, as log events of the host.
//!
//! Plugins of Velero's framework write one JSON object per line, with `@message`, `@level` and any
//! other keys. Everything else is text: a panic, or output of a library.

use serde_json::{Map, Value};
use tracing::Level;

/// Maximum length of a line, as in go-plugin.
pub(crate) const LINE_MAX: usize = 64 * 1024;

/// A line that a plugin wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) level: Level,
    pub(crate) message: String,
    /// The other keys of a JSON line, as JSON; empty if there are none.
    pub(crate) fields: String,
    /// True if the line was not JSON.
    pub(crate) is_text: bool,
}

impl Entry {
    /// True if the line may explain why the plugin ended: lines of normal operation do not.
    pub(crate) fn may_explain_exit(&self) -> bool {
        self.is_text || self.level <= Level::WARN
    }
}

/// Reads the lines of a plugin. Remembers whether the plugin is panicking, since the lines that
/// follow belong to the panic.
#[derive(Debug, Default)]
pub(crate) struct LogLineReader {
    panicking: bool,
}

impl LogLineReader {
    pub(crate) fn read(&mut self, line: &str) -> Entry {
        let line = line.trim_end();
        if let Ok(Value::Object(object)) = serde_json::from_str(line)
            && let Some(entry) = structured(object)
        {
            return entry;
        }
        self.panicking |= line.starts_with("panic: ") || line.starts_with("fatal error: ");
        let level = if self.panicking { Level::ERROR } else { level_of_prefix(line) };
        Entry { level, message: line.to_owned(), fields: String::new(), is_text: true }
    }
}

fn structured(mut object: Map<String, Value>) -> Option<Entry> {
    let message = object.remove("@message")?.as_str()?.to_owned();
    let level = parse_level(object.remove("@level")?.as_str()?)?;
    // Redundant, or only of use to the framework itself.
    for key in ["@timestamp", "level", "time", "timestamp", "@logSourceSetBy"] {
        object.remove(key);
    }
    let fields = if object.is_empty() { String::new() } else { Value::Object(object).to_string() };
    Some(Entry { level, message, fields, is_text: false })
}

fn parse_level(name: &str) -> Option<Level> {
    match name.to_lowercase().as_str() {
        "trace" => Some(Level::TRACE),
        "debug" => Some(Level::DEBUG),
        "info" => Some(Level::INFO),
        "warn" | "warning" => Some(Level::WARN),
        // A plugin that logs `fatal` is about to end.
        "error" | "fatal" | "panic" => Some(Level::ERROR),
        _ => None,
    }
}

fn level_of_prefix(line: &str) -> Level {
    line.strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
        .and_then(|(word, _)| parse_level(word))
        .unwrap_or(Level::DEBUG)
}

/// Logs an entry as an event. The level of an event is part of the code, hence the branches.
pub(crate) fn emit(plugin: &str, Entry { level, message, fields, .. }: &Entry) {
    match *level {
        Level::ERROR => tracing::error!(plugin, fields, "{message}"),
        Level::WARN => tracing::warn!(plugin, fields, "{message}"),
        Level::INFO => tracing::info!(plugin, fields, "{message}"),
        Level::DEBUG => tracing::debug!(plugin, fields, "{message}"),
        Level::TRACE => tracing::trace!(plugin, fields, "{message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_logged_at_the_plugins_level() {
        let json = |level, message: &str, fields: &str| Entry {
            level,
            message: message.into(),
            fields: fields.into(),
            is_text: false,
        };
        let text = |level, message: &str| Entry { is_text: true, ..json(level, message, "") };
        for (line, expected) in [
            (r#"{"@message":"hi","@level":"info"}"#, json(Level::INFO, "hi", "")),
            (
                r#"{"@message":"hi","@level":"WARN","level":"warning","logSource":"a.go:1","@logSourceSetBy":"plugin"}"#,
                json(Level::WARN, "hi", r#"{"logSource":"a.go:1"}"#),
            ),
            (
                r#"{"@message":1,"@level":"info"}"#,
                text(Level::DEBUG, r#"{"@message":1,"@level":"info"}"#),
            ),
            (
                r#"{"@message":"x","@level":"loud"}"#,
                text(Level::DEBUG, r#"{"@message":"x","@level":"loud"}"#),
            ),
            (r#"{"@message":"bye","@level":"fatal"}"#, json(Level::ERROR, "bye", "")),
            ("[ERROR] no", text(Level::ERROR, "[ERROR] no")),
            ("[note] no", text(Level::DEBUG, "[note] no")),
            ("plain\n", text(Level::DEBUG, "plain")),
            ("", text(Level::DEBUG, "")),
        ] {
            assert_eq!(LogLineReader::default().read(line), expected, "{line}");
        }
    }

    #[test]
    fn exit_is_explained_by_warnings_and_plain_text() {
        let explains = |line| LogLineReader::default().read(line).may_explain_exit();
        assert!(!explains(r#"{"@message":"plugin address","@level":"debug"}"#));
        assert!(explains(r#"{"@message":"no disk","@level":"error"}"#));
        assert!(explains("panic: oh"));
    }

    #[test]
    fn all_lines_of_a_panic_are_errors() {
        let mut reader = LogLineReader::default();
        assert_eq!(reader.read("about to").level, Level::DEBUG);
        assert_eq!(reader.read("panic: oh").level, Level::ERROR);
        assert_eq!(reader.read("goroutine 1 [running]:").level, Level::ERROR);
    }
}
