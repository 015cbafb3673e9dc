//! How many files a process may have open.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Allows this process, and those that it starts, as many open files as it may allow itself. Every connection is one, and the
/// limit that most systems start with is 1,024. Gives the new limit.
///
/// # Errors
/// When the kernel refuses, which leaves the limit as it was.
pub fn raise_file_limit() -> io::Result<u64> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(hard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_to_be_allowed() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 64.min(hard), hard).unwrap();
        assert_eq!(raise_file_limit().unwrap(), hard);
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (hard, hard));
    }
}
