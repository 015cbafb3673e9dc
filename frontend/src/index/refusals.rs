//! Descriptions of refused claims: they name the service port that gets the claim, which may change. Then all of them
//! are described again, a few at a time, because thousands may name that service port and commits wait meanwhile.

use std::mem;

use proto::model::ServicePortKey;

use super::{
    Index,
    keys::{port_of, service_of},
    vip_conflicts::{NodePortOwners, external_ips},
};

/// How many service ports' refusals are described again at once.
const DESCRIBED_AT_ONCE: usize = 64;
/// How many VIPs these may claim before the others wait for the next time.
const DESCRIBED_CLAIMS: usize = 4_096;

/// How far refusals have been described again.
#[derive(Debug, Default)]
pub(super) struct RefusalPass {
    /// Whether refusals may name service ports that no longer get the claims: the next pass describes all again.
    pub(super) is_outdated: bool,
    /// The last service port of a pass that is under way.
    described: Option<ServicePortKey>,
}

impl Index {
    /// Whether [`Self::describe_refusals`] has more to do.
    pub(crate) fn has_outdated_refusals(&self) -> bool {
        self.refusals.is_outdated || self.refusals.described.is_some()
    }

    /// Describes again why some service ports do not get their claims.
    pub(crate) fn describe_refusals(&mut self) {
        let pass = &mut self.refusals;
        if pass.described.is_none() && !mem::take(&mut pass.is_outdated) {
            return;
        }

        let keys = self.problems.refused_after(pass.described.as_ref(), DESCRIBED_AT_ONCE);
        pass.described = keys.get(DESCRIBED_AT_ONCE - 1).cloned();

        let mut node_ports = NodePortOwners::new();
        let mut claims = 0;
        for key in keys {
            let name = service_of(&key);
            if let Some(service) = self.services.get(&name)
                && let Some(port) = port_of(service, &key)
            {
                let (_, refused) = self.claims.resolve(service, port, &mut node_ports);
                claims += 1 + external_ips(service).count();
                self.problems.set_claims(&name, &key, refused);
            }
            if claims >= DESCRIBED_CLAIMS {
                self.refusals.described = Some(key);
                return;
            }
        }
    }
}
