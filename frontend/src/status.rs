//! What the frontend reports to operators: the gRPC call `Status`, the status page and metrics read it here.

use std::{
    sync::{Arc, OnceLock},
    time::SystemTime,
};

use crate::{cluster::ClusterState, server::ReloadingTls, source::Freshness, streams::Streams};

/// The sources of everything that is reported.
#[derive(Debug)]
pub(crate) struct StatusSources {
    pub(crate) cluster: Arc<ClusterState>,
    pub(crate) streams: Streams,
    pub(crate) freshness: Freshness,
    /// The TLS configuration of the listeners, if any of them uses TLS.
    pub(crate) tls: OnceLock<ReloadingTls>,
    pub(crate) started: SystemTime,
}

/// One reason why a part of an object, or of the TLS files, is not used.
#[derive(Debug)]
pub(crate) struct ReportedProblem {
    /// Kind and name.
    pub(crate) object: String,
    pub(crate) field: String,
    pub(crate) message: String,
}

impl StatusSources {
    pub(crate) fn new(cluster: Arc<ClusterState>, streams: Streams, started: SystemTime) -> Self {
        Self { cluster, streams, freshness: Freshness::default(), tls: OnceLock::new(), started }
    }

    /// All problems: of the TLS files first, then of objects.
    pub(crate) fn problems(&self) -> Vec<ReportedProblem> {
        let tls = self.tls_error().map(|message| ReportedProblem {
            object: "TLS".to_owned(),
            field: "files".to_owned(),
            message,
        });
        let index = self.cluster.index();
        let of_objects = index.problems().flat_map(|(kind, name, problems)| {
            problems.into_iter().map(move |problem| ReportedProblem {
                object: format!("{kind} {name}"),
                field: problem.field.clone(),
                message: problem.message.clone(),
            })
        });
        tls.into_iter().chain(of_objects).collect()
    }

    /// Why the TLS files in their current form are not used.
    pub(crate) fn tls_error(&self) -> Option<String> {
        self.tls.get()?.reload_error()
    }
}
