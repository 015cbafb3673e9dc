//! Random clusters are programmed by each backend, and by kube-proxy where its binary is given. All rules are asked the
//! same questions, and the answers are compared with a reference that is computed from the objects without any state.
//!
//! ```text
//!   seed ─▶ Cluster ─▶ API server ─┬▶ fairlead local, each backend ─▶ kernel ─┐
//!              │                   └▶ kube-proxy, each mode ────────▶ kernel ─┤ trace
//!              └▶ reference ─────────────────────────────────────────────────▶┴─▶ equal, known, or a failure
//! ```

mod api;
mod cluster;
mod known;
mod packets;
mod proxy;
mod question;
mod reference;

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use anyhow::{Context as _, Result};
use tokio::runtime::Runtime;

use api::Api;
pub use cluster::Cluster;
pub use proxy::Method;
use proxy::{Proxy, ProxyKind};
use question::{Answer, Question};

/// The proxies that are compared, with one API server.
#[derive(Debug)]
pub struct Comparison {
    proxies: Vec<Proxy>,
    api: Api,
    results: BTreeMap<ProxyKind, ProxyResult>,
    clusters: usize,
    // Dropped last: it serves the API.
    _runtime: Runtime,
}

/// What a proxy has answered.
#[derive(Debug, Default)]
struct ProxyResult {
    questions: usize,
    /// How many differences each row of docs/semantics.md describes.
    known: BTreeMap<&'static str, usize>,
    unknown: usize,
}

/// Answers that differ from the expected ones.
struct Difference {
    proxy: ProxyKind,
    question: Question,
    expected: Answer,
    answer: Answer,
}

// === impl Comparison ===

impl Comparison {
    /// Starts all proxies on nodes in network namespaces; requires root.
    ///
    /// # Errors
    /// When a namespace or a process cannot be set up.
    pub fn start(method: Method, kube_proxy: Option<&Path>) -> Result<Self> {
        let runtime = Runtime::new().context("start an async runtime")?;
        let api = Api::new();
        let start = |kind| Proxy::start(kind, method, &api, runtime.handle(), kube_proxy);
        let proxies = ProxyKind::all(kube_proxy.is_some()).into_iter().map(start).collect::<Result<Vec<_>>>()?;
        Ok(Self { proxies, api, results: BTreeMap::new(), clusters: 0, _runtime: runtime })
    }

    /// Asks all proxies about the cluster of a seed, then again when two of its Services have exchanged node ports.
    /// Returns the differences that docs/semantics.md does not describe, with the smallest cluster in which they
    /// appear; `None`: there are none.
    ///
    /// # Errors
    /// When a proxy does not program the cluster, or its rules cannot be read.
    pub fn compare(&mut self, seed: u64) -> Result<Option<String>> {
        let cluster = Cluster::random(seed);
        self.clusters += 1;
        let exchanged = cluster.with_exchanged_node_ports();
        for (when, cluster) in [("", Some(cluster)), (" with exchanged node ports", exchanged)] {
            let Some(cluster) = cluster else { continue };
            let report = self.report(&cluster).with_context(|| format!("seed {seed}{when}"))?;
            if let Some(report) = report {
                return Ok(Some(format!("seed {seed}{when}: {report}")));
            }
        }
        Ok(None)
    }

    /// The differences in a cluster that docs/semantics.md does not describe, as text.
    fn report(&mut self, cluster: &Cluster) -> Result<Option<String>> {
        let differences = self.differences(cluster)?;
        let Some(first) = differences.first() else { return Ok(None) };
        let mut smallest = (cluster.clone(), differences.len());
        if let Some(service) = first.question.service {
            let alone = cluster.only(&cluster.services[service]);
            let remaining = self.differences(&alone)?;
            if !remaining.is_empty() {
                smallest = (alone, remaining.len());
            }
        }
        let mut text = format!("{} differences, {} in\n{}", differences.len(), smallest.1, smallest.0.text());
        for Difference { proxy, question, expected, answer } in differences.iter().take(10) {
            let _ = writeln!(text, "{proxy}: {question}\n    expected {expected}\n    seen     {answer}");
        }
        let differs = |proxy: &&Proxy| differences.iter().any(|difference| difference.proxy == proxy.kind);
        for proxy in self.proxies.iter().filter(differs) {
            let _ = writeln!(text, "The log of {}:\n{}", proxy.kind, proxy.log());
        }
        Ok(Some(text))
    }

    fn differences(&mut self, cluster: &Cluster) -> Result<Vec<Difference>> {
        let marker = self.api.publish(cluster);
        let questions = Question::all(cluster);
        let expected: Vec<_> = questions.iter().map(|question| reference::answer(cluster, question)).collect();
        let mut differences = Vec::new();
        for proxy in &self.proxies {
            proxy.wait(&marker)?;
            let answers = proxy.ask(cluster, &questions, &expected)?;
            let result = self.results.entry(proxy.kind).or_default();
            for ((question, expected), answer) in questions.iter().zip(&expected).zip(answers) {
                let Some(answer) = answer else { continue };
                result.questions += 1;
                if *expected == answer {
                    continue;
                }
                match known::difference(proxy.kind, cluster, question, expected, &answer) {
                    Some(row) => *result.known.entry(row).or_default() += 1,
                    None => {
                        result.unknown += 1;
                        let (proxy, question, expected) = (proxy.kind, *question, expected.clone());
                        differences.push(Difference { proxy, question, expected, answer });
                    }
                }
            }
        }
        Ok(differences)
    }

    /// A table of what was compared.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut text =
            format!("{} clusters\n{:<26}{:>12}{:>10}{:>10}\n", self.clusters, "", "questions", "known", "unknown");
        for (kind, result) in &self.results {
            let known: usize = result.known.values().sum();
            let _ = writeln!(text, "{:<26}{:>12}{known:>10}{:>10}", kind.to_string(), result.questions, result.unknown);
        }
        for (kind, result) in &self.results {
            for (row, count) in &result.known {
                let _ = writeln!(text, "{kind}, {count} times: {row}");
            }
        }
        text
    }
}
