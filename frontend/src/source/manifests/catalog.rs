//! The objects in the files of a directory, and what has changed since they were last read.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::Arc,
};

use tracing::{info, warn};

use super::document::{FileContents, ManifestFormat, ObjectKey};
use crate::object::{ObjectKind, ParsedObject, SourceUpdate};

/// A directory as it was last read.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    directory: PathBuf,
    files: Files,
}

/// By name.
type Files = BTreeMap<OsString, ManifestFile>;

/// A file that contains an object, and the object in it.
type FileObject<'a> = (&'a OsString, &'a ParsedObject);

/// Which files may have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RefreshScope {
    /// All files of the directory.
    Everything,
    /// Files that were written (one that is missing now will be reported as removed), and files that were removed (one
    /// that exists now will be reported as written).
    Files { changed: BTreeSet<OsString>, removed: BTreeSet<OsString> },
}

/// The changes since the last refresh.
#[derive(Debug, Default)]
pub(super) struct RefreshResult {
    /// The difference, sorted by key.
    pub(super) updates: Vec<SourceUpdate>,
    /// For the log.
    pub(super) notices: Vec<FileNotice>,
    /// The number of files that were opened.
    pub(super) read: usize,
}

/// A log line about a file: one when a problem begins, and one when it ends.
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

#[derive(Clone, Debug, Default)]
struct ManifestFile {
    stamp: FileStamp,
    /// From the last successful read.
    contents: Arc<FileContents>,
    /// Why `contents` is outdated.
    unreadable: Option<String>,
}

/// Detects a change of a file without opening it: device, inode, size, and the times of the last modification and
/// change. The change time detects a write that resets the modification time.
type FileStamp = (u64, u64, u64, [i64; 4]);

// === impl Catalog ===

impl Catalog {
    /// A directory that has not been read.
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory, files: Files::new() }
    }

    /// Reads the files that have changed since the last refresh. If the directory cannot be listed, nothing changes.
    pub(super) fn refresh(&mut self, scope: RefreshScope) -> io::Result<RefreshResult> {
        let (names, removed) = match scope {
            RefreshScope::Everything => {
                let names = self.list()?;
                let removed = self.files.keys().filter(|name| !names.contains(*name)).cloned().collect();
                (names, removed)
            }
            RefreshScope::Files { changed, removed } => (changed, removed),
        };
        let (mut files, mut refreshed) = (self.files.clone(), RefreshResult::default());
        for name in &names {
            self.read(name, &mut files, &mut refreshed);
        }
        for name in &removed {
            if !self.directory.join(name).exists() && files.remove(name).is_some() {
                refreshed.notices.push(FileNotice::Removed { file: name.clone() });
            }
        }
        let named = names.iter().chain(&removed).flat_map(|name| [self.files.get(name), files.get(name)]);
        let keys: BTreeSet<_> = named.flatten().flat_map(|file| file.contents.objects.keys()).collect();
        let (before, after) = (files_of(&self.files, &keys), files_of(&files, &keys));
        for key in keys {
            let (before, after) = (before.get(key), after.get(key));
            let (before, after) = (before.map(Vec::as_slice), after.map(Vec::as_slice));
            refreshed.compare(key, before.unwrap_or_default(), after.unwrap_or_default());
        }
        self.files = files;
        Ok(refreshed)
    }

    /// All objects of a kind that are used.
    pub(super) fn objects(&self, kind: ObjectKind) -> Vec<ParsedObject> {
        let mut used = BTreeMap::new();
        let all = self.files.values().flat_map(|file| &file.contents.objects);
        for (key, object) in all.filter(|(key, _)| key.0 == kind) {
            used.entry(key).or_insert(object);
        }
        used.into_values().cloned().collect()
    }

    /// Whether the directory has any manifest now.
    pub(super) fn any_manifest(&self) -> io::Result<bool> {
        Ok(self.list()?.iter().any(|name| ManifestFormat::of(name).is_some()))
    }

    /// Whether no file has been read.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Whether the last read of a file failed.
    pub(super) fn is_unreadable(&self, name: &OsStr) -> bool {
        self.files.get(name).is_some_and(|file| file.unreadable.is_some())
    }

    /// The names in the directory now.
    fn list(&self) -> io::Result<BTreeSet<OsString>> {
        fs::read_dir(&self.directory)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    /// Reads a file if it has changed. If it cannot be read, its last contents stay.
    fn read(&self, name: &OsStr, files: &mut Files, refreshed: &mut RefreshResult) {
        let Some(format) = ManifestFormat::of(name) else { return };
        let path = self.directory.join(name);
        let (stamp, text) = match fs::metadata(&path) {
            Ok(metadata) if !metadata.is_file() => return,
            Ok(metadata) => {
                let stamp = stamp(&metadata);
                if files.get(name).is_some_and(|file| file.stamp == stamp) {
                    return;
                }
                refreshed.read += 1;
                (stamp, fs::read_to_string(&path))
            }
            Err(error) => (FileStamp::default(), Err(error)),
        };
        let read = match text {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => Err(error.to_string()),
            Ok(text) => FileContents::read(&text, format),
        };
        let (file, notices) = (files.entry(name.to_owned()).or_default(), &mut refreshed.notices);
        file.stamp = stamp;
        match read {
            Ok(contents) => {
                if file.unreadable.take().is_some() {
                    notices.push(FileNotice::Readable { file: name.to_owned() });
                }
                if contents.problems != file.contents.problems {
                    let valid = contents.problems.is_empty().then(|| FileNotice::Valid { file: name.to_owned() });
                    let document =
                        |problem: &String| FileNotice::Document { file: name.to_owned(), problem: problem.clone() };
                    notices.extend(valid.into_iter().chain(contents.problems.iter().map(document)));
                }
                file.contents = contents.into();
            }
            Err(error) if file.unreadable.as_ref() != Some(&error) => {
                file.unreadable = Some(error.clone());
                notices.push(FileNotice::Unreadable { file: name.to_owned(), error });
            }
            Err(_) => {}
        }
    }
}

/// The files that contain each of these objects. The first by name is used.
fn files_of<'a>(files: &'a Files, keys: &BTreeSet<&ObjectKey>) -> BTreeMap<&'a ObjectKey, Vec<FileObject<'a>>> {
    let mut found = BTreeMap::<_, Vec<_>>::new();
    for (name, file) in files {
        for (key, object) in file.contents.objects.iter().filter(|(key, _)| keys.contains(*key)) {
            found.entry(key).or_default().push((name, object));
        }
    }
    found
}

fn stamp(file: &fs::Metadata) -> FileStamp {
    (file.dev(), file.ino(), file.size(), [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()])
}

// === impl RefreshResult ===

impl RefreshResult {
    /// Adds what has changed in an object, and in the files that contain it.
    fn compare(&mut self, key: &ObjectKey, before: &[FileObject<'_>], after: &[FileObject<'_>]) {
        match (before.first(), after.first()) {
            (before, Some((_, after))) if before.is_none_or(|(_, before)| before != after) => {
                self.updates.push(SourceUpdate::Apply((*after).clone()));
            }
            (Some(_), None) => self.updates.push(SourceUpdate::Delete(key.0, key.1.clone())),
            _ => {}
        }
        let names = |files: &[FileObject<'_>]| files.iter().map(|(name, _)| (*name).clone()).collect::<Vec<_>>();
        let (before, mut ignored) = (names(before), names(after));
        if ignored.is_empty() || ignored == before {
            return;
        }
        let (object, used) = (key.clone(), ignored.remove(0));
        if !ignored.is_empty() {
            self.notices.push(FileNotice::Duplicate { object, used, ignored });
        } else if before.len() > 1 {
            self.notices.push(FileNotice::Unique { object, used });
        }
    }
}

// === impl FileNotice ===

impl FileNotice {
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

#[cfg(test)]
mod tests;
