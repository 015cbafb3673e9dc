//! Scenarios about operations and commits.

use proto::{
    digest::KeyHash,
    model::{Batch, Endpoint, IpFamily, Operation, PoolClass, Protocol},
};

use crate::{
    frontend::{Outcome, QUIET_PERIOD, ScriptedFrontend, batch, unsupported},
    samples,
};

/// The service ports that change at once, and how often.
const SERVICE_PORTS: u8 = 99;
const ROUNDS: u32 = 10;

pub(super) async fn several_batches(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    let ack = frontend.sync_samples().await?;
    let base = frontend.revision;
    let operations = samples::put_late();
    let mut parts: Vec<_> = operations.chunks(1).collect();
    let last = parts.pop().unwrap_or_default();

    frontend.revision.0 += 1;
    for part in parts {
        let part = batch(base, frontend.revision, part);
        frontend.send_batch(Batch { commit: false, ..part }).await;
    }
    frontend.expect_quiet(QUIET_PERIOD, "before the batch with commit").await?;
    frontend.check_programmed(&ack).await?;

    frontend.state.apply(operations.iter().cloned());
    frontend.send_batch(batch(base, frontend.revision, last)).await;
    frontend.expect_ack().await?;

    frontend.expect_quiet(QUIET_PERIOD, "after the Ack of a change in several batches").await?;
    frontend.pass_if_compared(format_args!("sent one Ack for {} batches", operations.len()))
}

pub(super) async fn uncommitted(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    let ack = frontend.sync_samples().await?;
    let uncommitted = samples::put_with_pools(&samples::key("uncommitted", Protocol::Tcp), 5);

    let part = Batch { commit: false, ..batch(frontend.revision, frontend.revision, &uncommitted) };
    frontend.send_batch(part).await;
    frontend.expect_quiet(QUIET_PERIOD, "before the batch with commit").await?;

    frontend.end_stream().await;
    let hello = frontend.expect_hello().await?;
    frontend.check_programmed(&ack).await?;
    frontend.sync(&hello, frontend.state.clone()).await?;
    frontend.commit(&samples::put_late()).await?;
    frontend.pass_if_compared("acked what was sent after the uncommitted operations")
}

pub(super) async fn deltas(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    frontend.sync_samples().await?;
    let web = samples::key("web", Protocol::Tcp);
    let dns = samples::key("dns", Protocol::Udp);
    let endpoint = |number| samples::endpoint(IpFamily::V4, number);
    let pool = |class| samples::pool_id(&web, class, IpFamily::V4);
    let terminating = Endpoint { terminating: true, ..endpoint(1) };
    let change = |class, add: Vec<_>, remove: Vec<_>| Operation::ChangePool { pool: pool(class), add, remove };
    let replace = |key, number| samples::replace_pool(key, PoolClass::Cluster, IpFamily::V4, &[endpoint(number)]);
    let mut port = samples::service_port(&web, 1);
    port.port = port.port.saturating_add(1);

    let unknown = samples::key("unknown", Protocol::Tcp);
    let steps: [(&str, Operation); 10] = [
        ("change_pool that adds", change(PoolClass::Cluster, vec![endpoint(7), endpoint(8)], vec![])),
        ("change_pool that removes", change(PoolClass::Cluster, vec![endpoint(9)], vec![endpoint(1)])),
        (
            "change_pool that removes and adds an endpoint",
            change(PoolClass::Cluster, vec![endpoint(9)], vec![endpoint(9)]),
        ),
        ("change_pool that changes flags", change(PoolClass::Local, vec![terminating], vec![])),
        ("replace_pool", replace(&web, 12)),
        ("put_service_port of an existing service port", Operation::PutServicePort(port)),
        ("remove_service_port", Operation::RemoveServicePort(dns.clone())),
        ("put_service_port of a removed service port", Operation::PutServicePort(samples::service_port(&dns, 2))),
        ("replace_pool of an unknown service port", replace(&unknown, 1)),
        ("put_service_port after its pool was ignored", Operation::PutServicePort(samples::service_port(&unknown, 5))),
    ];
    let count = steps.len();
    for (name, operation) in steps {
        frontend.commit(&[operation]).await.map_err(|deviation| deviation.append(format_args!(" (after {name})")))?;
    }
    frontend.pass_if_compared(format_args!("acked {count} commits"))
}

/// Sends operations in one commit that cancel each other, or that have another result in another order.
pub(super) async fn order(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    frontend.sync_samples().await?;
    let web = samples::key("web", Protocol::Tcp);
    let late = samples::key("late", Protocol::Tcp);
    let change = |add: &[u8], remove: &[u8]| {
        let endpoint = |number: &u8| samples::endpoint(IpFamily::V4, *number);
        let pool = samples::pool_id(&web, PoolClass::Cluster, IpFamily::V4);
        Operation::ChangePool {
            pool,
            add: add.iter().map(endpoint).collect(),
            remove: remove.iter().map(endpoint).collect(),
        }
    };

    let reset = Operation::ResetBucket(KeyHash::of(&late).bucket());
    let steps: [(&str, Vec<Operation>); 5] = [
        ("an endpoint that is added and removed", vec![change(&[7], &[]), change(&[], &[7])]),
        ("an endpoint that is removed and added", vec![change(&[], &[1]), change(&[1], &[])]),
        ("a service port that is put and removed", [samples::put_late(), vec![samples::remove("late")]].concat()),
        ("a service port that is put before its bucket is reset", [samples::put_late(), vec![reset]].concat()),
        (
            "a service port that is removed and put without endpoints",
            vec![samples::remove("web"), Operation::PutServicePort(samples::service_port(&web, 1))],
        ),
    ];
    let count = steps.len();
    for (name, operations) in steps {
        frontend.commit(&operations).await.map_err(|deviation| deviation.append(format_args!(" (after {name})")))?;
    }
    frontend.pass_if_compared(format_args!("acked {count} commits"))
}

pub(super) async fn established_pools(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    frontend.sync_samples().await?;
    let web = samples::key("web", Protocol::Tcp);
    let dns = samples::key("dns", Protocol::Udp);
    let endpoint = |number| samples::endpoint(IpFamily::V4, number);

    let established = samples::replace_pool(&dns, PoolClass::Established, IpFamily::V4, &[endpoint(21)]);
    frontend.commit(&[established]).await?;
    // No other pool has the endpoint of the gone pool.
    let gone = samples::replace_pool(&web, PoolClass::Gone, IpFamily::V4, &[endpoint(22)]);
    frontend.commit(&[gone]).await?;
    frontend.pass_if_compared("acked 2 commits")
}

pub(super) async fn reset_bucket(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    frontend.sync_samples().await?;
    let web = samples::key("web", Protocol::Tcp);
    let reset = Operation::ResetBucket(KeyHash::of(&web).bucket());

    // The service port is sent again with one endpoint less.
    let endpoint = samples::endpoint(IpFamily::V4, 1);
    let pool = samples::replace_pool(&web, PoolClass::Cluster, IpFamily::V4, &[endpoint]);
    frontend.commit(&[reset.clone(), Operation::PutServicePort(samples::service_port(&web, 1)), pool]).await?;
    frontend.commit(&[reset]).await?;
    frontend.pass_if_compared("acked two resets")
}

pub(super) async fn snapshot_again(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    frontend.sync_samples().await?;
    frontend.send_snapshot().await?;
    frontend.commit(&[samples::remove("api")]).await?;
    Ok("acked the snapshot and a difference from it".to_owned())
}

/// Removes an endpoint of many service ports at once, as when a pod ends, and puts it back. The state is read as soon
/// as the Ack says that it is programmed: a backend that says so early is still at work then.
pub(super) async fn acks_what_is_programmed(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    if !frontend.backend.has_state_command() {
        return unsupported("cannot be inspected without --state-command");
    }

    frontend.sync_samples().await?;
    let keys: Vec<_> = (0..SERVICE_PORTS).map(|n| samples::key(&format!("many-{n}"), Protocol::Tcp)).collect();
    let created = keys.iter().zip(1..).flat_map(|(key, number)| samples::put_with_pools(key, number));
    frontend.commit(&created.collect::<Vec<_>>()).await?;

    for round in 0..ROUNDS {
        let mut operations = Vec::new();
        for (key, number) in keys.iter().zip(1..) {
            let pool = samples::pool_id(key, PoolClass::Cluster, IpFamily::V4);
            let endpoint = vec![samples::endpoint(IpFamily::V4, number)];
            let (add, remove) = if round % 2 == 0 { (vec![], endpoint) } else { (endpoint, vec![]) };
            operations.push(Operation::ChangePool { pool, add, remove });
        }
        frontend.commit(&operations).await.map_err(|deviation| deviation.append(" when the Ack arrived"))?;
    }
    Ok(format!("had programmed {SERVICE_PORTS} service ports at each of {ROUNDS} Acks"))
}
