//! Whether a series of samples grows beyond its noise.

/// The largest growth over the judged time that is taken for noise, as a share of the median.
const NOISE: f64 = 0.05;

/// A judged series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trend {
    /// The median of the samples.
    pub(super) median: f64,
    /// The growth from the first to the last sample, by the median of the slopes between samples.
    pub(super) growth: f64,
    /// The growth up to which it is noise.
    pub(super) limit: f64,
}

impl Trend {
    /// Whether the growth is more than noise.
    pub(super) fn grows(&self) -> bool {
        self.growth > self.limit
    }
}

/// Judges samples at equal intervals. Growth up to `tolerated`, a number in the unit of the samples, is noise too. The
/// median of all slopes (Theil and Sen) ignores single peaks.
pub(super) fn judge(samples: &[f64], tolerated: f64) -> Trend {
    let mut slopes = Vec::new();
    for (at, first) in samples.iter().enumerate() {
        let later = samples.iter().enumerate().skip(at + 1);
        slopes.extend(later.map(|(other, second)| (second - first) / (other - at) as f64));
    }
    let median = middle(&mut samples.to_vec());
    let growth = middle(&mut slopes) * samples.len().saturating_sub(1) as f64;
    Trend { median, growth, limit: tolerated.max(NOISE * median) }
}

fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leak_grows_and_noise_does_not() {
        let noise = |n: usize| [0.0, 3.0, -2.0, 1.0][n % 4];
        let flat: Vec<_> = (0..60).map(|n| 100.0 + noise(n)).collect();
        let leak: Vec<_> = (0..60).map(|n| 100.0 + noise(n) + n as f64 / 2.0).collect();
        assert!(!judge(&flat, 1.0).grows());
        assert!(judge(&leak, 1.0).grows());
        assert!(!judge(&leak, 50.0).grows(), "as much was tolerated");
    }

    #[test]
    fn single_peak_is_no_growth() {
        let mut peak = vec![10.0; 40];
        peak[39] = 10_000.0;
        assert!(!judge(&peak, 1.0).grows());
    }

    #[test]
    fn too_few_samples_do_not_grow() {
        assert!(!judge(&[], 0.0).grows() && !judge(&[7.0], 0.0).grows());
    }
}
