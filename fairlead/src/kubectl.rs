//! Fairlead as a kubectl plugin. kubectl runs `kubectl-fairlead` for `kubectl fairlead ...`, and
//! `kubectl_complete-fairlead` with the words of the command line up to the cursor for shell completion.

use std::{ffi::OsStr, path::Path};

use clap::{Arg, Command};

/// cobra's ShellCompDirectiveDefault, with which the shell completes files, and ShellCompDirectiveNoFileComp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Directive {
    Files = 0,
    NoFiles = 4,
}

/// Value names of flags that take paths.
const PATHS: [&str; 2] = ["FILE", "DIR"];

/// The name under which the program was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CalledBy {
    /// `fairlead`, or any other name.
    Name,
    Kubectl,
    /// For shell completion.
    Completion,
}

impl CalledBy {
    /// From the first argument.
    pub(crate) fn of(program: Option<&OsStr>) -> Self {
        match program.and_then(|program| Path::new(program).file_name()?.to_str()) {
            Some("kubectl-fairlead") => Self::Kubectl,
            Some("kubectl_complete-fairlead") => Self::Completion,
            _ => Self::Name,
        }
    }
}

/// The completions of the last word, one per line with a description after a tab, then the directive.
pub(crate) fn complete(mut command: Command, words: &[String]) -> String {
    command.build();
    let (last, before) = words.split_last().map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    let (candidates, directive) = candidates(&command, before, last);
    let mut lines: Vec<_> = candidates
        .into_iter()
        .filter(|(word, _)| word.starts_with(last))
        .map(|(word, about)| if about.is_empty() { word } else { format!("{word}\t{about}") })
        .collect();
    lines.push(format!(":{}\n", directive as u8));
    lines.join("\n")
}

fn candidates(command: &Command, before: &[String], last: &str) -> (Vec<(String, String)>, Directive) {
    let mut command = command;
    // The flag whose value is the next word.
    let mut pending = None;
    for word in before {
        pending = match (pending, word.strip_prefix("--")) {
            (None, Some(name)) => flag(command, name).filter(|arg| takes_next_word(arg)),
            (None, None) => {
                command = command.find_subcommand(word).unwrap_or(command);
                None
            }
            (Some(_), _) => None,
        };
    }
    if let Some(arg) = pending {
        return values(arg, "");
    }
    if let Some((name, _)) = last.strip_prefix("--").and_then(|rest| rest.split_once('=')) {
        let found = flag(command, name).map(|arg| values(arg, &format!("--{name}=")));
        return found.unwrap_or((Vec::new(), Directive::NoFiles));
    }
    if last.starts_with('-') {
        let flags = command.get_arguments().filter(|arg| !arg.is_hide_set());
        let flags = flags.filter_map(|arg| Some((format!("--{}", arg.get_long()?), first_sentence(arg.get_help()))));
        return (flags.collect(), Directive::NoFiles);
    }
    let subcommands = command.get_subcommands().filter(|inner| !inner.is_hide_set());
    let mut words: Vec<_> =
        subcommands.map(|inner| (inner.get_name().to_owned(), first_sentence(inner.get_about()))).collect();
    let mut directive = Directive::NoFiles;
    for arg in command.get_positionals() {
        let (more, of_value) = values(arg, "");
        words.extend(more);
        if of_value == Directive::Files {
            directive = of_value;
        }
    }
    (words, directive)
}

fn flag<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_long() == Some(name))
}

/// Whether the value of a flag is the next word.
fn takes_next_word(arg: &Arg) -> bool {
    arg.get_action().takes_values() && !arg.is_require_equals_set()
}

/// The possible values of a flag.
fn values(arg: &Arg, prefix: &str) -> (Vec<(String, String)>, Directive) {
    let possible = arg.get_possible_values().into_iter().filter(|value| !value.is_hide_set());
    let words = possible.map(|value| (format!("{prefix}{}", value.get_name()), first_sentence(value.get_help())));
    let is_path = arg
        .get_value_names()
        .is_some_and(|names| PATHS.iter().any(|path| names.iter().any(|name| name.as_str() == *path)));
    (words.collect(), if is_path { Directive::Files } else { Directive::NoFiles })
}

fn first_sentence(help: Option<&clap::builder::StyledStr>) -> String {
    let help = help.map(ToString::to_string).unwrap_or_default();
    let line = help.lines().next().unwrap_or_default();
    line.split_once(". ").map_or(line, |(first, _)| first).trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(words: &[&str]) -> Vec<String> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        let output = super::complete(crate::config::command(), &words);
        output.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn plugin_is_recognized_by_its_name() {
        let of = |name: &str| CalledBy::of(Some(OsStr::new(name)));
        assert_eq!(of("/usr/bin/fairlead"), CalledBy::Name);
        assert_eq!(of("/usr/local/bin/kubectl-fairlead"), CalledBy::Kubectl);
        assert_eq!(of("kubectl_complete-fairlead"), CalledBy::Completion);
    }

    #[test]
    fn commands_flags_and_values_are_completed() {
        assert_eq!(complete(&["stat"]), ["status", ":4"]);
        assert_eq!(complete(&["backend", "ip"]), ["iptables", "ipvs", ":4"]);
        assert_eq!(complete(&["status", "--max-l"]), ["--max-lag", ":4"]);
        assert_eq!(complete(&["local", "--backend", "ip"]), ["iptables", "ipvs", ":4"]);
        assert_eq!(complete(&["local", "--backend=n"]), ["--backend=nftables", ":4"]);
        assert_eq!(
            complete(&["--log", "debug", "local", "--backend", "nft", "--shadow", "--masquerade-b"]),
            ["--masquerade-bit", ":4"]
        );
        assert_eq!(complete(&["local", "--config", ""]), [":0"]);
        assert_eq!(complete(&["config", "validate", ""]), [":0"]);
        assert_eq!(complete(&["completion", "z"]), ["zsh", ":4"]);
        assert!(complete(&[""]).contains(&"frontend".to_owned()));
        assert!(complete(&[]).len() > 5);
        assert_eq!(complete(&["nothing", "--of-that=a"]), [":4"]);
    }

    #[test]
    fn flags_with_paths_complete_files() {
        fn walk(command: &Command, seen: &mut usize) {
            for arg in command.get_arguments().filter(|arg| arg.get_long().is_some_and(|long| long.contains("tls"))) {
                assert_eq!(values(arg, "").1, Directive::Files, "{arg}");
                *seen += 1;
            }
            command.get_subcommands().for_each(|inner| walk(inner, seen));
        }
        let mut command = crate::config::command();
        command.build();
        let mut seen = 0;
        walk(&command, &mut seen);
        assert!(seen > 10);
    }
}
