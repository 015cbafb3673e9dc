//! The status page of a frontend in a real browser: it shows the current state, updates itself, has a filter, is
//! accessible, and makes no requests to other hosts.

use std::{fs, time::Duration};

use e2e::{Browser, Cluster, Process, eventually, fairlead, manifests::Service, plan};
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(60);
const URL: &str = "http://127.0.0.1:7602/";
/// Elements whose text has a contrast below 4.5 to 1 with its background (WCAG 2, AA).
const LOW_CONTRAST: &str = r#"(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const luminance = (colour) => {
    const [r, g, b] = [...rgba(colour)]
      .map((part) => part / 255)
      .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = (element) => {
    const colour = element ? getComputedStyle(element).backgroundColor : "white";
    return rgba(colour)[3] === 255 ? colour : background(element.parentElement);
  };
  const texts = [...document.querySelectorAll("body *")].filter((element) =>
    [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()) &&
    element.checkVisibility());
  return texts.flatMap((element) => {
    const [a, b] = [luminance(getComputedStyle(element).color), luminance(background(element))].sort((a, b) => b - a);
    return (a + 0.05) / (b + 0.05) < 4.5 ? [element.outerHTML] : [];
  });
})()"#;

/// The tables that are wider than their place, so that they scroll sideways.
const WIDE_TABLES: &str = "[...document.querySelectorAll('.table')]
  .filter((table) => table.scrollWidth > table.clientWidth).map((table) => table.getAttribute('aria-labelledby'))";
/// The width of a picture, the number of its pixels of a color, and how far down the first of them is.
const PIXELS: &str = r#"(async (png, colour) => {
  const image = new Image();
  image.src = "data:image/png;base64," + png;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  const { data } = canvas.getImageData(0, 0, image.width, image.height);
  let [count, first] = [0, image.height];
  for (let at = 0; at < data.length; at += 4) {
    if (colour.every((part, n) => data[at + n] === part)) {
      count += 1;
      first = Math.min(first, Math.floor(at / 4 / image.width));
    }
  }
  return [image.width, count, first];
})"#;
/// The schemes with the background of what is wrong (`--bad-ground` of page.css).
const SCHEMES: [(&str, [u8; 3]); 2] = [("light", [0xfc, 0xe6, 0xe4]), ("dark", [0x42, 0x20, 0x1e])];

/// Waits until an expression is true in the page.
#[track_caller]
fn becomes(browser: &mut Browser, what: &str, expression: &str) {
    let browser = std::cell::RefCell::new(browser);
    eventually(what, TIMEOUT, || {
        (browser.borrow_mut().evaluate(&format!("Boolean({expression})")) == true).then_some(())
    });
}

fn row(table: &str, name: &str) -> String {
    format!(
        "[...document.querySelectorAll('#{table} ~ .table tbody tr')].find((row) => row.cells[0]?.innerText.includes('{name}') || row.cells[1]?.innerText.includes('{name}'))"
    )
}

#[test]
fn page_shows_the_state_and_follows_changes() {
    let cluster = Cluster::builder().nodes(2).pods_per_node(1).start();
    let directory = tempfile::tempdir().expect("a directory");
    let manifests = cluster.manifests(&directory.path().join("manifests"));
    let service = |name: &str, number: u8| {
        let service = Service::new(name).cluster_ip(plan::cluster_ip(number)).port_all(80, 8080);
        service.pods([cluster.pod("pod-a-1")])
    };
    manifests.apply(&service("web", 1));
    let address = format!("unix:{}", directory.path().join("frontend.sock").display());
    let mut command = fairlead();
    command.args(["frontend", "--metrics", "none", "--page", "127.0.0.1:7602", "--listen", &address, "--manifests"]);
    command.arg(manifests.directory());
    let frontend = Process::spawn(cluster.outside(), command, &directory.path().join("frontend.log"));
    frontend.wait_for_line("listening", 0, TIMEOUT);
    let mut command = fairlead();
    command.args(["backend", "nftables", "--node-name", "node-a", "--frontend", &address]);
    command.args(["--conntrack-max-per-core", "0", "--healthz", "none", "--metrics", "none", "--state-dir"]);
    command.arg(directory.path().join("state"));
    let node = &cluster.node('a').netns;
    let _backend = Process::spawn(node, command, &directory.path().join("backend.log"));

    let profile = directory.path().join("profile");
    fs::create_dir(&profile).expect("a directory");
    let mut browser = Browser::start(cluster.outside(), &profile);
    browser.emulate_window(1280, 1000, "light");
    browser.open(URL);
    becomes(&mut browser, "node-a is ok", &format!("{}?.cells[1].innerText === 'ok'", row("nodes", "node-a")));
    becomes(
        &mut browser,
        "node-b is not connected",
        &format!("{}?.innerText.includes('not connected to this replica')", row("nodes", "node-b")),
    );
    becomes(
        &mut browser,
        "the service is listed",
        &format!("{}?.innerText.includes('10.96.0.1:80')", row("services", "default/web")),
    );

    // The page updates itself without being loaded again.
    browser.evaluate("window.mark = 1");
    manifests.apply(&service("late", 2));
    becomes(&mut browser, "a new service is listed", &row("services", "default/late"));
    becomes(
        &mut browser,
        "its change is listed",
        &format!("{}.innerText.includes('added')", row("changes", "default/late")),
    );
    let mut command = fairlead();
    command.args(["backend", "nftables", "--shadow", "--node-name", "node-b", "--frontend", &address]);
    let _shadow = Process::spawn(&cluster.node('b').netns, command, &directory.path().join("shadow.log"));
    becomes(&mut browser, "node-b has a shadow", &format!("{}?.innerText.includes('shadow')", row("nodes", "node-b")));
    assert_eq!(browser.evaluate("window.mark"), 1);

    // A Service that loses all endpoints is the first problem.
    manifests.apply(&Service::new("late").cluster_ip(plan::cluster_ip(2)).port_all(80, 8080));
    let first_problem = "document.querySelector('main section tbody tr.bad')?.cells[0].innerText";
    becomes(&mut browser, "the loss is listed", &format!("{first_problem}?.includes('default/late')"));

    let mut screenshots = Vec::new();
    for (scheme, colour) in SCHEMES {
        for (width, height) in [(1280, 1000), (375, 800)] {
            browser.emulate_window(width, height, scheme);
            let name = format!("{scheme}-{width}");
            assert_eq!(browser.evaluate(LOW_CONTRAST), json!([]), "{name}");
            assert_eq!(browser.evaluate(WIDE_TABLES), json!([]), "{name}");
            let wide = browser.evaluate("document.documentElement.scrollWidth - innerWidth");
            assert!(wide.as_i64().is_some_and(|pixels| pixels <= 0), "{name}: {wide} pixels too wide");
            screenshots.push((name, width, height, colour, browser.screenshot()));
        }
    }

    let count = "document.querySelectorAll('#services ~ .table tbody tr').length";
    let type_in = |text: &str| {
        format!(
            "(() => {{ const q = document.getElementById('q'); q.value = '{text}'; q.dispatchEvent(new Event('input')); }})()"
        )
    };
    browser.evaluate(&type_in("default/LATE"));
    becomes(&mut browser, "the filter works", &format!("{count} === 3 && !({})", row("services", "default/web")));
    assert_eq!(browser.evaluate("location.search"), "?q=default%2FLATE");
    browser.evaluate(&type_in("nowhere"));
    becomes(&mut browser, "no row matches", "document.body.innerText.includes('No rows match the filter.')");
    browser.evaluate(&type_in(""));
    becomes(&mut browser, "all rows are listed again", &format!("{count} === 6 && {}", row("nodes", "node-b")));
    // Every table has header cells for its columns and rows.
    let unnamed = "[...document.querySelectorAll('table')].filter((table) => !table.querySelector('thead th[scope=col]') || [...table.tBodies[0].rows].some((row) => row.cells[0].scope !== 'row')).length";
    assert_eq!(browser.evaluate(unnamed), 0);
    assert_eq!(browser.evaluate("window.mark"), 1);

    let requests = browser.requests();
    assert!(requests.len() > 5, "{requests:?}");
    assert!(requests.iter().all(|url| url.starts_with(URL) || url == "about:blank"), "{requests:?}");
    assert!(browser.errors().is_empty(), "{:?}", browser.errors());

    // Without a frontend the page marks its content as stale.
    frontend.kill();
    becomes(&mut browser, "the page is marked as stale", "!document.getElementById('stale').hidden");

    // What a user sees at first: the problem is in the upper part, and red across the window.
    browser.open("about:blank");
    for (name, width, height, colour, png) in screenshots {
        if let Ok(to) = std::env::var("SCREENSHOTS") {
            fs::write(format!("{to}/{name}.base64"), &png).expect("a file");
        }
        let pixels = browser.evaluate(&format!("{PIXELS}({}, {})", json!(png), json!(colour)));
        let [seen_width, count, first] = [0, 1, 2].map(|at| pixels[at].as_u64().expect("a number"));
        assert_eq!(seen_width, u64::from(width), "{name}");
        assert!(count > u64::from(10 * width) && first < u64::from(height / 2), "{name}: {pixels}");
    }
}
