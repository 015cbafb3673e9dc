//! The flags for the kernel's connection tracking, named as kube-proxy's.

use std::time::Duration;

use backend::ConntrackSettings;
use clap::Args;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection tracking (0 leaves a setting as it is)")]
pub(crate) struct ConntrackArgs {
    /// How many flows the kernel may remember for each CPU, up to 1048576 in all. The limit is raised, never lowered.
    #[arg(long = "conntrack-max-per-core", default_value_t = 32_768, value_name = "N")]
    max_per_core: u32,

    /// How many flows the kernel may remember at least, however few CPUs there are; not with --conntrack-max-per-core 0.
    #[arg(long = "conntrack-min", default_value_t = 131_072, value_name = "N")]
    min: u32,

    /// How long an idle TCP connection is remembered.
    #[arg(long = "conntrack-tcp-timeout-established", default_value = "24h", value_name = "TIME", value_parser = duration)]
    tcp_established: Duration,

    /// How long a TCP connection is remembered that the other side has closed.
    #[arg(long = "conntrack-tcp-timeout-close-wait", default_value = "1h", value_name = "TIME", value_parser = duration)]
    tcp_close_wait: Duration,

    /// How long a UDP flow is remembered that was never answered.
    #[arg(long = "conntrack-udp-timeout", default_value = "0", value_name = "TIME", value_parser = duration)]
    udp: Duration,

    /// How long a UDP flow is remembered that was answered.
    #[arg(long = "conntrack-udp-timeout-stream", default_value = "0", value_name = "TIME", value_parser = duration)]
    udp_stream: Duration,

    /// Packets outside of the TCP window are not invalid.
    #[arg(long = "conntrack-tcp-be-liberal")]
    tcp_be_liberal: bool,
}

impl From<ConntrackArgs> for ConntrackSettings {
    fn from(args: ConntrackArgs) -> Self {
        let ConntrackArgs { max_per_core, min, tcp_established, tcp_close_wait, udp, udp_stream, tcp_be_liberal } =
            args;
        Self { max_per_core, min, tcp_established, tcp_close_wait, udp, udp_stream, tcp_be_liberal }
    }
}

/// Reads a time as Kubernetes writes it: `24h`, `1h30m`, `90s`, `0`. The kernel counts in whole seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time: expected something like 24h, 1h30m, 90s or 0");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut seconds, mut rest) = (0u64, text);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(digits);
        let unit = match tail.as_bytes().first() {
            Some(b'h') => 3600,
            Some(b'm') => 60,
            Some(b's') => 1,
            _ => return Err(wrong()),
        };
        rest = &tail[1..];
        let number: u64 = number.parse().map_err(|_| wrong())?;
        seconds = number.checked_mul(unit).and_then(|more| seconds.checked_add(more)).ok_or_else(wrong)?;
    }
    if text.is_empty() || seconds > u64::from(u32::MAX) { Err(wrong()) } else { Ok(Duration::from_secs(seconds)) }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::local, *};

    #[test]
    fn the_defaults_are_those_of_kube_proxy() {
        assert_eq!(ConntrackSettings::from(local(&[]).any.conntrack), ConntrackSettings::default());
    }

    #[test]
    fn every_flag_has_its_setting() {
        let args = local(&[
            "--conntrack-max-per-core=1",
            "--conntrack-min=2",
            "--conntrack-tcp-timeout-established=3s",
            "--conntrack-tcp-timeout-close-wait=4s",
            "--conntrack-udp-timeout=5s",
            "--conntrack-udp-timeout-stream=6s",
            "--conntrack-tcp-be-liberal",
        ]);
        let expected = ConntrackSettings {
            max_per_core: 1,
            min: 2,
            tcp_established: Duration::from_secs(3),
            tcp_close_wait: Duration::from_secs(4),
            udp: Duration::from_secs(5),
            udp_stream: Duration::from_secs(6),
            tcp_be_liberal: true,
        };
        assert_eq!(ConntrackSettings::from(args.any.conntrack), expected);
    }

    #[test]
    fn times_are_written_as_in_kubernetes() {
        let seconds = |text| duration(text).map(|time| time.as_secs());
        let times = ["24h", "1h30m", "90s", "0", "0s", "24h0m0s"].map(|text| seconds(text).unwrap());
        assert_eq!(times, [86_400, 5_400, 90, 0, 0, 86_400]);
        for text in ["", "24", "h", "1d", "-1s", "1.5h", "99999999999h", "1h "] {
            assert!(seconds(text).unwrap_err().contains("1h30m"), "{text}");
        }
    }
}
