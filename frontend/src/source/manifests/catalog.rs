//! The objects in the files of a directory, and the updates when files change.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::MetadataExt,
    path::PathBuf,
};

use super::{
    document::{FileContents, ManifestFormat, ObjectKey},
    notice::FileNotice,
};
use crate::object::{ObjectKind, ParsedObject, SourceUpdate};

/// A directory as it was last read.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    directory: PathBuf,
    files: BTreeMap<OsString, ManifestFile>,
    /// The files that contain an object. The first by name is used.
    files_of: BTreeMap<ObjectKey, BTreeSet<OsString>>,
}

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

#[derive(Debug, Default, PartialEq, Eq)]
struct ManifestFile {
    stamp: FileStamp,
    /// From the last successful read.
    contents: FileContents,
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
        Self { directory, ..Self::default() }
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
        let mut refreshed = RefreshResult::default();
        let mut changed = BTreeMap::new();
        for name in names {
            if let Some(format) = ManifestFormat::of(&name)
                && let Some(file) = self.read(&name, format, &mut refreshed)
            {
                changed.insert(name, Some(file));
            }
        }
        for name in removed {
            if self.files.contains_key(&name) && !self.directory.join(&name).exists() {
                refreshed.notices.push(FileNotice::Removed { file: name.clone() });
                changed.insert(name, None);
            }
        }
        self.replace(changed, &mut refreshed);
        Ok(refreshed)
    }

    /// All objects of a kind that are used.
    pub(super) fn objects(&self, kind: ObjectKind) -> Vec<ParsedObject> {
        self.files_of.keys().filter(|key| key.0 == kind).filter_map(|key| self.get(key)).cloned().collect()
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

    /// Reads a file if it has changed. `None` if it has not, or cannot be read.
    fn read(&mut self, name: &OsStr, format: ManifestFormat, refreshed: &mut RefreshResult) -> Option<ManifestFile> {
        let path = self.directory.join(name);
        let (stamp, text) = match fs::metadata(&path) {
            Ok(metadata) if !metadata.is_file() => return None,
            Ok(metadata) => {
                let stamp = stamp(&metadata);
                if self.files.get(name).is_some_and(|file| file.stamp == stamp) {
                    return None;
                }
                refreshed.read += 1;
                (stamp, fs::read_to_string(&path))
            }
            Err(error) => (FileStamp::default(), Err(error)),
        };
        let read = match text {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => Err(error.to_string()),
            Ok(text) => FileContents::read(&text, format),
        };
        match read {
            Ok(contents) => {
                self.compare_problems(name, &contents, refreshed);
                Some(ManifestFile { stamp, contents, unreadable: None })
            }
            Err(error) => {
                self.keep_last_contents(name, stamp, error, refreshed);
                None
            }
        }
    }

    /// Keeps the last contents of a file that cannot be read now.
    fn keep_last_contents(&mut self, name: &OsStr, stamp: FileStamp, error: String, refreshed: &mut RefreshResult) {
        let file = self.files.entry(name.to_owned()).or_default();
        file.stamp = stamp;
        if file.unreadable.as_ref() != Some(&error) {
            file.unreadable = Some(error.clone());
            refreshed.notices.push(FileNotice::Unreadable { file: name.to_owned(), error });
        }
    }

    /// Adds notices if the problems of a file have changed.
    fn compare_problems(&self, name: &OsStr, contents: &FileContents, refreshed: &mut RefreshResult) {
        let before = self.files.get(name);
        if before.is_some_and(|file| file.unreadable.is_some()) {
            refreshed.notices.push(FileNotice::Readable { file: name.to_owned() });
        }
        let problems = before.map_or(&[][..], |file| &file.contents.problems);
        if problems == contents.problems {
            return;
        }
        if contents.problems.is_empty() {
            refreshed.notices.push(FileNotice::Valid { file: name.to_owned() });
        }
        let notice = |problem: &String| FileNotice::Document { file: name.to_owned(), problem: problem.clone() };
        refreshed.notices.extend(contents.problems.iter().map(notice));
    }

    /// Replaces the changed files, and adds the updates.
    fn replace(&mut self, changed: BTreeMap<OsString, Option<ManifestFile>>, refreshed: &mut RefreshResult) {
        let keys: BTreeSet<ObjectKey> = changed
            .iter()
            .flat_map(|(name, file)| [self.files.get(name), file.as_ref()])
            .flatten()
            .flat_map(|file| file.contents.objects.keys().cloned())
            .collect();
        let before = keys.into_iter().map(|key| {
            let object = self.get(&key).cloned();
            let files = self.files_of.get(&key).cloned().unwrap_or_default();
            (key, object, files)
        });
        let before: Vec<_> = before.collect();
        for (name, file) in changed {
            self.put(name, file);
        }
        for (key, object, files) in before {
            let after = self.get(&key);
            match (&object, after) {
                (before, Some(after)) if before.as_ref() != Some(after) => {
                    refreshed.updates.push(SourceUpdate::Apply(after.clone()));
                }
                (Some(_), None) => refreshed.updates.push(SourceUpdate::Delete(key.0, key.1.clone())),
                _ => {}
            }
            refreshed.notices.extend(FileNotice::of_files(&key, &files, self.files_of.get(&key)));
        }
    }

    fn put(&mut self, name: OsString, file: Option<ManifestFile>) {
        for key in self.files.remove(&name).into_iter().flat_map(|file| file.contents.objects.into_keys()) {
            if let Some(files) = self.files_of.get_mut(&key) {
                files.remove(&name);
                if files.is_empty() {
                    self.files_of.remove(&key);
                }
            }
        }
        if let Some(file) = file {
            for key in file.contents.objects.keys() {
                self.files_of.entry(key.clone()).or_default().insert(name.clone());
            }
            self.files.insert(name, file);
        }
    }

    /// The object that is used.
    fn get(&self, key: &ObjectKey) -> Option<&ParsedObject> {
        self.files.get(self.files_of.get(key)?.first()?)?.contents.objects.get(key)
    }
}

fn stamp(file: &fs::Metadata) -> FileStamp {
    (file.dev(), file.ino(), file.size(), [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()])
}

#[cfg(test)]
mod tests;
