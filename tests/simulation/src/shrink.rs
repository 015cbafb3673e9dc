//! Cuts the steps of a failing simulation to few that still fail: delta debugging.

use anyhow::Result;

/// The most runs of a simulation.
const MAX_RUNS: usize = 600;

/// Removes as many steps as possible while `fails` is true of the rest. At the end no single step can be removed, if
/// the runs are enough for that.
///
/// # Errors
/// Those of `fails`.
pub fn shrink(steps: usize, mut fails: impl FnMut(&[usize]) -> Result<bool>) -> Result<Vec<usize>> {
    let mut kept: Vec<usize> = (0..steps).collect();
    let (mut parts, mut runs) = (2, 0);
    while !kept.is_empty() && runs < MAX_RUNS {
        let size = kept.len().div_ceil(parts);
        let mut is_reduced = false;
        for number in 0..kept.len().div_ceil(size) {
            let (begin, end) = (number * size, ((number + 1) * size).min(kept.len()));
            let without: Vec<_> = kept[..begin].iter().chain(&kept[end..]).copied().collect();
            runs += 1;
            if fails(&without)? {
                kept = without;
                is_reduced = true;
                break;
            }
            if runs == MAX_RUNS {
                break;
            }
        }
        if is_reduced {
            parts = (parts - 1).max(2);
        } else if size == 1 {
            break;
        } else {
            parts = (parts * 2).min(kept.len());
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_steps_that_are_needed_remain() {
        let mut runs = 0;
        let fails = |steps: &[usize]| {
            runs += 1;
            Ok([3, 47, 180].iter().all(|step| steps.contains(step)))
        };
        assert_eq!(shrink(200, fails).unwrap(), [3, 47, 180]);
        assert!(runs < 150, "{runs}");
    }

    #[test]
    fn failure_that_needs_no_step_has_none() {
        assert!(shrink(100, |_| Ok(true)).unwrap().is_empty());
    }
}
