//! The archive: redacted text files, and a manifest of the files it contains and of those left out.

use std::{
    fmt::Display,
    fs::File,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use flate2::{Compression, write::GzEncoder};
use serde_json::json;

use super::redact::Redactor;

/// An archive in memory.
#[derive(Debug)]
pub(super) struct Archive {
    redactor: Redactor,
    /// Each with its text.
    files: Vec<(String, String)>,
    /// Each with the reason.
    left_out: Vec<(String, String)>,
}

impl Archive {
    pub(super) fn new(replaces_addresses: bool) -> Self {
        Self { redactor: Redactor::new(replaces_addresses), files: Vec::new(), left_out: Vec::new() }
    }

    /// Adds a file with this text, or lists it as left out with the error.
    pub(super) fn add(&mut self, name: impl Into<String>, text: Result<String>) {
        let name = name.into();
        match text {
            Ok(text) => self.files.push((name, self.redactor.text(&text))),
            Err(error) => {
                let why = self.redactor.text(&format!("{error:#}")).trim_end().to_owned();
                self.left_out.push((name, why));
            }
        }
    }

    /// Adds a file with each text to a directory, or lists the file or the whole directory as left out with the error.
    pub(super) fn add_all<N: Display>(&mut self, directory: &str, texts: Result<Vec<(N, Result<String>)>>) {
        match texts {
            Ok(texts) => {
                texts.into_iter().for_each(|(name, text)| self.add(format!("{directory}/{name}.txt"), text));
            }
            Err(error) => self.add(directory, Err(error)),
        }
    }

    /// Creates the file; all entries are in one directory, named after the node. Returns the number of entries, and a
    /// line for each file left out.
    pub(super) fn write(mut self, path: &Path, node: &str) -> Result<(usize, Vec<String>)> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let files = self.files.iter().map(|(name, text)| json!({ "name": name, "bytes": text.len() }));
        let left_out = self.left_out.iter().map(|(name, why)| json!({ "name": name, "why": why }));
        let manifest = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "node": node,
            "unix_seconds": now,
            "addresses": if self.redactor.replaces_addresses { "replaced by pseudonyms" } else { "unchanged" },
            "files": files.collect::<Vec<_>>(),
            "left_out": left_out.collect::<Vec<_>>(),
        });
        let manifest = format!("{manifest:#}");
        self.files.push(("manifest.json".to_owned(), manifest));
        let file = File::create_new(path).with_context(|| format!("cannot create {}", path.display()))?;
        let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
        for (name, text) in &self.files {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(now);
            archive.append_data(&mut header, format!("fairlead-{node}/{name}"), text.as_bytes())?;
        }
        archive.into_inner().and_then(GzEncoder::finish).context("cannot write the archive")?;
        Ok((self.files.len(), self.left_out.into_iter().map(|(name, why)| format!("{name}: {why}")).collect()))
    }
}
