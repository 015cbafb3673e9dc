//! A frontend on the API of a large cluster, whose objects are as large as real ones: time until it serves, and memory,
//! also while every kind is relisted.

mod objects;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use e2e::http_get;
use fake_api_server::{ApiServer, Resource};

use self::objects::ClusterSize;
use crate::{
    api_server,
    lab::{DEADLINE, Lab, Memory, memory, stop},
    report::{Goal, Report},
    worker::Worker,
};

/// Where the frontend serves its metrics by default.
const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7601);
const POLL: Duration = Duration::from_millis(20);
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
        // Twice: the end of the second list shows that the first one has been processed.
        relist(lab, &server)?;
        relist(lab, &server)?;
        let Memory { resident, peak } = memory(&frontend)?;
        report.memory(&what("memory after relisting everything twice"), resident, Goal::None);
        report.memory(&what("peak memory while relisting"), peak, Goal::AtMost(512.0));
        stop(frontend)?;
    }
    Ok(())
}

/// Expires all versions, which ends all watches with 410 Gone, and waits until the frontend has listed every kind
/// again.
fn relist(lab: &Lab, server: &ApiServer) -> Result<()> {
    let before = lists(lab)?;
    ensure!(before.len() == 4, "the frontend counts lists of {} kinds", before.len());
    server.compact();
    let deadline = Instant::now() + DEADLINE;
    while lists(lab)?.iter().any(|(kind, lists)| *lists <= before[kind]) {
        ensure!(Instant::now() < deadline, "not every kind was listed again within {DEADLINE:?}");
        thread::sleep(POLL);
    }
    Ok(())
}

/// How often the frontend has listed each kind completely.
fn lists(lab: &Lab) -> Result<BTreeMap<String, u64>> {
    let response = http_get(lab.netns(), METRICS, "/metrics", DEADLINE).context("read the frontend's metrics")?;
    let lines = response.body.lines().filter_map(|line| line.strip_prefix("fairlead_frontend_watch_lists_total{kind="));
    let counts = lines.map(|line| {
        let (kind, count) = line.split_once("} ").with_context(|| line.to_owned())?;
        Ok((kind.to_owned(), count.parse()?))
    });
    counts.collect()
}
