//! The fields of a configuration file, which become defaults of the flags. A field is named as its flag, in camelCase.

use std::error::Error as _;

use anyhow::{Result, ensure};
use clap::{Arg, ArgAction, Command, error::ContextKind};
use serde_json::{Map, Value};

use super::{Kind, document::API_VERSION};

/// The flags whose only value is a list. A file may have it as a list, too.
const LISTS_IN_ONE_VALUE: [&str; 3] = ["nodeport_addresses", "external_ips", "load_balancer_ips"];

/// The words of flags that fields spell with capitals, as Kubernetes does.
const SPELLED: [(&str, &str); 7] = [
    ("arp", "ARP"),
    ("cidr", "CIDR"),
    ("cidrs", "CIDRs"),
    ("ips", "IPs"),
    ("nodeport", "nodePort"),
    ("nodeports", "nodePorts"),
    ("vips", "VIPs"),
];

/// One field with its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    /// The field of our files.
    pub(crate) field: String,
    pub(crate) value: Value,
    /// The path of the field in the file that sets it. In a file of kube-proxy, the path of kube-proxy's field.
    pub(crate) path: String,
}

/// Checks that a command accepts these settings.
///
/// # Errors
/// All at once: fields that the command does not have, fields that are set twice in two spellings, and values that are
/// not allowed.
pub(crate) fn check(command: &Command, settings: &[Setting]) -> Result<()> {
    let mut errors = Vec::new();
    for setting in settings {
        if let Err(reason) = check_setting(command, settings, setting) {
            errors.push(format!("{}: {reason}", setting.path));
        }
    }
    ensure!(errors.is_empty(), "{}", errors.join("; "));
    Ok(())
}

fn check_setting(command: &Command, settings: &[Setting], setting: &Setting) -> Result<(), String> {
    let Some((flag, arg)) = flags(command).find(|(flag, _)| field_of(flag) == setting.field) else {
        return Err(format!("`{}` has no such field", command.get_bin_name().unwrap_or_default()));
    };
    let is_set_twice = settings.iter().filter(|other| other.field == setting.field).count() > 1;
    if is_set_twice {
        return Err(format!("{} is set twice", setting.field));
    }
    parse(flag, arg, &flag_values(arg, &setting.value)?)
}

/// The command, where these settings are the defaults of its flags.
pub(crate) fn with_defaults(command: Command, settings: &[Setting]) -> Command {
    command.mut_args(|arg| with_default(arg, settings)).mut_subcommands(|inner| with_defaults(inner, settings))
}

fn with_default(arg: Arg, settings: &[Setting]) -> Arg {
    let Some(field) = arg.get_long().map(field_of) else { return arg };
    let Some(setting) = settings.iter().find(|setting| setting.field == field) else { return arg };
    match flag_values(&arg, &setting.value) {
        Ok(values) => arg.default_values(values),
        Err(_) => arg,
    }
}

/// The values of a flag that a field sets.
fn flag_values(arg: &Arg, value: &Value) -> Result<Vec<String>, String> {
    let is_switch = arg.is_require_equals_set();
    let values = match value {
        Value::Bool(on) if is_switch => return Ok(vec![on.to_string()]),
        _ if is_switch => return Err(format!("{value}: expected true or false")),
        Value::Array(entries) => entries.iter().map(scalar).collect::<Result<Vec<_>, _>>()?,
        entry => vec![scalar(entry)?],
    };

    match (arg.get_action(), arg.get_value_delimiter()) {
        (ArgAction::Append, Some(delimiter)) => {
            Ok(values.iter().flat_map(|value| value.split(delimiter)).map(|part| part.trim().to_owned()).collect())
        }
        (ArgAction::Append, None) => Ok(values),
        _ if LISTS_IN_ONE_VALUE.contains(&arg.get_id().as_str()) => Ok(vec![values.join(",")]),
        _ if values.len() == 1 => Ok(values),
        _ => Err(format!("{value}: expected one value")),
    }
}

/// A value that is not a list.
fn scalar(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) if !number.is_f64() => Ok(number.to_string()),
        _ => Err(format!("{value}: expected text (quote it) or a whole number")),
    }
}

/// Parses values as the flag does.
fn parse(flag: &str, arg: &Arg, values: &[String]) -> Result<(), String> {
    let command = Command::new("file").no_binary_name(true).arg(arg.clone());
    let parsed = command.try_get_matches_from(values.iter().map(|value| format!("--{flag}={value}")));
    match parsed {
        Ok(_) => Ok(()),
        Err(error) => {
            let value = error.get(ContextKind::InvalidValue).map(ToString::to_string).unwrap_or_default();
            let reason = error.source().map_or_else(|| expected(arg), ToString::to_string);
            Err(format!("invalid value '{value}': {reason}"))
        }
    }
}

fn expected(arg: &Arg) -> String {
    let possible: Vec<_> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    if possible.is_empty() { "expected a value".to_owned() } else { format!("expected one of {}", possible.join(", ")) }
}

/// One of our files, with these settings.
pub(crate) fn to_yaml(kind: Kind, settings: &[Setting]) -> Result<String> {
    let fields: Map<_, _> = settings.iter().map(|setting| (setting.field.clone(), setting.value.clone())).collect();
    Ok(format!("apiVersion: {API_VERSION}\nkind: {}\n{}", kind.name(), crate::print::yaml(&fields)?))
}

/// The flags of a command that a file may set.
pub(crate) fn flags(command: &Command) -> impl Iterator<Item = (&str, &Arg)> {
    let flags = command.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg)));
    flags.filter(|(flag, _)| !["config", "help", "version"].contains(flag))
}

/// `max-loss` is `maxLoss` in a file, and `cluster-cidr` is `clusterCIDR`, as Kubernetes and the chart write it.
pub(crate) fn field_of(flag: &str) -> String {
    let spelled = |word| SPELLED.iter().find(|(plain, _)| *plain == word).map(|(_, spelled)| *spelled);
    camel_case(flag.split('-').map(|word| spelled(word).unwrap_or(word)))
}

/// `["cluster", "CIDR"]` is `clusterCIDR`.
fn camel_case<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let mut field = String::new();
    for word in words {
        let mut letters = word.chars();
        let first = letters.next().map(|first| if field.is_empty() { first } else { first.to_ascii_uppercase() });
        field.extend(first);
        field.push_str(letters.as_str());
    }
    field
}

/// Gives the fields of a file their current spelling, with a warning. Earlier versions had `clusterCidr` in files, and
/// `clusterCIDRs` in the chart.
pub(crate) fn respell(command: &Command, settings: &mut [Setting]) -> Vec<String> {
    let mut warnings = Vec::new();
    for flag in flags(command).map(|(flag, _)| flag) {
        let current = field_of(flag);
        let outdated = [camel_case(flag.split('-')), format!("{current}s")];
        let is_outdated = |setting: &&mut Setting| setting.field != current && outdated.contains(&setting.field);
        for setting in settings.iter_mut().filter(is_outdated) {
            warnings.push(format!("{}: write {current}; the next version does not accept this spelling", setting.path));
            setting.field.clone_from(&current);
        }
    }
    warnings
}

impl Setting {
    pub(crate) fn new(path: impl Into<String>, field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { field: field.into(), value: value.into(), path: path.into() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::FromArgMatches as _;
    use serde_json::json;

    use super::*;
    use crate::cli::Cli;

    /// `fairlead frontend`, `backend configured` and `local`.
    fn commands() -> [(Kind, Command); 3] {
        let mut command = crate::cli::command();
        command.build();
        Kind::OURS.map(|kind| {
            let names = kind.command().iter();
            (kind, names.fold(command.clone(), |command, name| command.find_subcommand(name).unwrap().clone()))
        })
    }

    #[test]
    fn each_flag_has_its_own_field() {
        assert_eq!(["backend", "max-loss", "tls-client-ca"].map(field_of), ["backend", "maxLoss", "tlsClientCa"]);
        let spelled =
            ["cluster-cidr", "nodeport-addresses", "external-ips", "iptables-localhost-nodeports"].map(field_of);
        assert_eq!(spelled, ["clusterCIDR", "nodePortAddresses", "externalIPs", "iptablesLocalhostNodePorts"]);
        for (_, command) in commands() {
            let fields: Vec<_> = flags(&command).map(|(flag, _)| field_of(flag)).collect();
            assert!(fields.len() > 10, "{fields:?}");
            assert_eq!(fields.iter().collect::<BTreeSet<_>>().len(), fields.len(), "{fields:?}");
        }
    }

    #[test]
    fn each_field_takes_the_default_of_its_flag() {
        for (kind, command) in commands() {
            for (flag, arg) in flags(&command) {
                let values = arg.get_default_values().iter().map(|value| value.to_str().unwrap());
                let value = match values.collect::<Vec<_>>()[..] {
                    ["true" | "false"] => json!(true),
                    [value] => json!(value),
                    _ => continue,
                };
                let setting = Setting::new("path", field_of(flag), value);
                check(&command, std::slice::from_ref(&setting)).unwrap();
                let error = check(&command, &[Setting::new("path", field_of(flag), json!({}))]).unwrap_err();
                assert!(error.to_string().starts_with("path: "), "{flag}: {error}");
                let arguments = [&["fairlead"], kind.command()].concat();
                let matches = with_defaults(crate::cli::command(), &[setting]).get_matches_from(arguments);
                Cli::from_arg_matches(&matches).unwrap();
            }
        }
    }

    #[test]
    fn values_are_checked_by_type() {
        let [_, _, (_, local)] = commands();
        for (field, value, expected) in [
            ("maxLoss", json!(101), "invalid value '101'"),
            ("maxLoss", json!([1, 2]), "[1,2]: expected one value"),
            ("masqueradeAll", json!("true"), "\"true\": expected true or false"),
            ("nodeName", json!(true), "true: expected text (quote it) or a whole number"),
            ("clusterCIDR", json!(["10.0.0.0/8", "x"]), "invalid value 'x'"),
            ("backend", json!("bpf"), "invalid value 'bpf': expected one of nftables, iptables, ipvs"),
        ] {
            let error = check(&local, &[Setting::new("path", field, value)]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let lists = [
            ("clusterCIDR", json!("10.0.0.0/8, fd00::/8")),
            ("nodePortAddresses", json!(["10.0.0.0/8", "fd00::/8"])),
            ("externalIPs", json!(["10.0.0.0/8", "fd00::/8"])),
        ];
        check(&local, &lists.map(|(field, value)| Setting::new(field, field, value))).unwrap();
    }
}
