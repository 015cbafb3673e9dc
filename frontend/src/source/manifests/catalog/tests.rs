//! Refreshes after changes of a real directory, without inotify and timers.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;
use crate::object::ObjectName;

/// A directory and its catalog.
struct Fixture {
    directory: TempDir,
    catalog: Catalog,
    known_problems: Vec<FileProblem>,
}

impl Fixture {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let catalog = Catalog::new(directory.path().to_owned());
        Self { directory, catalog, known_problems: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// The names of all files.
    fn names(&self) -> BTreeSet<OsString> {
        fs::read_dir(self.directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    /// Reads files, and returns summaries of the updates and the new problems. Missing files were removed.
    fn refresh(&mut self, names: &BTreeSet<OsString>) -> (Vec<String>, Vec<String>) {
        let removed = self.catalog.names().cloned().collect();
        let updates = self.catalog.refresh(names, &removed);

        let problems = self.catalog.problems();
        let new = new_problems(&self.known_problems, &problems).into_iter();
        let new = new.map(|(file, problem)| format!("{}: {problem}", file.to_string_lossy())).collect();
        self.known_problems = problems;
        (updates.iter().map(summary).collect(), new)
    }

    /// Reads all files.
    fn changes(&mut self) -> (Vec<String>, Vec<String>) {
        let names = self.names();
        self.refresh(&names)
    }
}

fn node(name: &str, zone: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {{topology.kubernetes.io/zone: {zone}}}}}\n"
    )
}

fn zone(parsed: &ParsedObject) -> &str {
    match &parsed.object {
        Some(crate::object::ClusterObject::Node(node)) => &node.info.zone,
        other => panic!("{other:?}"),
    }
}

fn summary(update: &SourceUpdate) -> String {
    match update {
        SourceUpdate::Apply(parsed) => format!("{} in {}", parsed.name, zone(parsed)),
        SourceUpdate::Delete(_, name) => format!("{name} deleted"),
        SourceUpdate::Replace(kind, _) => panic!("replaced {kind}"),
        SourceUpdate::Progress(kind, progress) => panic!("{kind} {progress:?}"),
    }
}

/// No update and no problem.
const NOTHING: (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());

fn only(update: &str) -> (Vec<String>, Vec<String>) {
    (vec![update.to_owned()], Vec::new())
}

#[test]
fn only_changed_objects_are_updates() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.changes(), NOTHING);
    fixture.write("a.yaml", &(node("n1", "x") + &node("n2", "x")));
    fixture.write("notes.txt", &node("n3", "x"));
    assert_eq!(fixture.changes().0, ["n1 in x", "n2 in x"]);
    assert_eq!(fixture.changes(), NOTHING);
    // The same objects, written differently.
    fixture.write("a.yaml", &format!("# comment\n{}{}", node("n2", "x"), node("n1", "x")));
    assert_eq!(fixture.changes(), NOTHING);
    fixture.write("a.yaml", &(node("n1", "x") + &node("n2", "w")));
    assert_eq!(fixture.changes(), only("n2 in w"));
    fixture.write("a.yaml", &node("n2", "w"));
    assert_eq!(fixture.changes(), only("n1 deleted"));
    let objects = fixture.catalog.objects(ObjectKind::Node);
    assert_eq!(objects.iter().map(|parsed| parsed.name.clone()).collect::<Vec<_>>(), [ObjectName::new("", "n2")]);
    assert_eq!(fixture.catalog.objects(ObjectKind::Service), []);
    fs::remove_file(fixture.path("a.yaml")).unwrap();
    assert_eq!(fixture.changes().0, ["n2 deleted"]);
}

#[test]
fn new_problem_is_found_among_many_others() {
    let mut fixture = Fixture::new();
    for number in 0..200 {
        fixture.write(&format!("a{number}.yaml"), "{");
    }
    assert_eq!(fixture.changes().1.len(), 200);

    fixture.write("z.yaml", "{");
    let (_, problems) = fixture.changes();
    assert!(problems.len() == 1 && problems[0].starts_with("z.yaml: "), "{problems:?}");
}

#[test]
fn only_named_files_are_read() {
    let mut fixture = Fixture::new();
    fixture.write("a.yaml", &node("n1", "x"));
    fixture.write("b.yaml", &node("n2", "x"));
    fixture.changes();
    fixture.write("a.yaml", &node("n1", "w"));
    fixture.write("b.yaml", &node("n2", "w"));
    assert_eq!(fixture.refresh(&["b.yaml", "missing.yaml"].map(OsString::from).into()), only("n2 in w"));
    fs::remove_file(fixture.path("a.yaml")).unwrap();
    assert_eq!(fixture.refresh(&["a.yaml"].map(OsString::from).into()), only("n1 deleted"));
}

#[test]
fn file_that_is_missing_for_a_moment_is_unchanged() {
    let mut fixture = Fixture::new();
    fixture.write("a.yaml", &node("n1", "x"));
    fixture.write("b.yaml", &node("n2", "x"));
    fixture.changes();
    fs::remove_file(fixture.path("a.yaml")).unwrap();
    fixture.write("b.yaml", "");
    // Missing, but not removed long enough ago; and removed, but being written again.
    for names in [BTreeSet::from(["a.yaml".into()]), BTreeSet::new()] {
        assert_eq!(fixture.catalog.refresh(&names, &BTreeSet::from(["b.yaml".into()])), []);
        assert_eq!(fixture.catalog.problems(), []);
    }
    let updates = fixture.catalog.refresh(&fixture.names(), &BTreeSet::new());
    assert_eq!(updates.iter().map(summary).collect::<Vec<_>>(), ["n2 deleted"]);
    let updates = fixture.catalog.refresh(&BTreeSet::new(), &BTreeSet::from(["a.yaml".into()]));
    assert_eq!(updates.iter().map(summary).collect::<Vec<_>>(), ["n1 deleted"]);
}

#[test]
fn invalid_file_keeps_its_objects() {
    let mut fixture = Fixture::new();
    fixture.write("a.yaml", &node("n1", "x"));
    fixture.write("new.yaml", "{");
    let (updates, problems) = fixture.changes();
    assert_eq!(updates, ["n1 in x"]);
    assert!(problems.len() == 1 && problems[0].starts_with("new.yaml: "), "{problems:?}");
    for text in [b"{".as_slice(), b"\xff\xfe\x00"] {
        fs::write(fixture.path("a.yaml"), text).unwrap();
        let (updates, problems) = fixture.changes();
        assert!(updates.is_empty() && problems.len() == 1 && problems[0].starts_with("a.yaml: "), "{problems:?}");
        // The same error again is no new problem.
        assert_eq!(fixture.changes(), NOTHING);
        assert_eq!(fixture.catalog.objects(ObjectKind::Node).len(), 1);
    }
    fixture.write("a.yaml", &node("n1", "w"));
    assert_eq!(fixture.changes(), only("n1 in w"));
}

#[test]
fn problems_of_documents_are_reported_once() {
    let mut fixture = Fixture::new();
    let bad = "---\nkind: Service\n";
    fixture.write("a.yaml", &(node("n1", "x") + bad));
    let (updates, problems) = fixture.changes();
    assert_eq!(updates, ["n1 in x"]);
    assert_eq!(problems, ["a.yaml: document 2 (line 6): apiVersion or kind is missing; ignored"]);
    fixture.write("a.yaml", &(node("n1", "w") + bad));
    assert_eq!(fixture.changes(), only("n1 in w"));
    fixture.write("a.yaml", &node("n1", "w"));
    assert_eq!(fixture.changes(), NOTHING);
}

#[test]
fn first_file_with_an_object_is_used() {
    let mut fixture = Fixture::new();
    fixture.write("b.yaml", &node("n1", "b"));
    assert_eq!(fixture.changes(), only("n1 in b"));
    fixture.write("c.yaml", &node("n1", "c"));
    let (updates, problems) = fixture.changes();
    assert_eq!(updates, Vec::<String>::new());
    assert_eq!(problems, ["c.yaml: Node n1 is in another manifest, too: that with the first name is used"]);
    fixture.write("c.yaml", &node("n1", "c2"));
    assert_eq!(fixture.changes(), NOTHING);
    fixture.write("a.yaml", &node("n1", "a"));
    let (updates, problems) = fixture.changes();
    assert_eq!(updates, ["n1 in a"]);
    assert_eq!(problems, ["b.yaml: Node n1 is in another manifest, too: that with the first name is used"]);
    fs::remove_file(fixture.path("a.yaml")).unwrap();
    assert_eq!(fixture.changes(), only("n1 in b"));
    fixture.write("b.yaml", "");
    assert_eq!(fixture.changes(), only("n1 in c2"));
}

#[test]
fn object_in_two_new_files_is_one_problem() {
    let mut fixture = Fixture::new();
    fixture.write("a.yaml", &node("n1", "a"));
    fixture.write("b.yaml", &node("n1", "b"));
    let (updates, problems) = fixture.changes();
    assert_eq!(updates, ["n1 in a"]);
    assert_eq!(problems, ["b.yaml: Node n1 is in another manifest, too: that with the first name is used"]);
}

#[test]
fn object_that_moves_between_files_is_not_touched() {
    let mut fixture = Fixture::new();
    fixture.write("a.yaml", &(node("n1", "x") + &node("n2", "x")));
    fixture.changes();
    fixture.write("a.yaml", &node("n2", "x"));
    fixture.write("b.yaml", &node("n1", "x"));
    assert_eq!(fixture.changes(), NOTHING);
    fs::rename(fixture.path("b.yaml"), fixture.path("c.yaml")).unwrap();
    assert_eq!(fixture.changes(), NOTHING);
    // To a name that is read before the old one.
    fs::rename(fixture.path("c.yaml"), fixture.path("0.yaml")).unwrap();
    assert_eq!(fixture.changes(), NOTHING);
}

#[test]
fn only_regular_files_are_read() {
    let mut fixture = Fixture::new();
    symlink("/dev/null", fixture.path("a.yaml")).unwrap();
    let (updates, problems) = fixture.changes();
    assert_eq!(updates, Vec::<String>::new());
    assert_eq!(problems, ["a.yaml: not a regular file; its last objects stay"]);
}
