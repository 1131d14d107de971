//! OpenTelemetry traces: each run, each deletion and each call of a plugin is a span.
//!
//! Traces are sent over OTLP if one of the standard variables names a collector:
//! `OTEL_EXPORTER_OTLP_ENDPOINT`, or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`. The other standard
//! variables, such as `OTEL_EXPORTER_OTLP_HEADERS` and `OTEL_SERVICE_NAME`, have their usual
//! meaning. If a collector does not answer, only the traces are lost.

use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use rustls::crypto::{CryptoProvider, ring};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::registry::LookupSpan;

/// Default of `OTEL_SERVICE_NAME`.
const SERVICE: &str = "bowline";
/// Variables that enable traces.
const ENDPOINT_VARIABLES: [&str; 2] =
    ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
/// Timeout for sending the last spans when the server stops.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Exporter of spans to a collector.
#[derive(Debug)]
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Starts the exporter, if the environment names a collector.
    pub(super) fn from_environment() -> Result<Option<Self>, ExporterBuildError> {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        if !ENDPOINT_VARIABLES.iter().any(|name| is_set(name)) {
            return Ok(None);
        }
        if CryptoProvider::get_default().is_none() {
            // Fails if another thread was faster, which is just as good.
            let _ = ring::default_provider().install_default();
        }
        // The client has a runtime of its own, which must not be created within another.
        let built = std::thread::spawn(|| SpanExporter::builder().with_http().build()).join();
        let exporter = built.unwrap_or_else(|_| {
            Err(ExporterBuildError::InternalFailure("the exporter could not be created".to_owned()))
        })?;
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name(SERVICE);
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .build();
        Ok(Some(Self(provider)))
    }

    /// Layer that passes spans to the exporter.
    pub(super) fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer(SERVICE))
            // Log lines are not parts of spans.
            .with_filter(tracing_subscriber::filter::filter_fn(is_span))
    }

    /// Sends the remaining spans. Waits for that, for a short time.
    pub fn shut_down(self) {
        // A failure shows as missing traces; the log would reach no other reader.
        let _ = self.0.shutdown_with_timeout(FLUSH_TIMEOUT);
    }
}

fn is_span(metadata: &Metadata<'_>) -> bool {
    metadata.is_span()
}
