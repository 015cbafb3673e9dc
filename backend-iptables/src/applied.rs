//! The content of the tables because of us: enough to know it without reading the kernel again.

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

/// The content of the tables because of us.
#[derive(Clone, Debug)]
pub struct AppliedState {
    pub(crate) service_ports: AppliedServicePorts<Installed>,
    pub(crate) content: PerFamily<Content>,
    /// Whether the kernel was read and some service ports have not claimed their chains and rules since.
    pub(crate) is_reconciling: bool,
    pub(crate) base: PerFamily<Base>,
}

// === impl AppliedState ===

impl AppliedState {
    /// The state after the kernel was read: the base ruleset, and content that no service port has claimed.
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

    /// Takes over the content that was read again, and forgets the chains and rules of some service ports.
    pub(crate) fn read_again(&mut self, content: PerFamily<Content>, unknown: &[ServicePortKey]) {
        for key in unknown {
            self.service_ports.commit(ServicePortUpdate { key: key.clone(), desired: PerFamily::default() });
        }

        let earlier = mem::replace(&mut self.content, content);
        for family in IpFamily::ALL {
            for installed in self.service_ports.of_family(family) {
                self.content[family].claim(installed, &earlier[family]);
            }
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
