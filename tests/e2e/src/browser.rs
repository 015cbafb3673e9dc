//! A headless browser in a namespace: Debian's Chromium, controlled by the DevTools protocol over two pipes.
//!
//! ```text
//!   call ──JSON, ended by a zero byte──▶ pipe 3 ──▶ chromium ──▶ pipe 4 ──▶ answers, by number, and events
//! ```

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::{fork, netns::Netns, pace::patience};

/// Installed by .ci/setup.
const PROGRAM: &str = "/usr/bin/chromium";
/// Timeout of an answer.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Standard input and output become the pipes of the protocol.
const SHELL: &str = r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#;
/// The sandbox does not work for root; background activity would appear among the requests of the page.
const ARGUMENTS: [&str; 10] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--remote-debugging-pipe",
    "about:blank",
];

/// A browser with one page. Dropping this ends it.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    /// Messages that the browser sent without a request.
    events: Vec<Value>,
    session: String,
    calls: u64,
}

impl Browser {
    /// Starts a browser in `netns`, with its profile in `directory`.
    #[track_caller]
    pub fn start(netns: &Netns, directory: &Path) -> Self {
        assert!(Path::new(PROGRAM).exists(), "{PROGRAM} is missing: .ci/setup installs it");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SHELL, "sh", PROGRAM]).args(ARGUMENTS);
        command.arg(format!("--user-data-dir={}", directory.display())).env("HOME", directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = netns.run(|| fork::spawn(&mut command)).expect("start the browser");
        let input = child.stdin.take().expect("piped");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, messages) = channel();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            while matches!(output.read_until(0, &mut bytes), Ok(length) if length > 0) {
                bytes.pop();
                let message = serde_json::from_slice(&bytes).expect("JSON from the browser");
                bytes.clear();
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self { child, input, messages, events: Vec::new(), session: String::new(), calls: 0 };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", attach)["sessionId"].as_str().map(str::to_owned);
        browser.session = session.expect("a session");
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a method of the protocol.
    #[track_caller]
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        write!(self.input, "{message}\0").expect("the browser reads");
        loop {
            let answer = self.messages.recv_timeout(patience(TIMEOUT));
            let answer = answer.unwrap_or_else(|error| panic!("{method}: no answer: {error}"));
            if answer["id"] == self.calls {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }

    /// Navigates to a page.
    pub fn open(&mut self, url: &str) {
        let answer = self.call("Page.navigate", json!({ "url": url }));
        assert!(answer["errorText"].is_null(), "{url}: {answer}");
    }

    /// Evaluates an expression in the page; of a promise its result.
    #[track_caller]
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Sets the size of the window and the color scheme: `light` or `dark`.
    pub fn emulate_window(&mut self, width: u32, height: u32, scheme: &str) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.call("Emulation.setEmulatedMedia", json!({ "features": [feature] }));
    }

    /// The window as a PNG, in base64.
    pub fn screenshot(&mut self) -> String {
        let shot = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        shot["data"].as_str().unwrap_or_default().to_owned()
    }

    /// The URLs of all requests so far.
    pub fn requests(&self) -> Vec<String> {
        let sent = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.filter_map(|event| event["params"]["request"]["url"].as_str().map(str::to_owned)).collect()
    }

    /// The exceptions and the errors in the console so far.
    pub fn errors(&self) -> Vec<&Value> {
        let is_error = |event: &&Value| match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => true,
            "Runtime.consoleAPICalled" => event["params"]["type"] == "error",
            "Log.entryAdded" => event["params"]["entry"]["level"] == "error",
            _ => false,
        };
        self.events.iter().filter(is_error).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The shell has executed the browser, whose other processes end with it. It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
