//! Spans and events for the crate `tracing`: a span per task and per connection of a server, and an event where something
//! begins, ends or fails. Without the feature `tracing`, the functions here are empty, and return futures unchanged.
//!
//! | what | level | fields |
//! | --- | --- | --- |
//! | span `task` | debug | `name`: the type of the future; `worker`: the thread's name |
//! | span `connection`, instead of `task` | info | `peer`, `worker` |
//! | "accepted", "closed", "timed out" in the span of the connection | debug | |
//! | "failed", "handshake failed" in the span of the connection | warn | `error` |
//! | "panicked" in the span of the task or the connection | error | `panic`: its message |
//! | "cannot accept" | warn | `error`, `back_off`: how long the listener waits |
//! | "backend chosen" | info | `backend`, `reason` |
//! | "kernel TLS", once per process for the kernel and for each cipher | info | `cipher`, `refused`: why not, if it is |
//! | "worker blocked" | warn | `worker`, `task`: the type of the future; `location`: where it was spawned; `blocked`: how long so far |
//! | "worker runs again" | info | `worker`, `blocked`: how long it was blocked |
//! | "shutting down" | info | `workers`, `patience` |
//! | "tasks dropped" | warn | `worker`, `tasks`: how many had not ended in time |

#[cfg(feature = "tracing")]
pub(crate) use on::*;

#[cfg(not(feature = "tracing"))]
pub(crate) use off::*;

#[cfg(feature = "tracing")]
mod on {
    use std::any::type_name;
    use std::fmt::Display;
    use std::future::Future;
    use std::io;
    use std::net::SocketAddr;
    use std::panic::{self, AssertUnwindSafe, Location};
    use std::pin::Pin;
    use std::task::{Context, Poll};
    use std::thread;
    use std::time::Duration;

    use pin_project_lite::pin_project;
    use ringloop_driver::BackendKind;
    use ringloop_reactor::panics;
    use tracing::{Instrument, Span, debug, debug_span, error, info, info_span, warn};

    pin_project! {
        /// Reports a panic inside the span.
        struct Watched<F> {
            #[pin]
            future: F,
        }
    }

    impl<F: Future> Future for Watched<F> {
        type Output = F::Output;

        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
            let future = self.project().future;
            panic::catch_unwind(AssertUnwindSafe(|| future.poll(context))).unwrap_or_else(
                |payload| {
                    error!(panic = panics::message(&*payload), "panicked");
                    panic::resume_unwind(payload)
                },
            )
        }
    }

    fn watch<F: Future + 'static>(
        span: Span,
        future: F,
    ) -> impl Future<Output = F::Output> + 'static {
        Watched { future }.instrument(span)
    }

    fn worker() -> String {
        thread::current().name().unwrap_or_default().to_owned()
    }

    pub(crate) fn task<F: Future + 'static>(
        future: F,
    ) -> impl Future<Output = F::Output> + 'static {
        let span = debug_span!("task", name = type_name::<F>(), worker = worker());
        watch(span, future)
    }

    pub(crate) fn connection<F: Future + 'static>(
        peer: SocketAddr,
        future: F,
    ) -> impl Future<Output = F::Output> + 'static {
        let span = info_span!("connection", %peer, worker = worker());
        span.in_scope(|| debug!("accepted"));
        watch(span, future)
    }

    pub(crate) fn connection_ended(result: &io::Result<()>) {
        match result {
            Ok(()) => debug!("closed"),
            Err(error) => warn!(%error, "failed"),
        }
    }

    pub(crate) fn handshake_failed(error: &io::Error) {
        warn!(%error, "handshake failed");
    }

    pub(crate) fn connection_timed_out() {
        debug!("timed out");
    }

    pub(crate) fn cannot_accept(error: &io::Error, back_off: Duration) {
        warn!(%error, ?back_off, "cannot accept");
    }

    pub(crate) fn backend_chosen(backend: BackendKind, reason: impl Display) {
        info!(%backend, %reason, "backend chosen");
    }

    #[cfg(feature = "tls")]
    pub(crate) fn kernel_tls(cipher: &str, refused: Option<&str>) {
        info!(cipher, refused, "kernel TLS");
    }

    pub(crate) fn shutting_down(workers: usize, patience: Duration) {
        info!(workers, ?patience, "shutting down");
    }

    pub(crate) fn worker_blocked(
        worker: usize,
        name: &str,
        location: &Location<'_>,
        blocked: Duration,
    ) {
        warn!(worker, task = name, %location, ?blocked, "worker blocked");
    }

    pub(crate) fn worker_runs_again(worker: usize, blocked: Duration) {
        info!(worker, ?blocked, "worker runs again");
    }

    pub(crate) fn tasks_dropped(tasks: u64) {
        warn!(worker = worker(), tasks, "tasks dropped");
    }
}

#[cfg(not(feature = "tracing"))]
mod off {
    use std::fmt::Display;
    use std::io;
    use std::net::SocketAddr;
    use std::panic::Location;
    use std::time::Duration;

    use ringloop_driver::BackendKind;

    pub(crate) fn task<F>(future: F) -> F {
        future
    }

    pub(crate) fn connection<F>(_peer: SocketAddr, future: F) -> F {
        future
    }

    pub(crate) fn connection_ended(_result: &io::Result<()>) {}

    pub(crate) fn handshake_failed(_error: &io::Error) {}

    pub(crate) fn connection_timed_out() {}

    pub(crate) fn cannot_accept(_error: &io::Error, _back_off: Duration) {}

    pub(crate) fn backend_chosen(_backend: BackendKind, _reason: impl Display) {}

    #[cfg(feature = "tls")]
    pub(crate) fn kernel_tls(_cipher: &str, _refused: Option<&str>) {}

    pub(crate) fn shutting_down(_workers: usize, _patience: Duration) {}

    pub(crate) fn worker_blocked(
        _worker: usize,
        _name: &str,
        _location: &Location<'_>,
        _blocked: Duration,
    ) {
    }

    pub(crate) fn worker_runs_again(_worker: usize, _blocked: Duration) {}

    pub(crate) fn tasks_dropped(_tasks: u64) {}
}
