//! The same rules as in `table`, in a chain of iptables.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use iptables::{ChainSpec, Hook, Ruleset, Script, Table, Tools, block_on};
use proto::model::IpFamily;

use super::rejecter::Rejected;

/// The chain, in table filter of each family.
pub(super) const NAME: &str = "FAIRLEAD-RESETS";

/// The most connections that the chain resets: each packet of TCP is compared with one after the other.
pub(super) const MAX_CONNECTIONS: usize = 256;

/// Gives the chain rules for these connections, instead of those for earlier ones.
pub(super) fn reject(tools: &mut Tools, family: IpFamily, connections: &BTreeSet<Rejected>) -> Result<()> {
    let hook = |chain| Hook {
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

/// `None` without iptables.
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
    let length = if vip.is_ipv4() { 32 } else { 128 };
    let [client_port, vip_port, port] = [client, vip, endpoint].map(|address| address.port());
    let [client, vip, endpoint] = [client, vip, endpoint].map(|address| address.ip());
    format!(
        "-d {endpoint}/{length} -p tcp -m tcp --dport {port} -m conntrack --ctstate ESTABLISHED --ctorigsrc {client} \
         --ctorigdst {vip} --ctorigsrcport {client_port} --ctorigdstport {vip_port} --ctdir ORIGINAL -j REJECT \
         --reject-with tcp-reset"
    )
}
