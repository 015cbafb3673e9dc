//! How many rules the kernel contains: what a script costs grows with it.

use crate::table::SharedChain;

/// How many chains and rules of service ports a family contains. A rule that several service ports need may be counted
/// for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) rules: usize,
    /// In the order of [`SharedChain::ALL`].
    pub(crate) shared: [usize; SharedChain::ALL.len()],
}

impl Size {
    pub(crate) fn add_line(&mut self, shared: SharedChain) {
        self.rules += 1;
        self.shared[shared as usize] += 1;
    }

    pub(crate) fn remove_lines(&mut self, shared: SharedChain, count: usize) {
        self.rules = self.rules.saturating_sub(count);
        let lines = &mut self.shared[shared as usize];
        *lines = lines.saturating_sub(count);
    }
}
