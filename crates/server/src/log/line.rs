//! One line of a log, in the format of logrus.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use jiff::Timestamp;
use serde_json::{Value, json};
use tracing::Level;
use tracing::field::{Field, Visit};

/// Maximum length of a message or field value, in bytes.
const MAX_FIELD_BYTES: usize = 32 << 10;
/// Names that every line has. logrus renames fields of the same name.
const RESERVED: [&str; 3] = ["level", "msg", "time"];

/// Fields by name, in order.
pub(super) type Fields = BTreeMap<String, Value>;

/// Contents of a line.
#[derive(Debug)]
pub(super) struct LogLine {
    pub(super) time: Timestamp,
    pub(super) level: Level,
    pub(super) message: String,
    pub(super) fields: Fields,
}

impl LogLine {
    /// `time="…" level=info msg="…" key=value`, with the line feed.
    pub(super) fn text(&self) -> String {
        let mut line = format!("time=\"{}\" level={}", self.time(), level_name(self.level));
        push_field(&mut line, "msg", &self.message);
        for (name, value) in &self.fields {
            match value {
                Value::String(text) => push_field(&mut line, name, text),
                other => push_field(&mut line, name, &other.to_string()),
            }
        }
        line.push('\n');
        line
    }

    /// `{"level":"info","msg":"…","time":"…"}`, with the line feed.
    pub(super) fn json(&self) -> String {
        let own = [
            ("level", json!(level_name(self.level))),
            ("msg", json!(self.message)),
            ("time", json!(self.time())),
        ];
        let mut line = self.fields.clone();
        line.extend(own.map(|(name, value)| (name.to_owned(), value)));
        format!("{}\n", json!(line))
    }

    /// Time in Go's RFC 3339 format, to the second.
    fn time(&self) -> String {
        self.time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

fn push_field(line: &mut String, name: &str, value: &str) {
    line.push(' ');
    line.push_str(name);
    line.push('=');
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-._/@^+".contains(&b);
    if value.bytes().all(is_plain) {
        line.push_str(value);
    } else {
        quote(line, value);
    }
}

/// Quotes a text, in one line of harmless characters, like Go's `%q`.
fn quote(line: &mut String, text: &str) {
    line.push('"');
    for c in text.chars() {
        match c {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            // Writing to a String cannot fail.
            c if c.is_ascii_control() => drop(write!(line, "\\x{:02x}", u32::from(c))),
            c if c.is_control() => drop(write!(line, "\\u{:04x}", u32::from(c))),
            c => line.push(c),
        }
    }
    line.push('"');
}

/// Collects the fields of an event or span.
#[derive(Debug, Default)]
pub(super) struct FieldCollector {
    pub(super) message: String,
    pub(super) fields: Fields,
}

impl FieldCollector {
    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            // Fields of a plugin's message arrive as one JSON text.
            ("fields", Value::String(text)) => self.add_all(&text),
            (name, value) => drop(self.fields.insert(field_name(name), value)),
        }
    }

    fn add_all(&mut self, json: &str) {
        if let Ok(Value::Object(all)) = serde_json::from_str(json) {
            for (name, value) in all {
                self.fields.insert(field_name(&name), value);
            }
        }
    }
}

/// Name of a field in the line.
fn field_name(name: &str) -> String {
    // Plugins choose the names of their fields freely, but a line must stay one line.
    let word = |c: char| if c.is_alphanumeric() || "-._/@".contains(c) { c } else { '_' };
    let name: String = name.chars().take(100).map(word).collect();
    if RESERVED.contains(&name.as_str()) { format!("fields.{name}") } else { name }
}

fn truncated_field(text: &str) -> String {
    if text.len() <= MAX_FIELD_BYTES {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(MAX_FIELD_BYTES)])
}

impl Visit for FieldCollector {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, Value::String(truncated_field(&format!("{value:?}"))));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, Value::String(truncated_field(value)));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, json!(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, json!(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, json!(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, json!(value));
    }
}
