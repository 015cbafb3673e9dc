//! What the files of a directory hold, and what a changed file changes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::{fs, io};

use super::document::{Contents, Format, Key};
use super::notice::Notice;
use crate::object::{ObjectKind, ParsedObject, SourceUpdate};

/// A directory as it was last read.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    directory: PathBuf,
    files: BTreeMap<OsString, File>,
    /// The files that hold an object. The first by name is the one that counts.
    holders: BTreeMap<Key, BTreeSet<OsString>>,
}

/// Where to look for changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// In the whole directory.
    Everything,
    /// In files that are complete (one that is missing by now has yet to be reported as gone), and in files that may be gone
    /// (one that is there has yet to be reported as complete).
    Files { changed: BTreeSet<OsString>, gone: BTreeSet<OsString> },
}

/// What looking for changes has found.
#[derive(Debug, Default)]
pub(super) struct Pass {
    /// The difference, in the order of the keys.
    pub(super) updates: Vec<SourceUpdate>,
    /// What people should know of.
    pub(super) notices: Vec<Notice>,
    /// How many files were opened.
    pub(super) read: usize,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct File {
    stamp: Stamp,
    /// What could be read last.
    contents: Contents,
    /// Why `contents` is not what the file holds now.
    unreadable: Option<String>,
}

/// Tells one state of a file from the next without opening it. The change time is there for a write that sets back the
/// modification time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

// === impl Catalog ===

impl Catalog {
    /// A directory of which nothing has been read.
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory, ..Self::default() }
    }

    /// Reads the files that have changed since the last time. If the directory cannot be listed, all stays as it is.
    pub(super) fn refresh(&mut self, scope: &Scope) -> io::Result<Pass> {
        let (names, gone) = match scope {
            Scope::Everything => {
                let names = self.list()?;
                let gone = self.files.keys().filter(|name| !names.contains(*name)).cloned().collect();
                (names, gone)
            }
            Scope::Files { changed, gone } => (changed.clone(), gone.clone()),
        };
        let mut pass = Pass::default();
        let mut changed = BTreeMap::new();
        for name in names {
            if let Some(format) = name.to_str().and_then(Format::of)
                && let Some(file) = self.look_at(&name, format, &mut pass)
            {
                changed.insert(name, Some(file));
            }
        }
        for name in gone {
            if self.files.contains_key(&name) && !self.directory.join(&name).exists() {
                pass.notices.push(Notice::Removed { file: name.clone() });
                changed.insert(name, None);
            }
        }
        self.replace(changed, &mut pass);
        Ok(pass)
    }

    /// All objects of a kind that count.
    pub(super) fn objects(&self, kind: ObjectKind) -> Vec<ParsedObject> {
        self.holders.keys().filter(|key| key.0 == kind).filter_map(|key| self.get(key)).cloned().collect()
    }

    /// Whether any manifest is there to be read.
    pub(super) fn any_manifest(&self) -> io::Result<bool> {
        Ok(self.list()?.iter().any(|name| name.to_str().and_then(Format::of).is_some()))
    }

    /// Whether nothing has been read.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Whether what a file holds could not be read when it was last looked at.
    pub(super) fn is_unreadable(&self, name: &OsStr) -> bool {
        self.files.get(name).is_some_and(|file| file.unreadable.is_some())
    }

    /// The names in the directory as it is now.
    fn list(&self) -> io::Result<BTreeSet<OsString>> {
        fs::read_dir(&self.directory)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    /// Reads a file if it is not what it was. `None` if it is, or if it cannot be read.
    fn look_at(&mut self, name: &OsStr, format: Format, pass: &mut Pass) -> Option<File> {
        let path = self.directory.join(name);
        let (stamp, text) = match fs::metadata(&path) {
            Ok(metadata) if !metadata.is_file() => return None,
            Ok(metadata) => {
                let stamp = Stamp::of(&metadata);
                if self.files.get(name).is_some_and(|file| file.stamp == stamp) {
                    return None;
                }
                pass.read += 1;
                (stamp, fs::read_to_string(&path))
            }
            Err(error) => (Stamp::default(), Err(error)),
        };
        let read = match text {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => Err(error.to_string()),
            Ok(text) => Contents::read(&text, format),
        };
        match read {
            Ok(contents) => {
                self.compare(name, &contents, pass);
                Some(File { stamp, contents, unreadable: None })
            }
            Err(error) => {
                self.keep(name, stamp, error, pass);
                None
            }
        }
    }

    /// Keeps what was last read of a file that cannot be read now.
    fn keep(&mut self, name: &OsStr, stamp: Stamp, error: String, pass: &mut Pass) {
        let file = self.files.entry(name.to_owned()).or_default();
        file.stamp = stamp;
        if file.unreadable.as_ref() != Some(&error) {
            file.unreadable = Some(error.clone());
            pass.notices.push(Notice::Unreadable { file: name.to_owned(), error });
        }
    }

    /// Says what is different about the problems of a file.
    fn compare(&self, name: &OsStr, contents: &Contents, pass: &mut Pass) {
        let before = self.files.get(name);
        if before.is_some_and(|file| file.unreadable.is_some()) {
            pass.notices.push(Notice::Readable { file: name.to_owned() });
        }
        let complaints = before.map_or(&[][..], |file| &file.contents.complaints);
        if complaints == contents.complaints {
            return;
        }
        if contents.complaints.is_empty() {
            pass.notices.push(Notice::Mended { file: name.to_owned() });
        }
        pass.notices.extend(
            contents
                .complaints
                .iter()
                .map(|complaint| Notice::Document { file: name.to_owned(), complaint: complaint.clone() }),
        );
    }

    /// Puts the changed files in place and appends what that changes.
    fn replace(&mut self, changed: BTreeMap<OsString, Option<File>>, pass: &mut Pass) {
        let keys: BTreeSet<Key> = changed
            .iter()
            .flat_map(|(name, file)| [self.files.get(name), file.as_ref()])
            .flatten()
            .flat_map(|file| file.contents.objects.keys().cloned())
            .collect();
        let before: Vec<_> = keys.into_iter().map(|key| self.snapshot(key)).collect();
        for (name, file) in changed {
            self.put(name, file);
        }
        for (key, object, holders) in before {
            let after = self.get(&key);
            match (&object, after) {
                (before, Some(after)) if before.as_ref() != Some(after) => {
                    pass.updates.push(SourceUpdate::Apply(after.clone()));
                }
                (Some(_), None) => pass.updates.push(SourceUpdate::Delete(key.0, key.1.clone())),
                _ => {}
            }
            pass.notices.extend(Notice::of_holders(&key, &holders, self.holders.get(&key)));
        }
    }

    fn snapshot(&self, key: Key) -> (Key, Option<ParsedObject>, BTreeSet<OsString>) {
        let object = self.get(&key).cloned();
        let holders = self.holders.get(&key).cloned().unwrap_or_default();
        (key, object, holders)
    }

    fn put(&mut self, name: OsString, file: Option<File>) {
        for key in self.files.remove(&name).into_iter().flat_map(|file| file.contents.objects.into_keys()) {
            if let Some(holders) = self.holders.get_mut(&key) {
                holders.remove(&name);
                if holders.is_empty() {
                    self.holders.remove(&key);
                }
            }
        }
        if let Some(file) = file {
            for key in file.contents.objects.keys() {
                self.holders.entry(key.clone()).or_default().insert(name.clone());
            }
            self.files.insert(name, file);
        }
    }

    /// The object that counts.
    fn get(&self, key: &Key) -> Option<&ParsedObject> {
        self.files.get(self.holders.get(key)?.first()?)?.contents.objects.get(key)
    }
}

// === impl Stamp ===

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

#[cfg(test)]
mod tests;
