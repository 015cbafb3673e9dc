//! What a build takes from outside is pinned: actions by commit, base images by digest; and no check is skipped
//! silently.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};

use super::{all_files, assert_about, assert_none, top, tree};

/// The user and group of an image whose program needs no privileges.
const UNPRIVILEGED: &str = "65532:65532";
/// Images that start as root, and why.
const ROOT_IMAGES: &[(&str, &str)] = &[("tools", "it writes the node's kernel")];

#[test]
fn actions_and_images_are_pinned() -> Result<()> {
    assert_none(&unpinned(&top()?)?);
    Ok(())
}

#[test]
fn images_start_without_privileges() -> Result<()> {
    assert_none(&privileged_images(&fs::read_to_string(top()?.join(".ci/Dockerfile"))?));
    Ok(())
}

/// A test that passes only at a second attempt hides a fault, in the test or in the program.
#[test]
fn no_test_is_retried() -> Result<()> {
    let config = fs::read_to_string(top()?.join(".config/nextest.toml"))?;
    let retries = config.lines().filter(|line| line.trim_start().starts_with("retries") || line.contains(", retries"));
    assert_eq!(retries.collect::<Vec<_>>(), [""; 0]);
    Ok(())
}

#[test]
fn missing_cargo_deny_fails_the_check() -> Result<()> {
    let dir = tree(&[(".ci/deny", &script("deny")?), (".ci/tools", &script("tools")?)])?;
    let mut command = Command::new("bash");
    command.arg(dir.path().join(".ci/deny")).env("PATH", "/usr/bin:/bin").env("XDG_CACHE_HOME", dir.path());
    let output = command.output()?;
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("cargo-deny is not installed: 'make setup'"), "{message}");
    Ok(())
}

/// Debian 12 has no package of rustup.
#[test]
fn setup_without_rustup_package_prints_installer() -> Result<()> {
    let dir = tree(&[
        (".ci/setup", &script("setup")?),
        (".ci/tools", &script("tools")?),
        ("bin/dpkg-query", "#!/bin/sh\necho installed\n"),
        ("bin/apt-cache", "#!/bin/sh\nexit 1\n"),
        ("bin/apt-get", "#!/bin/sh\n"),
        ("bin/sudo", "#!/bin/sh\n"),
    ])?;
    // Without cargo, which may be beside them.
    let link = "for name in bash dirname id; do ln -s $(command -v $name) bin/; done; chmod +x bin/*";
    Command::new("bash").args(["-c", link]).current_dir(dir.path()).status()?;
    let mut command = Command::new("bash");
    command.arg(dir.path().join(".ci/setup")).arg("build").env("PATH", dir.path().join("bin"));
    let output = command.env("CARGO_HOME", dir.path()).stdin(Stdio::null()).output()?;
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("install it, and run make again: curl "), "{message}");
    Ok(())
}

/// A fake cargo shows which checks run.
#[test]
fn missing_advisory_database_is_reported() -> Result<()> {
    let dir = tree(&[
        (".ci/deny", &script("deny")?),
        (".ci/tools", &script("tools")?),
        ("fairlead/bin/cargo-deny", ""),
        ("fairlead/bin/cargo", "#!/bin/sh\necho \"$@\"\n"),
    ])?;
    let check = || -> Result<(String, String)> {
        let output = Command::new("bash")
            .args(["-c", "chmod +x fairlead/bin/* && bash .ci/deny"])
            .current_dir(dir.path())
            .env("PATH", "/usr/bin:/bin")
            .env("XDG_CACHE_HOME", dir.path())
            .output()?;
        let text = |bytes| String::from_utf8(bytes).context("output is not UTF-8");
        Ok((text(output.stdout)?, text(output.stderr)?))
    };
    let (checks, warning) = check()?;
    assert!(checks.ends_with(" bans licenses sources\n"), "{checks}");
    assert!(warning.contains("advisories are NOT checked"), "{warning}");
    fs::create_dir_all(dir.path().join("target/advisory-db/advisory-db-0/crates"))?;
    let (checks, warning) = check()?;
    assert!(checks.ends_with(" advisories\n"), "{checks}");
    assert_eq!(warning, "");
    Ok(())
}

/// The text of a script in `.ci/`.
fn script(name: &str) -> Result<String> {
    Ok(fs::read_to_string(top()?.join(".ci").join(name))?)
}

/// Actions that a branch or a tag names, and images without a digest, in workflows and in the Dockerfile.
fn unpinned(dir: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let workflows = all_files(&dir.join(".github/workflows"))?;
    for path in workflows.into_iter().chain([dir.join(".ci/Dockerfile")]) {
        let text = fs::read_to_string(&path)?;
        // The names of build stages, which later stages may start from.
        let mut stages = vec!["scratch"];
        for (number, line) in text.lines().enumerate() {
            let words: Vec<_> = line.split_whitespace().collect();
            let pinned = match words.as_slice() {
                ["uses:", action, ..] | ["-", "uses:", action, ..] => {
                    action.starts_with("./") || has_digest(action, "@", 40)
                }
                ["image:" | "container:", image, ..] if !image.contains("${{") => has_digest(image, "@sha256:", 64),
                ["FROM", image, rest @ ..] => {
                    let known = stages.contains(image);
                    stages.extend(rest.last());
                    known || has_digest(image, "@sha256:", 64)
                }
                _ => true,
            };
            if !pinned {
                let line = line.trim();
                problems.push(format!("{}:{}: {line}: pin it by commit or digest", path.display(), number + 1));
            }
        }
    }
    Ok(problems)
}

/// Whether a reference ends with `mark` and this number of hexadecimal digits, perhaps within quotes.
fn has_digest(reference: &str, mark: &str, digits: usize) -> bool {
    let digest = reference.trim_matches('"').rsplit_once(mark).map(|(_, digest)| digest);
    digest.is_some_and(|digest| digest.len() == digits && digest.chars().all(|c| c.is_ascii_hexdigit()))
}

/// Final stages, those with an entry point, that start as another user than [`UNPRIVILEGED`].
fn privileged_images(dockerfile: &str) -> Vec<String> {
    let stages = dockerfile.split("\nFROM ").skip(1).filter(|stage| stage.contains("\nENTRYPOINT "));
    stages
        .filter_map(|stage| {
            let name = stage.lines().next()?.rsplit_once(" AS ")?.1;
            let user = stage.lines().filter_map(|line| line.strip_prefix("USER ")).next_back().unwrap_or("root");
            let allowed = user == UNPRIVILEGED || ROOT_IMAGES.iter().any(|(image, _)| *image == name);
            (!allowed).then(|| format!("Dockerfile: image {name} starts as {user}; use {UNPRIVILEGED}"))
        })
        .collect()
}

// === Each rule can fail ===

#[test]
fn unpinned_actions_and_images_are_found() -> Result<()> {
    let (commit, digest) = ("0".repeat(40), "0".repeat(64));
    let workflow = format!(
        "- uses: a/b@v4\n- uses: a/b@{commit} # v4\n- uses: ./.github/workflows/c.yml\n  uses: a/b@main\n\
         image: \"debian@sha256:{digest}\"\nimage: debian:trixie\nimage: ${{{{ env.IMAGE }}}}\n"
    );
    let dockerfile = format!("FROM rust:1 AS build\nFROM scratch AS a\nFROM a\nFROM debian@sha256:{digest} AS b\n");
    let dir = tree(&[(".github/workflows/ci.yml", &workflow), (".ci/Dockerfile", &dockerfile)])?;
    assert_about(&unpinned(dir.path())?, &["ci.yml:1", "ci.yml:4", "ci.yml:6", "Dockerfile:1"]);
    Ok(())
}

#[test]
fn privileged_images_are_found() {
    let dockerfile = "# x\nFROM a AS build\nRUN b\nFROM c AS one\nENTRYPOINT [\"d\"]\nFROM c AS two\nUSER 0:0\n\
                      ENTRYPOINT [\"d\"]\nFROM c AS three\nUSER 65532:65532\nENTRYPOINT [\"d\"]\n";
    assert_about(&privileged_images(dockerfile), &["image one starts as root", "image two starts as 0:0"]);
}
