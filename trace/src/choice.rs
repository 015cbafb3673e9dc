//! Each way once: code that asks for a choice is run again and again, each time with the next combination of answers.

/// The answers of one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choices {
    /// Which answer each question gets, and how many it has. Questions behind the last get the first answer.
    script: Vec<(usize, usize)>,
    asked: usize,
    probability: f64,
}

impl Choices {
    pub(crate) fn new() -> Self {
        Self { script: Vec::new(), asked: 0, probability: 1.0 }
    }

    /// One of these, each with its probability; those that cannot happen are left out. 0 when there are none.
    pub(crate) fn choose(&mut self, probabilities: &[f64]) -> usize {
        let possible: Vec<_> = (0..probabilities.len()).filter(|&n| probabilities[n] > 0.0).collect();
        if possible.is_empty() {
            return 0;
        }
        if self.asked == self.script.len() {
            self.script.push((0, possible.len()));
        }
        let (answer, _) = self.script[self.asked];
        self.asked += 1;
        let answer = possible[answer.min(possible.len() - 1)];
        self.probability *= probabilities[answer];
        answer
    }

    /// How likely the answers so far are.
    pub(crate) fn probability(&self) -> f64 {
        self.probability
    }

    /// The answers of the next run; `None` after the last.
    pub(crate) fn next(self) -> Option<Self> {
        let mut script = self.script;
        script.truncate(self.asked);
        while let Some((answer, of)) = script.pop() {
            if answer + 1 < of {
                script.push((answer + 1, of));
                return Some(Self { script, asked: 0, probability: 1.0 });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_taken_once() {
        let mut seen = Vec::new();
        let mut next = Some(Choices::new());
        while let Some(mut choices) = next {
            let first = choices.choose(&[0.5, 0.0, 0.5]);
            // Only some ways have a second question.
            let second = if first == 2 { choices.choose(&[0.25, 0.75]) } else { 9 };
            seen.push((first, second, choices.probability()));
            next = choices.next();
        }
        assert_eq!(seen, [(0, 9, 0.5), (2, 0, 0.125), (2, 1, 0.375)]);
        assert_eq!(seen.iter().map(|(.., p)| p).sum::<f64>(), 1.0);
    }
}
