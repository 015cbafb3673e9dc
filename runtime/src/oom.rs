//! Whom the kernel ends first when memory runs out.

use std::{fs, io};

/// Says how readily the kernel ends this process then: from -1000, never, to 1000, before others (proc(5), `oom_score_adj`).
///
/// # Errors
/// Without `CAP_SYS_RESOURCE` it can only be raised.
pub fn set_oom_score_adj(score: i16) -> io::Result<()> {
    fs::write("/proc/self/oom_score_adj", score.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_is_written() {
        // Raised by one at most, which everybody may.
        let read = || fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim().parse::<i16>().unwrap();
        let score = (read() + 1).min(1000);
        set_oom_score_adj(score).unwrap();
        assert_eq!(read(), score);
        assert!(set_oom_score_adj(1001).is_err());
    }
}
