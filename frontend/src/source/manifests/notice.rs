//! What people should know about the files of a directory: said once when it begins, and once when it ends.

use std::collections::BTreeSet;
use std::ffi::OsString;

use tracing::{info, warn};

use super::document::Key;

/// One thing to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// A file cannot be read, or cannot be told apart into documents. What it held last stays.
    Unreadable { file: OsString, error: String },
    /// Such a file can be read again.
    Readable { file: OsString },
    /// A document of a file is not used. The others are.
    Document { file: OsString, complaint: String },
    /// All documents of a file are used again.
    Mended { file: OsString },
    /// A file is gone, and what it held.
    Removed { file: OsString },
    /// Several files hold an object.
    Duplicate { object: Key, used: OsString, ignored: Vec<OsString> },
    /// Only one file still holds it.
    Unique { object: Key, used: OsString },
}

// === impl Notice ===

impl Notice {
    /// What there is to know when the files that hold an object change.
    pub(super) fn of_holders(
        object: &Key,
        before: &BTreeSet<OsString>,
        after: Option<&BTreeSet<OsString>>,
    ) -> Option<Self> {
        let after = after.filter(|after| *after != before)?;
        let (object, used) = (object.clone(), after.first()?.clone());
        let ignored: Vec<_> = after.iter().skip(1).cloned().collect();
        if !ignored.is_empty() {
            Some(Self::Duplicate { object, used, ignored })
        } else if before.len() > 1 {
            Some(Self::Unique { object, used })
        } else {
            None
        }
    }

    /// Writes it to the log.
    pub(super) fn log(&self) {
        match self {
            Self::Unreadable { file, error } => {
                warn!(?file, %error, "manifest cannot be read, what it held last stays in force");
            }
            Self::Readable { file } => info!(?file, "manifest can be read again"),
            Self::Document { file, complaint } => {
                warn!(?file, %complaint, "document of a manifest is not used");
            }
            Self::Mended { file } => info!(?file, "all documents of the manifest are used again"),
            Self::Removed { file } => info!(?file, "manifest is gone"),
            Self::Duplicate { object: (kind, name), used, ignored } => {
                warn!(%kind, %name, ?used, ?ignored, "object is in several manifests, the first is used");
            }
            Self::Unique { object: (kind, name), used } => {
                info!(%kind, %name, ?used, "object is in one manifest again");
            }
        }
    }
}
