//! Programs Kubernetes Services into iptables, of either variant, with kube-proxy's chains, changing only what changed.
//!
//! ```text
//!  nat PREROUTING, OUTPUT ─▶ KUBE-SERVICES ─┬ cluster IP ───────────▶ KUBE-SVC-..  (policy Local: KUBE-SVL-..)
//!                                           ├ external IP ──────────▶ KUBE-EXT-.. ─▶ KUBE-SVC-.., KUBE-SVL-..
//!                                           ├ restricted ─▶ KUBE-FW-.. ─▶ KUBE-EXT-..
//!                                           └ last: this node ─▶ KUBE-NODEPORTS ─▶ KUBE-EXT-..
//!      KUBE-SVC-.., KUBE-SVL-.. ─ one at random, or who is remembered ─▶ KUBE-SEP-.. ─▶ DNAT
//!      on the way: KUBE-MARK-MASQ; nat POSTROUTING ─▶ KUBE-POSTROUTING masquerades what is marked
//!
//!  filter FORWARD, OUTPUT ─▶ KUBE-SERVICES: cluster IPs without endpoints ─▶ FAIRLEAD-CLUSTER-IPS: ports and addresses of nobody
//!  filter INPUT, FORWARD, OUTPUT ─▶ KUBE-EXTERNAL-SERVICES: the same of external IPs ─▶ FAIRLEAD-NODEPORTS: and of node ports
//!                                ─▶ KUBE-PROXY-FIREWALL: who is in no source range
//!  filter INPUT ─▶ KUBE-NODEPORTS: health-check node ports;  filter FORWARD ─▶ KUBE-FORWARD: what is marked may pass
//! ```
//!
//! A chain is written when its own content changes, and chains that all service ports share are edited line by line, so that a change
//! costs what it is, not what the cluster is. What is there is compared, as text, at the start, after a failure and when somebody else
//! changed it, and only what differs is written: a restart writes nothing.
//!
//! How a change becomes a script for `iptables-restore`, from the inside out: `names`, `desired` (what should be there), `observed`
//! (what is there), `plan` (the difference, in a safe order), `commit` (without what is refused), `kernel`.

mod commit;
mod describe;
mod desired;
mod driver;
mod kernel;
mod names;
mod observed;
mod plan;
mod programmed;
mod table;

use anyhow::Result;
use backend::{
    Backend, Changes, Drift, InstalledObject, NodeState, Preview, PreviewReport, SyncReport,
    dataplane::DataplaneOptions,
};
use iptables::Variant;
use proto::model::IpFamily;

use driver::Driver;
use kernel::{DryRun, IptablesKernel};

/// The iptables backend.
#[derive(Debug)]
pub struct Iptables(Driver<IptablesKernel>);

impl Iptables {
    /// For the network namespace of the calling thread; `None`: of the variant that is in use there. Nothing is changed before the first
    /// [`reconcile`](Backend::reconcile).
    #[must_use]
    pub fn new(options: DataplaneOptions, variant: Option<Variant>) -> Self {
        Self(Driver::new(IptablesKernel::new(variant), options))
    }

    /// The families in which something is programmed, in whichever variant. None where no iptables is installed.
    ///
    /// # Errors
    /// When iptables does not say.
    pub async fn programmed() -> Result<Vec<IpFamily>> {
        let mut backend = Self::new(DataplaneOptions::default(), None);
        if !backend.0.kernel().is_installed().await? {
            return Ok(Vec::new());
        }
        let present = backend.0.present().await?;
        Ok(present.into_iter().map(|(family, _)| family).collect())
    }

    /// What [`cleanup`](Backend::cleanup) would delete: chains by their table.
    ///
    /// # Errors
    /// When iptables is not there or does not say.
    pub async fn installed_objects(&mut self) -> Result<Vec<InstalledObject>> {
        let mut items = Vec::new();
        for (family, present) in self.0.present().await? {
            let program = self.0.kernel().program(family).await?;
            for table in table::TABLES {
                let count = present.ours().filter(|(of, ..)| *of == table).count();
                if count > 0 {
                    items.push(InstalledObject {
                        subsystem: format!("{program} {table}"),
                        kind: "chain".to_owned(),
                        count,
                    });
                }
            }
        }
        Ok(items)
    }
}

impl Backend for Iptables {
    const NAME: &'static str = "iptables";

    async fn reconcile(&mut self, state: &NodeState) -> Result<SyncReport> {
        self.0.reconcile(state).await
    }

    async fn apply(&mut self, state: &NodeState, changes: &Changes) -> Result<SyncReport> {
        self.0.apply(state, changes).await
    }

    async fn drifted(&mut self) -> Drift {
        self.0.drifted().await
    }

    async fn cleanup(&mut self) -> Result<()> {
        self.0.cleanup().await
    }
}

/// The iptables backend as one that writes nothing.
#[derive(Debug)]
pub struct IptablesPreview(Driver<DryRun<IptablesKernel>>);

impl IptablesPreview {
    /// As [`Iptables::new`].
    #[must_use]
    pub fn new(options: DataplaneOptions, variant: Option<Variant>) -> Self {
        Self(Driver::new(DryRun::new(IptablesKernel::new(variant)), options))
    }
}

impl Preview for IptablesPreview {
    const NAME: &'static str = Iptables::NAME;

    async fn preview(&mut self, state: &NodeState) -> Result<PreviewReport> {
        self.0.preview(state).await
    }

    async fn drifted(&mut self) -> Drift {
        self.0.drifted().await
    }
}
