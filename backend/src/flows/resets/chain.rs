//! The rules of `table` in a chain of iptables, for kernels without nf_tables.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use iptables::{ChainSpec, HookRule, Ruleset, Script, Table, Tools, block_on};
use proto::model::IpFamily;

use super::rejecter::Rejected;

/// The chain, in table filter of each family.
pub(super) const NAME: &str = "FAIRLEAD-RESETS";

/// The most connections that the chain resets, because each packet of TCP is compared with one rule after the other.
pub(super) const MAX_CONNECTIONS: usize = 256;

/// Gives the chain rules for these connections, instead of its rules for earlier connections.
pub(super) fn reject(tools: &mut Tools, family: IpFamily, connections: &BTreeSet<Rejected>) -> Result<()> {
    let hook = |chain| HookRule {
        table: Table::Filter,
        chain,
        rule: format!("-p tcp -m comment --comment \"connections to endpoints that are gone\" -j {NAME}"),
    };
    let rules = connections.iter().map(rule).collect();
    let chain = ChainSpec { table: Table::Filter, name: NAME.to_owned(), rules };
    write(tools, family, |observed| observed.script_to(&[chain], &["FORWARD", "OUTPUT"].map(hook)))?
        .context("iptables is not installed")
}

pub(super) fn remove(tools: &mut Tools, family: IpFamily) -> Result<()> {
    write(tools, family, |observed| observed.script_without(|chain| chain == NAME)).map(drop)
}

/// Writes a script. Returns `None` if iptables is not installed.
fn write(tools: &mut Tools, family: IpFamily, script: impl FnOnce(&Ruleset) -> Script) -> Result<Option<()>> {
    block_on(async {
        let Some(saved) = tools.save(family).await? else { return Ok(None) };

        let observed = Ruleset::parse(&saved)?;
        observed.ensure_readable(&[Table::Filter])?;

        let script = script(&observed);
        if !script.is_empty() {
            tools.restore(family, &script).await?;
        }
        Ok(Some(()))
    })
}

fn rule(Rejected { client, vip, endpoint }: &Rejected) -> String {
    let prefix_length = if vip.is_ipv4() { 32 } else { 128 };
    format!(
        "-d {}/{prefix_length} -p tcp -m tcp --dport {} -m conntrack --ctstate ESTABLISHED --ctorigsrc {} \
         --ctorigdst {} --ctorigsrcport {} --ctorigdstport {} --ctdir ORIGINAL -j REJECT --reject-with tcp-reset",
        endpoint.ip(),
        endpoint.port(),
        client.ip(),
        vip.ip(),
        client.port(),
        vip.port(),
    )
}
