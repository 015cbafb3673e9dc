//! A frontend on a full-size Kubernetes API: time until it serves, and memory, also while everything is relisted. The
//! API server is a thread of this process; its objects are as large as real ones.
//!
//! ```text
//!   measure ──▶ fairlead frontend --kubeconfig ──HTTP──▶ Server: lists, and watches in which nothing happens
//! ```

mod objects;
mod server;

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result};

use self::objects::Objects;
use self::server::{Lists, Server};
use crate::lab::{DEADLINE, Lab, Memory, memory, stop};
use crate::report::{Goal, Report};

const OBJECTS: Objects = Objects { nodes: 5_000, services: 10_000, each: 25 };

pub(crate) fn measure(report: &mut Report, lab: &Lab) -> Result<()> {
    for (lists, how) in [(Lists::Streamed, "streamed"), (Lists::Pages, "in pages")] {
        Report::progress(&format!("starting a frontend on an API, {how}"));
        let server = Server::start(lab, OBJECTS, lists)?;
        let kubeconfig = lab.path("kubeconfig");
        fs::write(&kubeconfig, kubeconfig_of(&server)).context("write the kubeconfig")?;
        let started = Instant::now();
        let frontend = lab.spawn_frontend_on_api(&kubeconfig);
        frontend.wait_for_line("every kind of object has been listed", 0, DEADLINE);
        let what = |what: &str| format!("{what}, {how}, 10,000 x 25, 5,000 nodes");
        report.duration(&what("frontend on an API, start to serving"), started.elapsed(), Goal::None);
        report.add(&what("read from the API"), server.sent() as f64 / 1e6, "MB", Goal::None);
        let Memory { resident, peak } = memory(&frontend)?;
        report.memory(&what("memory after start"), resident, Goal::None);
        report.memory(&what("peak memory"), peak, Goal::AtMost(512.0));

        Report::progress("relisting everything");
        // Twice: the end of the second stream shows that the first one has been processed.
        server.forget()?;
        server.forget()?;
        let Memory { resident, peak } = memory(&frontend)?;
        report.memory(&what("memory after relisting everything twice"), resident, Goal::None);
        report.memory(&what("peak memory while relisting"), peak, Goal::AtMost(512.0));
        stop(frontend)?;
    }
    Ok(())
}

fn kubeconfig_of(server: &Server) -> String {
    let address = server.address();
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: bench\n\
         clusters: [{{name: bench, cluster: {{server: \"http://{address}\"}}}}]\n\
         users: [{{name: bench, user: {{}}}}]\n\
         contexts: [{{name: bench, context: {{cluster: bench, user: bench}}}}]\n"
    )
}
