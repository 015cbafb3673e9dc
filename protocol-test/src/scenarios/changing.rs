//! What commits do.

use proto::{
    digest::KeyHash,
    model::{Batch, IpFamily, Operation, PoolClass, Protocol},
};

use crate::{
    samples,
    script::{Played, QUIET, Script, batch},
};

pub(super) async fn several_batches(script: &mut Script<'_>) -> Played {
    let before = script.begin().await?;
    let base = script.revision;
    let operations = samples::service(&samples::key("late", Protocol::Tcp), 4);
    let (last, first) =
        operations.split_last().map(|(last, first)| (std::slice::from_ref(last), first)).unwrap_or_default();
    script.revision.0 += 1;
    for operation in first {
        let part = batch(base, script.revision, std::slice::from_ref(operation));
        script.say_batch(Batch { commit: false, ..part }).await;
    }
    script.quiet(QUIET, "before the batch with commit").await?;
    script.compare(&before).await?;
    operations.iter().for_each(|operation| script.state.apply(operation));
    script.say_batch(batch(base, script.revision, last)).await;
    script.ack().await?;
    script.quiet(QUIET, "after one Ack of a change in several batches").await?;
    Ok(format!("one Ack for {} batches", operations.len()))
}

pub(super) async fn uncommitted(script: &mut Script<'_>) -> Played {
    let before = script.begin().await?;
    let lost = samples::service(&samples::key("lost", Protocol::Tcp), 5);
    let part = Batch { commit: false, ..batch(script.revision, script.revision, &lost) };
    script.say_batch(part).await;
    script.quiet(QUIET, "before the batch with commit").await?;
    script.end().await;
    let hello = script.connect().await?;
    script.compare(&before).await?;
    let target = script.state.clone();
    // One that resumes is sent what came since; nothing of what was lost is in it.
    script.rebuild(&hello, target).await?;
    script.commit(&samples::service(&samples::key("late", Protocol::Tcp), 4)).await?;
    Ok("nothing of it was there afterwards".to_owned())
}

pub(super) async fn deltas(script: &mut Script<'_>) -> Played {
    script.begin().await?;
    let (web, dns) = (samples::key("web", Protocol::Tcp), samples::key("dns", Protocol::Udp));
    let endpoint = |number| samples::endpoint(IpFamily::V4, number);
    let pool = |class| samples::pool(&web, class, IpFamily::V4);
    let terminating = proto::model::Endpoint { terminating: true, ..endpoint(1) };
    let change = |class, add: Vec<_>, remove: Vec<_>| Operation::ChangePool { pool: pool(class), add, remove };
    let mut port = samples::port(&web, 1);
    port.port = port.port.saturating_add(1);
    let unknown = samples::key("unknown", Protocol::Tcp);
    let steps: [(&str, Vec<Operation>); 8] = [
        ("change_pool that adds", vec![change(PoolClass::Cluster, vec![endpoint(7), endpoint(8)], vec![])]),
        ("change_pool that removes", vec![change(PoolClass::Cluster, vec![endpoint(9)], vec![endpoint(1)])]),
        ("change_pool with other flags", vec![change(PoolClass::Local, vec![terminating], vec![])]),
        ("replace_pool", vec![samples::replace(&web, PoolClass::Cluster, IpFamily::V4, &[endpoint(12)])]),
        ("put_service_port of one that is there", vec![Operation::PutServicePort(port)]),
        ("remove_service_port", vec![Operation::RemoveServicePort(dns.clone())]),
        ("put_service_port after a removal, without pools", vec![Operation::PutServicePort(samples::port(&dns, 2))]),
        (
            "change_pool of one that is unknown",
            vec![samples::replace(&unknown, PoolClass::Cluster, IpFamily::V4, &[endpoint(1)])],
        ),
    ];
    let count = steps.len();
    for (name, operations) in steps {
        script.commit(&operations).await.map_err(|stop| match stop {
            crate::script::Stop::Broken(what) => crate::script::Stop::Broken(format!("after {name}: {what}")),
            other => other,
        })?;
    }
    Ok(format!("{count} commits acked"))
}

pub(super) async fn reset_bucket(script: &mut Script<'_>) -> Played {
    script.begin().await?;
    let web = samples::key("web", Protocol::Tcp);
    let reset = Operation::ResetBucket(KeyHash::of(&web).bucket());
    // It comes again with one endpoint less.
    let pool = samples::replace(&web, PoolClass::Cluster, IpFamily::V4, &[samples::endpoint(IpFamily::V4, 1)]);
    script.commit(&[reset.clone(), Operation::PutServicePort(samples::port(&web, 1)), pool]).await?;
    script.commit(&[reset]).await?;
    Ok("what did not come again is gone".to_owned())
}

pub(super) async fn snapshot_again(script: &mut Script<'_>) -> Played {
    script.begin().await?;
    script.rebuild_all().await?;
    script.commit(&[Operation::RemoveServicePort(samples::key("api", Protocol::Tcp))]).await?;
    Ok("acked, and the next difference too".to_owned())
}
