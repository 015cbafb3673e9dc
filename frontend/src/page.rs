//! A page for people: how the nodes are, what the Services are, what has changed lately, what is wrong. Nothing can be changed there.
//!
//! ```text
//!   GET / ──▶ query ──▶ model: one look at everything, at most one a second ──▶ render: HTML, every name escaped
//!   GET /live: the part of it that changes, which page.js puts in place every two seconds
//! ```
//!
//! Without a script it is a page like any other, with a form for the filter. Nothing is loaded from elsewhere.

mod html;
mod model;
mod query;
mod render;
#[cfg(test)]
mod tests;

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Result;
use hyper::{
    Method, Request, Response, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, HeaderValue, REFERRER_POLICY},
};
use runtime::{
    Shutdown,
    http::{self, TEXT, response},
};
use tokio::{net::TcpListener, time::Instant};
use tracing::info;

use self::{model::Model, query::Query};
use crate::{Frontend, engine::Shared};

/// For so long one look at everything is good, however many ask.
const FRESH: Duration = Duration::from_secs(1);
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const CSS: HeaderValue = HeaderValue::from_static("text/css; charset=utf-8");
const SCRIPT: HeaderValue = HeaderValue::from_static("text/javascript; charset=utf-8");
const SVG: HeaderValue = HeaderValue::from_static("image/svg+xml");
/// What a browser may do with an answer.
const HEADERS: [(HeaderName, HeaderValue); 3] = [
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

/// What the page is made of, for all who look at it.
struct Page {
    shared: Arc<Shared>,
    last: Mutex<Option<(Instant, Arc<Model>)>>,
}

impl Frontend {
    /// Serves the page over HTTP until the shutdown, to everybody who can connect: names of Services and nodes are on it.
    ///
    /// # Errors
    /// None so far; the type is that of a task.
    pub async fn serve_page(&self, listener: TcpListener, mut shutdown: Shutdown) -> Result<()> {
        if let Ok(address) = listener.local_addr() {
            info!(%address, "the page is served");
        }
        let page = Page { shared: self.shared.clone(), last: Mutex::default() };
        let serving = http::serve(listener, "page", move |request| page.answer(request));
        tokio::select! {
            () = serving => {}
            () = shutdown.recv() => {}
        }
        Ok(())
    }
}

impl Page {
    fn answer<B>(&self, request: &Request<B>) -> Response<String> {
        let mut answer = self.content(request);
        answer.headers_mut().extend(HEADERS.map(|(name, value)| (Some(name), value)));
        answer
    }

    fn content<B>(&self, request: &Request<B>) -> Response<String> {
        if !is_addressed(request) {
            let text = "call this page by an IP address or as localhost\n";
            return response(StatusCode::FORBIDDEN, TEXT, text.to_owned());
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "GET only\n".to_owned());
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        let query = Query::parse(request.uri().query().unwrap_or_default());
        let (kind, body) = match request.uri().path() {
            "/" => (HTML, render::page(&self.model(), &query)),
            "/live" => (HTML, render::live(&self.model(), &query)),
            "/page.css" => (CSS, include_str!("page/page.css").to_owned()),
            "/page.js" => (SCRIPT, include_str!("page/page.js").to_owned()),
            "/icon.svg" => (SVG, include_str!("page/icon.svg").to_owned()),
            _ => return response(StatusCode::NOT_FOUND, TEXT, "there is one page, at /\n".to_owned()),
        };
        response(StatusCode::OK, kind, body)
    }

    /// What there is now, or was a moment ago.
    fn model(&self) -> Arc<Model> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((looked, model)) = &*last
            && looked.elapsed() < FRESH
        {
            return model.clone();
        }
        let model = Arc::new(Model::of(&self.shared));
        *last = Some((Instant::now(), model.clone()));
        model
    }
}

/// Whether it is called by an address or as `localhost`. A page of somebody else's could otherwise give its own name this address,
/// and have a browser read this one.
fn is_addressed<B>(request: &Request<B>) -> bool {
    let Some(host) = request.headers().get(HOST).and_then(|host| host.to_str().ok()) else { return false };
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}
