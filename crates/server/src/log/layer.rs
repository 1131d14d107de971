//! Formats events as lines, and routes the lines.

use std::io::Write;

use jiff::Timestamp;
use parking_lot::Mutex;
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::line::{FieldCollector, Fields, LogLine};
use super::run_log::AttachedLog;
use super::{Format, Options};

/// Prefix of our crates; events of other crates are logged only from warnings on.
const OWN_CRATES_PREFIX: &str = "bowline";

/// Writes each event as a line to `out`, and to the log of the run in whose span it occurs.
pub(super) struct LogLayer {
    options: Options,
    out: Mutex<Box<dyn Write + Send>>,
}

/// Fields of a span, stored as its extension.
struct SpanFields(Fields);

impl LogLayer {
    pub(super) fn new(options: Options, out: impl Write + Send + 'static) -> Self {
        Self { options, out: Mutex::new(Box::new(out)) }
    }

    fn should_log(&self, metadata: &Metadata<'_>) -> bool {
        let is_ours = metadata.target().starts_with(OWN_CRATES_PREFIX);
        let threshold = match (is_ours, metadata.is_span()) {
            // A span carries the log and fields of a run, whatever the level of the server's log.
            (true, true) => self.options.level.0.max(LevelFilter::INFO),
            (true, false) => self.options.level.0,
            (false, true) => return false,
            (false, false) => self.options.level.0.min(LevelFilter::WARN),
        };
        *metadata.level() <= threshold
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LogLayer {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.should_log(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.options.level.0.max(LevelFilter::INFO))
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut collector = FieldCollector::default();
        attributes.record(&mut collector);
        span.extensions_mut().insert(SpanFields(collector.fields));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut collector = FieldCollector::default();
        values.record(&mut collector);
        if let Some(SpanFields(fields)) = span.extensions_mut().get_mut() {
            fields.extend(collector.fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut collector = FieldCollector::default();
        event.record(&mut collector);
        let mut line = LogLine {
            time: Timestamp::now(),
            level: *event.metadata().level(),
            message: collector.message,
            fields: collector.fields,
        };
        let mut run = None;
        for span in context.event_scope(event).into_iter().flatten() {
            let extensions = span.extensions();
            if let Some(SpanFields(fields)) = extensions.get() {
                // Fields of inner spans take precedence. Some fields are only for collectors of
                // traces.
                for (name, value) in fields.iter().filter(|(name, _)| !name.starts_with("otel.")) {
                    line.fields.entry(name.clone()).or_insert_with(|| value.clone());
                }
            }
            if run.is_none()
                && let Some(AttachedLog(log)) = extensions.get()
            {
                // Outer spans are the server's, and do not concern the run.
                log.add(line.text().as_bytes());
                run = Some(());
            }
        }
        let text = match self.options.format {
            Format::Text => line.text(),
            Format::Json => line.json(),
        };
        // A failure of standard error cannot be reported anywhere.
        let _ = self.out.lock().write_all(text.as_bytes());
    }
}
