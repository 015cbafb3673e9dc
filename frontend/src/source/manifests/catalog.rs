//! The objects in the files of a directory, and the updates when files change.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
};

use proto::v1::Problem;

use super::document::{FileContents, ManifestFormat};
use crate::object::{ObjectId, ObjectKind, ParsedObject, SourceUpdate};

/// How many problems of files are listed.
const MAX_LISTED: usize = 100;

/// A directory as it was last read.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    directory: PathBuf,
    /// With the objects of the last successful read.
    files: BTreeMap<OsString, FileContents>,
    /// The files that contain an object. The first by name is used.
    files_of: BTreeMap<ObjectId, BTreeSet<OsString>>,
}

/// The changes since the last refresh.
#[derive(Debug, Default)]
pub(super) struct Refreshed {
    /// The difference, sorted by key.
    pub(super) updates: Vec<SourceUpdate>,
    /// New problems, with the files.
    pub(super) problems: Vec<(OsString, String)>,
}

impl Catalog {
    /// A directory that has not been read.
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory, ..Self::default() }
    }

    /// Reads files again, all if there are no names. Deletes the objects of those `removed` files that are missing;
    /// other missing files are unchanged. If the directory cannot be listed, nothing changes.
    pub(super) fn refresh(
        &mut self,
        names: Option<BTreeSet<OsString>>,
        removed: &BTreeSet<OsString>,
    ) -> io::Result<Refreshed> {
        let names = match names {
            Some(names) => names,
            None => self.list()?,
        };
        let missing: BTreeSet<_> = removed.iter().filter(|name| self.is_missing(name)).cloned().collect();
        let mut refreshed = Refreshed::default();
        let (mut before, mut added) = (BTreeMap::new(), BTreeSet::new());
        for name in names.union(&missing) {
            let Some(format) = ManifestFormat::of(name) else { continue };
            let read = if missing.contains(name) { Some(FileContents::default()) } else { self.read(name, format) };
            if let Some(contents) = read {
                let last = self.files.get(name);
                let is_new = |problem: &&String| last.is_none_or(|last| !last.problems.contains(problem));
                let problems = contents.problems.iter().filter(is_new);
                refreshed.problems.extend(problems.map(|problem| (name.clone(), problem.clone())));
                let is_new = |key: &&ObjectId| last.is_none_or(|last| !last.objects.contains_key(*key));
                added.extend(contents.objects.keys().filter(is_new).map(|key| (name.clone(), key.clone())));
                self.put(name.clone(), contents, &mut before);
            }
        }
        refreshed.problems.extend(
            added
                .iter()
                .filter(|(name, key)| self.is_duplicate(name, key, &added))
                .map(|(name, key)| (name.clone(), duplicate(key))),
        );
        for (key, before) in before {
            match self.get(&key) {
                None if before.is_some() => refreshed.updates.push(SourceUpdate::Delete(key.0, key.1)),
                Some(after) if before.as_ref() != Some(after) => {
                    refreshed.updates.push(SourceUpdate::Apply(after.clone()));
                }
                _ => {}
            }
        }
        Ok(refreshed)
    }

    /// All objects of a kind that are used.
    pub(super) fn objects(&self, kind: ObjectKind) -> Vec<ParsedObject> {
        self.files_of.keys().filter(|key| key.0 == kind).filter_map(|key| self.get(key)).cloned().collect()
    }

    /// What is not used in the files as they are now, for operators: the first problems, by file.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let of_files =
            self.files.iter().flat_map(|(name, file)| file.problems.iter().map(move |text| (name, text.clone())));
        let later_files =
            self.files_of.iter().flat_map(|(key, files)| files.iter().skip(1).map(move |name| (name, key)));
        let duplicates = later_files.map(|(name, key)| (name, duplicate(key)));

        let problem = |(name, message): (&OsString, String)| Problem {
            object: format!("manifest {}", name.display()),
            field: String::new(),
            message,
        };
        of_files.chain(duplicates).take(MAX_LISTED).map(problem).collect()
    }

    /// The files with objects or problems.
    pub(super) fn names(&self) -> impl Iterator<Item = &OsString> {
        self.files.keys()
    }

    /// Whether a file does not exist, or is a link to none.
    pub(super) fn is_missing(&self, name: &OsStr) -> bool {
        !self.directory.join(name).exists()
    }

    /// The names in the directory now.
    fn list(&self) -> io::Result<BTreeSet<OsString>> {
        fs::read_dir(&self.directory)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    /// The contents of a file, and the last objects if it cannot be read. `None`: it is missing, perhaps for a moment.
    fn read(&self, name: &OsString, format: ManifestFormat) -> Option<FileContents> {
        let text = read_file(&self.directory.join(name));
        if text.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return None;
        }
        let read = text.map_err(|error| error.to_string()).and_then(|text| FileContents::read(&text, format));
        Some(read.unwrap_or_else(|error| {
            let objects = self.files.get(name).map(|file| file.objects.clone()).unwrap_or_default();
            FileContents { objects, problems: vec![format!("{error}; its last objects stay")] }
        }))
    }

    /// Whether an object that was added to a file is in another one: of two that it was added to, in the later one.
    fn is_duplicate(&self, name: &OsString, key: &ObjectId, added: &BTreeSet<(OsString, ObjectId)>) -> bool {
        let mut files = self.files_of.get(key).into_iter().flatten();
        files.any(|file| file < name || file > name && !added.contains(&(file.clone(), key.clone())))
    }

    /// Replaces the contents of a file. Adds the objects that were used to `before`, unless they are there.
    fn put(&mut self, name: OsString, contents: FileContents, before: &mut BTreeMap<ObjectId, Option<ParsedObject>>) {
        let last = self.files.get(&name).into_iter();
        let keys: BTreeSet<_> = last.chain([&contents]).flat_map(|file| file.objects.keys().cloned()).collect();
        for key in keys {
            before.entry(key.clone()).or_insert_with(|| self.get(&key).cloned());
            let files = self.files_of.entry(key.clone()).or_default();
            if contents.objects.contains_key(&key) {
                files.insert(name.clone());
            } else {
                files.remove(&name);
            }
            if files.is_empty() {
                self.files_of.remove(&key);
            }
        }
        if contents == FileContents::default() {
            self.files.remove(&name);
        } else {
            self.files.insert(name, contents);
        }
    }

    /// The object that is used.
    fn get(&self, key: &ObjectId) -> Option<&ParsedObject> {
        self.files.get(self.files_of.get(key)?.first()?)?.objects.get(key)
    }
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
