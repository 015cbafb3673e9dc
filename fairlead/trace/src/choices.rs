//! Enumerates random choices: the evaluation is repeated, each time with the next combination of outcomes.

/// The outcomes of one evaluation.
#[derive(Clone, Debug)]
pub(crate) struct Choices {
    /// The outcome of each choice, and the number of its outcomes. Choices after the last get the first outcome.
    script: Vec<(usize, usize)>,
    made: usize,
    /// The probability of the outcomes so far.
    pub(crate) probability: f64,
}

impl Choices {
    pub(crate) fn new() -> Self {
        Self { script: Vec::new(), made: 0, probability: 1.0 }
    }

    /// Returns the index of one of these probabilities; impossible ones are skipped. 0 when there are none.
    pub(crate) fn choose(&mut self, probabilities: &[f64]) -> usize {
        let possible: Vec<_> = (0..probabilities.len()).filter(|&n| probabilities[n] > 0.0).collect();
        if possible.is_empty() {
            return 0;
        }

        if self.made == self.script.len() {
            self.script.push((0, possible.len()));
        }
        let (outcome, _) = self.script[self.made];
        self.made += 1;

        let chosen = possible[outcome.min(possible.len() - 1)];
        self.probability *= probabilities[chosen];
        chosen
    }

    /// The outcomes of the next evaluation; `None` after the last.
    pub(crate) fn next(self) -> Option<Self> {
        let mut script = self.script;
        script.truncate(self.made);
        while let Some((outcome, count)) = script.pop() {
            if outcome + 1 < count {
                script.push((outcome + 1, count));
                return Some(Self { script, made: 0, probability: 1.0 });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_is_enumerated_once() {
        let mut seen = Vec::new();
        let mut next = Some(Choices::new());
        while let Some(mut choices) = next {
            let first = choices.choose(&[0.5, 0.0, 0.5]);
            // The second choice depends on the first.
            let second = if first == 2 { choices.choose(&[0.25, 0.75]) } else { 9 };
            seen.push((first, second, choices.probability));
            next = choices.next();
        }
        assert_eq!(seen, [(0, 9, 0.5), (2, 0, 0.125), (2, 1, 0.375)]);
        assert_eq!(seen.iter().map(|(.., p)| p).sum::<f64>(), 1.0);
    }
}
