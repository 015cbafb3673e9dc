//! The plan as a function, and the files: made-up ones, and the kernel's in a network namespace.

use std::{fs, path::Path};

use netlink::testing::in_netns;

use super::*;

fn settings(change: impl FnOnce(&mut ConntrackSettings)) -> ConntrackSettings {
    let mut settings = ConntrackSettings::default();
    change(&mut settings);
    settings
}

/// What is wrong with files that say `present`, on 4 CPUs.
fn writes(settings: &ConntrackSettings, present: &[(Setting, u64)]) -> Vec<(Setting, u64)> {
    let present = present.iter().copied().collect();
    plan(settings, &present, 4).into_iter().map(|write| (write.setting, write.wanted)).collect()
}

#[test]
fn the_limit_is_by_cpus_within_bounds() {
    let max =
        |per_core, min, cores| settings(|settings| (settings.max_per_core, settings.min) = (per_core, min)).max(cores);
    assert_eq!(max(32_768, 131_072, 2), 131_072, "the least");
    assert_eq!(max(32_768, 131_072, 8), 262_144, "by CPUs");
    assert_eq!(max(32_768, 131_072, 64), 1 << 20, "the most");
    assert_eq!(max(32_768, 2_000_000, 64), 1 << 20, "the most wins over the least");
    assert_eq!(max(32_768, 2_000_000, 2), 2_000_000);
    assert_eq!(max(0, 131_072, 8), 0, "left as it is");
}

#[test]
fn only_what_differs_is_written() {
    let present = [
        (Setting::Max, 65_536),
        (Setting::HashSize, 16_384),
        (Setting::TcpEstablished, 432_000),
        (Setting::TcpCloseWait, 3600),
        (Setting::Udp, 30),
    ];
    let expected = [(Setting::Max, 131_072), (Setting::HashSize, 32_768), (Setting::TcpEstablished, 86_400)];
    assert_eq!(writes(&ConntrackSettings::default(), &present), expected);
    let present = [(Setting::Max, 131_072), (Setting::HashSize, 32_768), (Setting::TcpEstablished, 86_400)];
    assert_eq!(writes(&ConntrackSettings::default(), &present), []);
}

#[test]
fn limits_are_never_lowered_and_timeouts_are() {
    let present = [(Setting::Max, 1 << 20), (Setting::HashSize, 1 << 20), (Setting::TcpEstablished, 100_000)];
    assert_eq!(writes(&ConntrackSettings::default(), &present), [(Setting::TcpEstablished, 86_400)]);
}

#[test]
fn zero_leaves_everything_as_it_is() {
    let nothing = ConntrackSettings {
        max_per_core: 0,
        min: 131_072,
        tcp_established: Duration::ZERO,
        tcp_close_wait: Duration::ZERO,
        udp: Duration::ZERO,
        udp_stream: Duration::ZERO,
        tcp_be_liberal: false,
    };
    assert!(nothing.wanted(4).is_empty());
    // Nor is anything read.
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "sys/devices/system/cpu/online", "0");
    nothing.apply(root.path()).unwrap();
}

// === made-up files ===

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{text}\n")).unwrap();
}

/// A machine of 8 CPUs with a small limit.
fn machine() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "sys/devices/system/cpu/online", "0-5,8-9");
    put(root.path(), Setting::Max.path(), "65536");
    put(root.path(), Setting::HashSize.path(), "65536");
    put(root.path(), Setting::TcpEstablished.path(), "432000");
    put(root.path(), Setting::TcpCloseWait.path(), "60");
    root
}

fn get(root: &Path, setting: Setting) -> String {
    fs::read_to_string(root.join(setting.path())).unwrap().trim().to_owned()
}

#[test]
fn files_say_what_is_wanted_afterwards() {
    let root = machine();
    ConntrackSettings::default().apply(root.path()).unwrap();
    let said = [Setting::Max, Setting::HashSize, Setting::TcpEstablished, Setting::TcpCloseWait];
    let said = said.map(|setting| get(root.path(), setting));
    assert_eq!(said, ["262144", "65536", "86400", "3600"]);
}

#[test]
fn a_file_that_cannot_be_written_is_named_with_what_to_do() {
    // The limit is of the machine: read-only in every network namespace but the first.
    let present = number(Setting::Max);
    let higher = settings(|settings| settings.min = present + 1);
    let error = in_netns(move || format!("{:#}", higher.apply(Path::new("/")).unwrap_err()));
    let expected =
        format!("cannot set /proc/sys/net/netfilter/nf_conntrack_max to {} (it is {present}): ", present + 1);
    assert!(error.starts_with(&expected), "{error}");
    assert!(error.contains("--conntrack-max-per-core 0: Permission denied"), "{error}");

    let root = machine();
    fs::remove_file(root.path().join(Setting::Max.path())).unwrap();
    let error = format!("{:#}", ConntrackSettings::default().apply(root.path()).unwrap_err());
    assert!(error.starts_with("cannot read /proc/sys/net/netfilter/nf_conntrack_max, which should be 262144: "));
    assert!(error.ends_with("No such file or directory (os error 2)"), "{error}");
}

#[test]
fn a_hash_table_that_stays_small_stops_nobody() {
    let root = machine();
    let hash_size = root.path().join(Setting::HashSize.path());
    fs::remove_file(&hash_size).unwrap();
    ConntrackSettings::default().apply(root.path()).unwrap();
    assert_eq!(get(root.path(), Setting::Max), "262144");
    assert!(!hash_size.exists());
}

// === the kernel's files ===

fn number(setting: Setting) -> u32 {
    get(Path::new("/"), setting).parse().unwrap()
}

#[test]
fn the_timeouts_of_a_network_namespace_are_set() {
    let timeouts =
        [Setting::TcpEstablished, Setting::TcpCloseWait, Setting::Udp, Setting::UdpStream, Setting::TcpBeLiberal];
    let outside = timeouts.map(number);
    in_netns(move || {
        let settings = settings(|settings| {
            settings.max_per_core = 0;
            settings.udp = Duration::from_secs(31);
            settings.udp_stream = Duration::from_secs(181);
            settings.tcp_be_liberal = true;
        });
        for _ in 0..2 {
            settings.apply(Path::new("/")).unwrap();
            assert_eq!(timeouts.map(number), [86_400, 3600, 31, 181, 1]);
        }
    });
    assert_eq!(timeouts.map(number), outside, "those of other namespaces are not");
}
