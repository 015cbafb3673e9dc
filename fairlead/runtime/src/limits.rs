//! Limits that the kernel applies to this process: open files, and how likely it is killed when memory runs out.

use std::{fs, io};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit of open files of this process to its hard limit, and returns it. Each connection takes a file
/// descriptor, and the usual soft limit is 1,024.
///
/// # Errors
/// The kernel rejects the change; the limit is unchanged then.
pub fn raise_file_limit() -> io::Result<u64> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(hard)
}

/// How many files this process may open at the same time: the soft limit.
///
/// # Errors
/// The kernel does not tell.
pub fn file_limit() -> io::Result<u64> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(soft)
}

/// Sets `oom_score_adj` of this process (proc(5)): -1000 is never killed, 1000 is killed first.
///
/// # Errors
/// The score is out of range, or lower than the current one without `CAP_SYS_RESOURCE`.
pub fn set_oom_score_adj(score: i16) -> io::Result<()> {
    fs::write("/proc/self/oom_score_adj", score.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limit_becomes_hard_limit() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 64.min(hard), hard).unwrap();
        assert_eq!(file_limit().unwrap(), 64.min(hard));
        assert_eq!(raise_file_limit().unwrap(), hard);
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (hard, hard));
    }

    #[test]
    fn score_is_written() {
        // Raising it needs no capability.
        let read = || fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim().parse::<i16>().unwrap();
        let score = (read() + 1).min(1000);
        set_oom_score_adj(score).unwrap();
        assert_eq!(read(), score);
        assert!(set_oom_score_adj(1001).is_err());
    }
}
