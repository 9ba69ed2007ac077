//! One attempt of an operation: the system call, and its result.

#![allow(unsafe_code)]

use std::sync::atomic::Ordering::Relaxed;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::datagram::or_wait;
use super::{Kind, Phase, datagram, operation};
use crate::buffers::{self, Progress, Received};
use crate::event_loop::Loop;
use crate::names::intern;
use crate::objects::{self, New};
use crate::socket_object;
use crate::support;

/// Tries the system call; None if the socket isn't ready.
pub(super) fn attempt(py: Python<'_>, object: *mut ffi::PyObject) -> Option<PyResult<Py<PyAny>>> {
    // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead here.
    // Cloning references runs no Python code.
    let (event_loop, sock, argument, kind, known_fd, sent, is_ready) = unsafe {
        let operation = operation(object);
        (
            operation.event_loop.clone_ref(py),
            operation.sock.clone_ref(py),
            operation.argument.clone_ref(py).into_bound(py),
            operation.kind,
            operation.fd,
            operation.sent,
            operation.phase == Phase::Waiting,
        )
    };
    let sock = sock.bind(py);
    // To be asked again after anything that may run the user's code.
    let current = || socket_object::descriptor(sock).unwrap_or(-1);
    let fd = current();
    if known_fd >= 0 && fd != known_fd {
        return Some(Err(support::errno_error(py, libc::EBADF)));
    }
    if fd < 0 {
        return Some(said_by_the_socket(sock, kind, &argument));
    }
    // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead here.
    // Only a number is written.
    unsafe { operation(object).fd = fd };
    let would_block = |error: &std::io::Error| {
        matches!(
            error.kind(),
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted
        )
    };
    match kind {
        // As in the socket module: receiving no bytes is no system call.
        Kind::Receive { count_max: 0 } => {
            Some(objects::bytes(py, b"").map(|empty| empty.into_any().unbind()))
        }
        Kind::Receive { count_max } => match receive(sock, event_loop.get(), count_max, is_ready) {
            Ok(Ok(bytes)) => Some(Ok(bytes)),
            Ok(Err(error)) if would_block(&error) => None,
            Ok(Err(error)) => Some(Err(support::os_error(py, &error))),
            Err(error) => Some(Err(error)),
        },
        Kind::ReceiveInto => match buffers::receive_into(current, &argument, None) {
            Ok((Ok(count), _)) => Some(
                New(count)
                    .into_pyobject(py)
                    .map(|count| count.into_any().unbind()),
            ),
            Ok((Err(error), _)) if would_block(&error) => None,
            Ok((Err(error), _)) => Some(Err(support::os_error(py, &error))),
            // No writable buffer.
            Err(_) => Some(said_by_the_socket(sock, kind, &argument)),
        },
        Kind::SendAll => {
            let result = buffers::with_bytes(&argument, |bytes| {
                let rest = bytes.get(sent..).unwrap_or_default();
                if rest.is_empty() && sent > 0 {
                    return Ok((0, true));
                }
                match buffers::send(current(), rest) {
                    Ok(count) => Ok((count, count == rest.len())),
                    Err(error) => Err(support::os_error(py, &error)),
                }
            });
            match result {
                Ok((_, true)) => Some(Ok(py.None())),
                Ok((count, false)) => {
                    // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and
                    // methods lead here. Only a number is written.
                    unsafe { operation(object).sent += count };
                    None
                }
                Err(error) => Some(Err(error)),
            }
        }
        Kind::ReceiveFrom { count_max } => {
            datagram::receive_from(sock, event_loop.get(), count_max)
        }
        Kind::ReceiveFromInto { count_max } => {
            datagram::receive_from_into(sock, &argument, count_max)
        }
        Kind::SendTo => match argument.cast::<PyTuple>() {
            Ok(pair) => datagram::send_to(sock, pair).unwrap_or_else(|error| Some(Err(error))),
            Err(error) => Some(Err(error.into())),
        },
        Kind::Accept => or_wait(accept(sock), py),
        Kind::Connect if is_ready => or_wait(end_connecting(sock, &argument), py),
        Kind::Connect => or_wait(sock.call_method1(intern!(py, "connect"), (argument,)), py),
        Kind::SendFile => {
            // Taken out, because other threads may run meanwhile.
            // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead
            // here. The file is moved out, and no Python code runs.
            let mut file = unsafe { operation(object).file.take()? };
            let progress = file.advance(py, current);
            let sent = file.sent();
            // SAFETY: the GIL is held (`py`), and `object` is a live one of our type: only its slots and methods lead
            // here. The file was taken out above, so that nothing is dropped here.
            unsafe { operation(object).file = Some(file) };
            match progress {
                Ok(Progress::Blocked | Progress::TurnOver) => None,
                Ok(Progress::Ended) => {
                    Some(New(sent).into_pyobject(py).map(|it| it.into_any().unbind()))
                }
                Err(error) => Some(Err(support::os_error(py, &error))),
            }
        }
    }
}

/// The new connection, which doesn't block, and its address.
fn accept<'py>(sock: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = sock.py();
    let pair = sock.call_method0(intern!(py, "accept"))?;
    let connection = pair.cast::<PyTuple>()?.get_item(0)?;
    connection.call_method1(intern!(py, "setblocking"), (false,))?;
    Ok(pair)
}

/// Finds out how connecting has ended.
fn end_connecting<'py>(
    sock: &Bound<'py, PyAny>,
    address: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = sock.py();
    let level = (New(libc::SOL_SOCKET), New(libc::SO_ERROR));
    let code = sock
        .call_method1(intern!(py, "getsockopt"), level)?
        .extract::<i32>()?;
    if code == 0 {
        return Ok(py.None().into_bound(py));
    }
    let text = format!("Connect call failed {}", address.str()?.to_str()?);
    Err(objects::os_error(py, code, &text))
}

/// Calls the socket's own method, for its error: the socket is closed, or the argument is wrong.
fn said_by_the_socket(
    sock: &Bound<'_, PyAny>,
    kind: Kind,
    argument: &Bound<'_, PyAny>,
) -> PyResult<Py<PyAny>> {
    let py = sock.py();
    match kind {
        Kind::Receive { count_max } => sock.call_method1(intern!(py, "recv"), (New(count_max),)),
        Kind::ReceiveInto => sock.call_method1(intern!(py, "recv_into"), (argument,)),
        Kind::SendAll => sock.call_method1(intern!(py, "send"), (argument,)),
        Kind::ReceiveFrom { count_max } => {
            sock.call_method1(intern!(py, "recvfrom"), (New(count_max),))
        }
        Kind::ReceiveFromInto { count_max } => {
            let count_max = if count_max == 0 {
                argument.len()?
            } else {
                count_max
            };
            sock.call_method1(intern!(py, "recvfrom_into"), (argument, New(count_max)))
        }
        Kind::SendTo => {
            let pair = argument.cast::<PyTuple>()?;
            sock.call_method1(intern!(py, "sendto"), pair)
        }
        Kind::Accept => sock.call_method0(intern!(py, "accept")),
        Kind::Connect => sock.call_method1(intern!(py, "connect"), (argument,)),
        Kind::SendFile => Err(support::errno_error(py, libc::EBADF)),
    }
    .map(Bound::unbind)
}

/// recv(2) into a `bytes` object: through the loop's buffer, or directly if the socket is known to be ready and much is
/// expected. Only for streams the size may be reduced: the rest of a datagram would be lost.
fn receive(
    sock: &Bound<'_, PyAny>,
    event_loop: &Loop,
    count_max: usize,
    is_ready: bool,
) -> PyResult<std::io::Result<Py<PyAny>>> {
    let py = sock.py();
    let habit = event_loop.sock_recv_habit.load(Relaxed);
    let capacity = buffers::with_slack(habit).min(count_max);
    let direct = is_ready && habit >= buffers::DIRECT_MIN;
    let allowed = if direct { capacity } else { Received::CAPACITY };
    let current = || socket_object::descriptor(sock).unwrap_or(-1);
    if allowed < count_max && socket_object::kind(sock)? != libc::SOCK_STREAM {
        let result = buffers::receive_bytes(py, current, count_max)?;
        return Ok(result.map(|(bytes, _)| bytes));
    }
    let result = if direct {
        buffers::receive_bytes(py, current, capacity)?
    } else {
        let mut received = event_loop.receive_buffer(py)?;
        match received.receive_up_to(current(), count_max.min(Received::CAPACITY)) {
            Ok(count) => Ok((event_loop.settle_receive_buffer(py, received, count), count)),
            Err(error) => {
                event_loop.return_receive_buffer(py, received);
                Err(error)
            }
        }
    };
    if let Ok((_, count)) = &result {
        // If the buffer was filled, there is probably more.
        let next = if *count == capacity {
            count * 2
        } else {
            *count
        };
        event_loop.sock_recv_habit.store(next, Relaxed);
    }
    Ok(result.map(|(bytes, _)| bytes))
}
