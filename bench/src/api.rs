//! A frontend on the API of a large cluster, whose objects are as large as real ones: time until it serves, and memory,
//! also while every kind is relisted.

mod objects;

use std::time::Instant;

use anyhow::Result;

use self::objects::ClusterSize;
use crate::{
    api_server::{ApiServer, Lists},
    lab::{DEADLINE, Lab, Memory, memory, stop},
    report::{Goal, Report},
    worker::Worker,
};

const SIZE: ClusterSize = ClusterSize { nodes: 5_000, services: 10_000, endpoints: 25 };

pub(crate) fn measure(report: &mut Report, lab: &Lab) -> Result<()> {
    for (lists, how) in [(Lists::Streamed, "streamed"), (Lists::Pages, "in pages")] {
        Report::progress(&format!("starting a frontend on an API, {how}"));
        let worker = Worker::start(lab.netns())?;
        let server = ApiServer::start(lab, &worker, SIZE, lists)?;
        let started = Instant::now();
        let frontend = lab.spawn_frontend_on_api();
        frontend.wait_for_line("every kind of object has been listed", 0, DEADLINE);
        let what = |what: &str| format!("{what}, {how}, 10,000 x 25, 5,000 nodes");
        report.duration(&what("frontend on an API, start to serving"), started.elapsed(), Goal::None);
        report.add(&what("read from the API"), server.sent() as f64 / 1e6, "MB", Goal::None);
        let Memory { resident, peak } = memory(&frontend)?;
        report.memory(&what("memory after start"), resident, Goal::None);
        report.memory(&what("peak memory"), peak, Goal::AtMost(512.0));

        Report::progress("relisting every kind");
        // Twice: the end of the second stream shows that the first one has been processed.
        worker.handle.block_on(server.expire())?;
        worker.handle.block_on(server.expire())?;
        let Memory { resident, peak } = memory(&frontend)?;
        report.memory(&what("memory after relisting everything twice"), resident, Goal::None);
        report.memory(&what("peak memory while relisting"), peak, Goal::AtMost(512.0));
        stop(frontend)?;
    }
    Ok(())
}
