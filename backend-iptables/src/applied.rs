//! What was applied last: enough to know what the kernel contains without reading it.

use std::mem;

use backend::{
    dataplane::Vip,
    driver::{Applied, AppliedServicePorts, ServicePortUpdate},
};
use proto::model::{IpFamily, PerFamily, ServicePortKey};

use crate::{
    content::{Content, Installed},
    desired::Base,
};

/// What the kernel contains because of us.
#[derive(Clone, Debug)]
pub struct AppliedState {
    pub(crate) service_ports: AppliedServicePorts<Installed>,
    pub(crate) content: PerFamily<Content>,
    /// Whether service ports have not claimed what they need since the kernel was read.
    pub(crate) is_reconciling: bool,
    pub(crate) base: PerFamily<Base>,
}

// === impl AppliedState ===

impl AppliedState {
    /// A kernel that contains the base ruleset, and what no service port has claimed.
    pub(crate) fn new(base: PerFamily<Base>, content: PerFamily<Content>) -> Self {
        Self { service_ports: AppliedServicePorts::default(), content, is_reconciling: true, base }
    }

    /// The number of chains and rules in the larger family.
    pub(crate) fn rules(&self) -> usize {
        self.content.v4.rules().max(self.content.v6.rules())
    }

    pub(crate) fn has_unclaimed(&self) -> bool {
        self.content.iter().any(|(_, content)| content.has_unneeded())
    }

    /// Takes over what was read again, and forgets what some service ports have.
    pub(crate) fn read_again(&mut self, content: PerFamily<Content>, unknown: &[ServicePortKey]) {
        for key in unknown {
            self.service_ports.commit(ServicePortUpdate { key: key.clone(), desired: PerFamily::default() });
        }
        let earlier = mem::replace(&mut self.content, content);
        for family in IpFamily::ALL {
            let installed = self.service_ports.of_family(family);
            installed.for_each(|installed| self.content[family].claim(installed, &earlier[family]));
        }
    }
}

impl Applied for AppliedState {
    fn vips(&self, key: &ServicePortKey) -> Vec<(IpFamily, Vip)> {
        self.service_ports.vips(key, |installed| &installed.vips)
    }

    fn has_unneeded(&self) -> bool {
        self.is_reconciling || self.has_unclaimed()
    }
}
