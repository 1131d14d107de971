//! The log of a plugin: one JSON object per line on standard error, which is the format that hosts
//! read.
//!
//! `@message` and `@level` are go-plugin's keys; `@timestamp` is omitted, and the host uses its own
//! time. `logSource` with `@logSourceSetBy` is what Velero's framework writes, and makes Velero
//! keep it. All other keys become fields of the host's log.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::io::Write as _;
use std::panic::PanicHookInfo;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::{LookupSpan, Scope};

/// Maximum length of a line with its line feed: go-plugin splits a longer line into several, none
/// of which is JSON.
const LINE_MAX: usize = 64 * 1024;

/// Texts shorter than this are not truncated any further.
const TEXT_MIN: usize = 64;

/// Libraries of the SDK, not the author's, that log each call at low levels.
const NOISY_LIBRARIES: [&str; 5] = ["h2", "hyper", "hyper_util", "tonic", "tower"];

/// Writes all events from `level` on, and all panics, as lines. A subscriber that the author has
/// set before takes precedence.
pub(crate) fn install(level: LevelFilter) {
    let lines = tracing_subscriber::registry().with(targets(level)).with(JsonLinesLayer(write));
    let _ = tracing::subscriber::set_global_default(lines);
    std::panic::set_hook(Box::new(|info| write(&panic_line(info))));
}

/// Writes an error without any subscriber.
pub(crate) fn error(message: &str) {
    write(&json_line(Level::ERROR, message.to_owned(), None, Fields::default()));
}

fn targets(level: LevelFilter) -> Targets {
    let quiet = level.min(LevelFilter::WARN);
    Targets::new().with_default(level).with_targets(NOISY_LIBRARIES.map(|target| (target, quiet)))
}

fn write(line: &str) {
    // A failure to write to standard error cannot be reported anywhere.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn panic_line(info: &PanicHookInfo<'_>) -> String {
    let message = format!("panic: {}", info.payload_as_str().unwrap_or("without a text"));
    let source = info.location().map(|at| format!("{}:{}", at.file(), at.line()));
    let mut fields = Fields::default();
    // Captured only if the environment asks for it.
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        fields.0.insert("backtrace".to_owned(), backtrace.to_string().into());
    }
    json_line(Level::ERROR, message, source, fields)
}

/// One line with its line feed.
fn json_line(level: Level, message: String, source: Option<String>, fields: Fields) -> String {
    let Fields(mut object) = fields;
    // Go's host panics on unexpected values in its own keys.
    object.retain(|key, _| !key.starts_with('@'));
    object.insert("@message".to_owned(), message.into());
    object.insert("@level".to_owned(), level.as_str().to_lowercase().into());
    if let Some(source) = source {
        object.insert("logSource".to_owned(), source.into());
        object.insert("@logSourceSetBy".to_owned(), "plugin".into());
    }
    loop {
        let mut text = serde_json::to_string(&object).unwrap_or_default();
        text.push('\n');
        match text.len().checked_sub(LINE_MAX) {
            None | Some(0) => return text,
            Some(excess) if truncate_longest_text(&mut object, excess) => {}
            Some(_) => object.retain(|key, _| key.starts_with('@')),
        }
    }
}

/// Truncates the longest text, by the excess or by half: escaped characters take more than one
/// byte.
fn truncate_longest_text(object: &mut Map<String, Value>, excess: usize) -> bool {
    let texts = object.values_mut().filter_map(|value| match value {
        Value::String(text) => Some(text),
        _ => None,
    });
    let Some(longest) = texts.max_by_key(|text| text.len()) else { return false };
    if longest.len() < TEXT_MIN {
        return false;
    }
    let mark = '…';
    let keep = longest.len().saturating_sub(excess + mark.len_utf8()).max(longest.len() / 2);
    longest.truncate(longest.floor_char_boundary(keep));
    longest.push(mark);
    true
}

/// A layer that writes events with the fields of their spans.
struct JsonLinesLayer<W>(W);

impl<S, W> Layer<S> for JsonLinesLayer<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: Fn(&str) + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        for span in context.event_scope(event).into_iter().flat_map(Scope::from_root) {
            if let Some(of_span) = span.extensions().get::<Fields>() {
                fields.0.extend(of_span.0.clone());
            }
        }
        event.record(&mut fields);
        let message = match fields.0.remove("message") {
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
            None => String::new(),
        };
        let metadata = event.metadata();
        let source = metadata.file().zip(metadata.line());
        let source = source.map(|(file, line)| format!("{file}:{line}"));
        (self.0)(&json_line(*metadata.level(), message, source, fields));
    }
}

/// The fields of an event or a span, as JSON.
#[derive(Clone, Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn insert(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.insert(field, value.to_string());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.insert(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests;
