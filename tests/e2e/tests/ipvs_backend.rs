//! The backend contract tests with the IPVS backend, in user-mode-linux, whose kernel has IPVS.

use backend::{
    dataplane::{DataplaneOptions, LocalDetector},
    testing::contract,
};
use backend_ipvs::{Ipvs, Settings};
use e2e::uml;
use iptables::Variant;

/// Each seed gives other random states.
const SEEDS: [u64; 2] = [1, 2];

pub(crate) fn ipvs_backend_fulfils_the_contract() {
    uml::load(&[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { panic!("no runtime") };
    for seed in SEEDS {
        runtime.block_on(contract::check_all(backend, seed));
    }
}

/// With pods in 10.244.0.0/16 and fd00:244::/32.
#[track_caller]
fn backend() -> Ipvs {
    let cidrs = ["10.244.0.0/16", "fd00:244::/32"].map(|cidr| cidr.parse());
    let Ok(cidrs) = cidrs.into_iter().collect() else { panic!("not CIDRs") };
    let dataplane =
        DataplaneOptions { local_detector: LocalDetector::ClusterCidr(cidrs), ..DataplaneOptions::default() };
    match backend_ipvs::open(Settings { dataplane, iptables: Some(Variant::Legacy).into(), ..Settings::default() }) {
        Ok(backend) => backend,
        Err(error) => panic!("no backend: {error:#}"),
    }
}
