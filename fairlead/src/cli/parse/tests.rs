//! Precedence and errors. Tests cannot set environment variables; tests/e2e/tests/config.rs tests their precedence with
//! the binary.

use std::fs;

use super::*;
use crate::cli::{BackendCommand, Command as Subcommand, LocalArgs};

/// A temporary configuration file.
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

    fn parse(&self, arguments: &[&str]) -> Result<Parsed> {
        let file = self.0.path().join("config.yaml");
        let config = ["--config", file.to_str().unwrap()];
        parse([&["fairlead"], arguments, &config].concat())
    }

    fn local(&self, arguments: &[&str]) -> LocalArgs {
        match self.parse(&[&["local"], arguments].concat()).unwrap().cli.command {
            Subcommand::Local(local) => local,
            other => panic!("{other:?}"),
        }
    }

    fn error(&self, arguments: &[&str]) -> String {
        format!("{:#}", self.parse(arguments).unwrap_err())
    }
}

#[test]
fn file_sets_what_flags_set() {
    let file = File::ours(
        Kind::Local,
        "backend: ipvs\nmanifests: m\nmaxLoss: 70\nmasqueradeAll: true\nipvsStrictARP: false\nlog: debug\n\
         clusterCIDR: [10.244.0.0/16, 'fd00::/56']\nnodePortAddresses: [10.0.0.0/8, 192.0.2.0/24]\nipvsExcludeCIDRs: 192.0.2.0/24\n",
    );
    let parsed = file.parse(&["local"]).unwrap();
    assert!(parsed.file.is_some());
    assert_eq!(parsed.cli.log_filter.as_deref(), Some("debug"));
    let from_file = file.local(&[]);
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
    let Subcommand::Local(expected) = parse(flags).unwrap().cli.command else { panic!() };
    assert_eq!(
        format!("{:?} {:?}", from_file.source, from_file.any),
        format!("{:?} {:?}", expected.source, expected.any)
    );
}

#[test]
fn flag_takes_precedence_over_file() {
    let file = File::ours(
        Kind::Local,
        "backend: ipvs\nkubeconfig: k\nmaxLoss: 70\nclusterCIDR: [10.244.0.0/16]\nlog: debug\n",
    );
    let given = file.local(&["--backend", "nftables", "--max-loss=80", "--cluster-cidr=fd00::/56"]);
    assert_eq!(given.any.backend, Some(Mode::Nftables));
    assert_eq!(given.any.common.node.max_loss.to_string(), "80%");
    assert_eq!(given.any.common.traffic.cluster_cidr, ["fd00::/56".parse().unwrap()]);
    assert_eq!(file.parse(&["--log", "warn", "local"]).unwrap().cli.log_filter.as_deref(), Some("warn"));
    // A source replaces the other one in the file.
    let source = file.local(&["--manifests", "m"]).source;
    assert_eq!((source.manifests, source.kubeconfig), (Some("m".into()), None));
}

#[test]
fn switch_of_the_file_can_be_turned_off() {
    let file = File::ours(Kind::Local, "backend: nft\nmanifests: m\nmasqueradeAll: true\nshadow: true\n");
    let off = file.local(&["--masquerade-all=false"]);
    assert!(!off.any.common.traffic.masquerade_all && off.any.common.node.shadow);
    assert!(parse(["fairlead", "local", "--backend=nft", "--shadow=yes"]).unwrap_err().is::<clap::Error>());
}

#[test]
fn errors_name_file_field_and_value() {
    for (fields, part) in [
        ("backend: nft\nmaxloss: 1\n", "config.yaml: maxloss: `fairlead local` has no such field"),
        ("backend: nft\nmaxLoss: 101\n", "config.yaml: maxLoss: invalid value '101'"),
        ("backend: nft\nmaxLoss: [1, 2]\n", "config.yaml: maxLoss: [1,2]: expected one value"),
        ("backend: nft\nmasqueradeAll: 1\n", "config.yaml: masqueradeAll: 1: expected true or false"),
        (
            "backend: nft\nnodeName: {a: b}\n",
            "config.yaml: nodeName: {\"a\":\"b\"}: expected text (quote it) or a whole number",
        ),
        ("backend: nft\nnodeName:\n", "config.yaml: nodeName: null: expected text"),
        ("backend: nft\nkubeconfig: k\nmanifests: m\n", "config.yaml: kubeconfig and manifests exclude each other"),
        ("backend: nft\nconfig: f\n", "config.yaml: config: `fairlead local` has no such field"),
    ] {
        let error = File::ours(Kind::Local, fields).error(&["local"]);
        assert!(error.contains(part), "{error}");
    }
    let file = File::ours(Kind::Local, "backend: nft\n");
    assert!(file.error(&["frontend"]).contains("is for `fairlead local`, not for `frontend`"));
    assert!(parse(["fairlead", "local", "--config", "/nowhere"]).unwrap_err().to_string().contains("/nowhere"));
    // Errors of the command line alone are those of clap.
    let error = file.parse(&["local", "--max-loss=101"]).unwrap_err();
    assert!(error.is::<clap::Error>(), "{error:#}");
    assert!(File::ours(Kind::Local, "").error(&["local"]).contains("config.yaml: no backend: set --backend"));
}

#[test]
fn file_and_flags_are_validated_together() {
    let file = File::ours(Kind::Frontend, "listen: ['0.0.0.0:7600']\ntlsCert: c\n");
    assert!(file.error(&["frontend", "--manifests=m"]).contains("--tls-key"));
    assert!(file.parse(&["frontend", "--manifests=m", "--tls-key=k"]).is_ok());
}

#[test]
fn backend_is_named_by_file_or_command() {
    let named = |file: &File, name: &str| file.parse(&["backend", name]).map(|parsed| parsed.cli.command);
    let file = File::ours(Kind::Backend, "backend: ipvs\nipvsStrictARP: true\nfrontend: ['unix:/a', 'unix:/b']\n");
    match named(&file, "configured").unwrap() {
        Subcommand::Backend(BackendCommand::Configured { stream, any }) => {
            assert!(any.ipvs.ipvs_strict_arp && any.backend == Some(Mode::Ipvs));
            assert_eq!(stream.frontend.addresses, ["unix:/a", "unix:/b"]);
        }
        other => panic!("{other:?}"),
    }
    assert!(named(&file, "ipvs").is_ok());
    let error = file.error(&["backend", "nft"]);
    assert!(error.contains("backend: \"ipvs\" does not match `fairlead backend nftables`"), "{error}");
    let error = File::ours(Kind::Backend, "ipvsStrictARP: true\n").error(&["backend", "nft"]);
    assert!(error.contains("`fairlead backend nftables` has no such field"), "{error}");
}

#[test]
fn kube_proxys_file_has_to_be_converted() {
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n";
    for command in [&["local"][..], &["backend", "ipvs"], &["frontend"]] {
        let error = File::new(text).error(command);
        assert!(error.contains("convert it with `fairlead config convert`"), "{error}");
    }
}

/// A running `fairlead backend nftables` with these settings.
fn running(settings: &[(&str, serde_json::Value)]) -> RunningBackend {
    let flag = |(flag, value): &(&str, serde_json::Value)| {
        ((*flag).to_owned(), serde_json::json!({ "value": value, "from": "command line" }))
    };
    let flags: serde_json::Map<_, _> = settings.iter().map(flag).collect();
    let config = serde_json::json!({ "command": "backend nftables", "flags": flags });
    RunningBackend::from_config(([127, 0, 0, 1], 10249).into(), &config).unwrap()
}

/// `fairlead diff` with these flags, and what it takes over.
fn diff(running: &RunningBackend, flags: &[&str]) -> (crate::cli::DiffArgs, Vec<String>) {
    let arguments: Vec<OsString> = ["fairlead", "diff"].iter().chain(flags).map(OsString::from).collect();
    let (cli, taken) = with_settings_of(running, &arguments).unwrap();
    let Subcommand::Diff(args) = cli.command else { panic!() };
    (args, taken.into_iter().map(|setting| setting.path).collect())
}

#[test]
fn settings_of_the_running_backend_are_defaults() {
    let running = running(&[
        ("cluster-cidr", serde_json::json!(["10.244.0.0/16", "fd00::/56"])),
        ("frontend", serde_json::json!("https://10.0.0.1:7600")),
        ("log", serde_json::json!("debug")),
        ("masquerade-all", serde_json::json!(true)),
        ("max-loss", serde_json::json!("40")),
        ("node-name", serde_json::json!("node-a")),
    ]);
    let (args, taken) = diff(&running, &[]);
    assert_eq!(args.traffic.cluster_cidr, ["10.244.0.0/16", "fd00::/56"].map(|cidr| cidr.parse().unwrap()));
    assert!(args.traffic.masquerade_all);
    assert_eq!((args.view.node.as_deref(), args.backend), (Some("node-a"), Some(Mode::Nftables)));
    assert_eq!(args.view.frontend.addresses, ["unix:/run/fairlead/frontend.sock"]);
    assert_eq!(taken, ["--backend", "--node", "--cluster-cidr", "--masquerade-all"]);

    let (args, taken) = diff(&running, &["--detect-local-mode=NodeCIDR", "--masquerade-all=false", "--node", "b"]);
    assert!(args.traffic.cluster_cidr.is_empty() && !args.traffic.masquerade_all);
    assert_eq!((args.view.node.as_deref(), &*taken), (Some("b"), &["--backend".to_owned()][..]));
    assert!(diff(&running, &["--of", "kube-proxy"]).0.of.is_some());
}

#[test]
fn other_spellings_are_accepted_with_a_warning() {
    for other in ["clusterCidr", "clusterCIDRs"] {
        let file = File::ours(Kind::Local, &format!("backend: nft\nmanifests: m\n{other}: 10.244.0.0/16\n"));
        assert_eq!(file.local(&[]).any.common.traffic.cluster_cidr, ["10.244.0.0/16".parse().unwrap()]);
        let warning = format!("{other}: write clusterCIDR; the next version does not accept this spelling");
        assert_eq!(file.parse(&["local"]).unwrap().warnings, [warning]);
    }
    let file = File::ours(Kind::Local, "backend: nft\nclusterCidr: 10.0.0.0/8\nclusterCIDR: 10.0.0.0/8\n");
    assert!(file.error(&["local"]).contains("clusterCIDR is set twice"));
    assert!(File::ours(Kind::Local, "backend: nft\nclustercidr: x\n").error(&["local"]).contains("no such field"));
}
