//! The program under test, which was built with the same profile as this test.

use std::{path::PathBuf, process::Command};

/// `fairlead`, without the test's environment variables.
pub fn fairlead() -> Command {
    program("fairlead")
}

/// The program of the package with this name, without the test's environment variables.
pub fn program(name: &str) -> Command {
    let mut command = Command::new(built(name));
    let names = std::env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| name.to_str().is_some_and(|name| name.starts_with("FAIRLEAD_"))) {
        command.env_remove(name);
    }
    command.env_remove("NODE_NAME").env_remove("KUBECONFIG");
    command
}

/// `target/<profile>/fairlead`; a test is `target/<profile>/deps/<test>`, a program `target/<profile>/<program>`.
pub(super) fn path() -> PathBuf {
    built("fairlead")
}

fn built(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("the path of this program");
    let directories = this.ancestors().skip(1).take(2);
    let mut candidates = directories.map(|directory| directory.join(name));
    candidates.find(|path| path.is_file()).unwrap_or_else(|| {
        panic!("no `{name}` beside {}: build it with `cargo build -p {name}` (or build the workspace)", this.display())
    })
}
