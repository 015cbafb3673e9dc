//! Output of the demo: numbered steps, commands after a prompt, results below them. What is long goes to a file.

use std::{
    fs::File,
    io::{self, IsTerminal as _, Write as _},
};

use anyhow::{Context as _, Result};

/// The output, with the number of the current step.
pub(crate) struct Show {
    step: u32,
    colours: bool,
    /// For the output of commands that would hide the story.
    details: File,
}

impl Show {
    /// With colours on a terminal.
    pub(crate) fn new(details: File) -> Self {
        Self { step: 0, colours: io::stdout().is_terminal(), details }
    }

    /// Starts a step.
    pub(crate) fn step(&mut self, title: &str) {
        if self.step > 0 {
            println!();
        }
        self.step += 1;
        println!("{}", self.paint("1", &format!("{}. {title}", self.step)));
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

    /// A command and its output, in the file of details.
    pub(crate) fn detail(&mut self, namespace: &str, command: &str, output: &str) -> Result<()> {
        writeln!(self.details, "{namespace}# {command}\n{output}").context("write the file of details")
    }

    fn paint(&self, colour: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
