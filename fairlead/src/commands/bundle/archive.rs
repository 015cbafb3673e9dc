//! The archive: texts with names, redacted as they come in, and a manifest of what is there and what was left out.

use std::{
    fs::File,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use flate2::{Compression, write::GzEncoder};
use serde::Serialize;

use super::redact::{Addresses, Redactor};

/// An archive that is being gathered.
#[derive(Debug)]
pub(super) struct Archive {
    redactor: Redactor,
    files: Vec<(String, String)>,
    left_out: Vec<LeftOut>,
}

#[derive(Debug, Serialize)]
struct LeftOut {
    name: String,
    why: String,
}

#[derive(Debug, Serialize)]
struct Manifest<'a> {
    version: &'static str,
    node: &'a str,
    unix_seconds: u64,
    addresses: &'static str,
    files: Vec<Listed<'a>>,
    left_out: &'a [LeftOut],
}

#[derive(Debug, Serialize)]
struct Listed<'a> {
    name: &'a str,
    bytes: usize,
}

// === impl Archive ===

impl Archive {
    pub(super) fn new(addresses: Addresses) -> Self {
        Self { redactor: Redactor::new(addresses), files: Vec::new(), left_out: Vec::new() }
    }

    /// Takes in a text, or why there is none.
    pub(super) fn add(&mut self, name: impl Into<String>, text: Result<String>) {
        let name = name.into();
        match text {
            Ok(text) => self.files.push((name, self.redactor.text(&text))),
            Err(error) => {
                let why = self.redactor.text(&format!("{error:#}")).trim_end().to_owned();
                self.left_out.push(LeftOut { name, why });
            }
        }
    }

    /// Writes everything to a file that must not be there yet, below a directory named after the node. Says how many files there are,
    /// and what was left out.
    pub(super) fn write(mut self, path: &Path, node: &str, addresses: Addresses) -> Result<(usize, Vec<String>)> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let manifest = Manifest {
            version: env!("CARGO_PKG_VERSION"),
            node,
            unix_seconds: now,
            addresses: match addresses {
                Addresses::Shown => "as they are",
                Addresses::Replaced => "each replaced by a name",
            },
            files: self.files.iter().map(|(name, text)| Listed { name, bytes: text.len() }).collect(),
            left_out: &self.left_out,
        };
        let manifest = serde_json::to_string_pretty(&manifest)?;
        self.files.push(("manifest.json".to_owned(), manifest));
        let file = File::create_new(path).with_context(|| format!("cannot make {}", path.display()))?;
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
