//! Rules as kube-proxy writes them, among rules of other programs: what is found, and what remains in the kernel.

use ::iptables::{Variant, block_on};
use netlink::testing::in_netns;
use proto::model::IpFamily;

use super::*;
use crate::takeover::{
    Leftovers,
    testing::{all, others, run},
};

const TOOLS: [&str; 4] = ["iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy"];

fn family(tool: &str) -> IpFamily {
    if tool.starts_with("ip6") { IpFamily::V6 } else { IpFamily::V4 }
}

fn find() -> Leftovers {
    block_on(Leftovers::find()).unwrap()
}

fn load(tool: &str, rules: &str) {
    run(&format!("{tool}-restore"), &[], rules);
}

/// The output of a tool without comments and counters.
fn saved(tool: &str) -> Vec<String> {
    let saved = run(&format!("{tool}-save"), &[], "");
    let lines = saved.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(" [").next().unwrap_or_default().to_owned()).collect()
}

fn removals(rules: &str) -> Vec<TableRemoval> {
    let rules = Ruleset::parse(rules).unwrap();
    rules.tables().map(|table| TableRemoval::new(&rules, table)).collect()
}

#[test]
fn nothing_is_found_among_rules_of_other_programs() {
    for family in IpFamily::ALL {
        let found = removals(&others(family));
        assert!(found.iter().all(|table| table.jumps.is_empty() && table.chains.is_empty() && table.kept.is_empty()));
    }
}

#[test]
fn a_table_that_iptables_hides_is_an_error_only_with_chains_of_kube_proxy() {
    in_netns(|| {
        load("iptables-nft", &others(IpFamily::V4));
        run("nft", &["add rule ip filter INPUT numgen inc mod 2 0 drop"], "");
        let hidden = run("iptables-nft-save", &[], "");
        assert!(hidden.contains("# Table `filter' is incompatible"), "{hidden}");
        assert!(find().objects().is_empty());
        run("nft", &["add chain ip filter KUBE-SERVICES"], "");
        let error = format!("{:#}", block_on(Leftovers::find()).unwrap_err());
        assert!(error.starts_with("read the rules of iptables-nft: iptables cannot read table filter"), "{error}");
    });
}

#[test]
fn jumps_and_chains_are_found() {
    let found = removals(&all(IpFamily::V4));
    let counts: Vec<_> =
        found.iter().map(|table| (table.table.name(), table.jumps.len(), table.chains.len())).collect();
    assert_eq!(counts, [("mangle", 0, 1), ("filter", 9, 6), ("nat", 3, 11)]);
    assert!(found.iter().all(|table| table.kept.is_empty()));
}

#[test]
fn only_tables_with_something_to_remove_are_written() {
    let mut script = Script::default();
    let rules = "*raw\n:OUTPUT ACCEPT [0:0]\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n*nat\n:INPUT ACCEPT [0:0]\nCOMMIT\n";
    removals(rules).iter().for_each(|table| table.add_to(&mut script));
    assert_eq!(script.text(), "*raw\n:KUBE-PROXY-CANARY - [0:0]\n-X KUBE-PROXY-CANARY\nCOMMIT\n");
}

#[test]
fn a_chain_in_use_is_kept_with_the_chains_that_it_leads_to() {
    let rules = "\
*nat
:PREROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-XPGD46QRK7WJZT7O - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:MINE - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A PREROUTING -s 192.0.2.1/32 -j KUBE-NODEPORTS
-A MINE -g KUBE-SVC-XPGD46QRK7WJZT7O
-A KUBE-SERVICES -j KUBE-SVC-XPGD46QRK7WJZT7O
-A KUBE-SVC-XPGD46QRK7WJZT7O -j KUBE-MARK-MASQ
COMMIT
";
    let [found] = &removals(rules)[..] else { panic!("one table") };
    assert_eq!(found.jumps, [("PREROUTING".to_owned(), "-j KUBE-SERVICES".to_owned())]);
    assert_eq!(found.chains.iter().collect::<Vec<_>>(), ["KUBE-SERVICES"]);
    let kept = [
        ("-A MINE -g KUBE-SVC-XPGD46QRK7WJZT7O", "KUBE-SVC-XPGD46QRK7WJZT7O"),
        ("-A PREROUTING -s 192.0.2.1/32 -j KUBE-NODEPORTS", "KUBE-NODEPORTS"),
    ];
    assert_eq!(found.kept, kept.map(|(rule, chain)| (rule.to_owned(), chain.to_owned())));
}

#[test]
fn chains_of_ipvs_mode_are_found() {
    let rules = "\
*filter
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
-A INPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-FILTER
-A INPUT -m comment --comment \"kubernetes health check rules\" -j KUBE-NODE-PORT
-A OUTPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-OUT-FILTER
-A KUBE-NODE-PORT -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j ACCEPT
COMMIT
";
    let [found] = &removals(rules)[..] else { panic!("one table") };
    assert_eq!((found.jumps.len(), found.chains.len()), (3, 4));
}

#[test]
fn chains_adopted_by_fairlead_are_kept() {
    let marker = ":FAIRLEAD-REJECT - [0:0]\n:KUBE-XLB-XPGD46QRK7WJZT7O - [0:0]\nCOMMIT\n";
    let rules = all(IpFamily::V4).replacen("COMMIT\n", marker, 1);
    let found = removals(&rules);
    assert!(found.iter().all(|table| table.jumps.is_empty() && table.kept.is_empty()));
    let chains: BTreeSet<_> = found.iter().flat_map(|table| &table.chains).collect();
    assert_eq!(chains.into_iter().collect::<Vec<_>>(), ["KUBE-PROXY-CANARY", "KUBE-XLB-XPGD46QRK7WJZT7O"]);
}

#[test]
fn similar_names_are_not_kube_proxys() {
    let kubelets = ["KUBE-FIREWALL", "KUBE-MARK-DROP", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"];
    let similar = [
        "KUBE-SVC-",
        "KUBE-SVC-xpgd46qrk7wjzt7o",
        "KUBE-SVC-XPGD46QRK7WJZT7OX",
        "KUBE-SVC-XPGD46QRK7WJZT71",
        "KUBE-ROUTER-INPUT",
    ];
    assert!(!kubelets.into_iter().chain(similar).any(names::is_kube_proxys));
    assert!(names::is_kube_proxys("KUBE-XLB-XPGD46QRK7WJZT7O"));
}

#[test]
fn a_note_warns_when_forwarding_depends_on_kube_proxy() {
    let program = Program::new(IpFamily::V4, Variant::Nft);
    let notes = |rules: &str| ChainRemoval::new(program, &Ruleset::parse(rules).unwrap()).notes.len();
    let rules = all(IpFamily::V4);
    assert_eq!(notes(&rules), 0);
    assert_eq!(notes(&rules.replace(":FORWARD ACCEPT", ":FORWARD DROP")), 1);
    assert_eq!(notes(&others(IpFamily::V4).replace(":FORWARD ACCEPT", ":FORWARD DROP")), 0);
}

// === With a kernel ===

#[test]
fn only_rules_of_other_programs_remain() {
    for tool in TOOLS {
        let family = family(tool);
        let expected = in_netns(move || {
            load(tool, &others(family));
            saved(tool)
        });
        in_netns(move || {
            load(tool, &all(family));
            assert_ne!(saved(tool), expected);
            let found = find();
            assert!(found.objects().iter().all(|one| one.subsystem.starts_with(tool) && one.family == Some(family)));
            block_on(found.remove()).unwrap();
            assert_eq!(saved(tool), expected, "{tool}");
            let left = find();
            assert!(left.objects().is_empty(), "{left:?}");
            block_on(left.remove()).unwrap();
        });
    }
}

/// Another program has written them.
#[test]
fn rules_with_unusual_comments_remain() {
    for tool in TOOLS {
        let family = family(tool);
        let unusual = b"*nat\n-A PREROUTING -m comment --comment \"caf\xe9\" -j RETURN\nCOMMIT\n";
        let add_unusual = move || {
            run(&format!("{tool}-restore"), &["--noflush"], unusual);
            let comment = "two\nCOMMIT";
            run(tool, &["-t", "nat", "-A", "PREROUTING", "-m", "comment", "--comment", comment, "-j", "RETURN"], "");
        };
        let expected = in_netns(move || {
            load(tool, &others(family));
            add_unusual();
            saved(tool)
        });
        in_netns(move || {
            load(tool, &all(family));
            add_unusual();
            assert_ne!(saved(tool), expected);
            block_on(find().remove()).unwrap();
            assert_eq!(saved(tool), expected, "{tool}");
            // A jump that cannot be deleted as it is shown.
            let jump = "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n";
            run(&format!("{tool}-restore"), &["--noflush"], jump);
            let comment = "two\nCOMMIT";
            run(tool, &["-t", "nat", "-A", "OUTPUT", "-m", "comment", "--comment", comment, "-j", "KUBE-SERVICES"], "");
            let with_jump = saved(tool);
            let found = find();
            assert_eq!(found.notes().len(), 1, "{found:?}");
            block_on(found.remove()).unwrap();
            assert_eq!(saved(tool), with_jump, "{tool}");
        });
    }
}

#[test]
fn both_variants_and_both_families_are_cleaned_at_once() {
    in_netns(|| {
        TOOLS.iter().for_each(|tool| load(tool, &all(family(tool))));
        let found = find();
        let mut locations: Vec<_> = found.objects().into_iter().map(|object| object.subsystem).collect();
        locations.dedup();
        assert_eq!(locations.len(), 12, "{locations:?}");
        block_on(found.remove()).unwrap();
        for tool in TOOLS {
            assert!(!saved(tool).iter().any(|line| line.contains("KUBE-SERVICES")), "{tool}");
        }
    });
}

#[test]
fn a_rejected_table_is_unchanged_and_the_error_names_it() {
    in_netns(|| {
        load("iptables-nft", &all(IpFamily::V4));
        let found = find();
        // Between find and remove, another program starts to use a chain.
        run("iptables-nft", &["-t", "nat", "-A", "INPUT", "-j", "KUBE-MARK-MASQ"], "");
        let before = saved("iptables-nft");
        let error = format!("{:#}", block_on(found.remove()).unwrap_err());
        assert!(error.starts_with("remove kube-proxy's chains with iptables-nft: iptables-nft-restore: "), "{error}");
        let nat = |lines: &[String]| lines.iter().skip_while(|line| *line != "*nat").cloned().collect::<Vec<_>>();
        assert_eq!(nat(&saved("iptables-nft")), nat(&before));
        // The next find keeps that chain.
        let found = find();
        assert_eq!(found.notes().len(), 1);
        block_on(found.remove()).unwrap();
        assert!(saved("iptables-nft").iter().any(|line| line == ":KUBE-MARK-MASQ -"));
    });
}
