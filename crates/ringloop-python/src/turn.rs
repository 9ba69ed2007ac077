//! One turn of the loop: look at the kernel, expire timers, run what was queued when the turn began.
//!
//! A turn runs exactly what asyncio's would, in the same order. A long turn must not delay timers and I/O, so it looks
//! at both again after each [`CALLBACKS_PER_LOOK`] callbacks. Whatever it finds is queued behind everything else, and
//! so runs in the next turn.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use ringloop_driver::{Event, Peek};
use ringloop_reactor::{Reactor, clock};

use crate::cell;
use crate::datagram::{self, DatagramTransport};
use crate::event_loop::Loop;
use crate::files;
use crate::names::intern;
use crate::objects::{self, New};
use crate::posting::CALLBACKS_PER_LOOK;
use crate::queue::{Ready, Reason, Served};
use crate::stopwatch::Stopwatch;
use crate::support;
use crate::thread_exit::SleepsAtExit;
use crate::transport::{self, SocketTransport};
use crate::watches::Look;

/// While callbacks are ready, every turn looks at the kernel until `EAGER_TURNS` in a row have found nothing. Programs
/// and tests that rely on `sleep(0)` to let I/O in need a few turns, not many.
const EAGER_TURNS: u32 = 16;
/// After that, a turn looks only if `TICKS_PER_LOOK` ticks have passed since the last look: about 15 us, at most 40, so
/// that looking takes a few per cent of the time. If the driver can tell without a system call that the kernel has
/// something (io_uring), every turn looks.
const TICKS_PER_LOOK: u64 = 40_000;

/// One turn in this many offers the GIL to other threads. Python code and waits do so anyway. But if all callbacks are
/// native, and some are always ready, no other thread would ever run; without a GIL, none could collect or fork.
const TURNS_PER_OFFER: u64 = 64;

/// When the kernel is looked at while callbacks are ready.
#[derive(Default)]
struct Looks {
    /// Turns in a row that had callbacks ready and were brought nothing by the kernel.
    idle_turns: u32,
    /// When the last look was, in ticks.
    last_ticks: u64,
}

impl Looks {
    /// Whether this turn looks although only a system call can tell if there is something.
    fn are_due(&mut self, this: &Loop) -> bool {
        if self.idle_turns <= EAGER_TURNS {
            return true;
        }
        let now_ticks = this.meter.ticks.now();
        let due = now_ticks.wrapping_sub(self.last_ticks) >= TICKS_PER_LOOK;
        if due {
            self.last_ticks = now_ticks;
        }
        due
    }

    /// Whether this turn asks the interpreter for signals.
    fn checks_signals(&self) -> bool {
        self.idle_turns <= EAGER_TURNS || self.idle_turns.is_multiple_of(EAGER_TURNS)
    }
}

/// Runs turns until the loop is told to stop, or until `SystemExit` or `KeyboardInterrupt` leaves a callback.
pub(crate) fn run(event_loop: &Bound<'_, Loop>) -> PyResult<()> {
    let mut looks = Looks::default();
    with_events(event_loop, |events, stopwatch| {
        loop {
            turn(event_loop, events, &mut looks, stopwatch)?;
            if event_loop.get().stopping.load(Relaxed) {
                return Ok(());
            }
        }
    })
}

/// Runs one turn; it may wait.
pub(crate) fn run_once(event_loop: &Bound<'_, Loop>) -> PyResult<()> {
    event_loop.get().check_closed(event_loop.py())?;
    with_events(event_loop, |events, stopwatch| {
        turn(event_loop, events, &mut Looks::default(), stopwatch)
    })
}

/// Lends the loop's room for events to `run`, and times it.
fn with_events(
    event_loop: &Bound<'_, Loop>,
    run: impl FnOnce(&mut Vec<Event>, &mut Stopwatch<'_>) -> PyResult<()>,
) -> PyResult<()> {
    let py = event_loop.py();
    let this = event_loop.get();
    let _sleeps_at_exit = SleepsAtExit::new();
    let mut events = this.events.replace(py, Vec::new());
    let result = run(
        &mut events,
        &mut Stopwatch::start(py, &this.meter, &this.pace),
    );
    events.clear();
    drop(this.events.replace(py, events));
    // What the last turn has left.
    support::first_error(py, result, flush_collected(event_loop))
}

// It has two callers, so it would not be inlined otherwise; sleep(0) takes 10% longer then.
#[allow(clippy::inline_always)]
#[inline(always)]
fn turn(
    event_loop: &Bound<'_, Loop>,
    events: &mut Vec<Event>,
    looks: &mut Looks,
    stopwatch: &mut Stopwatch<'_>,
) -> PyResult<()> {
    let py = event_loop.py();
    let this = event_loop.get();
    let turn = this.meter.count_turn();
    let (busy, deadline_ns) = {
        let mut queue = this.queue.get_mut(py);
        if !queue.collected.is_empty() {
            drop(queue);
            flush_collected(event_loop)?;
            queue = this.queue.get_mut(py);
        }
        let busy = !queue.is_idle() || this.stopping.load(Relaxed);
        if !busy {
            queue.shrink();
        }
        (busy, queue.timers.next_deadline_ns())
    };
    let mut timer_is_due = false;
    let collected = if busy {
        looks.idle_turns = looks.idle_turns.wrapping_add(1);
        if let Some(deadline_ns) = deadline_ns {
            timer_is_due = deadline_ns <= clock::now_ns();
        }
        // What is ready comes before the timers that are due, as under asyncio.
        look(py, this, events, looks, timer_is_due)
    } else {
        looks.idle_turns = 0;
        timer_is_due = deadline_ns.is_some();
        wait(py, this, events, deadline_ns, stopwatch)
    };
    if !busy || !events.is_empty() {
        stopwatch.skip();
    }
    let look = Look {
        turn,
        runs_in: turn,
    };
    let count = queue_arrivals(py, this, events, look, timer_is_due);
    collected?;
    if !busy || looks.checks_signals() {
        // A signal may end the wait by its byte on the wakeup descriptor as well as by EINTR. Its handler runs here,
        // where what it raises leaves the loop, and not in the callback that reads that byte. And callbacks that are
        // all native never reach the interpreter's own check.
        py.check_signals()?;
    }
    if turn.is_multiple_of(TURNS_PER_OFFER) {
        py.detach(|| ());
    }
    // What these callbacks queue runs in the next turn, after the kernel was looked at.
    let mut rest = count;
    while rest > 0 {
        let next_look = rest.saturating_sub(CALLBACKS_PER_LOOK);
        for left in (next_look..rest).rev() {
            let Some(ready) = this.queue.get_mut(py).ready.pop_front() else {
                return Ok(());
            };
            match ready {
                Ready::Handle(handle) if !this.is_debug() => {
                    if handle.is_cancelled() {
                        handle.release(py);
                        continue;
                    }
                    let mut result = handle.run(py);
                    if stopwatch.count(left, &this.queue)
                        && result.is_ok()
                        && let Err(error) = stopwatch.read(Some(&Ready::Handle(handle)))
                    {
                        result = Err(error);
                    }
                    handle.finish_run(py);
                    handle.release(py);
                    result?;
                }
                ready => {
                    if ready.is_cancelled(py)? {
                        ready.release(py);
                        continue;
                    }
                    let mut result = run_one(event_loop, &ready);
                    if stopwatch.count(left, &this.queue)
                        && result.is_ok()
                        && let Err(error) = stopwatch.read(Some(&ready))
                    {
                        result = Err(error);
                    }
                    ready.release(py);
                    result?;
                }
            }
        }
        rest = next_look;
        if rest > 0 {
            let look = Look {
                turn,
                runs_in: turn + 1,
            };
            look_again(py, this, events, look, stopwatch)?;
        }
    }
    Ok(())
}

/// Sends what was collected in the turn that is over. A failure goes to the loop's exception handler, save for what ends
/// the loop.
#[cold]
fn flush_collected(event_loop: &Bound<'_, Loop>) -> PyResult<()> {
    let py = event_loop.py();
    let collected = std::mem::take(&mut event_loop.get().queue.get_mut(py).collected);
    support::for_each(py, collected, |collected| match collected.flush(py) {
        Err(error) if !support::ends_the_loop(py, &error) => {
            let context = objects::dict(py)?;
            context.set_item(
                intern!(py, "message"),
                New("Sending collected output failed"),
            )?;
            context.set_item(intern!(py, "exception"), error.value(py))?;
            let handler = event_loop.getattr(intern!(py, "call_exception_handler"))?;
            support::call_handling(error, &handler, |_| New((context,)))
        }
        result => result,
    })
}

/// Queues the transports that have more to do, what the kernel has reported, and then the timers that are due, if there
/// may be any. Returns how many callbacks are queued now.
// As `turn`.
#[allow(clippy::inline_always)]
#[inline(always)]
fn queue_arrivals(
    py: Python<'_>,
    this: &Loop,
    events: &mut Vec<Event>,
    look: Look,
    timers: bool,
) -> usize {
    let mut queue = this.queue.get_mut(py);
    let queue = &mut *queue;
    if !queue.arrived.is_empty() {
        queue.ready.extend(queue.arrived.drain(..));
    }
    if !events.is_empty() {
        let mut watches = this.watches.get_mut(py);
        for event in events.drain(..) {
            if event.is_watch() {
                watches.dispatch(py, &event, look, queue);
            } else if let Some(ready) = files::complete(py, this, &event) {
                queue.ready.push_back(ready);
            }
        }
    }
    if timers {
        queue.expire_timers(clock::now_ns());
    }
    queue.count_ready()
}

/// Collects events without waiting, while callbacks are ready.
fn look(
    py: Python<'_>,
    this: &Loop,
    events: &mut Vec<Event>,
    looks: &mut Looks,
    timer_is_due: bool,
) -> PyResult<()> {
    this.with_reactor(py, |reactor| {
        match reactor.driver().peek() {
            Peek::Empty => return Ok(()),
            Peek::Unknown if !timer_is_due && !looks.are_due(this) => return Ok(()),
            _ => {}
        }
        let polled = poll(reactor, events);
        if !events.is_empty() {
            looks.idle_turns = 0;
        }
        polled
    })
}

/// Looks at the kernel and the timers in the middle of a long turn.
#[cold]
fn look_again(
    py: Python<'_>,
    this: &Loop,
    events: &mut Vec<Event>,
    look: Look,
    stopwatch: &mut Stopwatch<'_>,
) -> PyResult<()> {
    let collected = this.with_reactor(py, |reactor| poll(reactor, events));
    stopwatch.skip();
    queue_arrivals(py, this, events, look, true);
    collected?;
    py.check_signals()
}

fn poll(reactor: &mut Reactor, events: &mut Vec<Event>) -> io::Result<()> {
    match reactor.poll_now(events) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        other => other,
    }
}

/// Waits for events, a wake from another thread, or the next timer, with the GIL released.
fn wait(
    py: Python<'_>,
    this: &Loop,
    events: &mut Vec<Event>,
    deadline_ns: Option<u64>,
    stopwatch: &mut Stopwatch<'_>,
) -> PyResult<()> {
    stopwatch.settle()?;
    let Some(mut reactor) = this.take_reactor(py) else {
        this.check_closed(py)?;
        return Err(objects::error::<PyRuntimeError>(
            py,
            "This event loop is already running",
        ));
    };
    let mut result = Ok(());
    if reactor.driver().peek() == Peek::Ready {
        result = reactor.poll_now(events);
    }
    if events.is_empty() && result.is_ok() {
        let deadline_ns = if this.begin_waiting(py) {
            deadline_ns
        } else {
            Some(0)
        };
        let start_ns = clock::now_ns();
        this.meter.begin_wait(py, start_ns, reactor.counters());
        let woke_ticks;
        cell::expect_none_borrowed("the loop waits");
        (result, woke_ticks) = py.detach(|| {
            let result = reactor.turn_from(start_ns, deadline_ns, events);
            this.posting.want_gil();
            (result, this.meter.end_wait(reactor.counters()))
        });
        this.posting.got_gil();
        this.meter.go_on(woke_ticks);
        this.waiting.store(false, Relaxed);
    }
    let previous = {
        // One step: a watch that another thread ended in between would stay until after the next wait, and nobody could
        // watch the next file that gets its number.
        let mut watches = this.watches.get_mut(py);
        watches.drop_orphans(reactor.driver_mut());
        this.reactor.replace(py, Some(reactor))
    };
    drop(previous);
    match result {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => {
            Err(support::os_error(py, &error))
        }
        _ => Ok(()),
    }
}

/// Runs an entry other than a native handle outside of debug mode; kept out of the path of those.
#[inline(never)]
fn run_one(event_loop: &Bound<'_, Loop>, ready: &Ready) -> PyResult<()> {
    let py = event_loop.py();
    match ready {
        Ready::Handle(handle) => run_timed(event_loop, &handle.to_object(py)),
        Ready::Foreign(handle) => {
            let handle = handle.bind(py);
            if event_loop.get().is_debug() {
                return run_timed(event_loop, handle);
            }
            handle.call_method0(intern!(py, "_run"))?;
            Ok(())
        }
        Ready::Transport(served) => serve(event_loop, served),
    }
}

/// Serves a transport by the functions of its type. Without the GIL, threads that use its streams wait meanwhile: from the
/// system call to the last of the state that depends on what was received. The section is lost where this waits for a cell,
/// or runs Python code: what must change together changes within one borrow, or with none in between (`support::guard_in`).
fn serve(event_loop: &Bound<'_, Loop>, served: &Served) -> PyResult<()> {
    let py = event_loop.py();
    let readiness = match served.reason() {
        Reason::Ready(readiness) => readiness,
        Reason::Begin => {
            return match served.get::<SocketTransport>(py) {
                Some(transport) => transport::on_start(event_loop, transport),
                None => Ok(()),
            };
        }
    };
    let begin_ns = event_loop.get().is_debug().then(clock::now_ns);
    let result = with_critical_section(event_loop.as_any(), || {
        if let Some(transport) = served.get::<SocketTransport>(py) {
            transport::on_ready(event_loop, transport, readiness)
        } else if let Some(transport) = served.get::<DatagramTransport>(py) {
            datagram::on_ready(event_loop, transport, readiness)
        } else {
            Ok(())
        }
    });
    if let Some(begin_ns) = begin_ns {
        log_slow(event_loop, served.transport().bind(py), begin_ns)?;
    }
    result
}

/// Debug mode: logs a transport whose protocol took too long.
#[cold]
fn log_slow(
    event_loop: &Bound<'_, Loop>,
    transport: &Bound<'_, PyAny>,
    begin_ns: u64,
) -> PyResult<()> {
    let py = event_loop.py();
    let duration_s = (clock::now_ns() - begin_ns) as f64 * 1e-9;
    support::python(py)?
        .getattr(intern!(py, "log_slow_transport"))?
        .call1((event_loop, transport, New(duration_s)))
        .map(drop)
}

/// Debug mode: runs a handle and logs it if it took too long.
#[cold]
fn run_timed(event_loop: &Bound<'_, Loop>, handle: &Bound<'_, PyAny>) -> PyResult<()> {
    support::python(event_loop.py())?
        .getattr(intern!(event_loop.py(), "run_timed"))?
        .call1((event_loop, handle))?;
    Ok(())
}
