//! Answers requests by a WSGI application (PEP 3333), in a pool of threads.
//!
//! The loop's thread alone touches connections. It puts the requests of a turn into the pool's queue, and calls a thread
//! when the turn is over (`pool`). The thread runs one view after the other (`view`), and puts each that has something to
//! send or to wait for into the pool's outbox. The loop is woken for that once, and does all of it (`delivery`). So with
//! the GIL a thread and the loop take turns at it, each for as many requests as there are.
//!
//! All that both sides share is in cells. Without the GIL, they and the application's own threads may use them between any
//! two borrows: what must change together is changed in one. Who waits does so detached, on a `waiting::Parker`.

mod delivery;
mod input;
mod pool;
mod start;
mod view;
mod waiting;

use pyo3::prelude::*;

use self::pool::Pool;
use self::view::View;
use super::exchange::{Answerer, Exchange};
use super::scope::Told;
use super::service::HttpService;

/// The answerer that runs a WSGI application in a pool of threads.
pub(super) struct Threads;

impl Answerer for Threads {
    fn take<'py>(&self, exchange: Exchange, told: Told<'py>) -> PyResult<Bound<'py, Exchange>> {
        View::make(exchange, told).map(Bound::into_super)
    }

    fn wants_whole_body(&self) -> bool {
        true
    }

    fn answers_half_closed(&self) -> bool {
        true
    }

    fn start(
        &self,
        service: &Bound<'_, HttpService>,
        exchange: &Bound<'_, Exchange>,
    ) -> PyResult<()> {
        Pool::submit(&Pool::of(service)?, service, exchange.cast()?)
    }
}

/// The service shuts down: threads end when they have nothing to do.
pub(super) fn stop(py: Python<'_>, service: &HttpService) {
    if let Some(pool) = service.pool(py)
        && let Ok(pool) = pool.cast::<Pool>()
    {
        pool.get().stop(py);
    }
}

pub(super) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<input::Input>()?;
    module.add_class::<view::View>()
}
