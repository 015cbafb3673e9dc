//! The same rules as in `table`, in a chain of iptables. Its first rule makes them ineffective after a minute, so that
//! a process which is killed leaves none in effect.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use iptables::{ChainSpec, Hook, Ruleset, Script, Table, Tools, block_on};
use jiff::Timestamp;
use proto::model::IpFamily;

use super::{rejecter::Route, table::TIMEOUT};

/// The chain, in table filter of each family.
pub(super) const NAME: &str = "FAIRLEAD-RESETS";

/// The most routes. Each packet of TCP is compared with one after the other.
pub(super) const MAX_ROUTES: usize = 256;

/// Gives the chain rules for these routes.
pub(super) fn reject(tools: &mut Tools, family: IpFamily, routes: &BTreeSet<Route>) -> Result<()> {
    let hook = |chain| Hook {
        table: Table::Filter,
        chain,
        rule: format!("-p tcp -m comment --comment \"connections to endpoints that are gone\" -j {NAME}"),
    };
    let rules = rules(routes, Timestamp::now());
    let chain = ChainSpec { table: Table::Filter, name: NAME.to_owned(), rules };
    write(tools, family, |observed| observed.script_to(&[chain], &["FORWARD", "OUTPUT"].map(hook)))
}

/// Deletes the chain.
pub(super) fn remove(tools: &mut Tools, family: IpFamily) -> Result<()> {
    write(tools, family, |observed| observed.script_without(|chain| chain == NAME))
}

fn write(tools: &mut Tools, family: IpFamily, script: impl FnOnce(&Ruleset) -> Script) -> Result<()> {
    block_on(async {
        let saved = tools.save(family).await?.context("iptables is not installed")?;
        let observed = Ruleset::parse(&saved)?;
        observed.ensure_readable(&[Table::Filter])?;
        let script = script(&observed);
        if !script.is_empty() {
            tools.restore(family, &script).await?;
        }
        Ok(())
    })
}

/// The match `time` reads the clock in UTC.
fn rules(routes: &BTreeSet<Route>, now: Timestamp) -> Vec<String> {
    let until = (now + TIMEOUT).strftime("%Y-%m-%dT%H:%M:%S");
    let end = format!("-m time --datestart {until} --datestop 2038-01-19T03:14:07 -j RETURN");
    let reject = |Route { vip, endpoint }: &Route| {
        let length = if vip.is_ipv4() { 32 } else { 128 };
        let [vip_port, port] = [vip, endpoint].map(|address| address.port());
        let [vip, endpoint] = [vip, endpoint].map(|address| address.ip());
        format!(
            "-d {endpoint}/{length} -p tcp -m tcp --dport {port} -m conntrack --ctorigdst {vip} \
             --ctorigdstport {vip_port} -j REJECT --reject-with tcp-reset"
        )
    };
    [end].into_iter().chain(routes.iter().map(reject)).collect()
}
