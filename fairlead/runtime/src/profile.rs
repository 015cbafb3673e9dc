//! CPU profiles of this process over HTTP, in the format of pprof.

use std::{fmt::Display, time::Duration};

use hyper::{
    Request, Response, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};
use pprof::{ProfilerGuardBuilder, protos::Message as _};
use tokio::{task::spawn_blocking, time::sleep};

use crate::http::{Answer, TEXT, response};

/// Samples per second of CPU time. Not a round number, so that samples do not run in lockstep with periodic work.
const FREQUENCY: i32 = 99;
/// Default length of a profile in seconds, that of Go's net/http/pprof.
const DEFAULT_SECONDS: u64 = 30;
const MAX_SECONDS: u64 = 60;

/// Whether profiles are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profiling {
    /// Not at all.
    Off,
    /// At `/debug/pprof/profile?seconds=N`, one at a time.
    On,
}

impl Profiling {
    /// Answers a request for a profile; passes all others to `others`.
    pub fn answer<B>(self, request: &Request<B>, others: impl FnOnce() -> Response<String>) -> Answer {
        if self == Self::Off || request.uri().path() != "/debug/pprof/profile" {
            return others().into();
        }
        let Some(seconds) = seconds(request.uri().query().unwrap_or_default()) else {
            let text = format!("seconds: expected a number from 1 to {MAX_SECONDS}\n");
            return response(StatusCode::BAD_REQUEST, TEXT, text).into();
        };
        let length = Duration::from_secs(seconds);
        Answer::Deferred(length, Box::pin(profile(length)))
    }
}

fn seconds(query: &str) -> Option<u64> {
    let given = query.split('&').find_map(|part| part.strip_prefix("seconds="));
    let seconds = given.map_or(Some(DEFAULT_SECONDS), |text| text.parse().ok());
    seconds.filter(|seconds| (1..=MAX_SECONDS).contains(seconds))
}

async fn profile(length: Duration) -> Response<Vec<u8>> {
    let guard = match ProfilerGuardBuilder::default().frequency(FREQUENCY).build() {
        Ok(guard) => guard,
        Err(pprof::Error::Running) => return failed(StatusCode::CONFLICT, "another profile is being recorded"),
        Err(error) => return failed(StatusCode::INTERNAL_SERVER_ERROR, error),
    };
    sleep(length).await;
    // Resolving symbols takes CPU time.
    let encode = move || anyhow::Ok(guard.report().build()?.pprof()?.encode_to_vec());
    match spawn_blocking(encode).await.map_err(anyhow::Error::from).flatten() {
        Ok(bytes) => {
            let mut response = Response::new(bytes);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            response
        }
        Err(error) => failed(StatusCode::INTERNAL_SERVER_ERROR, error),
    }
}

fn failed(status: StatusCode, why: impl Display) -> Response<Vec<u8>> {
    response(status, TEXT, format!("{why}\n")).map(String::into_bytes)
}

#[cfg(test)]
mod tests {
    use std::{
        hint::black_box,
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use super::*;

    #[inline(never)]
    fn a_busy_function(done: &AtomicBool) {
        let mut number = 1_u64;
        while !done.load(Ordering::Relaxed) {
            (0..10_000).for_each(|step| number = black_box(number.wrapping_mul(31).wrapping_add(step)));
        }
    }

    fn get(path: &str) -> Answer {
        let request = Request::builder().uri(path).body(()).unwrap();
        Profiling::On.answer(&request, || response(StatusCode::NOT_FOUND, TEXT, String::new()))
    }

    #[tokio::test]
    async fn profile_names_the_busy_function() {
        static DONE: AtomicBool = AtomicBool::new(false);
        let busy = thread::spawn(|| a_busy_function(&DONE));
        let Answer::Deferred(length, mut first) = get("/debug/pprof/profile?seconds=2") else { panic!("no profile") };
        assert_eq!(length, Duration::from_secs(2));
        // Recording starts when the response is polled for the first time.
        tokio::time::timeout(Duration::from_millis(1), &mut first).await.unwrap_err();
        let Answer::Deferred(_, second) = get("/debug/pprof/profile?seconds=1") else { panic!("no profile") };
        assert_eq!(second.await.status(), StatusCode::CONFLICT);
        let answer = first.await;
        DONE.store(true, Ordering::Relaxed);
        assert_eq!(answer.status(), StatusCode::OK);
        let profile = pprof::protos::Profile::decode(&**answer.body()).unwrap();
        assert!(!profile.sample.is_empty());
        assert!(profile.string_table.iter().any(|name| name.contains("a_busy_function")));
        busy.join().unwrap();
    }

    #[test]
    fn invalid_length_is_rejected_and_profiling_can_be_off() {
        for query in ["seconds=0", "seconds=61", "seconds=x", "seconds="] {
            assert_eq!(seconds(query), None, "{query}");
        }
        assert_eq!((seconds(""), seconds("debug=1&seconds=5")), (Some(DEFAULT_SECONDS), Some(5)));
        let request = Request::builder().uri("/debug/pprof/profile").body(()).unwrap();
        let answer = Profiling::Off.answer(&request, || response(StatusCode::NOT_FOUND, TEXT, String::new()));
        assert!(matches!(answer, Answer::Ready(response) if response.status() == StatusCode::NOT_FOUND));
    }
}
