//! Metrics in the OpenMetrics text format: the response to a scrape, and a writer for collectors.

mod certificates;
mod process;

use std::fmt;

use hyper::{Response, StatusCode, header::HeaderValue};
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric as _, text},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};
use tracing::warn;

use crate::http::{TEXT, response};

pub use certificates::{CertificateFile, certificates};
pub use process::process;
pub use prometheus_client::registry::Registry;

/// Content type of OpenMetrics.
const OPENMETRICS: HeaderValue = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// Writes the metrics of a collector. Errors are those of the encoder.
#[derive(Debug)]
pub struct Writer<'a>(DescriptorEncoder<'a>);

/// Label names and values.
pub type Labels<'a, const N: usize> = [(&'static str, &'a str); N];

/// The response to a scrape, with the metrics of all registries.
pub fn scrape<'a>(registries: impl IntoIterator<Item = &'a Registry>) -> Response<String> {
    let mut body = String::new();
    match encode(registries, &mut body) {
        Ok(()) => response(StatusCode::OK, OPENMETRICS, body),
        Err(error) => {
            warn!(%error, "cannot encode metrics");
            response(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("cannot encode metrics: {error}\n"))
        }
    }
}

fn encode<'a>(registries: impl IntoIterator<Item = &'a Registry>, body: &mut String) -> fmt::Result {
    for registry in registries {
        text::encode_registry(body, registry)?;
    }
    text::encode_eof(body)
}

impl<'a> Writer<'a> {
    /// A writer to the encoder that a collector is given.
    #[must_use]
    pub fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }

    /// Writes a gauge without labels.
    pub fn gauge(&mut self, name: &str, help: &str, unit: Option<Unit>, value: f64) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        ConstGauge::new(value).encode(encoder)
    }

    /// Writes a counter without labels.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(encoder)
    }

    /// Writes a counter of seconds.
    pub fn seconds_counter(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Counter)?;
        ConstCounter::new(value).encode(encoder)
    }

    /// Writes a gauge for each set of labels.
    pub fn labelled_gauge<'b, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        samples: impl IntoIterator<Item = (Labels<'b, N>, f64)>,
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in samples {
            ConstGauge::new(value).encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Writes a counter for each set of labels.
    pub fn labelled_counter<'b, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'b, N>, u64)>,
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            ConstCounter::new(value).encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
