//! How a datagram transport sends: directly, or from its buffer when the socket has room again.

#![allow(unsafe_code)]

use std::io;

use pyo3::exceptions::{PyBlockingIOError, PyInterruptedError, PyOSError, PyRuntimeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::{DatagramTransport, error_received, update_watch};
use crate::addresses::{self, Address};
use crate::buffers;
use crate::endpoint;
use crate::names::intern;
use crate::objects::{self, New};
use crate::support::{self, CloneRefOption, copy_context};

/// Sends one datagram: true if it is gone, false if the socket has no room. `OSError` if it was refused.
pub(super) fn transmit(
    transport: &Bound<'_, DatagramTransport>,
    data: &Bound<'_, PyAny>,
    target: Option<&Bound<'_, PyAny>>,
) -> PyResult<bool> {
    let py = transport.py();
    let this = transport.get();
    let (family, has_peer) = {
        let state = this.state.get(py);
        (state.family, state.has_peer)
    };
    if has_peer {
        return send(transport, data, None);
    }
    let sock = this.state.get(py).attachment.sock.clone_ref_opt(py);
    let Some(sock) = sock else {
        return Err(objects::error::<PyRuntimeError>(
            py,
            "the transport is closed",
        ));
    };
    let sock = sock.bind(py);
    let Some(target) = target else {
        return send_by_socket(sock, data, py.None().bind(py));
    };
    let known = this.state.get(py).addresses.address(target);
    let address = if let Some(address) = known {
        address
    } else {
        let Some(address) = Address::from_python(family, target) else {
            return send_by_socket(sock, data, target);
        };
        let previous = {
            let mut state = this.state.get_mut(py);
            let object = target.clone().unbind();
            state.addresses.insert_sent(address, object)
        };
        drop(previous);
        address
    };
    addresses::audit_sendto(sock, target)?;
    send(transport, data, Some(&address))
}

/// sendto(2).
fn send(
    transport: &Bound<'_, DatagramTransport>,
    data: &Bound<'_, PyAny>,
    address: Option<&Address>,
) -> PyResult<bool> {
    let py = transport.py();
    let sent = buffers::with_bytes(data, |bytes| {
        let fd = transport.get().state.get(py).attachment.descriptor(py);
        Ok(addresses::send_to(fd, bytes, address))
    })?;
    match sent {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(support::os_error(py, &error)),
    }
}

/// Has the socket module send a datagram: for names to be resolved, and for what is no address.
#[cold]
fn send_by_socket(
    sock: &Bound<'_, PyAny>,
    data: &Bound<'_, PyAny>,
    target: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    let py = sock.py();
    match sock.call_method1(intern!(py, "sendto"), (data, target)) {
        Ok(_) => Ok(true),
        Err(error)
            if error.is_instance_of::<PyBlockingIOError>(py)
                || error.is_instance_of::<PyInterruptedError>(py) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// The socket has no room: from now on datagrams are buffered until it reports some.
pub(super) fn block(transport: &Bound<'_, DatagramTransport>) -> PyResult<()> {
    let py = transport.py();
    let this = transport.get();
    endpoint::event_loop(this, py)?.get().check_closed(py)?;
    let context = copy_context(py)?;
    let previous = {
        let mut state = this.state.get_mut(py);
        state.blocked = true;
        state.write_context.replace(context)
    };
    drop(previous);
    update_watch(transport).inspect_err(|_| this.state.get_mut(py).blocked = false)
}

/// Buffers a datagram, and tells the protocol to pause if that is too much.
pub(super) fn enqueue(
    transport: &Bound<'_, DatagramTransport>,
    data: &Bound<'_, PyAny>,
    target: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let py = transport.py();
    // SAFETY: the GIL is held; the result is a bytes object (`data` itself if it is one) or null with an exception set.
    let data = unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromObject(data.as_ptr()))?
            .cast_into_unchecked::<PyBytes>()
    };
    {
        let mut state = transport.get().state.get_mut(py);
        state.buffer_size += data.as_bytes().len() + state.header_size;
        let target = target.map(|it| it.clone().unbind());
        state.buffer.push_back((data.unbind(), target));
    }
    transport
        .call_method0(intern!(py, "_maybe_pause_protocol"))
        .map(drop)
}

/// Sends what is buffered, as far as the socket takes it.
pub(super) fn flush(transport: &Bound<'_, DatagramTransport>) -> PyResult<()> {
    let py = transport.py();
    let this = transport.get();
    loop {
        let next = {
            let mut state = this.state.get_mut(py);
            let next = state.buffer.pop_front();
            if let Some((data, _)) = &next {
                state.buffer_size -= data.as_bytes(py).len() + state.header_size;
            }
            next
        };
        let Some((data, target)) = next else {
            break;
        };
        let target_bound = target.as_ref().map(|it| it.bind(py));
        match transmit(transport, data.bind(py).as_any(), target_bound) {
            Ok(true) => {}
            Ok(false) => {
                let mut state = this.state.get_mut(py);
                state.buffer_size += data.as_bytes(py).len() + state.header_size;
                state.buffer.push_front((data, target));
                break;
            }
            // The socket is still watched, so the rest is sent later.
            Err(error) => return on_send_error(transport, error),
        }
    }
    transport.call_method0(intern!(py, "_maybe_resume_protocol"))?;
    let finish = {
        let mut state = this.state.get_mut(py);
        if !state.buffer.is_empty() {
            return Ok(());
        }
        support::give_back_if_empty(&mut state.buffer);
        state.blocked = false;
        state.attachment.ends_when_sent() && state.lost == 0
    };
    update_watch(transport)?;
    if finish {
        transport.call_method1(intern!(py, "_call_connection_lost"), (py.None(),))?;
    }
    Ok(())
}

/// Handles a send that failed: an `OSError` goes to the protocol, anything else ends the transport.
#[cold]
pub(super) fn on_send_error(
    transport: &Bound<'_, DatagramTransport>,
    error: PyErr,
) -> PyResult<()> {
    let py = transport.py();
    if error.is_instance_of::<PyOSError>(py) {
        return error_received(transport, error);
    }
    if support::ends_the_loop(py, &error) {
        return Err(error);
    }
    let message = "Fatal write error on datagram transport";
    let method = transport.getattr(intern!(py, "_fatal_error"))?;
    support::call_handling(error, &method, |error| New((error, New(message))))
}

/// Raises what asyncio's own `sendto` raises for wrong data or addresses, and for a transport that is closed.
#[cold]
pub(super) fn refuse(
    transport: &Bound<'_, DatagramTransport>,
    data: &Bound<'_, PyAny>,
    target: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    support::python(transport.py())?
        .getattr(intern!(transport.py(), "refuse_datagram"))?
        .call1((transport, data, target))
        .map(drop)
}
