//! Checks how many source ports masquerading uses.

use anyhow::Result;

use super::Finding;
use crate::connections::{self, MASQUERADE_PORTS, NEARLY_FULL_PERCENT, SourcePortUse};

/// Checks the network namespace of the calling thread, which this blocks.
pub(super) fn check() -> Finding {
    finding(connections::fullest_source_ports())
}

/// `fullest`: the destinations to which most ports are used, first.
fn finding(fullest: Result<Vec<SourcePortUse>>) -> Finding {
    let fullest = match fullest {
        Ok(fullest) => fullest,
        Err(error) => {
            return Finding::ok("source-ports", format!("use by masquerading could not be counted: {error:#}")).warn(
                "when all are in use, the kernel drops packets of new connections",
                "run this command as root, with CAP_NET_ADMIN",
            );
        }
    };
    let Some(most) = fullest.first() else { return Finding::ok("source-ports", "masquerading uses none") };

    let SourcePortUse { protocol, source, destination, used } = most;
    let what = format!(
        "masquerading uses {used} of {MASQUERADE_PORTS} from {source} to {destination}/{protocol}, the fullest \
         destination"
    );
    let found = Finding::ok("source-ports", what);
    if most.percent() < NEARLY_FULL_PERCENT {
        return found;
    }
    found.warn(
        "when all are in use, the kernel drops packets of new connections to this destination",
        "let clients keep connections open, spread them over more destinations or nodes, or exclude the destination \
         from masquerading; `fairlead connections` lists the fullest",
    )
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::{super::Level, *};

    fn of(used: u64) -> Finding {
        let most = SourcePortUse {
            protocol: "tcp".to_owned(),
            source: "192.0.2.1".parse().unwrap(),
            destination: "203.0.113.5:443".parse().unwrap(),
            used,
        };
        finding(Ok(vec![most]))
    }

    #[test]
    fn warns_from_80_percent_on() {
        assert_eq!(of(51_609).level, Level::Ok);
        let nearly_full = of(51_610);
        assert_eq!(nearly_full.level, Level::Warn);
        assert!(nearly_full.what.contains("51610 of 64512 from 192.0.2.1 to 203.0.113.5:443/tcp"), "{nearly_full:?}");
        assert_eq!(finding(Ok(Vec::new())).level, Level::Ok);
        assert_eq!(finding(Err(anyhow!("not permitted"))).level, Level::Warn);
    }
}
