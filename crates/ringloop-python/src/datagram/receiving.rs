//! How a datagram transport receives: in batches, delivered one by one.

#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::ffi;
use pyo3::prelude::*;

use super::{DatagramTransport, error_received, queue_read};
use crate::addresses::Address;
use crate::buffers::Batch;
use crate::endpoint;
use crate::event_loop::Loop;
use crate::names::intern;
use crate::objects;
use crate::support::{self, CloneRefOption};

/// Receives what has arrived and delivers it; comes back in the next turn while there may be more.
pub(super) fn read_batch(transport: &Bound<'_, DatagramTransport>) -> PyResult<()> {
    let py = transport.py();
    let this = transport.get();
    let has_parked = !this.state.get(py).undelivered.is_empty();
    let event_loop = endpoint::event_loop(this, py)?;
    if has_parked && !deliver_parked(transport, event_loop.get())? {
        return Ok(());
    }
    let batch = event_loop.get().batch.replace(py, None);
    let mut batch = batch.unwrap_or_else(Batch::new);
    let result = receive_while_answered(transport, event_loop.get(), &mut batch);
    drop(event_loop.get().batch.replace(py, Some(batch)));
    result
}

/// Receives and delivers a batch; and looks again at once while that pays and nothing else waits to be run. A peer that
/// answers what was sent just now often has done so by then, most of all where it shares a CPU with us.
fn receive_while_answered(
    transport: &Bound<'_, DatagramTransport>,
    event_loop: &Loop,
    batch: &mut Batch,
) -> PyResult<()> {
    let py = transport.py();
    let mut total = 0;
    loop {
        let (fd, family) = {
            let state = transport.get().state.get(py);
            (state.attachment.descriptor(py), state.family)
        };
        let count = match batch.receive(fd, family) {
            Ok(count) => count,
            Err(error) => {
                if total > 0 {
                    transport.get().state.get_mut(py).second_look.missed();
                }
                return on_receive_error(transport, &error);
            }
        };
        if total > 0 {
            transport.get().state.get_mut(py).second_look.hit();
        }
        total += count;
        deliver(transport, event_loop, batch, count)?;
        if total >= batch.capacity()
            || !goes_on(transport, event_loop)
            || !event_loop.queue.get(py).is_idle()
            || !transport.get().state.get_mut(py).second_look.pays()
        {
            return Ok(());
        }
    }
}

/// Whether to look for more right after a delivery: for as long as that has found something lately.
#[derive(Default)]
pub(super) struct SecondLook {
    credit: u8,
    skipped: u8,
}

impl SecondLook {
    const CREDIT_MAX: u8 = 8;
    /// Looks left out before one is tried again.
    const SKIPPED_MAX: u8 = 64;

    fn pays(&mut self) -> bool {
        if self.credit == 0 {
            self.skipped += 1;
            if self.skipped < Self::SKIPPED_MAX {
                return false;
            }
            self.skipped = 0;
            self.credit = 1;
        }
        true
    }

    fn hit(&mut self) {
        self.credit = Self::CREDIT_MAX;
    }

    fn missed(&mut self) {
        self.credit = self.credit.saturating_sub(1);
    }
}

fn on_receive_error(transport: &Bound<'_, DatagramTransport>, error: &io::Error) -> PyResult<()> {
    let py = transport.py();
    match error.kind() {
        io::ErrorKind::WouldBlock => return Ok(()),
        io::ErrorKind::Interrupted => {
            queue_read(transport);
            return Ok(());
        }
        _ => {}
    }
    if !matches!(error.raw_os_error(), Some(libc::EBADF | libc::ENOTSOCK)) {
        // Receiving has cleared the error. There may be datagrams behind it for which no edge will be reported.
        queue_read(transport);
    }
    error_received(transport, support::os_error(py, error))
}

/// Delivers a batch, in order, until it ends or the transport stops reading.
fn deliver(
    transport: &Bound<'_, DatagramTransport>,
    event_loop: &Loop,
    batch: &Batch,
    count: usize,
) -> PyResult<()> {
    let py = transport.py();
    if count == batch.capacity() {
        // The kernel reports arrivals, not remains: come back for those.
        queue_read(transport);
    }
    for index in 0..count {
        let (content, address) = batch.datagram(index);
        let result = address_object(transport, &address).and_then(|address| {
            let data = objects::bytes(py, content)?.into_any();
            deliver_one(transport, &data, address.bind(py))
        });
        if index + 1 < count && (result.is_err() || !goes_on(transport, event_loop)) {
            let parked = park(transport, batch, index + 1..count);
            return result.and(parked);
        }
        result?;
    }
    Ok(())
}

/// Delivers what was received but left when reading stopped. False if it stopped again.
#[cold]
fn deliver_parked(transport: &Bound<'_, DatagramTransport>, event_loop: &Loop) -> PyResult<bool> {
    let py = transport.py();
    loop {
        let next = transport.get().state.get_mut(py).undelivered.pop_front();
        let Some((data, address)) = next else {
            return Ok(true);
        };
        let result = deliver_one(transport, data.bind(py), address.bind(py));
        if result.is_err() || !goes_on(transport, event_loop) {
            if transport.get().state.get(py).attachment.is_reading() {
                // Even if nothing is left here: there may be more in the socket.
                queue_read(transport);
            }
            return result.map(|()| false);
        }
    }
}

/// Keeps what was received and not delivered, for when reading goes on.
#[cold]
fn park(
    transport: &Bound<'_, DatagramTransport>,
    batch: &Batch,
    indexes: std::ops::Range<usize>,
) -> PyResult<()> {
    let py = transport.py();
    if transport.get().state.get(py).attachment.closing {
        return Ok(());
    }
    let mut result = Ok(());
    for index in indexes {
        let (content, address) = batch.datagram(index);
        match address_object(transport, &address) {
            Ok(address) => {
                let data = objects::bytes(py, content)?.into_any().unbind();
                let mut state = transport.get().state.get_mut(py);
                state.undelivered.push_back((data, address));
            }
            Err(error) => result = Err(error),
        }
    }
    if transport.get().state.get(py).attachment.is_reading() {
        queue_read(transport);
    }
    result
}

/// Whether the next datagram may be delivered at once. A loop that was told to stop gets no more in this turn, as under
/// asyncio.
fn goes_on(transport: &Bound<'_, DatagramTransport>, event_loop: &Loop) -> bool {
    let state = transport.get().state.get(transport.py());
    state.attachment.is_reading() && state.lost == 0 && !event_loop.stopping.load(Relaxed)
}

/// Calls `datagram_received`.
fn deliver_one(
    transport: &Bound<'_, DatagramTransport>,
    data: &Bound<'_, PyAny>,
    address: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let py = transport.py();
    let protocol = transport.get().state.get(py).protocol.clone_ref_opt(py);
    let Some(protocol) = protocol else {
        return Ok(());
    };
    let name = intern!(py, "datagram_received");
    let stack = [
        std::ptr::null_mut(),
        protocol.as_ptr(),
        data.as_ptr(),
        address.as_ptr(),
    ];
    // SAFETY: the GIL is held, the objects are alive, and the slot before the first argument is free for the callee.
    unsafe {
        let result = ffi::PyObject_VectorcallMethod(
            name.as_ptr(),
            stack.as_ptr().add(1),
            3 | ffi::PY_VECTORCALL_ARGUMENTS_OFFSET,
            std::ptr::null_mut(),
        );
        Bound::from_owned_ptr_or_err(py, result).map(drop)
    }
}

/// The Python object of an address that a datagram came from.
fn address_object(
    transport: &Bound<'_, DatagramTransport>,
    address: &Address,
) -> PyResult<Py<PyAny>> {
    let py = transport.py();
    let this = transport.get();
    let known = this.state.get_mut(py).addresses.object(py, address);
    if let Some(object) = known {
        return Ok(object);
    }
    let object = address.object(py)?.unbind();
    let previous = {
        let mut state = this.state.get_mut(py);
        let object = object.clone_ref(py);
        state.addresses.insert_received(*address, object)
    };
    drop(previous);
    Ok(object)
}
