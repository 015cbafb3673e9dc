//! The kernel, through the iptables programs of one variant.

use std::{
    collections::BTreeMap,
    fs, mem,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use backend::driver::{NfTablesWatch, Touched};
use iptables::{Program, RestoreError, Ruleset, Table, Tools, Variant, VariantSelection, target};
use netlink::nft::{self, Expr, NftEvent, NftHandle, TableFamily};
use proto::model::{IpFamily, PerFamily};
use tracing::info;

use super::{Kernel, Suspicion};
use crate::{desired::hooks, names, plan::Script, table::TABLES};

/// The most lines of one transaction for `iptables-nft-restore`: half of the writes that a transaction of nftables may
/// have. With each transaction, the kernel validates all chains of the table. Measured for a cold load of 10,000 x 10:
/// 17 s of CPU time, and 33 s with 1,000 lines.
const NFT_MAX_LINES: usize = 4_000;

/// The lines of a script for `iptables-nft-restore` that take 50 ms, with few rules. Measured: 50 us for a line.
const NFT_SCRIPT_LINES: usize = 1_000;

/// With more rules, the lines of a script are this share of them. With each commit the kernel validates all chains: 0.3
/// to 1 us for each rule. A script takes at most about three times as long as the smallest one.
const NFT_SCRIPT_SHARE: usize = 20;

/// The lines of a script for `iptables-legacy-restore` that take 50 ms, with few rules. Measured: 13 us for a line.
const LEGACY_SCRIPT_LINES: usize = 4_000;

/// With more rules, the lines of a script are this share of them. Each run reads and writes the whole table: 5 us
/// for each rule. A script takes at most about three times as long as the smallest one.
const LEGACY_SCRIPT_SHARE: usize = 2;

/// The shortest interval between two reads of the rules, where the kernel sends no notifications.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Reading takes at most 1/50 of the time: 2 % of a core.
const POLL_SHARE: u32 = 50;

/// The sysctl that makes the kernel route packets between loopback addresses and other hosts, for node ports on
/// 127.0.0.0/8. It belongs to the network namespace of the thread that opens it.
const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";

/// The iptables of the network namespace of the calling thread.
#[derive(Debug)]
pub struct IptablesKernel {
    tools: Tools,
    /// Receives notifications of changes; only for the nft variant.
    watch: Option<NfTablesWatch>,
    /// The family that was saved last. The families are saved in order, without a family that cannot be programmed.
    last_saved: Option<IpFamily>,
    /// How long a save of each family takes. A shorter time is adopted at once, a longer time gradually, because the
    /// machine may be busy.
    save_time: PerFamily<Duration>,
    /// The family that is read next.
    next: IpFamily,
    /// When it is read. Kept if the wait is cancelled.
    due: Option<Instant>,
    /// The changes of a dry run, which are not written; `None`: this is no dry run.
    dry_run: Option<DryRun>,
}

/// The changes of a dry run. Scripts are executed on a copy of the rules.
#[derive(Debug, Default)]
pub(crate) struct DryRun {
    pub(crate) rules: BTreeMap<IpFamily, BeforeAfter>,
    /// The new setting of `route_localnet`, if it would change.
    pub(crate) localnet: Option<bool>,
}

/// The rules of a family, as they are and as they would be.
#[derive(Debug)]
pub(crate) struct BeforeAfter {
    pub(crate) before: Ruleset,
    pub(crate) after: Ruleset,
}

// === impl IptablesKernel ===

impl IptablesKernel {
    pub(crate) fn new(variant: impl Into<VariantSelection>) -> Self {
        Self {
            tools: Tools::new(variant),
            watch: None,
            last_saved: None,
            save_time: PerFamily::default(),
            next: IpFamily::V4,
            due: None,
            dry_run: None,
        }
    }

    /// Writes nothing from now on, and shows the effect instead.
    pub(crate) fn begin_dry_run(&mut self) {
        self.dry_run = Some(DryRun::default());
    }

    /// Takes the changes of the dry run.
    pub(crate) fn take_dry_run(&mut self) -> DryRun {
        self.dry_run.as_mut().map(mem::take).unwrap_or_default()
    }

    /// Whether there is any iptables.
    pub(crate) async fn is_installed(&self) -> Result<bool> {
        self.tools.is_installed().await
    }

    /// The program for a family. Detects the variant at the first call.
    async fn detect(&mut self, family: IpFamily) -> Result<Program> {
        if self.tools.detected().is_none() {
            // Opened before anything is read, so that no change is missed.
            let watch = NfTablesWatch::open(None, touched, has_hooks);
            let program = self.tools.program(family).await?;
            self.watch = if program.variant == Variant::Nft { Some(watch?) } else { None };
        }
        self.tools.program(family).await
    }

    /// The output of `iptables-save`.
    async fn read(&mut self, family: IpFamily) -> Result<Option<String>> {
        self.detect(family).await?;
        if self.tools.has_saved(family) {
            return self.tools.save(family).await;
        }

        let is_second = self.last_saved == Some(IpFamily::V4) && family == IpFamily::V6;
        self.last_saved = Some(family);
        if let Some(watch) = &mut self.watch
            && !is_second
        {
            // The rules that are about to be saved contain all earlier changes.
            watch.restart()?;
        }

        let begun = Instant::now();
        let saved = self.tools.save(family).await?;
        let took = begun.elapsed();
        let before = self.save_time[family];
        self.save_time[family] = if took < before { took } else { (before * 3 + took) / 4 };
        Ok(saved)
    }
}

impl Kernel for IptablesKernel {
    async fn save(&mut self, family: IpFamily) -> Result<Option<String>> {
        let written = self.dry_run.as_ref().and_then(|dry_run| dry_run.rules.get(&family));
        if let Some(BeforeAfter { after, .. }) = written {
            return Ok(Some(after.to_string()));
        }

        let saved = self.read(family).await?;
        if let (Some(dry_run), Some(saved)) = (&mut self.dry_run, &saved) {
            let before = Ruleset::parse(saved)?;
            dry_run.rules.insert(family, BeforeAfter { after: before.clone(), before });
        }
        Ok(saved)
    }

    fn max_lines(&self) -> usize {
        match self.watch {
            Some(_) => NFT_MAX_LINES,
            // The legacy variant copies the whole table for each transaction.
            None => usize::MAX,
        }
    }

    fn script_lines(&self, rules: usize) -> usize {
        match self.watch {
            Some(_) => NFT_SCRIPT_LINES.max(rules / NFT_SCRIPT_SHARE),
            None => LEGACY_SCRIPT_LINES.max(rules / LEGACY_SCRIPT_SHARE),
        }
    }

    async fn restore(&mut self, family: IpFamily, script: &Script) -> Result<(), RestoreError> {
        if let Some(dry_run) = &mut self.dry_run {
            if let Some(BeforeAfter { after, .. }) = dry_run.rules.get_mut(&family) {
                after.execute(script.text());
            }
            return Ok(());
        }

        self.detect(family).await.map_err(RestoreError::Failed)?;
        let Some(watch) = &mut self.watch else { return self.tools.restore(family, script).await };

        // The notifications of the program do not tell that they are our own; its transactions are counted instead.
        watch.pause().map_err(RestoreError::Failed)?;
        let result = self.tools.restore(family, script).await;
        watch.resume().map_err(RestoreError::Failed)?;
        // A script that failed may have committed a part, which is read again.
        if result.is_ok() {
            watch.committed(script.tables());
        }
        result
    }

    fn route_localnet(&mut self, is_routed: bool) -> Result<()> {
        let observed = routes_localnet()?;
        if observed == is_routed {
            return Ok(());
        }
        if let Some(dry_run) = &mut self.dry_run {
            dry_run.localnet = Some(is_routed);
            return Ok(());
        }

        let was = u8::from(observed);
        let now = u8::from(is_routed);
        fs::write(ROUTE_LOCALNET, now.to_string()).with_context(|| format!("write {ROUTE_LOCALNET}"))?;
        info!(file = ROUTE_LOCALNET, was, now, "changed how loopback addresses are routed");
        Ok(())
    }

    async fn program(&mut self, family: IpFamily) -> Result<String> {
        Ok(self.detect(family).await?.to_string())
    }

    fn lock_wait(&mut self) -> Duration {
        self.tools.take_lock_wait()
    }

    async fn suspect(&mut self) -> Suspicion {
        let next = self.next;
        let pause = POLL_INTERVAL.max(self.save_time[next] * POLL_SHARE);
        let due = *self.due.get_or_insert_with(|| Instant::now() + pause);
        if self.tools.detected().is_none() {
            // Nothing has been programmed yet.
            return std::future::pending().await;
        }

        match &mut self.watch {
            Some(watch) => Suspicion::Drift(watch.drifted().await),
            None => {
                tokio::time::sleep_until(due.into()).await;
                self.due = None;
                self.next = if next == IpFamily::V4 { IpFamily::V6 } else { IpFamily::V4 };
                Suspicion::Compare(next)
            }
        }
    }
}

/// Whether the kernel routes packets between loopback addresses and other hosts.
fn routes_localnet() -> Result<bool> {
    let value = fs::read_to_string(ROUTE_LOCALNET).with_context(|| format!("read {ROUTE_LOCALNET}"))?;
    Ok(value.trim() != "0")
}

/// Whether a notification reports a change of our rules.
fn touched(event: &NftEvent) -> Option<Touched> {
    let NftEvent::Changed { family, table, object, chain, is_deletion, port: _ } = event else { return None };
    let is_watched = matches!(family, Some(TableFamily::Ip | TableFamily::Ip6))
        && TABLES.iter().any(|watched| watched.name() == table);
    if !is_watched {
        return None;
    }
    match chain {
        Some(chain) if names::is_ours(chain) => Some(Touched::Ours(object)),
        // A deleted rule of a built-in chain may have been a jump of ours.
        Some(chain) if *is_deletion && is_hooked(table, chain) => Some(Touched::Perhaps),
        None if *is_deletion && *object == "table" => Some(Touched::Unknown),
        _ => None,
    }
}

/// Whether the built-in chains have our jumps, in each family that has our chains.
fn has_hooks(handle: &mut NftHandle) -> netlink::Result<bool> {
    let mut by_chain = BTreeMap::<_, Vec<_>>::new();
    for hook in hooks() {
        let jump = target(&hook.rule).map(|chain| Expr::Verdict(nft::Verdict::jump(chain.to_owned())));
        by_chain.entry((hook.table, hook.chain)).or_default().extend(jump);
    }

    for family in IpFamily::ALL {
        let mut rules = |table: Table, chain| handle.rules_of_chain(&nft::Table::new(family, table.name()), chain);
        if rules(Table::Nat, names::POSTROUTING)?.is_empty() {
            continue;
        }
        for ((table, chain), jumps) in &by_chain {
            let found = rules(*table, chain)?;
            let is_there = |jump: &Expr| found.iter().any(|listed| listed.rule.exprs.last() == Some(jump));
            if !jumps.iter().all(is_there) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Whether the backend has a jump in this chain.
fn is_hooked(table: &str, chain: &str) -> bool {
    hooks().iter().any(|hook| hook.table.name() == table && hook.chain == chain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(table: &str, chain: Option<&str>, is_deletion: bool) -> Option<Touched> {
        let object = if chain.is_some() { "rule" } else { "table" };
        let (table, chain) = (table.into(), chain.map(Into::into));
        touched(&NftEvent::Changed { family: Some(TableFamily::Ip), table, object, chain, is_deletion, port: 7 })
    }

    #[test]
    fn a_change_of_our_chains_is_ours() {
        for is_deletion in [false, true] {
            assert_eq!(changed("nat", Some("KUBE-SERVICES"), is_deletion), Some(Touched::Ours("rule")));
        }
    }

    #[test]
    fn a_change_of_foreign_chains_is_not() {
        for (table, chain) in [("nat", "CNI-HOSTPORT"), ("filter", "INPUT"), ("mangle", "KUBE-SERVICES")] {
            assert_eq!(changed(table, Some(chain), false), None, "{table} {chain}");
        }
        for (table, chain) in [("nat", "CNI-HOSTPORT"), ("nat", "INPUT"), ("mangle", "INPUT")] {
            assert_eq!(changed(table, Some(chain), true), None, "{table} {chain}");
        }
    }

    #[test]
    fn a_deleted_rule_of_a_built_in_chain_and_a_deleted_table_may_be_ours() {
        assert_eq!(changed("nat", Some("PREROUTING"), true), Some(Touched::Perhaps));
        assert_eq!(changed("filter", None, true), Some(Touched::Unknown));
    }
}
