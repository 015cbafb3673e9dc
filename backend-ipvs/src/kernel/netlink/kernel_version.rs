//! The version of the running kernel.

use std::fs;

/// The major and minor version of the kernel; `None` if it cannot be read.
pub(super) fn kernel_version() -> Option<(u32, u32)> {
    parse(&fs::read_to_string("/proc/sys/kernel/osrelease").ok()?)
}

/// The major and minor version in a release, as `uname -r` prints it: `6.1.0-18-amd64`.
fn parse(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_releases() {
        assert_eq!(parse("6.18.44-generic"), Some((6, 18)));
        assert_eq!(parse("5.4-rc1\n"), Some((5, 4)));
        assert_eq!(parse("linux"), None);
        assert!(kernel_version().is_some());
    }
}
