//! Traces, for those who collect them: each run, each deletion and each call of a plugin is a span.
//!
//! They are sent over OTLP if one of the standard variables names a collector:
//! `OTEL_EXPORTER_OTLP_ENDPOINT`, or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`. The others of the standard,
//! such as `OTEL_EXPORTER_OTLP_HEADERS` and `OTEL_SERVICE_NAME`, mean what they mean everywhere. A
//! collector that does not answer costs the traces and nothing else.

use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use rustls::crypto::{CryptoProvider, ring};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::registry::LookupSpan;

/// What the server calls itself where `OTEL_SERVICE_NAME` does not say otherwise.
const SERVICE: &str = "bowline";
/// What turns traces on.
const ENDPOINT_VARIABLES: [&str; 2] =
    ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
/// How long the last spans may take to be sent when the server ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Spans on their way to a collector.
#[derive(Debug)]
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Begins to send spans, if the environment says where to.
    pub(super) fn from_environment() -> Result<Option<Self>, ExporterBuildError> {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        if !ENDPOINT_VARIABLES.iter().any(|name| is_set(name)) {
            return Ok(None);
        }
        if CryptoProvider::get_default().is_none() {
            // Fails if another thread was faster, which is as good.
            let _ = ring::default_provider().install_default();
        }
        // The client has a runtime of its own, which must not be made within another.
        let built = std::thread::spawn(|| SpanExporter::builder().with_http().build()).join();
        let exporter = built.unwrap_or_else(|_| {
            Err(ExporterBuildError::InternalFailure("the exporter could not be made".to_owned()))
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

    /// What hands spans on.
    pub(super) fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer(SERVICE))
            // Logs are lines, not parts of spans.
            .with_filter(tracing_subscriber::filter::filter_fn(is_span))
    }

    /// Sends what is left. Waits for that, for a short time.
    pub fn shut_down(self) {
        // Those who would read of a failure in a log see it in the traces that are missing.
        let _ = self.0.shutdown_with_timeout(FLUSH_TIMEOUT);
    }
}

fn is_span(metadata: &Metadata<'_>) -> bool {
    metadata.is_span()
}
