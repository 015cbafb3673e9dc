//! Metrics in the text format of Prometheus: what is looked up when somebody asks, and how it is all written down.

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

pub use process::process;
pub use prometheus_client::registry::Registry;

/// Prometheus' text format in its standardised form, which scrapers know by this name.
const OPENMETRICS: HeaderValue = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// Writes metrics one after the other, for a collector.
pub struct Writer<'a>(DescriptorEncoder<'a>);

/// Labels with their values.
pub type Labels<'a, const N: usize> = [(&'static str, &'a str); N];

/// What all of these tell, as an answer.
pub fn scrape<'a>(registries: impl IntoIterator<Item = &'a Registry>) -> Response<String> {
    let mut body = String::new();
    let written = registries
        .into_iter()
        .try_for_each(|registry| text::encode_registry(&mut body, registry))
        .and_then(|()| text::encode_eof(&mut body));
    match written {
        Ok(()) => response(StatusCode::OK, OPENMETRICS, body),
        Err(error) => {
            warn!(%error, "the metrics cannot be written");
            response(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "the metrics cannot be written\n".to_owned())
        }
    }
}

impl<'a> Writer<'a> {
    /// Writes where a collector is told to.
    #[must_use]
    pub fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }

    /// A gauge without labels.
    ///
    /// # Errors
    /// When it cannot be written; so for all of these.
    pub fn gauge(&mut self, name: &str, help: &str, unit: Option<Unit>, value: f64) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        ConstGauge::new(value).encode(encoder)
    }

    /// A counter without labels.
    ///
    /// # Errors
    /// See [`Self::gauge`].
    pub fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(encoder)
    }

    /// A counter of seconds.
    ///
    /// # Errors
    /// See [`Self::gauge`].
    pub fn seconds_counter(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Counter)?;
        ConstCounter::new(value).encode(encoder)
    }

    /// A gauge for each of these labels.
    ///
    /// # Errors
    /// See [`Self::gauge`].
    pub fn labelled_gauge<'b, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        rows: impl IntoIterator<Item = (Labels<'b, N>, f64)>,
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in rows {
            ConstGauge::new(value).encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// A counter for each of these labels.
    ///
    /// # Errors
    /// See [`Self::gauge`].
    pub fn labelled_counter<'b, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels<'b, N>, u64)>,
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in rows {
            ConstCounter::new(value).encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}
