//! The page as a browser receives it: hostile names, many rows, and other Host headers.

use std::{
    net::Ipv4Addr,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use hyper::{Request, StatusCode, header::HOST};
use proto::model::SyncMode;

use super::{
    MAX_FILTER_CHARS, Page, filter_of, is_local_host,
    model::{Figure, PageModel, PageRow, PageTable},
    render::{self, MAX_ROWS},
};
use crate::{
    Config, Frontend,
    context::FrontendContext,
    testing::{endpoint, hello, initial, put, service, slice},
};

const HOSTILE: &str = "<script>alert('1')</script>\" onload=\"x";

/// A table with a column of each class.
fn table(id: &'static str, rows: usize, name: &str) -> PageTable {
    let columns =
        &[("Text", ""), ("Name", ""), ("Number", "number"), ("Code", "code"), ("State", "state"), ("Lines", "")];
    let row = |number| {
        let [first, second] = [format!("{name}-{number}"), format!("ns/{name}-{number}/tcp")];
        PageRow::of([first, second, "7".to_owned(), name.to_owned(), name.to_owned(), format!("{name}\n{name}")])
    };
    PageTable { id, title: id, columns, empty_text: "None.", rows: (0..rows).map(row).collect() }
}

fn model(nodes: usize, services: usize, name: &str) -> PageModel {
    let figure = Figure { class: "bad", name: "Figure", value: name.to_owned(), note: name.to_owned() };
    let tables = vec![table("nodes", nodes, name), table("services", services, name)];
    PageModel { started: name.to_owned(), figures: vec![figure], tables }
}

#[test]
fn filters_are_decoded() {
    assert_eq!(filter_of("x&q=%20a%2Fb+%C3%BC%zz%2&other=1"), "a/b ü%zz%2");
    assert_eq!(filter_of("other=1"), "");
    assert_eq!(filter_of(&format!("q={}", "a".repeat(1000))).len(), MAX_FILTER_CHARS);
}

#[test]
fn hostile_names_are_escaped() {
    let harmless = render::page(&model(2, 2, "web"), "");
    for page in [
        render::page(&model(2, 2, HOSTILE), ""),
        render::page(&model(2, 2, HOSTILE), HOSTILE),
        render::page(&model(MAX_ROWS + 1, 0, HOSTILE), HOSTILE),
    ] {
        assert!(page.contains("&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&quot; onload=&quot;x"));
        assert!(!page.contains("<script>alert") && !page.contains("\" onload="), "{page}");
        assert_eq!(page.matches("<script").count(), harmless.matches("<script").count());
    }
}

#[test]
fn pages_of_large_clusters_are_small() {
    let model = model(5_000, 10_000, "a-node-or-service-of-usual-length");
    let page = render::page(&model, "");
    assert!(page.len() < 120_000, "{} bytes", page.len());
    assert_eq!(page.matches("<tr").count(), 2 * MAX_ROWS + 2);
    assert!(page.contains("100 of 5000 shown: filter for others."), "{page}");
    assert!(page.contains("100 of 10000 shown"));
    let one = render::live(&model, &filter_of("q=LENGTH-4711"));
    assert_eq!(one.matches("<tr class").count(), 2, "{one}");
}

#[test]
fn empty_tables_have_a_text() {
    let empty = PageModel::of(&FrontendContext::new(Config::default()));
    let live = render::live(&empty, "");
    for text in ["listing objects", "No nodes.", "No service ports.", "No changes since the start."] {
        assert!(live.contains(text), "{text}: {live}");
    }
    let filtered = render::live(&model(1, 1, "web"), &filter_of("q=other"));
    assert_eq!(filtered.matches("No rows match the filter.").count(), 2, "{filtered}");
}

#[tokio::test]
async fn node_that_does_not_serve_an_ip_family_is_not_up_to_date() {
    let context = FrontendContext::new(Config::default());
    let stream = context.streams.register(&hello("node-a"), SyncMode::Snapshot);
    let text = "IPv4 is not programmed: no such table";
    for (degraded, state, error) in [(vec![], "ok", ""), (vec![text.to_owned()], "degraded", text)] {
        stream.update(|status| status.degraded = degraded);
        let model = PageModel::of(&context);
        let [row] = &model.tables[1].rows[..] else { panic!("{model:?}") };
        assert_eq!((row.cells[1].as_str(), row.cells[7].as_str()), (state, error), "{row:?}");
    }
}

/// The newest revision is none that a node has.
#[tokio::test]
async fn nothing_is_programmed_without_a_backend() {
    let context = FrontendContext::new(Config::default());
    let programmed = || {
        let model = PageModel::of(&context);
        let figure = model.figures.into_iter().find(|figure| figure.name == "Programmed on").unwrap();
        (figure.value, figure.note)
    };
    assert_eq!(programmed(), ("0".to_owned(), "no node is connected to this replica".to_owned()));
    let stream = context.streams.register(&hello("node-a"), SyncMode::Snapshot);
    let of_one = |value: &str| (value.to_owned(), "of the 1 nodes connected to this replica".to_owned());
    assert_eq!(programmed(), of_one("0"));
    let revision = context.cluster.log().revision();
    stream.update(|status| status.programmed = revision);
    assert_eq!(programmed(), of_one("1"));
}

#[test]
fn service_without_its_last_endpoint_is_first_and_red() {
    let context = FrontendContext::new(Config::default());
    let of_web = |endpoints: &[&str]| {
        let endpoints = endpoints.iter().map(|address| endpoint(address, "node-a")).collect();
        put(slice("x", "web", endpoints))
    };
    let services = [put(service("all", "10.96.0.1")), put(service("web", "10.96.0.2"))];
    initial([]).into_iter().chain(services).for_each(|update| context.cluster.index().apply(update));
    for update in [of_web(&["10.0.0.1"]), of_web(&[])] {
        context.cluster.index().apply(update);
        let commit = context.cluster.commit(|_| {}).unwrap();
        context.cluster.publish(commit.revision, commit.kind_versions);
    }

    let model = PageModel::of(&context);
    let problems = model.figures.iter().find(|figure| figure.name == "Problems").unwrap();
    assert_eq!(problems.class, "bad");
    for table in [&model.tables[0], model.tables.last().unwrap()] {
        let first = &table.rows[0];
        assert!(first.class == "bad" && first.cells[0].ends_with("ns/web:http/tcp"), "{table:?}");
    }
    assert_eq!(context.problems()[0].object, "service port ns/web:http/tcp");
}

#[test]
fn page_rejects_other_host_names_and_allows_no_external_content() {
    let page = Page::new(Frontend::new(Config::default()).context);
    let get = |host: &str, path: &str| {
        let request = Request::builder().uri(path).header(HOST, host).body(()).unwrap();
        assert_eq!(is_local_host(&request), page.answer(&request).status() != StatusCode::FORBIDDEN);
        page.answer(&request)
    };
    for host in ["127.0.0.1:7602", "localhost", "LOCALHOST:1", "[::1]:7602", "[fd00::1]", "10.0.0.1"] {
        assert_eq!(get(host, "/?q=x").status(), StatusCode::OK, "{host}");
    }
    for host in ["example.org", "example.org:7602", "127.0.0.1.example.org", "localhost.", "", ":80"] {
        assert_eq!(get(host, "/").status(), StatusCode::FORBIDDEN, "{host}");
    }
    for path in ["/", "/live", "/page.css", "/page.js", "/icon.svg", "/other"] {
        let answer = get("localhost", path);
        let policy = answer.headers()["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
        assert_eq!(answer.headers()["cache-control"], "no-store");
        assert!(!answer.body().contains("http://") || path == "/icon.svg", "{path}");
    }
    let post = Request::post("/").header(HOST, "localhost").body(()).unwrap();
    assert_eq!(page.answer(&post).status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[test]
fn rows_of_services_with_many_vips_are_short() {
    let context = FrontendContext::new(Config::default());
    initial([]).into_iter().for_each(|update| context.cluster.index().apply(update));
    let mut web = service("web", "10.96.0.1");
    web.external_ips = (0..4_095).map(|number| Ipv4Addr::from_bits(0xc633_0000 + number).into()).collect();
    context.cluster.index().apply(put(web));
    context.cluster.commit(|_| {}).unwrap();
    let model = PageModel::of(&context);
    let [row] = &model.tables.last().unwrap().rows[..] else { panic!("{model:?}") };
    assert!(row.cells[1].starts_with("10.96.0.1:80, 198.51.0.0:80, "), "{row:?}");
    assert!(row.cells[1].ends_with(", 198.51.0.6:80, and 4088 more"), "{row:?}");
    assert!(row.cells.concat().len() < 1 << 10, "{row:?}");
}

/// The page and the engine lock the index and the log.
#[test]
fn page_is_built_while_the_cluster_changes() {
    let context = Arc::new(FrontendContext::new(Config::default()));
    initial([]).into_iter().for_each(|update| context.cluster.index().apply(update));
    let (done, ended) = mpsc::channel();
    let in_thread = |act: fn(&FrontendContext, u16)| {
        let (context, done) = (context.clone(), done.clone());
        thread::spawn(move || {
            (1..2000).for_each(|number| act(&context, number));
            done.send(()).unwrap();
        });
    };
    in_thread(|context, number| {
        let mut web = service("web", "10.96.0.1");
        web.ports[0].port = crate::testing::number(number);
        context.cluster.index().apply(put(web));
        context.cluster.commit(|_| {}).unwrap();
    });
    in_thread(|context, _| drop(PageModel::of(context)));
    for _ in 0..2 {
        ended.recv_timeout(Duration::from_secs(60)).expect("neither waits for the other");
    }
}
