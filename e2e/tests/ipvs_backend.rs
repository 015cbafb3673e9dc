//! What every backend must do, by the IPVS backend on a kernel that has IPVS: user-mode-linux.

use backend::iptables::Variant;
use backend::testing::conformance;
use backend::traffic::{LocalPods, Options};
use backend_ipvs::{Ipvs, Settings};
use fairlead_e2e::uml;

/// Each with random states of its own.
const SEEDS: [u64; 2] = [1, 2];

#[test]
fn the_ipvs_backend_conforms() {
    uml::inside(|| {
        uml::load(&[]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { panic!("no runtime") };
        for seed in SEEDS {
            runtime.block_on(conformance::conformance(backend, seed));
        }
    });
}

/// With pods in 10.244.0.0/16 and fd00:244::/32.
#[track_caller]
fn backend() -> Ipvs {
    let cidrs = ["10.244.0.0/16", "fd00:244::/32"].map(|cidr| cidr.parse());
    let Ok(cidrs) = cidrs.into_iter().collect() else { panic!("not CIDRs") };
    let traffic = Options { local_pods: LocalPods::ClusterCidr(cidrs), ..Options::default() };
    match Ipvs::new(Settings { traffic, iptables: Some(Variant::Legacy), ..Settings::default() }) {
        Ok(backend) => backend,
        Err(error) => panic!("no backend: {error:#}"),
    }
}
