//! Log of the server, and one log per run.
//!
//! Everything is a `tracing` event. Each event is written to standard error and, inside a span that
//! carries a [`RunLog`], also to that log, which `bowline backup logs` shows. Events of a plugin
//! belong to the span in which its process was started, so they are in the log of their run.
//!
//! Lines have Velero's format, since people have tools that parse it.
//!
//! ```
//! # use bowline_server::log::RunLog;
//! let log = RunLog::new();
//! let span = log.attach(tracing::info_span!("backup", backup = "velero/nightly"));
//! span.in_scope(|| tracing::info!(items = 3, "collected"));
//! let gzip = log.finish();
//! ```

mod layer;
mod line;
mod run_log;
mod traces;

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::SetGlobalDefaultError;
use tracing_subscriber::Registry;
use tracing_subscriber::layer::SubscriberExt as _;

use layer::LogLayer;
pub use run_log::RunLog;
pub use traces::Traces;

/// Configuration of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Minimum level.
    pub level: Level,
    /// Format of standard error. Logs of runs are always text.
    pub format: Format,
}

/// Log level, with the names of Velero's `--log-level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level(LevelFilter);

/// Format of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `time="…" level=info msg="…" key=value`
    #[default]
    Text,
    /// `{"level":"info","msg":"…","time":"…","key":"value"}`
    Json,
}

/// Unknown level or format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value must be one of {0}")]
pub struct InvalidChoice(&'static str);

impl Default for Level {
    fn default() -> Self {
        Self(LevelFilter::INFO)
    }
}

impl FromStr for Level {
    type Err = InvalidChoice;

    fn from_str(word: &str) -> Result<Self, InvalidChoice> {
        Ok(Self(match word.to_ascii_lowercase().as_str() {
            "trace" => LevelFilter::TRACE,
            "debug" => LevelFilter::DEBUG,
            "info" => LevelFilter::INFO,
            "warning" | "warn" => LevelFilter::WARN,
            // Velero's other two levels end its process; here they are errors.
            "error" | "fatal" | "panic" => LevelFilter::ERROR,
            _ => return Err(InvalidChoice("trace, debug, info, warning, error, fatal, panic")),
        }))
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            LevelFilter::TRACE => "trace",
            LevelFilter::DEBUG => "debug",
            LevelFilter::WARN => "warning",
            LevelFilter::ERROR => "error",
            _ => "info",
        })
    }
}

impl FromStr for Format {
    type Err = InvalidChoice;

    fn from_str(word: &str) -> Result<Self, InvalidChoice> {
        match word.to_ascii_lowercase().as_str() {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(InvalidChoice("text, json")),
        }
    }
}

/// Reason why the log cannot be initialized.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This process has another global subscriber already.
    #[error("another logger is already installed")]
    AlreadyInitialized(#[from] SetGlobalDefaultError),
    /// Traces are configured, and cannot be exported.
    #[error("traces cannot be sent; check the variables OTEL_EXPORTER_OTLP_*")]
    Traces(#[from] opentelemetry_otlp::ExporterBuildError),
}

/// Sends all events of this process to standard error and to the logs of runs, from now on, and
/// [traces](Traces) if an exporter is configured. The caller has to shut down the traces before the
/// process ends.
pub fn init(options: Options) -> Result<Option<Traces>, Error> {
    let traces = Traces::from_environment()?;
    let subscriber = Registry::default()
        .with(LogLayer::new(options, io::stderr()))
        .with(traces.as_ref().map(Traces::layer));
    tracing::subscriber::set_global_default(subscriber)?;
    Ok(traces)
}

/// Subscriber that writes events as lines to `out`, and to the logs of runs.
pub fn subscriber(
    options: Options,
    out: impl Write + Send + 'static,
) -> impl Subscriber + Send + Sync {
    Registry::default().with(LogLayer::new(options, out))
}

#[cfg(test)]
mod tests;
