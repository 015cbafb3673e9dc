//! Whether kube-proxy runs in mode iptables. It has a chain in several tables, the canary, by which it detects that
//! another program has flushed them: it then writes all its rules, and creates the canary again.

use std::time::Duration;

use anyhow::{Context as _, Result};
use backend::read_rules;
use iptables::{Program, SavedRules, Script, Table};
use tokio::time::{Instant, sleep};
use tracing::info;

/// The chain (`kubeProxyCanaryChain`, pkg/proxy/iptables).
const CANARY: &str = "KUBE-PROXY-CANARY";
/// kube-proxy looks for the canary in these tables at each `iptables.syncPeriod`, 30 s by default, and then waits for
/// up to 5 s until it is gone from all of them. It has no chains in other tables.
pub(super) const TABLES: [Table; 3] = [Table::Mangle, Table::Nat, Table::Filter];
/// The longest wait for kube-proxy, which then does not run.
const TIMEOUT: Duration = Duration::from_secs(75);
/// How often the rules are read meanwhile.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Whether kube-proxy has programmed these rules in mode iptables, and may run.
///
/// # Errors
/// When the rules cannot be read.
pub(crate) fn kube_proxy_may_run(saved: &SavedRules) -> Result<bool> {
    Ok(!canaries(saved)?.is_empty())
}

/// The programs with whose rules kube-proxy serves in mode iptables. Where it may, its canary is deleted. If it runs,
/// it has written all its rules when this returns.
///
/// # Errors
/// When rules cannot be read or written.
pub(crate) async fn running_kube_proxies(saved: &[&SavedRules]) -> Result<Vec<Program>> {
    let mut waiting = Vec::new();
    for saved in saved {
        let program = saved.program;
        let tables = canaries(saved)?;
        if tables.is_empty() {
            continue;
        }

        let mut script = Script::default();
        tables.into_iter().for_each(|table| script.remove(table, [], [CANARY]));
        program.restore(&script).await.with_context(|| format!("delete the chain {CANARY} with {program}"))?;
        info!(%program, timeout_ms = TIMEOUT.as_millis(), "checking whether kube-proxy recreates its canary chain");
        waiting.push(program);
    }

    let deadline = Instant::now() + TIMEOUT;
    let mut running = Vec::new();
    while !waiting.is_empty() && Instant::now() < deadline {
        sleep(POLL_INTERVAL).await;
        let mut absent = Vec::new();
        for program in waiting {
            let text = program.save().await.with_context(|| format!("read the rules of {program}"))?;
            let found = canaries(&SavedRules { program, text: text.unwrap_or_default() })?;
            if found.len() == TABLES.len() {
                running.push(program);
            } else {
                absent.push(program);
            }
        }
        waiting = absent;
    }
    Ok(running)
}

/// The tables with a canary.
fn canaries(saved: &SavedRules) -> Result<Vec<Table>> {
    let rules = read_rules(saved, &TABLES, |chain| chain == CANARY)?;
    Ok(TABLES.into_iter().filter(|table| rules.chain(*table, CANARY).is_some()).collect())
}

#[cfg(test)]
mod tests {
    use iptables::Variant;
    use proto::model::IpFamily;

    use super::*;

    #[test]
    fn canary_is_found_in_the_tables_that_kube_proxy_compares() {
        let text = "*raw\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n*mangle\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n*nat\n\
                     :KUBE-PROXY-CANARY - [0:0]\n:KUBE-SERVICES - [0:0]\nCOMMIT\n*filter\n:KUBE-KUBELET-CANARY - \
                     [0:0]\nCOMMIT\n";
        let saved = SavedRules { program: Program::new(IpFamily::V4, Variant::Nft), text: text.to_owned() };
        assert_eq!(canaries(&saved).unwrap(), [Table::Mangle, Table::Nat]);
    }
}
