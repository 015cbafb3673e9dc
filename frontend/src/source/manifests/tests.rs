//! The updates of a real directory with real inotify events.

use std::{fs, io::Write, os::unix::fs::symlink, path::PathBuf, time::Duration};

use runtime::Trigger;
use tempfile::TempDir;
use tokio::{task::JoinHandle, time::timeout};

use super::*;
use crate::object::{ClusterObject, ObjectName, ParsedObject};

/// Long enough for any machine; nothing waits for it unless it fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// A source on the directory `m` in a temporary one.
struct Fixture {
    top: TempDir,
    updates: mpsc::Receiver<SourceUpdate>,
    running: JoinHandle<Result<()>>,
    trigger: Trigger,
    freshness: Freshness,
}

impl Fixture {
    /// Starts with files, and returns the initial updates.
    async fn new(files: &[(&str, &str)]) -> (Self, Vec<SourceUpdate>) {
        Self::on(with_files(files)).await
    }

    /// Starts with an existing directory.
    async fn on(top: TempDir) -> (Self, Vec<SourceUpdate>) {
        Self::with_removal_delay(top, REMOVAL_DELAY).await
    }

    async fn with_removal_delay(top: TempDir, delay: Duration) -> (Self, Vec<SourceUpdate>) {
        let (sender, updates) = mpsc::channel(1);
        let (trigger, shutdown) = Shutdown::channel();
        let freshness = Freshness::default();
        let running = tokio::spawn(run(top.path().join("m"), delay, sender, freshness.clone(), shutdown));
        let mut fixture = Self { top, updates, running, trigger, freshness };
        let mut initial = Vec::new();
        for _ in ObjectKind::ALL {
            initial.push(fixture.next().await);
        }
        (fixture, initial)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.top.path().join("m").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    async fn next(&mut self) -> SourceUpdate {
        timeout(PATIENCE, self.updates.recv()).await.expect("an update").expect("the source runs")
    }

    async fn next_summary(&mut self) -> String {
        summary(&self.next().await)
    }

    /// Checks that no other update is pending, by one of its own.
    async fn assert_no_update(&mut self) {
        self.write("sentinel.yaml", &node("sentinel", "x"));
        assert_eq!(self.next_summary().await, "sentinel in x");
        self.write("sentinel.yaml", "");
        assert_eq!(self.next_summary().await, "sentinel deleted");
    }
}

/// A temporary directory with a directory `m` of files.
fn with_files(files: &[(&str, &str)]) -> TempDir {
    let top = TempDir::new().unwrap();
    fs::create_dir(top.path().join("m")).unwrap();
    for (name, text) in files {
        fs::write(top.path().join("m").join(name), text).unwrap();
    }
    top
}

fn node(name: &str, zone: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {{topology.kubernetes.io/zone: {zone}}}}}\n"
    )
}

fn summary(update: &SourceUpdate) -> String {
    match update {
        SourceUpdate::Apply(ParsedObject { name, object: Some(ClusterObject::Node(node)), .. }) => {
            format!("{name} in {}", node.info.zone)
        }
        SourceUpdate::Delete(ObjectKind::Node, name) => format!("{name} deleted"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn starts_with_all_objects() {
    let service =
        "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.0.0.1}\n";
    let slices = "apiVersion: v1\nkind: List\nitems: [{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, \
                  metadata: {name: s, labels: {kubernetes.io/service-name: web}}, addressType: IPv4}]\n";
    let cidr = "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\n\
                spec: {cidrs: [10.96.0.0/16]}\n";
    let files =
        [("b.yaml", slices), ("a.yml", &(node("n1", "x") + "---\n" + service)), ("c.json", "{}"), ("d.yaml", cidr)];
    let (_fixture, initial) = Fixture::new(&files).await;
    let names: Vec<_> = initial
        .iter()
        .map(|update| match update {
            SourceUpdate::Replace(kind, objects) => {
                (*kind, objects.iter().map(|parsed| parsed.name.clone()).collect::<Vec<_>>())
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        names,
        [
            (ObjectKind::Node, vec![ObjectName::new("", "n1")]),
            (ObjectKind::Service, vec![ObjectName::new("shop", "web")]),
            (ObjectKind::EndpointSlice, vec![ObjectName::new("default", "s")]),
            (ObjectKind::ServiceCidr, vec![ObjectName::new("", "kubernetes")]),
        ]
    );
}

#[tokio::test]
async fn missing_directory_is_an_error() {
    let top = TempDir::new().unwrap();
    fs::write(top.path().join("file"), "").unwrap();
    for (name, reason) in [("missing", "No such file or directory"), ("file", "not a directory")] {
        let (sender, _updates) = mpsc::channel(1);
        let (_trigger, shutdown) = Shutdown::channel();
        let error = format!(
            "{:#}",
            run(top.path().join(name), REMOVAL_DELAY, sender, Freshness::default(), shutdown).await.unwrap_err()
        );
        assert!(error.contains(&format!("{}/{name}", top.path().display())), "{error}");
        assert!(error.contains(reason), "{error}");
    }
}

#[tokio::test]
async fn edits() {
    let (mut fixture, _) = Fixture::new(&[("a.yaml", &node("n1", "x"))]).await;
    // In place.
    fixture.write("a.yaml", &node("n1", "w"));
    assert_eq!(fixture.next_summary().await, "n1 in w");
    // Renamed over.
    fixture.write("a.yaml.tmp", &node("n1", "z"));
    fs::rename(fixture.path("a.yaml.tmp"), fixture.path("a.yaml")).unwrap();
    assert_eq!(fixture.next_summary().await, "n1 in z");
    // A new file, one that is moved in from elsewhere, and a link to one.
    fixture.write("b.yaml", &node("n2", "x"));
    assert_eq!(fixture.next_summary().await, "n2 in x");
    fs::write(fixture.top.path().join("n3"), node("n3", "x")).unwrap();
    fs::rename(fixture.top.path().join("n3"), fixture.path("c.yaml")).unwrap();
    assert_eq!(fixture.next_summary().await, "n3 in x");
    fs::write(fixture.top.path().join("n4"), node("n4", "x")).unwrap();
    symlink(fixture.top.path().join("n4"), fixture.path("d.yaml")).unwrap();
    assert_eq!(fixture.next_summary().await, "n4 in x");
    // Away.
    fs::remove_file(fixture.path("b.yaml")).unwrap();
    assert_eq!(fixture.next_summary().await, "n2 deleted");
    fs::rename(fixture.path("c.yaml"), fixture.path("c.off")).unwrap();
    assert_eq!(fixture.next_summary().await, "n3 deleted");
}

#[tokio::test]
async fn partially_written_file_is_not_read() {
    let (mut fixture, _) = Fixture::new(&[("a.yaml", &(node("n1", "x") + &node("n2", "x")))]).await;
    let mut file = fs::File::create(fixture.path("a.yaml")).unwrap();
    // Emptied, with the first of two documents written, and still open.
    file.write_all(node("n1", "w").as_bytes()).unwrap();
    let mut new = fs::File::create(fixture.path("new.yaml")).unwrap();
    new.write_all(node("n3", "w").as_bytes()).unwrap();
    fixture.assert_no_update().await;
    file.write_all(node("n2", "x").as_bytes()).unwrap();
    drop(file);
    assert_eq!(fixture.next_summary().await, "n1 in w");
    drop(new);
    assert_eq!(fixture.next_summary().await, "n3 in w");
}

#[tokio::test]
async fn editor_that_renames_the_old_file_deletes_nothing() {
    let delay = Duration::from_secs(2);
    let files = with_files(&[("a.yaml", &(node("n1", "x") + &node("n2", "x")))]);
    let (mut fixture, _) = Fixture::with_removal_delay(files, delay).await;
    fs::rename(fixture.path("a.yaml"), fixture.path("a.yaml~")).unwrap();
    fixture.write("a.yaml", &(node("n1", "w") + &node("n2", "x")));
    fs::remove_file(fixture.path("a.yaml~")).unwrap();
    assert_eq!(fixture.next_summary().await, "n1 in w");
    // Slowly: it is being written when the delay is over.
    fs::rename(fixture.path("a.yaml"), fixture.path("a.yaml~")).unwrap();
    sleep(delay / 2).await;
    let mut file = fs::File::create(fixture.path("a.yaml")).unwrap();
    file.write_all(node("n1", "z").as_bytes()).unwrap();
    sleep(delay).await;
    fixture.assert_no_update().await;
    file.write_all(node("n2", "x").as_bytes()).unwrap();
    drop(file);
    assert_eq!(fixture.next_summary().await, "n1 in z");
}

#[tokio::test]
async fn config_map_volume_is_updated() {
    let top = TempDir::new().unwrap();
    let directory = top.path().join("m");
    let publish = |version: &str, zone: &str| {
        fs::create_dir_all(directory.join(version)).unwrap();
        fs::write(directory.join(version).join("a.yaml"), node("n1", zone)).unwrap();
        symlink(version, directory.join("..data_tmp")).unwrap();
        fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
    };
    publish("..1", "x");
    symlink("..data/a.yaml", directory.join("a.yaml")).unwrap();
    let (mut fixture, initial) = Fixture::on(top).await;
    assert!(matches!(&initial[0], SourceUpdate::Replace(ObjectKind::Node, nodes) if nodes.len() == 1));
    publish("..2", "w");
    fs::remove_dir_all(directory.join("..1")).unwrap();
    assert_eq!(fixture.next_summary().await, "n1 in w");
}

#[tokio::test]
async fn removed_directory_keeps_its_objects() {
    let (mut fixture, _) = Fixture::new(&[("a.yaml", &node("n1", "x"))]).await;
    fs::remove_dir_all(fixture.path("")).unwrap();
    assert!(timeout(10 * REMOVAL_DELAY, fixture.updates.recv()).await.is_err());
}

#[tokio::test]
async fn edit_of_one_of_a_thousand_files_opens_that_file_only() {
    let files: Vec<_> = (0..1_000).map(|n| (format!("{n}.yaml"), node(&format!("n{n}"), "x"))).collect();
    let files: Vec<_> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let (mut fixture, initial) = Fixture::new(&files).await;
    assert!(matches!(&initial[0], SourceUpdate::Replace(ObjectKind::Node, nodes) if nodes.len() == 1_000));
    let (opened, opens) = std::sync::mpsc::channel();
    let mut witness = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let event = event.unwrap();
        if event.kind == notify::EventKind::Access(notify::event::AccessKind::Open(notify::event::AccessMode::Any)) {
            opened.send(event.paths[0].clone()).unwrap();
        }
    })
    .unwrap();
    notify::Watcher::watch(&mut witness, &fixture.path(""), RecursiveMode::NonRecursive).unwrap();
    fixture.write("500.yaml", &node("n500", "w"));
    assert_eq!(fixture.next_summary().await, "n500 in w");
    // Events arrive in order: this one is the last.
    fs::File::open(fixture.path("999.yaml")).unwrap();
    let mut found = Vec::new();
    while found.last() != Some(&fixture.path("999.yaml")) {
        found.push(opens.recv_timeout(PATIENCE).unwrap());
    }
    // Opened by the writer and by the source; then the marker.
    let edited = fixture.path("500.yaml");
    assert_eq!(found, [edited.clone(), edited, fixture.path("999.yaml")]);
}

#[tokio::test]
async fn ends_on_shutdown_or_when_the_receiver_is_dropped() {
    let (mut fixture, _) = Fixture::new(&[]).await;
    fixture.trigger.fire();
    timeout(PATIENCE, &mut fixture.running).await.unwrap().unwrap().unwrap();
    let (mut fixture, _) = Fixture::new(&[]).await;
    fixture.updates.close();
    timeout(PATIENCE, &mut fixture.running).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn problems_of_files_are_those_of_now() {
    let node = "{apiVersion: v1, kind: Node, metadata: {name: n1}}";
    let (mut fixture, _) = Fixture::new(&[("a.yaml", "kind: [\n"), ("b.yaml", node), ("c.yaml", node)]).await;
    let objects = |fixture: &Fixture| {
        let problems = fixture.freshness.file_problems();
        problems.into_iter().map(|problem| problem.object).collect::<Vec<_>>()
    };
    assert_eq!(objects(&fixture), ["manifest a.yaml", "manifest c.yaml"]);

    fixture.write("a.yaml", "{apiVersion: v1, kind: Node, metadata: {name: n2}}");
    fixture.next().await;
    assert_eq!(objects(&fixture), ["manifest c.yaml"]);
}
