//! Refreshes after changes of a real directory, without inotify and timers.

use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::object::ObjectName;

/// A directory and its catalog.
struct Fixture {
    directory: TempDir,
    catalog: Catalog,
}

impl Fixture {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let catalog = Catalog::new(directory.path().to_owned());
        Self { directory, catalog }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn refresh(&mut self) -> RefreshResult {
        self.catalog.refresh(RefreshScope::Everything).unwrap()
    }

    /// Refreshes everything, and returns summaries of the updates and notices.
    fn changes(&mut self) -> (Vec<String>, Vec<String>) {
        let refreshed = self.refresh();
        (
            refreshed.updates.iter().map(summary).collect(),
            refreshed.notices.iter().map(|notice| format!("{notice:?}")).collect(),
        )
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

/// No update and no notice.
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
fn only_changed_files_are_read() {
    let mut fixture = Fixture::new();
    for n in 0..1_000 {
        fixture.write(&format!("{n}.yaml"), &node(&format!("n{n}"), "x"));
    }
    assert_eq!(fixture.refresh().read, 1_000);
    assert_eq!(fixture.refresh().read, 0);
    fixture.write("500.yaml", &node("n500", "w"));
    let refreshed = fixture.refresh();
    assert_eq!((refreshed.read, refreshed.updates.len()), (1, 1));
    // With the same size, and the modification time reset.
    let modified = fs::metadata(fixture.path("600.yaml")).unwrap().modified().unwrap();
    fixture.write("600.yaml", &node("n600", "w"));
    fs::File::options().write(true).open(fixture.path("600.yaml")).unwrap().set_modified(modified).unwrap();
    let refreshed = fixture.refresh();
    assert_eq!((refreshed.read, refreshed.updates.len()), (1, 1));
}

#[test]
fn only_named_files_are_read() {
    let mut fixture = Fixture::new();
    fixture.write("a.yaml", &node("n1", "x"));
    fixture.write("b.yaml", &node("n2", "x"));
    fixture.refresh();
    fixture.write("a.yaml", &node("n1", "w"));
    fixture.write("b.yaml", &node("n2", "w"));
    let files = |changed: &[&str], removed: &[&str]| {
        let names = |names: &[&str]| names.iter().map(OsString::from).collect();
        RefreshScope::Files { changed: names(changed), removed: names(removed) }
    };
    let refreshed = fixture.catalog.refresh(files(&["b.yaml", "missing.yaml"], &["a.yaml"])).unwrap();
    assert_eq!(
        (refreshed.updates.iter().map(summary).collect::<Vec<_>>(), refreshed.read),
        (vec!["n2 in w".to_owned()], 1)
    );
    // Missing, but not yet reported as removed.
    fs::remove_file(fixture.path("a.yaml")).unwrap();
    let refreshed = fixture.catalog.refresh(files(&["a.yaml"], &[])).unwrap();
    assert_eq!((refreshed.updates, refreshed.notices), (vec![], vec![]));
    let refreshed = fixture.catalog.refresh(files(&[], &["a.yaml"])).unwrap();
    assert_eq!(refreshed.updates.iter().map(summary).collect::<Vec<_>>(), ["n1 deleted"]);
}

#[test]
fn invalid_file_keeps_its_objects() {
    let mut fixture = Fixture::new();
    fixture.write("a.yaml", &node("n1", "x"));
    fixture.write("new.yaml", "{");
    let (updates, notices) = fixture.changes();
    assert_eq!(updates, ["n1 in x"]);
    assert_eq!(notices.len(), 1);
    assert!(notices[0].starts_with("Unreadable { file: \"new.yaml\""), "{notices:?}");
    fixture.write("a.yaml", "{");
    let (updates, notices) = fixture.changes();
    assert_eq!((updates.len(), notices.len()), (0, 1));
    assert!(notices[0].starts_with("Unreadable { file: \"a.yaml\""), "{notices:?}");
    // The same error again: no further notice.
    fixture.write("a.yaml", "{");
    assert_eq!(fixture.changes(), NOTHING);
    assert!(fixture.catalog.is_unreadable(OsStr::new("a.yaml")));
    assert_eq!(fixture.catalog.objects(ObjectKind::Node).len(), 1);
    fixture.write("a.yaml", &node("n1", "w"));
    assert_eq!(fixture.changes(), (vec!["n1 in w".to_owned()], vec!["Readable { file: \"a.yaml\" }".to_owned()]));
}

#[test]
fn file_that_is_not_utf8_keeps_its_objects() {
    let mut fixture = Fixture::new();
    fixture.write("a.yaml", &node("n1", "x"));
    fixture.refresh();
    fs::write(fixture.path("a.yaml"), b"\xff\xfe\x00").unwrap();
    let refreshed = fixture.refresh();
    assert_eq!(refreshed.updates, []);
    assert!(matches!(&refreshed.notices[..], [FileNotice::Unreadable { .. }]), "{:?}", refreshed.notices);
}

#[test]
fn problems_of_documents_are_reported_once() {
    let mut fixture = Fixture::new();
    let bad = "---\nkind: Service\n";
    fixture.write("a.yaml", &(node("n1", "x") + bad));
    let (updates, notices) = fixture.changes();
    assert_eq!(updates, ["n1 in x"]);
    assert_eq!(
        notices,
        ["Document { file: \"a.yaml\", problem: \"document 2 (line 6): apiVersion or kind is missing; ignored\" }"]
    );
    fixture.write("a.yaml", &(node("n1", "w") + bad));
    assert_eq!(fixture.changes(), only("n1 in w"));
    fixture.write("a.yaml", &node("n1", "w"));
    assert_eq!(fixture.changes(), (vec![], vec!["Valid { file: \"a.yaml\" }".to_owned()]));
}

#[test]
fn first_file_with_an_object_is_used() {
    let mut fixture = Fixture::new();
    fixture.write("b.yaml", &node("n1", "b"));
    assert_eq!(fixture.changes(), only("n1 in b"));
    fixture.write("c.yaml", &node("n1", "c"));
    let (updates, notices) = fixture.changes();
    assert_eq!(updates, Vec::<String>::new());
    assert!(notices[0].contains("used: \"b.yaml\", ignored: [\"c.yaml\"]"), "{notices:?}");
    fixture.write("c.yaml", &node("n1", "c2"));
    assert_eq!(fixture.changes(), NOTHING);
    fixture.write("a.yaml", &node("n1", "a"));
    let (updates, notices) = fixture.changes();
    assert_eq!(updates, ["n1 in a"]);
    assert!(notices[0].contains("used: \"a.yaml\", ignored: [\"b.yaml\", \"c.yaml\"]"), "{notices:?}");
    fs::remove_file(fixture.path("a.yaml")).unwrap();
    assert_eq!(fixture.changes().0, ["n1 in b"]);
    fixture.write("b.yaml", "");
    let (updates, notices) = fixture.changes();
    assert_eq!(updates, ["n1 in c2"]);
    assert!(notices[0].starts_with("Unique"), "{notices:?}");
}

#[test]
fn object_that_moves_between_files_is_not_touched() {
    let mut fixture = Fixture::new();
    fixture.write("a.yaml", &(node("n1", "x") + &node("n2", "x")));
    fixture.refresh();
    fixture.write("a.yaml", &node("n2", "x"));
    fixture.write("b.yaml", &node("n1", "x"));
    assert_eq!(fixture.changes(), NOTHING);
    fs::rename(fixture.path("b.yaml"), fixture.path("c.yaml")).unwrap();
    assert_eq!(fixture.changes().0, Vec::<String>::new());
}

#[test]
fn directory_that_cannot_be_listed_changes_nothing() {
    let mut fixture = Fixture::new();
    fixture.write("a.yaml", &node("n1", "x"));
    fixture.refresh();
    fs::remove_dir_all(fixture.directory.path()).unwrap();
    fixture.catalog.refresh(RefreshScope::Everything).unwrap_err();
    assert_eq!(fixture.catalog.objects(ObjectKind::Node).len(), 1);
    fixture.catalog.any_manifest().unwrap_err();
}

#[test]
fn links_are_followed_and_directories_are_not_files() {
    let mut fixture = Fixture::new();
    let elsewhere = TempDir::new().unwrap();
    fs::write(elsewhere.path().join("real"), node("n1", "x")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path().join("real"), fixture.path("a.yaml")).unwrap();
    std::os::unix::fs::symlink(Path::new("/does/not/exist"), fixture.path("b.yaml")).unwrap();
    fs::create_dir(fixture.path("c.yaml")).unwrap();
    assert_eq!(fixture.changes(), only("n1 in x"));
}
