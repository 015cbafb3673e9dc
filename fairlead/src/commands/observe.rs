//! The HTTP servers of a backend.

use backend::{Observer, ObserverPages};
use runtime::{
    Tasks,
    http::serve_at,
    metrics::{self, Registry},
};

use crate::cli::{Effective, ObserveArgs};

/// Starts the servers. `registries`: metrics of the other parts of this process.
pub(super) fn spawn(
    args: &ObserveArgs,
    observer: Observer,
    config: &Effective,
    registries: Vec<Registry>,
    tasks: &mut Tasks,
) {
    let (on_bind_error, profiling) = (args.on_bind_error(), args.profiling.profiling());
    if let Some(address) = args.healthz.address() {
        let observer = observer.clone();
        tasks.spawn("health", move |shutdown| async move {
            let answer = move |request: &_| observer.health(request);
            Ok(serve_at(address, "health", on_bind_error, answer, shutdown).await?)
        });
    }
    if let Some(address) = args.metrics.address() {
        let pages = ObserverPages::new(observer, config.to_json(), registries.into_iter().chain([metrics::process()]));
        tasks.spawn("metrics", move |shutdown| async move {
            let answer = move |request: &_| profiling.answer(request, || pages.answer(request));
            Ok(serve_at(address, "metrics", on_bind_error, answer, shutdown).await?)
        });
    }
}
