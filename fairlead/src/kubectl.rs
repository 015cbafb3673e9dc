//! Fairlead as a plugin of kubectl, which starts a plugin by its name: `kubectl-fairlead` for `kubectl fairlead ...`, and
//! `kubectl_complete-fairlead` with the words so far, the one under the cursor last, to ask for what it could become.

use std::{ffi::OsStr, path::Path};

use clap::{Arg, Command};

/// What kubectl's shell does with the answers: its ShellCompDirectiveDefault offers files, its ShellCompDirectiveNoFileComp does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Directive {
    Files = 0,
    NoFiles = 4,
}

/// Names of values that are paths.
const PATHS: [&str; 2] = ["FILE", "DIR"];

/// By which name the program was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CalledBy {
    /// Its own, or any other.
    Name,
    Kubectl,
    /// To complete what is being typed.
    Completion,
}

impl CalledBy {
    /// By the first word of the command line.
    pub(crate) fn of(program: Option<&OsStr>) -> Self {
        match program.and_then(|program| Path::new(program).file_name()?.to_str()) {
            Some("kubectl-fairlead") => Self::Kubectl,
            Some("kubectl_complete-fairlead") => Self::Completion,
            _ => Self::Name,
        }
    }
}

/// What the last of the words may become, one a line with what it is behind a tab, and the directive in the last line.
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
    // A flag whose value comes next.
    let mut open = None;
    for word in before {
        open = match (open, word.strip_prefix("--")) {
            (None, Some(name)) => flag(command, name).filter(|arg| arg.get_action().takes_values()),
            (None, None) => {
                command = command.find_subcommand(word).unwrap_or(command);
                None
            }
            (Some(_), _) => None,
        };
    }
    if let Some(arg) = open {
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
        let (more, wants) = values(arg, "");
        words.extend(more);
        if wants == Directive::Files {
            directive = wants;
        }
    }
    (words, directive)
}

fn flag<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_long() == Some(name))
}

/// What a flag may be set to, as far as that is known.
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
        let answer = super::complete(crate::config::command(), &words);
        answer.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_plugin_is_known_by_its_name() {
        let of = |name: &str| CalledBy::of(Some(OsStr::new(name)));
        assert_eq!(of("/usr/bin/fairlead"), CalledBy::Name);
        assert_eq!(of("/usr/local/bin/kubectl-fairlead"), CalledBy::Kubectl);
        assert_eq!(of("kubectl_complete-fairlead"), CalledBy::Completion);
    }

    #[test]
    fn a_word_becomes_a_command_a_flag_or_a_value() {
        assert_eq!(complete(&["stat"]), ["status", ":4"]);
        assert_eq!(complete(&["backend", "ip"]), ["iptables", "ipvs", ":4"]);
        assert_eq!(complete(&["status", "--max-l"]), ["--max-lag", ":4"]);
        assert_eq!(complete(&["local", "--backend", "ip"]), ["iptables", "ipvs", ":4"]);
        assert_eq!(complete(&["local", "--backend=n"]), ["--backend=nft", ":4"]);
        assert_eq!(
            complete(&["--log", "debug", "local", "--backend", "nft", "--masquerade-b"]),
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
    fn every_flag_with_a_path_is_completed_by_files() {
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
