//! What is written, and the files: in a temporary directory, and the kernel's in a network namespace.

use netlink::testing::in_netns;

use super::*;

fn settings(change: impl FnOnce(&mut ConntrackSettings)) -> ConntrackSettings {
    let mut settings = ConntrackSettings::default();
    change(&mut settings);
    settings
}

/// The writes for files with these values, on 4 CPUs.
fn writes(settings: &ConntrackSettings, current: &[(ConntrackSetting, u64)]) -> Vec<(ConntrackSetting, u64)> {
    let current: BTreeMap<_, _> = current.iter().copied().collect();
    let differs = |(setting, desired): &(ConntrackSetting, u64)| {
        current.get(setting).is_some_and(|current| setting.differs(*current, *desired))
    };
    settings.desired(4).into_iter().filter(differs).collect()
}

#[test]
fn limit_is_proportional_to_cpus_within_bounds() {
    let max =
        |per_core, min, cores| settings(|settings| (settings.max_per_core, settings.min) = (per_core, min)).max(cores);
    assert_eq!(max(32_768, 131_072, 2), 131_072, "the minimum");
    assert_eq!(max(32_768, 131_072, 8), 262_144, "proportional");
    assert_eq!(max(32_768, 131_072, 64), 1 << 20, "the maximum");
    assert_eq!(max(32_768, 2_000_000, 64), 1 << 20, "the maximum takes precedence");
    assert_eq!(max(32_768, 2_000_000, 2), 2_000_000);
    assert_eq!(max(0, 131_072, 8), 0, "unchanged");
}

#[test]
fn only_different_values_are_written() {
    let present = [
        (ConntrackSetting::Max, 65_536),
        (ConntrackSetting::HashSize, 16_384),
        (ConntrackSetting::TcpEstablished, 432_000),
        (ConntrackSetting::TcpCloseWait, 3600),
        (ConntrackSetting::Udp, 30),
    ];
    let expected = [
        (ConntrackSetting::Max, 131_072),
        (ConntrackSetting::HashSize, 32_768),
        (ConntrackSetting::TcpEstablished, 86_400),
    ];
    assert_eq!(writes(&ConntrackSettings::default(), &present), expected);
    let present = [
        (ConntrackSetting::Max, 131_072),
        (ConntrackSetting::HashSize, 32_768),
        (ConntrackSetting::TcpEstablished, 86_400),
    ];
    assert_eq!(writes(&ConntrackSettings::default(), &present), []);
}

#[test]
fn timeouts_are_lowered_and_limits_are_not() {
    let present = [
        (ConntrackSetting::Max, 1 << 20),
        (ConntrackSetting::HashSize, 1 << 20),
        (ConntrackSetting::TcpEstablished, 100_000),
    ];
    assert_eq!(writes(&ConntrackSettings::default(), &present), [(ConntrackSetting::TcpEstablished, 86_400)]);
}

#[test]
fn zero_leaves_everything_unchanged() {
    let nothing = ConntrackSettings {
        max_per_core: 0,
        min: 131_072,
        tcp_established: Duration::ZERO,
        tcp_close_wait: Duration::ZERO,
        udp: Duration::ZERO,
        udp_stream: Duration::ZERO,
        tcp_be_liberal: false,
    };
    assert!(nothing.desired(4).is_empty());
    // No file is read either.
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "sys/devices/system/cpu/online", "0");
    nothing.apply(root.path()).unwrap();
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{text}\n")).unwrap();
}

/// A machine of 8 CPUs with a small limit.
fn machine() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "sys/devices/system/cpu/online", "0-5,8-9");
    put(root.path(), ConntrackSetting::Max.path(), "65536");
    put(root.path(), ConntrackSetting::HashSize.path(), "65536");
    put(root.path(), ConntrackSetting::TcpEstablished.path(), "432000");
    put(root.path(), ConntrackSetting::TcpCloseWait.path(), "60");
    root
}

fn get(root: &Path, setting: ConntrackSetting) -> String {
    fs::read_to_string(root.join(setting.path())).unwrap().trim().to_owned()
}

#[test]
fn files_have_the_desired_values_afterwards() {
    let root = machine();
    ConntrackSettings::default().apply(root.path()).unwrap();
    let settings = [
        ConntrackSetting::Max,
        ConntrackSetting::HashSize,
        ConntrackSetting::TcpEstablished,
        ConntrackSetting::TcpCloseWait,
    ];
    let values = settings.map(|setting| get(root.path(), setting));
    assert_eq!(values, ["262144", "65536", "86400", "3600"]);
}

#[test]
fn limit_of_the_machine_that_is_read_only_is_no_error() {
    // Read-only in all network namespaces but the first.
    let current = number(ConntrackSetting::Max);
    let higher = settings(|settings| settings.min = current + 1);
    in_netns(move || {
        higher.apply(Path::new("/")).unwrap();
        assert_eq!(number(ConntrackSetting::Max), current);
        assert_eq!(number(ConntrackSetting::TcpEstablished), 86_400);
    });
}

#[test]
fn error_names_the_file_and_what_to_do() {
    let root = machine();
    fs::remove_file(root.path().join(ConntrackSetting::Max.path())).unwrap();
    let error = format!("{:#}", ConntrackSettings::default().apply(root.path()).unwrap_err());
    assert!(error.starts_with("cannot read /proc/sys/net/netfilter/nf_conntrack_max to set it to 262144: "));
    assert!(error.contains("--conntrack-max-per-core 0"), "{error}");
    assert!(error.ends_with("No such file or directory (os error 2)"), "{error}");
}

#[test]
fn hash_table_that_stays_small_is_no_error() {
    let root = machine();
    let hash_size = root.path().join(ConntrackSetting::HashSize.path());
    fs::remove_file(&hash_size).unwrap();
    ConntrackSettings::default().apply(root.path()).unwrap();
    assert_eq!(get(root.path(), ConntrackSetting::Max), "262144");
    assert!(!hash_size.exists());
}

fn number(setting: ConntrackSetting) -> u32 {
    get(Path::new("/"), setting).parse().unwrap()
}

#[test]
fn timeouts_of_the_network_namespace_are_set() {
    let timeouts = [
        ConntrackSetting::TcpEstablished,
        ConntrackSetting::TcpCloseWait,
        ConntrackSetting::Udp,
        ConntrackSetting::UdpStream,
        ConntrackSetting::TcpBeLiberal,
    ];
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
    assert_eq!(timeouts.map(number), outside, "other namespaces are unchanged");
}
