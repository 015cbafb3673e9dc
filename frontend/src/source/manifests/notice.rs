//! Log lines about files: one when a problem begins, and one when it ends.

use std::{collections::BTreeSet, ffi::OsString};

use tracing::{info, warn};

use super::document::ObjectKey;

/// One log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FileNotice {
    /// A file cannot be read, or cannot be split into documents. Its last contents stay.
    Unreadable { file: OsString, error: String },
    /// Such a file has been read again.
    Readable { file: OsString },
    /// A document of a file is not used. The others are.
    Document { file: OsString, problem: String },
    /// All documents of a file are used again.
    Valid { file: OsString },
    /// A file was removed, and with it its objects.
    Removed { file: OsString },
    /// Several files contain an object.
    Duplicate { object: ObjectKey, used: OsString, ignored: Vec<OsString> },
    /// Only one file still contains it.
    Unique { object: ObjectKey, used: OsString },
}

// === impl FileNotice ===

impl FileNotice {
    /// For a change of the files that contain an object.
    pub(super) fn of_files(
        object: &ObjectKey,
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
            Self::Unreadable { file, error } => warn!(?file, %error, "cannot read manifest, keeping its last objects"),
            Self::Readable { file } => info!(?file, "manifest read again"),
            Self::Document { file, problem } => warn!(?file, %problem, "document of a manifest ignored"),
            Self::Valid { file } => info!(?file, "all documents of the manifest used again"),
            Self::Removed { file } => info!(?file, "manifest removed"),
            Self::Duplicate { object: (kind, name), used, ignored } => {
                warn!(%kind, %name, ?used, ?ignored, "object is in several manifests, using the first");
            }
            Self::Unique { object: (kind, name), used } => {
                info!(%kind, %name, ?used, "object is in one manifest again");
            }
        }
    }
}
