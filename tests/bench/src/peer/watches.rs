//! What a watch costs the API server. Without a frontend, each node has one for each kind of object.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use fake_api_server::Resource;
use serde_json::Value;

use super::{
    api_connection::ApiConnection,
    changes::{CHANGES_PER_SECOND, Changes},
    control_plane::{ControlPlane, path},
};
use crate::{
    report::{Goal, Report},
    scale::{cluster::Cluster, process::CpuTime},
};

/// Enough that their part is several times that of the writes.
const WATCHES: usize = 200;
/// Of the changes that they follow.
const LOAD_DURATION: Duration = Duration::from_secs(10);
/// How long a watch waits for events before it looks whether the load is over.
const WAIT: Duration = Duration::from_millis(200);
/// What kube-proxy asks for, and what a frontend does.
const MEDIA_TYPES: [(&str, &str); 2] =
    [("protobuf", "application/vnd.kubernetes.protobuf;stream=watch"), ("JSON", "application/json")];

/// Measures the CPU time of the API server for an event and a watch, as the difference to the load without watches.
pub(super) fn measure(report: &mut Report, control_plane: &ControlPlane, cluster: &mut Cluster) -> Result<()> {
    let mut changes = Changes::new(cluster);
    let alone = cpu_of_load(control_plane, &mut changes)?;
    let events = (LOAD_DURATION.as_secs() * u64::from(CHANGES_PER_SECOND)) as f64 * WATCHES as f64;
    for (encoding, media_type) in MEDIA_TYPES {
        Report::progress(&format!("{WATCHES} watches of {encoding}"));
        let (seconds, bytes) = with_watches(control_plane, media_type, || cpu_of_load(control_plane, &mut changes))?;
        let of = format!("API server, one event to one watch, {encoding}");
        report.add(&format!("{of}: CPU time"), (seconds - alone) / events * 1e6, "us", Goal::None);
        report.add(&format!("{of}: bytes"), bytes as f64 / events, "B", Goal::None);
    }
    Ok(())
}

/// In seconds.
fn cpu_of_load(control_plane: &ControlPlane, changes: &mut Changes<'_>) -> Result<f64> {
    let connection = control_plane.connect()?;
    let before = CpuTime::of(control_plane.api_server())?;
    changes.replace_for(connection, LOAD_DURATION)?;
    Ok(CpuTime::of(control_plane.api_server())?.since(&before))
}

/// Returns what `work` does, and how many bytes all watches have read meanwhile.
fn with_watches<T>(
    control_plane: &ControlPlane,
    media_type: &str,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, usize)> {
    let slices = path(Resource::EndpointSlice)?;
    let list = control_plane.connect()?.request("GET", &format!("{slices}?limit=1"), &Value::Null)?;
    let list: Value = serde_json::from_slice(&list).context("decode a list of slices")?;
    let revision = list["metadata"]["resourceVersion"].as_str().context("a list without a resourceVersion")?;
    let watch_path = format!("{slices}?watch=true&resourceVersion={revision}");

    let over = AtomicBool::new(false);
    let bytes = AtomicUsize::new(0);
    let follow = |mut watch: ApiConnection| -> Result<()> {
        while !over.load(Ordering::Relaxed) {
            bytes.fetch_add(watch.skip(WAIT)?, Ordering::Relaxed);
        }
        Ok(())
    };
    let mut watches = Vec::new();
    for _ in 0..WATCHES {
        let mut watch = control_plane.connect()?;
        watch.watch(&watch_path, media_type)?;
        watches.push(watch);
    }
    thread::scope(|scope| {
        let threads: Vec<_> = watches.into_iter().map(|watch| scope.spawn(|| follow(watch))).collect();
        let result = work();
        over.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a thread has panicked"))??;
        }
        Ok((result?, bytes.load(Ordering::Relaxed)))
    })
}
