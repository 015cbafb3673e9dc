//! The archive: redacted text files, and a manifest of the files it contains and of those left out.

use std::{
    fmt::Display,
    fs::File,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use flate2::{Compression, write::GzEncoder};
use serde::Serialize;

use super::redact::{Addresses, Redactor};

/// An archive in memory.
#[derive(Debug)]
pub(super) struct Archive {
    redactor: Redactor,
    files: Vec<(String, String)>,
    left_out: Vec<LeftOutFile>,
}

#[derive(Debug, Serialize)]
struct LeftOutFile {
    name: String,
    why: String,
}

#[derive(Debug, Serialize)]
struct Manifest<'a> {
    version: &'static str,
    node: &'a str,
    unix_seconds: u64,
    addresses: &'static str,
    files: Vec<BundleFile<'a>>,
    left_out: &'a [LeftOutFile],
}

#[derive(Debug, Serialize)]
struct BundleFile<'a> {
    name: &'a str,
    bytes: usize,
}

// === impl Archive ===

impl Archive {
    pub(super) fn new(addresses: Addresses) -> Self {
        Self { redactor: Redactor::new(addresses), files: Vec::new(), left_out: Vec::new() }
    }

    /// Adds a file with this text, or lists it as left out with the error.
    pub(super) fn add(&mut self, name: impl Into<String>, text: Result<String>) {
        let name = name.into();
        match text {
            Ok(text) => self.files.push((name, self.redactor.text(&text))),
            Err(error) => {
                let why = self.redactor.text(&format!("{error:#}")).trim_end().to_owned();
                self.left_out.push(LeftOutFile { name, why });
            }
        }
    }

    /// Adds a file with each text to a directory, or lists the directory as left out with the error.
    pub(super) fn add_all<N: Display>(&mut self, directory: &str, texts: Result<Vec<(N, String)>>) {
        match texts {
            Ok(texts) => {
                texts.into_iter().for_each(|(name, text)| self.add(format!("{directory}/{name}.txt"), Ok(text)));
            }
            Err(error) => self.add(directory, Err(error)),
        }
    }

    /// Creates the file; all entries are in one directory, named after the node. Returns the number of entries, and a
    /// line for each file left out.
    pub(super) fn write(mut self, path: &Path, node: &str) -> Result<(usize, Vec<String>)> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let manifest = Manifest {
            version: env!("CARGO_PKG_VERSION"),
            node,
            unix_seconds: now,
            addresses: match self.redactor.addresses {
                Addresses::Shown => "unchanged",
                Addresses::Replaced => "replaced by pseudonyms",
            },
            files: self.files.iter().map(|(name, text)| BundleFile { name, bytes: text.len() }).collect(),
            left_out: &self.left_out,
        };
        let manifest = serde_json::to_string_pretty(&manifest)?;
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
        Ok((self.files.len(), self.left_out.into_iter().map(|it| format!("{}: {}", it.name, it.why)).collect()))
    }
}
