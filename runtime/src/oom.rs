//! How likely the kernel kills this process when memory runs out.

use std::{fs, io};

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
    fn score_is_written() {
        // Raising it needs no capability.
        let read = || fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim().parse::<i16>().unwrap();
        let score = (read() + 1).min(1000);
        set_oom_score_adj(score).unwrap();
        assert_eq!(read(), score);
        assert!(set_oom_score_adj(1001).is_err());
    }
}
