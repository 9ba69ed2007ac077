//! The threads that run views.
//!
//! One thread at a time, the leader, is expected to take what is in the queue: a short view costs no other thread's wake.
//! Where it has taken nothing for [`PATIENCE_NS`], its view takes longer, and another thread becomes the leader. A thread
//! that is done with a long view takes the next request as well, or rests. Threads are made when they are needed first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use ringloop_reactor::clock;

use super::view::View;
use super::waiting::Parker;
use crate::cell::GilCell;
use crate::http::service::HttpService;
use crate::names::intern;
use crate::objects::{self, New};
use crate::queue::Collector;
use crate::support::{self, CloneRefOption};
use crate::thread_exit::SleepsAtExit;

/// How long a request waits for the leader before another thread is called.
const PATIENCE_NS: u64 = 500_000;

/// With the GIL: how long a thread may run views while the loop waits for it.
///
/// Handing it over costs two switches of threads, so views run in batches. CPython itself takes the GIL away after 5 ms, in
/// the middle of a view: this is a little less, so that it changes hands between views.
const HOLD_NS: u64 = 4_000_000;

/// How often a thread that rests checks whether the loop was closed, which notifies nobody.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The number of a thread.
pub(super) type Number = u64;

/// Each flag has its own life.
#[allow(clippy::struct_excessive_bools)]
struct State {
    service: Option<Py<HttpService>>,
    /// Requests that no thread has taken.
    queue: VecDeque<Py<View>>,
    /// Requests that a thread has taken and not finished.
    running: usize,
    /// Threads that have nothing to do; the last one has rested for the shortest time.
    idle: Vec<(Number, Arc<Parker>)>,
    /// All threads, including those that are starting.
    threads: usize,
    /// Threads that have not begun to work.
    starting: Vec<Number>,
    /// The most threads. Fewer than were asked for if the system refused one.
    threads_max: usize,
    /// The number of threads that were made.
    made: Number,
    leader: Option<Number>,
    /// When the leader was called, or has taken its last request.
    led_ns: u64,
    /// How many requests were taken.
    taken: u64,
    /// `taken`, when the timer was set.
    taken_before: u64,
    has_timer: bool,
    /// The leader was called, and hasn't looked at the queue since.
    is_called: bool,
    /// The end of the turn will call a thread.
    is_collected: bool,
    /// When that was decided.
    collected_ns: u64,
    /// Threads whose views go on when the turn is over.
    waiting: Vec<Arc<Parker>>,
    /// Views that have something for the loop to do.
    outbox: Vec<Py<View>>,
    /// The loop was called for them.
    is_posted: bool,
}

impl State {
    /// A thread begins to work. It counts again if its start seemed to have failed.
    fn begin(&mut self, number: Number) {
        match self.starting.iter().position(|&it| it == number) {
            Some(index) => {
                self.starting.swap_remove(index);
            }
            None => self.threads += 1,
        }
    }

    /// A thread could not be started. Returns false if it works nevertheless.
    fn write_off(&mut self, number: Number) -> bool {
        let Some(index) = self.starting.iter().position(|&it| it == number) else {
            return false;
        };
        self.starting.swap_remove(index);
        self.end(number);
        true
    }

    /// A thread ends.
    fn end(&mut self, number: Number) {
        self.threads -= 1;
        if self.leader == Some(number) {
            self.leader = None;
        }
    }
}

#[pyclass(module = "ringloop._core", name = "_WsgiPool", frozen)]
pub(super) struct Pool {
    queue_max: usize,
    state: GilCell<State>,
}

impl Pool {
    /// The pool of a service, which is made when it is needed first.
    pub(super) fn of<'py>(service: &Bound<'py, HttpService>) -> PyResult<Bound<'py, Self>> {
        let py = service.py();
        if let Some(pool) = service.get().pool(py) {
            return Ok(pool.cast_into()?);
        }
        let (threads_max, queue_max) = service.get().wsgi_limits();
        let state = State {
            service: Some(service.clone().unbind()),
            queue: VecDeque::new(),
            running: 0,
            idle: Vec::new(),
            threads: 0,
            starting: Vec::new(),
            threads_max,
            made: 0,
            leader: None,
            led_ns: 0,
            taken: 0,
            taken_before: 0,
            has_timer: false,
            is_called: false,
            is_collected: false,
            collected_ns: 0,
            waiting: Vec::new(),
            outbox: Vec::new(),
            is_posted: false,
        };
        let pool = Self {
            queue_max,
            state: GilCell::new(state),
        };
        let pool = Bound::new(py, pool)?;
        service.get().set_pool(pool.as_any());
        Ok(pool)
    }

    fn service<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, HttpService>> {
        let service = self.state.get(py).service.clone_ref_opt(py);
        service
            .map(|it| it.into_bound(py))
            .ok_or_else(|| objects::error::<PyRuntimeError>(py, "the service is gone"))
    }

    // -- The loop's side ---------------------------------------------------------------------------------------------

    /// Takes a request. If too many wait already, it is refused.
    pub(super) fn submit(
        slf: &Bound<'_, Self>,
        service: &Bound<'_, HttpService>,
        view: &Bound<'_, View>,
    ) -> PyResult<()> {
        let py = service.py();
        let this = slf.get();
        service.get().count_request(py)?;
        let is_full = {
            // Each thread has room for a request, also if it is still resting or not made yet.
            let state = this.state.get(py);
            state.queue.len() + state.running >= this.queue_max.saturating_add(state.threads_max)
        };
        if is_full {
            let refused = View::refuse(view, 503, "Service Unavailable");
            let text = "Exceeded the limit of requests that wait for a thread (--wsgi-queue).";
            return refused.and(service.get().warn(py, text));
        }
        service.get().begin_active(py);
        let slot = service.get().keep_waiting(view.as_any());
        view.get().begin(py, slot);
        this.state
            .get_mut(py)
            .queue
            .push_back(view.clone().unbind());
        Self::collect(slf, service)
    }

    /// Has the end of the turn call threads.
    fn collect(slf: &Bound<'_, Self>, service: &Bound<'_, HttpService>) -> PyResult<()> {
        let py = slf.py();
        {
            let mut state = slf.get().state.get_mut(py);
            if std::mem::replace(&mut state.is_collected, true) {
                return Ok(());
            }
            state.collected_ns = clock::now_ns();
        }
        let event_loop = service.get().event_loop(py)?;
        event_loop.get().queue.get_mut(py).collect(slf);
        event_loop.get().queued(py);
        Ok(())
    }

    /// Has a thread whose view waits called when the turn is over, or now if the loop isn't running.
    pub(super) fn call_at_end(slf: &Bound<'_, Self>, parker: &Arc<Parker>) -> PyResult<()> {
        let service = slf.get().service(slf.py())?;
        if !service.get().event_loop(slf.py())?.get().is_running() {
            parker.call();
            return Ok(());
        }
        let parker = Arc::clone(parker);
        slf.get().state.get_mut(slf.py()).waiting.push(parker);
        Self::collect(slf, &service)
    }

    /// Calls a thread for the queue, if no leader will take what is in it.
    fn call_thread(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let number = {
            let mut state = this.state.get_mut(py);
            if state.queue.is_empty() || state.leader.is_some() {
                return Ok(());
            }
            state.led_ns = clock::now_ns();
            if let Some((number, parker)) = state.idle.pop() {
                state.leader = Some(number);
                state.is_called = true;
                parker.call();
                return Ok(());
            }
            if state.threads >= state.threads_max {
                return Ok(()); // Each takes something when it is done with its view.
            }
            state.made += 1;
            state.leader = Some(state.made);
            let number = state.made;
            state.starting.push(number);
            state.threads += 1;
            number
        };
        let work = slf.getattr(intern!(py, "_work"))?;
        let start = support::http(py)?.getattr(intern!(py, "start_view_thread"))?;
        if let Err(error) = start.call1((work, New(number))) {
            if !this.state.get_mut(py).write_off(number) {
                return Err(error); // The thread runs: a signal's handler has raised this.
            }
            let is_alone = {
                let mut state = this.state.get_mut(py);
                if state.threads > 0 {
                    // There is no use in trying again for each request.
                    state.threads_max = state.threads;
                }
                state.threads == 0
            };
            if !is_alone {
                error.write_unraisable(py, None);
                return Ok(()); // The others will do it all.
            }
            let queue = std::mem::take(&mut this.state.get_mut(py).queue);
            let refused = support::for_each(py, queue, |view| {
                View::give_up(view.bind(py), 503, "Service Unavailable")
            });
            return support::first_error(py, Err(error), refused);
        }
        Ok(())
    }

    /// Looks after the queue again in a moment, if that might help.
    fn set_timer(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        {
            let mut state = this.state.get_mut(py);
            let may_call = !state.idle.is_empty() || state.threads < state.threads_max;
            if state.has_timer || state.queue.is_empty() || !may_call {
                return Ok(());
            }
            state.has_timer = true;
            state.taken_before = state.taken;
        }
        let callback = slf.getattr(intern!(py, "_check"))?;
        let service = this.service(py)?;
        let delay_s = PATIENCE_NS as f64 * 1e-9;
        service.get().call_later(py, delay_s, &callback)
    }

    /// The service shuts down, or the loop is closed: threads end when there is nothing to do.
    pub(super) fn stop(&self, py: Python<'_>) {
        let idle = std::mem::take(&mut self.state.get_mut(py).idle);
        for (_, parker) in idle {
            parker.call();
        }
    }

    // -- The threads' side -------------------------------------------------------------------------------------------

    /// Takes the next request.
    fn next(&self, py: Python<'_>, number: Number, now_ns: u64) -> Option<Py<View>> {
        let mut state = self.state.get_mut(py);
        let view = state.queue.pop_front()?;
        state.running += 1;
        state.taken += 1;
        if *state.leader.get_or_insert(number) == number {
            state.is_called = false;
            state.led_ns = now_ns;
        }
        Some(view)
    }

    /// Waits until there may be something to do; false if there will be nothing: the thread is not counted any more.
    fn rest(&self, py: Python<'_>, number: Number, parker: &Arc<Parker>) -> PyResult<bool> {
        let service = self.service(py)?;
        let event_loop = service.get().event_loop(py)?;
        {
            // All in one borrow: whoever puts a request into the queue relies on a leader, and a thread that ends has left
            // before it is looked for. `stop` comes after the flag was set, so that it finds those who have not seen that.
            let mut state = self.state.get_mut(py);
            if !state.queue.is_empty() {
                return Ok(true);
            }
            if event_loop.get().is_closed() || service.get().is_shutting_down(py) {
                state.end(number);
                return Ok(false);
            }
            if state.leader == Some(number) {
                state.leader = None;
            }
            state.idle.push((number, Arc::clone(parker)));
        }
        while !py.detach(|| parker.wait_for(IDLE_CHECK_INTERVAL)) {
            if event_loop.get().is_closed() {
                self.stop(py);
            }
        }
        Ok(true)
    }

    /// The view that this thread runs waits: another one takes what is in the queue.
    pub(super) fn step_aside(slf: &Bound<'_, Self>, number: Number) -> PyResult<()> {
        {
            let mut state = slf.get().state.get_mut(slf.py());
            if state.leader != Some(number) {
                return Ok(());
            }
            state.leader = None;
        }
        Self::call_thread(slf)
    }

    /// Has the loop do what a view needs.
    pub(super) fn post(slf: &Bound<'_, Self>, view: &Bound<'_, View>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let is_posted = {
            let mut state = this.state.get_mut(py);
            state.outbox.push(view.clone().unbind());
            std::mem::replace(&mut state.is_posted, true)
        };
        if is_posted {
            return Ok(());
        }
        let posted = Self::call_loop(slf);
        if posted.is_err() {
            this.state.get_mut(py).is_posted = false;
        }
        posted
    }

    fn call_loop(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let service = slf.get().service(py)?;
        let callback = slf.getattr(intern!(py, "_deliver"))?;
        let options = objects::dict(py)?;
        options.set_item(intern!(py, "context"), service.get().context(py)?)?;
        let event_loop = service.get().event_loop(py)?;
        event_loop
            .call_method(
                intern!(py, "call_soon_threadsafe"),
                (callback,),
                Some(&options),
            )
            .map(drop)
    }

    fn run(slf: &Bound<'_, Self>, number: Number) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let service = this.service(py)?;
        let event_loop = service.get().event_loop(py)?;
        let posting = &event_loop.get().posting;
        let parker = Arc::new(Parker::default());
        let mut now_ns = clock::now_ns();
        let mut since_ns = now_ns;
        loop {
            let Some(view) = this.next(py, number, now_ns) else {
                if !this.rest(py, number, &parker)? {
                    return Ok(());
                }
                now_ns = clock::now_ns();
                since_ns = now_ns;
                continue;
            };
            let view = view.into_bound(py);
            if let Err(error) = View::run(&view, slf, &service, number) {
                error.write_unraisable(py, Some(view.as_any()));
            }
            drop(view);
            this.state.get_mut(py).running -= 1;
            now_ns = clock::now_ns();
            let is_long = cfg!(not(Py_GIL_DISABLED)) && now_ns - since_ns > HOLD_NS;
            if is_long && posting.loop_wants_gil() {
                posting.let_loop_run(py);
                now_ns = clock::now_ns();
                since_ns = now_ns;
            }
        }
    }
}

impl Collector for Pool {
    /// The turn is over, in which requests came.
    fn flush(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let waiting = {
            let mut state = slf.get().state.get_mut(py);
            state.is_collected = false;
            // What the leader has not taken since then says nothing: with the GIL, only the loop could run.
            if state.led_ns + PATIENCE_NS < state.collected_ns && !state.is_called {
                state.leader = None;
            }
            std::mem::take(&mut state.waiting)
        };
        for parker in waiting {
            parker.call();
        }
        let called = Self::call_thread(slf);
        support::first_error(py, called, Self::set_timer(slf))
    }
}

#[pymethods]
impl Pool {
    /// The work of a thread.
    fn _work(slf: &Bound<'_, Self>, number: Number) -> PyResult<()> {
        let _sleeps_at_exit = SleepsAtExit::new();
        slf.get().state.get_mut(slf.py()).begin(number);
        Self::run(slf, number).inspect_err(|_| slf.get().state.get_mut(slf.py()).end(number))
    }

    /// Requests have waited for a moment.
    fn _check(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        {
            let mut state = slf.get().state.get_mut(py);
            state.has_timer = false;
            if state.taken == state.taken_before {
                state.leader = None;
            }
        }
        let called = Self::call_thread(slf);
        support::first_error(py, called, Self::set_timer(slf))
    }

    /// Does what views need, in the loop's thread.
    fn _deliver(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let outbox = {
            let mut state = slf.get().state.get_mut(py);
            state.is_posted = false;
            std::mem::take(&mut state.outbox)
        };
        support::for_each(py, outbox, |view| View::deliver(view.bind(py)))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(state) = self.state.for_traversal() else {
            return Ok(());
        };
        visit.call(&state.service)?;
        for view in state.queue.iter().chain(&state.outbox) {
            visit.call(view)?;
        }
        Ok(())
    }

    fn __clear__(&self, py: Python<'_>) {
        let dropped = {
            let mut state = self.state.get_mut(py);
            (
                state.service.take(),
                std::mem::take(&mut state.queue),
                std::mem::take(&mut state.outbox),
            )
        };
        drop(dropped);
    }
}
