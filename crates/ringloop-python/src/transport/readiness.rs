//! When a stream transport is served: when its socket reports an event, while there is more to do, and when it starts
//! to read.

#![allow(unsafe_code)]

use std::ptr;

use pyo3::prelude::*;
use ringloop_driver::{Interest, Mode};

use super::reading::read_once;
use super::writing::flush;
use super::{SocketTransport, file_sending};
use crate::buffers;
use crate::endpoint::{self, queue_ready, report};
use crate::event_loop::Loop;
use crate::handle::{Call, Origin};
use crate::names::intern;
use crate::objects;
use crate::queue::{Readiness, Ready, Reason, Served};
use crate::scheduling;
use crate::socket_object;
use crate::support::{self, CloneRefOption, ask, copy_context, in_context};
use crate::watching;

/// How many arguments callbacks have here at most.
const ARGUMENTS_MAX: usize = 2;

/// The context of a callback that is scheduled now: the transport's, where it has one for all.
pub(super) fn context_for(transport: &Bound<'_, SocketTransport>) -> PyResult<Py<PyAny>> {
    let py = transport.py();
    let own = transport.get().state.get(py).context.clone_ref_opt(py);
    own.map_or_else(|| copy_context(py), Ok)
}

/// `loop.call_soon(callback, *arguments)`, in the transport's context where it has one for all. By name, unless the loop
/// `is_plain`.
pub(super) fn call_soon<'py>(
    transport: &Bound<'py, SocketTransport>,
    event_loop: &Bound<'py, Loop>,
    is_plain: bool,
    callback: &Bound<'py, PyAny>,
    arguments: &[&Bound<'py, PyAny>],
) -> PyResult<()> {
    let py = transport.py();
    let context = transport.get().state.get(py).context.clone_ref_opt(py);
    if is_plain {
        let mut pointers = [ptr::null_mut(); ARGUMENTS_MAX];
        for (pointer, argument) in pointers.iter_mut().zip(arguments) {
            *pointer = argument.as_ptr();
        }
        let call = Call {
            callback: callback.as_ptr(),
            arguments: &pointers[..arguments.len()],
            context: context.as_ref().map_or(ptr::null_mut(), Py::as_ptr),
        };
        // SAFETY: the GIL is held, and all objects are alive.
        unsafe { scheduling::schedule_soon(py, event_loop.as_ptr(), &call, Origin::Usual)? };
        event_loop.get().queued(py);
        return Ok(());
    }
    let options = match context {
        Some(context) => {
            let options = objects::dict(py)?;
            options.set_item(intern!(py, "context"), context)?;
            Some(options)
        }
        None => None,
    };
    let all = objects::list(py, std::iter::once(&callback).chain(arguments))?.to_tuple();
    event_loop.call_method(intern!(py, "call_soon"), all, options.as_ref())?;
    event_loop.get().queued(py);
    Ok(())
}

/// Sets the connection up and queues its beginning: `connection_made`, then reading.
pub(super) fn begin(transport: &Bound<'_, SocketTransport>, is_plain: bool) -> PyResult<()> {
    let py = transport.py();
    let (event_loop, sock, protocol, current) = {
        let state = transport.get().state.get(py);
        let attachment = &state.attachment;
        let (Some(event_loop), Some(sock), Some(protocol)) =
            (&attachment.event_loop, &attachment.sock, &state.protocol)
        else {
            return Err(endpoint::closed(py));
        };
        (
            event_loop.clone_ref(py).into_bound(py),
            sock.clone_ref(py).into_bound(py),
            protocol.clone_ref(py).into_bound(py),
            attachment.descriptor(py),
        )
    };
    // As asyncio's `_set_nodelay` asks. It leaves sockets alone that were made without a protocol.
    let is_tcp = socket_object::proto(&sock)? == libc::IPPROTO_TCP
        && matches!(
            socket_object::family(&sock)?,
            libc::AF_INET | libc::AF_INET6
        )
        && socket_object::kind(&sock)? == libc::SOCK_STREAM;
    if current < 0 || (is_tcp && !buffers::disable_nagle(current)) {
        // The socket was closed by whoever made the protocol; asyncio says what that means.
        support::python(py)?
            .getattr(intern!(py, "set_nodelay"))?
            .call1((&sock,))?;
    }
    endpoint::enter(transport, event_loop.get());
    let connection_made = protocol.getattr(intern!(py, "connection_made"))?;
    let arguments = [transport.as_any()];
    call_soon(
        transport,
        &event_loop,
        is_plain,
        &connection_made,
        &arguments,
    )?;
    take_read_context(transport)?;
    event_loop
        .get()
        .queue
        .get_mut(py)
        .ready
        .push_back(Ready::Transport(Served::new(transport, Reason::Begin)));
    event_loop.get().queued(py);
    Ok(())
}

/// Queues the wake of a future, behind the beginning.
pub(super) fn wake_soon(
    transport: &Bound<'_, SocketTransport>,
    waiter: &Bound<'_, PyAny>,
    is_plain: bool,
) -> PyResult<()> {
    let py = transport.py();
    let event_loop = endpoint::event_loop(transport.get(), py)?;
    let wake = support::python(py)?.getattr(intern!(py, "wake_waiter"))?;
    let none = py.None().into_bound(py);
    call_soon(
        transport,
        event_loop.bind(py),
        is_plain,
        &wake,
        &[waiter, &none],
    )
}

/// Takes the context that arriving data is delivered in, where reading is asked for; it begins later.
pub(super) fn take_read_context(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let py = transport.py();
    let context = context_for(transport)?;
    let previous = transport
        .get()
        .state
        .get_mut(py)
        .read_context
        .replace(context);
    drop(previous);
    Ok(())
}

/// Begins to read, in the turn after that in which it was asked for. What fails goes to the loop's exception handler.
pub(crate) fn on_start(
    event_loop: &Bound<'_, Loop>,
    transport: &Bound<'_, SocketTransport>,
) -> PyResult<()> {
    let result = start_reading(transport);
    let context = {
        let state = transport.get().state.get(transport.py());
        state.read_context.clone_ref_opt(transport.py())
    };
    report(event_loop, transport, "_add_reader", context, result)
}

/// Begins to watch the socket, after `connection_made` (or earlier, when a write blocks before that).
pub(super) fn start_reading(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let py = transport.py();
    let this = transport.get();
    if !ask(transport.as_any(), intern!(py, "is_reading"))? {
        return Ok(());
    }
    {
        let mut state = this.state.get_mut(py);
        let Some(event_loop) = &state.attachment.event_loop else {
            return Ok(());
        };
        let turn = event_loop.get().turn();
        state.started = true;
        state.read_turn = turn;
    }
    list(transport)?;
    if this.state.get(py).readable {
        let event_loop = endpoint::event_loop(this, py)?;
        queue_ready(transport, event_loop.get(), Readiness::READABLE);
    }
    update_hold(transport);
    Ok(())
}

/// Goes on reading after a pause. False if it was not paused, or is closing.
pub(super) fn resume(transport: &Bound<'_, SocketTransport>) -> PyResult<bool> {
    let py = transport.py();
    let (event_loop, watch, readable, is_current) = {
        let mut state = transport.get().state.get_mut(py);
        if state.attachment.closing || !state.attachment.paused {
            return Ok(false);
        }
        state.attachment.paused = false;
        let attachment = &state.attachment;
        let is_current = attachment.fd == attachment.descriptor(py);
        let Some(event_loop) = attachment.event_loop(py) else {
            return Ok(false);
        };
        state.read_turn = event_loop.get().turn();
        if state.end_received {
            // As asyncio: reading again finds the end again.
            state.end_received = false;
            state.readable = true;
        }
        (
            event_loop,
            state.attachment.watch,
            state.readable,
            is_current,
        )
    };
    event_loop.get().check_closed(py)?;
    if let Some(watch) = watch
        && !is_current
    {
        // asyncio's transport would register the number again, and be told that it is closed.
        watching::check_alive(py, event_loop.get(), watch)?;
    }
    take_read_context(transport)?;
    if !transport.get().state.get(py).started {
        // Paused before reading had begun: it begins now.
        start_reading(transport)?;
    } else if watch.is_some() && readable {
        queue_ready(transport, event_loop.get(), Readiness::READABLE);
    }
    update_hold(transport);
    Ok(true)
}

/// Enters the transport in the loop's table, once.
pub(super) fn list(transport: &Bound<'_, SocketTransport>) -> PyResult<()> {
    let state = transport.get().state.get(transport.py());
    let is_listed = state.attachment.watch.is_some();
    drop(state);
    if is_listed {
        return Ok(());
    }
    let interest = Interest::READ | Interest::WRITE | Interest::PRIORITY;
    endpoint::list(transport, (interest, Mode::Edge))
}

/// The loop keeps the transport alive while it reads or has something to send.
pub(super) fn update_hold(transport: &Bound<'_, SocketTransport>) {
    let py = transport.py();
    let released = {
        let state = transport.get().state.get(py);
        let hold = (state.attachment.is_reading() && !state.end_received) || state.is_sending();
        endpoint::hold(py, &state.attachment, hold)
    };
    drop(released);
}

/// Serves what the socket reported. What the user's code raises goes to the loop's exception handler, save for what
/// ends the loop.
pub(crate) fn on_ready(
    event_loop: &Bound<'_, Loop>,
    transport: &Bound<'_, SocketTransport>,
    readiness: Readiness,
) -> PyResult<()> {
    let py = transport.py();
    let turn = event_loop.get().turn();
    let (context, come_back) = {
        let mut state = transport.get().state.get_mut(py);
        let comes_back = state.readable;
        state.readable |= readiness.readable;
        state.read_on |= readiness.read_on;
        if state.delivering && state.context.is_some() {
            state.reported = true;
            return Ok(());
        }
        let read = state.readable && state.wants_data() && !state.delivering;
        if read && state.read_turn == turn {
            // As under asyncio, there is one read in a turn, so that a task that was woken takes what has arrived before
            // more is read; and no read in the turn in which reading was asked for, whatever is known already.
            (None, !comes_back)
        } else {
            let context = read.then(|| state.read_context.clone_ref_opt(py)).flatten();
            if context.is_some() {
                state.delivering = true;
                state.read_turn = turn;
            }
            (context, false)
        }
    };
    if come_back {
        queue_ready(transport, event_loop.get(), Readiness::READABLE);
    }
    if let Some(context) = context {
        let result = in_context(py, &context, || read_once(transport));
        let failed = result.is_err();
        end_of_read(event_loop, transport, readiness.writable && failed);
        if failed {
            return report(event_loop, transport, "_read_ready", Some(context), result);
        }
    }
    if readiness.writable {
        return on_room(event_loop, transport, turn);
    }
    Ok(())
}

/// The protocol has been served with what arrived. `writable` tells that the socket has reported room, and nobody has
/// looked at that.
#[inline]
fn end_of_read(
    event_loop: &Bound<'_, Loop>,
    transport: &Bound<'_, SocketTransport>,
    writable: bool,
) {
    let (again, come_back) = {
        let mut state = transport.get().state.get_mut(transport.py());
        state.delivering = false;
        let reported = std::mem::take(&mut state.reported);
        // The kernel reports arrivals, not remains: come back for those, and for what is left undone by an error.
        let again = Readiness {
            readable: state.readable && state.wants_data(),
            writable: reported || writable,
            read_on: false,
        };
        let come_back = (again.readable || again.writable) && state.has_loop();
        (again, come_back)
    };
    if come_back {
        queue_ready(transport, event_loop.get(), again);
    }
}

/// The socket has room: sends what waits.
fn on_room(
    event_loop: &Bound<'_, Loop>,
    transport: &Bound<'_, SocketTransport>,
    turn: u32,
) -> PyResult<()> {
    let py = transport.py();
    let this = transport.get();
    let (context, has_one_context) = {
        let mut state = this.state.get_mut(py);
        if state.lost > 0 || state.full_turn == turn {
            // The room was taken in this turn, before the report had its turn. The kernel reports the next.
            return Ok(());
        }
        if state.buffer.is_empty() {
            drop(state);
            let result = file_sending::step(transport);
            return report(event_loop, transport, "_write_ready", None, result);
        }
        let has_one_context = state.context.is_some();
        state.delivering |= has_one_context;
        (state.write_context.clone_ref_opt(py), has_one_context)
    };
    let result = match &context {
        Some(context) => in_context(py, context, || flush(transport)),
        None => flush(transport),
    };
    let (again, come_back) = {
        let mut state = this.state.get_mut(py);
        let reported = has_one_context && std::mem::take(&mut state.reported);
        state.delivering &= !has_one_context;
        // The edge is spent; an error that left something to send, such as that of a nested turn, must not end it.
        let again = Readiness {
            readable: reported && state.readable,
            writable: reported || (result.is_err() && state.is_sending() && state.lost == 0),
            read_on: false,
        };
        (again, again.writable && state.has_loop())
    };
    if come_back {
        queue_ready(transport, event_loop.get(), again);
    }
    report(event_loop, transport, "_write_ready", context, result)
}
