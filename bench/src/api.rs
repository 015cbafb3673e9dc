//! A frontend on the API of a large cluster, whose objects are as large as real ones: time until it serves, and memory,
//! also while every kind is relisted.

mod objects;

use std::time::Instant;

use anyhow::{Context as _, Result};
use fake_api_server::{ApiServer, RequestKind, Resource};
use tokio::time::timeout;

use self::objects::ClusterSize;
use crate::{
    api_server,
    lab::{DEADLINE, Lab, Memory, memory, stop},
    report::{Goal, Report},
    worker::Worker,
};

const SIZE: ClusterSize = ClusterSize { nodes: 5_000, services: 10_000, endpoints: 25 };

pub(crate) fn measure(report: &mut Report, lab: &Lab) -> Result<()> {
    for (streaming, how) in [(true, "streamed"), (false, "in pages")] {
        Report::progress(&format!("starting a frontend on an API, {how}"));
        let worker = Worker::start(lab.netns())?;
        let server = api_server::start(lab, &worker, SIZE.objects())?;
        for resource in Resource::ALL {
            server.set_faults(resource, |faults| faults.streaming = streaming);
        }
        let started = Instant::now();
        let frontend = lab.spawn_frontend_on_api();
        frontend.wait_for_line("every kind of object has been listed", 0, DEADLINE);
        let what = |what: &str| format!("{what}, {how}, 10,000 x 25, 5,000 nodes");
        report.duration(&what("frontend on an API, start to serving"), started.elapsed(), Goal::None);
        report.add(&what("read from the API"), server.sent_bytes() as f64 / 1e6, "MB", Goal::None);
        let Memory { resident, peak } = memory(&frontend)?;
        report.memory(&what("memory after start"), resident, Goal::None);
        report.memory(&what("peak memory"), peak, Goal::AtMost(512.0));

        Report::progress("relisting every kind");
        // Twice: the end of the second stream shows that the first one has been processed.
        worker.handle.block_on(relist(&server))?;
        worker.handle.block_on(relist(&server))?;
        let Memory { resident, peak } = memory(&frontend)?;
        report.memory(&what("memory after relisting everything twice"), resident, Goal::None);
        report.memory(&what("peak memory while relisting"), peak, Goal::AtMost(512.0));
        stop(frontend)?;
    }
    Ok(())
}

/// Expires all versions, which ends all watches with 410 Gone, and waits until every kind has been relisted and is
/// watched again.
async fn relist(server: &ApiServer) -> Result<()> {
    const KINDS: [Resource; 4] = [Resource::Node, Resource::Service, Resource::EndpointSlice, Resource::ServiceCidr];
    let counts = |server: &ApiServer, resource| {
        [RequestKind::StreamedList, RequestKind::List, RequestKind::Watch].map(|kind| server.requests(resource, kind))
    };
    let before = KINDS.map(|resource| counts(server, resource));
    server.compact();
    let relisted = server.wait_until(|server| {
        KINDS.into_iter().zip(before).all(|(resource, before)| {
            let [streamed, list, watch] = counts(server, resource);
            streamed > before[0] || (list > before[1] && watch > before[2])
        })
    });
    timeout(DEADLINE, relisted).await.with_context(|| format!("not every kind was relisted within {DEADLINE:?}"))
}
