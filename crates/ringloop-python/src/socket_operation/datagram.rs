//! `sock_recvfrom`, `sock_recvfrom_into`, `sock_sendto`: one attempt of each.
//!
//! Each attempt is None if the socket isn't ready. Unusual arguments are left to the socket's own method.

use std::io;

use pyo3::exceptions::{PyBlockingIOError, PyInterruptedError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::addresses::{self, Address};
use crate::buffers;
use crate::event_loop::Loop;
use crate::names::intern;
use crate::objects::New;
use crate::socket_object;
use crate::support;

pub(super) type Attempt = Option<PyResult<Py<PyAny>>>;

/// The address family of a plain socket, if `addresses` knows it.
pub(super) fn known_family(sock: &Bound<'_, PyAny>) -> PyResult<Option<i32>> {
    let family = socket_object::family(sock)?;
    Ok(matches!(family, libc::AF_INET | libc::AF_INET6 | libc::AF_UNIX).then_some(family))
}

pub(super) fn receive_from(
    sock: &Bound<'_, PyAny>,
    event_loop: &Loop,
    count_max: usize,
) -> Attempt {
    let py = sock.py();
    let mut received = match event_loop.receive_buffer(py) {
        Ok(received) => received,
        Err(error) => return Some(Err(error)),
    };
    let fd = socket_object::descriptor(sock).unwrap_or(-1);
    match received.receive_from(fd, count_max) {
        Ok((count, address)) => {
            let bytes = event_loop.settle_receive_buffer(py, received, count);
            Some(pair(py, bytes, &address))
        }
        Err(error) => {
            event_loop.return_receive_buffer(py, received);
            not_ready_or(py, &error)
        }
    }
}

pub(super) fn receive_from_into(
    sock: &Bound<'_, PyAny>,
    buffer: &Bound<'_, PyAny>,
    count_max: usize,
) -> Attempt {
    let py = sock.py();
    let count_max = match count_max {
        0 => match buffer.len() {
            Ok(length) => length,
            Err(error) => return Some(Err(error)),
        },
        given => given,
    };
    let current = || socket_object::descriptor(sock).unwrap_or(-1);
    match buffers::receive_from_into(current, buffer, count_max) {
        Ok(Some(Ok((count, address)))) => Some(pair(py, New(count), &address)),
        Ok(Some(Err(error))) => not_ready_or(py, &error),
        Ok(None) | Err(_) => or_wait(
            sock.call_method1(intern!(py, "recvfrom_into"), (buffer, New(count_max))),
            py,
        ),
    }
}

/// `argument` is (data, address).
pub(super) fn send_to(sock: &Bound<'_, PyAny>, argument: &Bound<'_, PyTuple>) -> PyResult<Attempt> {
    let py = sock.py();
    let data = argument.get_item(0)?;
    let target = argument.get_item(1)?;
    let address = known_family(sock)?.and_then(|family| Address::from_python(family, &target));
    let Some(address) = address else {
        return Ok(or_wait(
            sock.call_method1(intern!(py, "sendto"), (data, target)),
            py,
        ));
    };
    let sent = buffers::with_bytes(&data, |bytes| {
        addresses::audit_sendto(sock, &target)?;
        let fd = socket_object::descriptor(sock).unwrap_or(-1);
        Ok(addresses::send_to(fd, bytes, Some(&address)))
    })?;
    Ok(match sent {
        Ok(count) => Some(Ok(New(count).into_pyobject(py)?.into_any().unbind())),
        Err(error) => not_ready_or(py, &error),
    })
}

/// The pair of what was received and where it came from.
fn pair<'py, T: IntoPyObject<'py, Error: Into<PyErr>>>(
    py: Python<'py>,
    received: T,
    address: &Address,
) -> PyResult<Py<PyAny>> {
    let pair = New((received, address.object(py)?)).into_pyobject(py)?;
    Ok(pair.into_any().unbind())
}

fn not_ready_or(py: Python<'_>, error: &io::Error) -> Attempt {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => None,
        _ => Some(Err(support::os_error(py, error))),
    }
}

/// None if a method of the socket's says that it isn't ready.
pub(super) fn or_wait(result: PyResult<Bound<'_, PyAny>>, py: Python<'_>) -> Attempt {
    match result {
        Err(error)
            if error.is_instance_of::<PyBlockingIOError>(py)
                || error.is_instance_of::<PyInterruptedError>(py) =>
        {
            None
        }
        other => Some(other.map(Bound::unbind)),
    }
}
