//! The status page: nodes, Services, recent changes and problems. Read-only.
//!
//! ```text
//!   GET / ──▶ model: tables of text, a snapshot at most once per second ──▶ render: HTML, filtered, every text escaped
//!   GET /live: the part of the page that changes, which page.js replaces every two seconds
//! ```
//!
//! It works without JavaScript too, with a form for the filter. It loads nothing from other hosts.

mod model;
mod render;
#[cfg(test)]
mod tests;

use std::{net::IpAddr, sync::Arc};

use hyper::{
    Method, Request, Response, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, HeaderValue, REFERRER_POLICY},
};
use runtime::{
    Shutdown,
    http::{self, HttpConnections, TEXT, response},
};
use tokio::net::TcpListener;
use tracing::info;

use self::model::PageModel;
use crate::{Frontend, cached::Cached, context::FrontendContext};

const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const CSS: HeaderValue = HeaderValue::from_static("text/css; charset=utf-8");
const SCRIPT: HeaderValue = HeaderValue::from_static("text/javascript; charset=utf-8");
const SVG: HeaderValue = HeaderValue::from_static("image/svg+xml");
/// Headers that restrict what a browser does with a response.
const SECURITY_HEADERS: [(HeaderName, HeaderValue); 3] = [
    (
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; \
             form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
        ),
    ),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
];

/// Longer filters are truncated: each word is searched for in each row, for every request.
const MAX_FILTER_CHARS: usize = 100;

/// The page, with its latest snapshot.
struct Page {
    context: Arc<FrontendContext>,
    last: Cached<Arc<PageModel>>,
}

impl Frontend {
    /// Serves the page over HTTP until the shutdown. There is no authentication; the page shows names of Services and
    /// nodes.
    pub async fn serve_page(&self, listener: TcpListener, mut shutdown: Shutdown) {
        if let Ok(address) = listener.local_addr() {
            info!(%address, "serving the status page");
        }
        let page = Page::new(self.context.clone());
        let serving = http::serve(listener, "page", HttpConnections::default(), move |request| page.answer(request));
        shutdown.run_until_started(serving).await;
    }
}

impl Page {
    fn new(context: Arc<FrontendContext>) -> Self {
        Self { context, last: Cached::default() }
    }

    fn answer<B>(&self, request: &Request<B>) -> Response<String> {
        let mut answer = self.content(request);
        answer.headers_mut().extend(SECURITY_HEADERS.map(|(name, value)| (Some(name), value)));
        answer
    }

    fn content<B>(&self, request: &Request<B>) -> Response<String> {
        if !is_local_host(request) {
            let text = "forbidden: open this page by an IP address or as localhost\n";
            return response(StatusCode::FORBIDDEN, TEXT, text.to_owned());
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer =
                response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "method not allowed: use GET or HEAD\n".to_owned());
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }

        let filter = filter_of(request.uri().query().unwrap_or_default());
        let (kind, body) = match request.uri().path() {
            "/" => (HTML, render::page(&self.model(), &filter)),
            "/live" => (HTML, render::live(&self.model(), &filter)),
            "/page.css" => (CSS, include_str!("page/page.css").to_owned()),
            "/page.js" => (SCRIPT, include_str!("page/page.js").to_owned()),
            "/icon.svg" => (SVG, include_str!("page/icon.svg").to_owned()),
            _ => return response(StatusCode::NOT_FOUND, TEXT, "not found: the page is at /\n".to_owned()),
        };
        response(StatusCode::OK, kind, body)
    }

    /// The latest snapshot, or a new one.
    fn model(&self) -> Arc<PageModel> {
        self.last.get(|| Arc::new(PageModel::of(&self.context)))
    }
}

/// The filter in a query string, `?q=FILTER`. Other parameters are ignored.
fn filter_of(query: &str) -> String {
    let filter = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "q");
    filter.map(|(_, filter)| filter.trim().chars().take(MAX_FILTER_CHARS).collect()).unwrap_or_default()
}

/// Whether the Host header is an IP address or `localhost`. This prevents DNS rebinding: another site could point its
/// own name at this address and have a browser read the page.
fn is_local_host<B>(request: &Request<B>) -> bool {
    let Some(host) = request.headers().get(HOST).and_then(|host| host.to_str().ok()) else { return false };
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}
