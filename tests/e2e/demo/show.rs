//! Output of the demo: numbered steps, commands after a prompt, results below them.

use std::io::{self, IsTerminal as _};

/// The output, with the number of the current step.
pub(crate) struct Show {
    step: u32,
    colours: bool,
}

impl Show {
    /// With colours on a terminal.
    pub(crate) fn new() -> Self {
        Self { step: 0, colours: io::stdout().is_terminal() }
    }

    /// Starts a step.
    pub(crate) fn step(&mut self, title: &str) {
        self.step += 1;
        println!("\n{}", self.paint("1", &format!("{}. {title}", self.step)));
    }

    /// A command, and the namespace in which it runs.
    pub(crate) fn command(&self, namespace: &str, command: &str) {
        println!("   {}{command}", self.paint("36", &format!("{namespace}# ")));
    }

    /// A result.
    pub(crate) fn result(&self, text: &str) {
        println!("     {text}");
    }

    /// The output of a program.
    pub(crate) fn text(&self, text: &str) {
        text.lines().for_each(|line| println!("     {line}"));
    }

    fn paint(&self, colour: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
