//! What goes before what, and who is told what is wrong. Tests cannot set variables of the environment: that they go before a file is
//! tested by the program itself (`e2e/tests/config.rs`).

use std::fs;

use super::*;
use crate::cli::{BackendCommand, Command as Asked, LocalArgs};

/// A file of ours or of kube-proxy's, for as long as the test runs.
struct File(tempfile::TempDir);

impl File {
    fn new(text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("config.yaml"), text).unwrap();
        Self(directory)
    }

    fn ours(kind: Kind, fields: &str) -> Self {
        Self::new(&format!("apiVersion: fairlead.io/v1alpha1\nkind: {}\n{fields}", kind.name()))
    }

    fn kube_proxys(fields: &str) -> Self {
        Self::new(&format!("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{fields}"))
    }

    fn parse(&self, arguments: &[&str]) -> Result<Parsed> {
        let file = self.0.path().join("config.yaml");
        let config = ["--config", file.to_str().unwrap()];
        parse([&["fairlead"], arguments, &config].concat())
    }

    fn local(&self, arguments: &[&str]) -> LocalArgs {
        match self.parse(&[&["local"], arguments].concat()).unwrap().cli.command {
            Asked::Local(local) => local,
            other => panic!("{other:?}"),
        }
    }

    fn error(&self, arguments: &[&str]) -> String {
        format!("{:#}", self.parse(arguments).unwrap_err())
    }
}

#[test]
fn a_file_says_what_flags_say() {
    let file = File::ours(
        Kind::Local,
        "backend: ipvs\nmanifests: m\nmaxLoss: 70\nmasqueradeAll: true\nipvsStrictArp: false\nlog: debug\n\
         clusterCidr: [10.244.0.0/16, 'fd00::/56']\nnodeportAddresses: [10.0.0.0/8, 192.0.2.0/24]\nipvsExcludeCidrs: 192.0.2.0/24\n",
    );
    let parsed = file.parse(&["local"]).unwrap();
    assert!(parsed.file.is_some() && parsed.warnings.is_empty());
    assert_eq!(parsed.cli.log_filter.as_deref(), Some("debug"));
    let given = file.local(&[]);
    let flags = [
        "fairlead",
        "--log=debug",
        "local",
        "--backend=ipvs",
        "--manifests=m",
        "--max-loss=70",
        "--masquerade-all",
        "--cluster-cidr=10.244.0.0/16,fd00::/56",
        "--nodeport-addresses=10.0.0.0/8,192.0.2.0/24",
        "--ipvs-exclude-cidrs=192.0.2.0/24",
    ];
    let Asked::Local(expected) = parse(flags).unwrap().cli.command else { panic!() };
    assert_eq!(format!("{given:?}"), format!("{expected:?}"));
}

#[test]
fn a_flag_goes_before_the_file() {
    let file = File::ours(
        Kind::Local,
        "backend: ipvs\nkubeconfig: k\nmaxLoss: 70\nclusterCidr: [10.244.0.0/16]\nlog: debug\n",
    );
    let given = file.local(&["--backend", "nft", "--max-loss=80", "--cluster-cidr=fd00::/56"]);
    assert_eq!(given.any.backend, BackendName::Nft);
    assert_eq!(given.any.node.max_loss.to_string(), "80%");
    assert_eq!(given.any.traffic.cluster_cidr, ["fd00::/56".parse().unwrap()]);
    assert_eq!(file.parse(&["--log", "warn", "local"]).unwrap().cli.log_filter.as_deref(), Some("warn"));
    // What a flag excludes is not taken from the file either.
    let source = file.local(&["--manifests", "m"]).source;
    assert_eq!((source.manifests, source.kubeconfig), (Some("m".into()), None));
}

#[test]
fn errors_name_the_file_and_the_field() {
    for (fields, part) in [
        ("backend: nft\nmaxloss: 1\n", "config.yaml: maxloss: `fairlead local` has no such field"),
        ("backend: nft\nmaxLoss: 101\n", "config.yaml: maxLoss: invalid value '101'"),
        ("backend: nft\nmaxLoss: [1, 2]\n", "config.yaml: maxLoss: invalid value '1,2'"),
        ("backend: nft\nmasqueradeAll: 1\n", "config.yaml: masqueradeAll: 1 is not true or false"),
        ("backend: nft\nnodeName: {a: b}\n", "config.yaml: nodeName: {\"a\":\"b\"} is no text"),
        ("backend: nft\nnodeName:\n", "config.yaml: nodeName: has no value"),
        ("backend: nft\nkubeconfig: k\nmanifests: m\n", "config.yaml: kubeconfig: the argument"),
        ("backend: nft\nconfig: f\n", "config.yaml: config: `fairlead local` has no such field"),
    ] {
        let error = File::ours(Kind::Local, fields).error(&["local"]);
        assert!(error.contains(part), "{error}");
    }
    let file = File::ours(Kind::Local, "backend: nft\n");
    assert!(file.error(&["frontend"]).contains("is for `fairlead local`, not for `frontend`"));
    assert!(parse(["fairlead", "local", "--config", "/nowhere"]).unwrap_err().to_string().contains("/nowhere"));
    // What only the command line has to do with is said as it would be without a file.
    let error = file.parse(&["local", "--max-loss=101"]).unwrap_err();
    assert!(error.is::<clap::Error>(), "{error:#}");
    assert!(File::ours(Kind::Local, "").parse(&["local"]).unwrap_err().is::<clap::Error>());
}

#[test]
fn what_a_file_leaves_out_is_no_less_checked() {
    let file = File::ours(Kind::Frontend, "listen: ['0.0.0.0:7600']\ntlsCert: c\n");
    assert!(file.error(&["frontend", "--manifests=m"]).contains("--tls-key"));
    assert!(file.parse(&["frontend", "--manifests=m", "--tls-key=k"]).is_ok());
}

#[test]
fn a_backend_is_named_by_the_file_or_by_the_command() {
    let named = |file: &File, name: &str| file.parse(&["backend", name]).map(|parsed| parsed.cli.command);
    let file = File::ours(Kind::Backend, "backend: ipvs\nipvsStrictArp: true\nfrontend: ['unix:/a', 'unix:/b']\n");
    match named(&file, "configured").unwrap() {
        Asked::Backend(backend) => match backend.backend {
            BackendCommand::Configured(args) => {
                assert!(args.any.ipvs.ipvs_strict_arp && args.any.backend == BackendName::Ipvs);
                assert_eq!(args.frontend.addresses, ["unix:/a", "unix:/b"]);
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
    assert!(named(&file, "ipvs").is_ok());
    let error = file.error(&["backend", "nft"]);
    assert!(error.contains("backend: \"ipvs\" is not that of `fairlead backend nft`"), "{error}");
    let error = File::ours(Kind::Backend, "ipvsStrictArp: true\n").error(&["backend", "nft"]);
    assert!(error.contains("`fairlead backend nft` has no such field"), "{error}");
}

#[test]
fn kube_proxys_file_is_read_as_it_is() {
    let file = File::kube_proxys(
        "mode: ipvs\nclusterCIDR: 10.244.0.0/16\nclientConnection: {kubeconfig: /k}\nipvs: {scheduler: wlc}\noomScoreAdj: -900\n",
    );
    let local = file.local(&[]);
    assert_eq!((local.any.backend, local.any.node.oom_score_adj), (BackendName::Ipvs, Some(-900)));
    assert_eq!(local.source.kubeconfig, Some("/k".into()));
    for name in ["configured", "nft", "iptables", "ipvs"] {
        let parsed = file.parse(&["backend", name]).unwrap();
        let is_warned = parsed.warnings.iter().any(|warning| warning.field == "ipvs.scheduler");
        assert_eq!(is_warned, ["nft", "iptables"].contains(&name), "{:?}", parsed.warnings);
    }
    assert_eq!(file.local(&["--backend=iptables"]).any.backend, BackendName::Iptables);
    assert!(file.error(&["frontend"]).contains("is for `local` and `backend`"));
    let error = File::kube_proxys("mode: ipvs\nipvs: {scheduler: best}\n").error(&["local"]);
    assert!(error.contains("config.yaml: ipvs.scheduler: invalid value 'best'"), "{error}");
    let error = File::kube_proxys("oomScoreAdj: 5000\n").error(&["local"]);
    assert!(error.contains("config.yaml: oomScoreAdj: 5000: expected"), "{error}");
}
