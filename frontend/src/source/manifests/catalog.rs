//! The objects in the files of a directory, and the updates when files change.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet, btree_map::Entry},
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
};

use super::document::{FileContents, ManifestFormat};
use crate::object::{ObjectId, ObjectKind, ParsedObject, SourceUpdate};

/// Why something in a file is not used, with the name of the file.
pub(super) type FileProblem = (OsString, String);

/// A directory as it was last read.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    directory: PathBuf,
    /// With the objects of the last successful read.
    files: BTreeMap<OsString, FileContents>,
    /// The files that contain an object. The first by name is used.
    files_of: BTreeMap<ObjectId, BTreeSet<OsString>>,
}

impl Catalog {
    /// A directory that has not been read.
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory, ..Self::default() }
    }

    /// Reads these files again, and returns the difference, sorted by key. A file that is missing is unchanged, unless
    /// it is among the `removed` ones.
    pub(super) fn refresh(&mut self, names: &BTreeSet<OsString>, removed: &BTreeSet<OsString>) -> Vec<SourceUpdate> {
        let mut read = BTreeMap::new();
        for name in names {
            if let Some(contents) = self.read(name) {
                read.insert(name.clone(), contents);
            }
        }
        for name in removed {
            if self.is_missing(name) {
                read.insert(name.clone(), FileContents::default());
            }
        }

        let last = read.keys().filter_map(|name| self.files.get(name));
        let ids = last.chain(read.values()).flat_map(|file| file.objects.keys().cloned());
        let used_before: BTreeMap<_, _> = ids.map(|id| (id.clone(), self.used(&id).cloned())).collect();
        for (name, contents) in read {
            self.put(name, contents);
        }
        used_before.into_iter().filter_map(|(id, before)| self.update(id, before.as_ref())).collect()
    }

    /// All objects of a kind that are used.
    pub(super) fn objects(&self, kind: ObjectKind) -> Vec<ParsedObject> {
        self.files_of.keys().filter(|id| id.0 == kind).filter_map(|id| self.used(id)).cloned().collect()
    }

    /// Those of all files.
    pub(super) fn problems(&self) -> Vec<FileProblem> {
        let mut problems = Vec::new();
        for (name, file) in &self.files {
            problems.extend(file.problems.iter().map(|text| (name.clone(), text.clone())));
        }
        for (id, files) in &self.files_of {
            problems.extend(files.iter().skip(1).map(|name| (name.clone(), duplicate(id))));
        }
        problems
    }

    /// The files with objects or problems.
    pub(super) fn names(&self) -> impl Iterator<Item = &OsString> {
        self.files.keys()
    }

    /// Whether a file does not exist, or is a link to none.
    pub(super) fn is_missing(&self, name: &OsStr) -> bool {
        !self.directory.join(name).exists()
    }

    /// The contents of a file, with its last objects if it cannot be read. `None` if it is no manifest, or is missing,
    /// perhaps for a moment.
    fn read(&self, name: &OsString) -> Option<FileContents> {
        let format = ManifestFormat::of(name)?;
        let text = match read_file(&self.directory.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            read => read.map_err(|error| error.to_string()),
        };
        let read = text.and_then(|text| FileContents::read(&text, format));
        Some(read.unwrap_or_else(|error| {
            let objects = self.files.get(name).map(|file| file.objects.clone()).unwrap_or_default();
            FileContents { objects, problems: vec![format!("{error}; its last objects stay")] }
        }))
    }

    /// Replaces the contents of a file. A file without contents is forgotten.
    fn put(&mut self, name: OsString, contents: FileContents) {
        for id in self.files.remove(&name).unwrap_or_default().objects.into_keys() {
            let Entry::Occupied(mut files) = self.files_of.entry(id) else { continue };
            files.get_mut().remove(&name);
            if files.get().is_empty() {
                files.remove();
            }
        }

        for id in contents.objects.keys() {
            self.files_of.entry(id.clone()).or_default().insert(name.clone());
        }
        if contents != FileContents::default() {
            self.files.insert(name, contents);
        }
    }

    /// The object that is used.
    fn used(&self, id: &ObjectId) -> Option<&ParsedObject> {
        let first = self.files_of.get(id)?.first()?;
        self.files.get(first)?.objects.get(id)
    }

    /// How an object has changed since it was used like this.
    fn update(&self, id: ObjectId, before: Option<&ParsedObject>) -> Option<SourceUpdate> {
        match self.used(&id) {
            after if after == before => None,
            Some(after) => Some(SourceUpdate::Apply(after.clone())),
            None => Some(SourceUpdate::Delete(id.0, id.1)),
        }
    }
}

/// The problems that were not there at the last refresh.
pub(super) fn new_problems<'a>(last: &[FileProblem], now: &'a [FileProblem]) -> Vec<&'a FileProblem> {
    let last: HashSet<_> = last.iter().collect();
    now.iter().filter(|problem| !last.contains(problem)).collect()
}

fn duplicate((kind, object): &ObjectId) -> String {
    format!("{kind} {object} is in another manifest, too: that with the first name is used")
}

/// The text of a file. A pipe or device may have no end.
fn read_file(path: &Path) -> io::Result<String> {
    if fs::metadata(path)?.is_file() { fs::read_to_string(path) } else { Err(io::Error::other("not a regular file")) }
}

#[cfg(test)]
mod tests;
