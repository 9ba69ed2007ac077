//! Receivers: native protocols that take what a connection has received without a Python call.
//!
//! A stream transport reads into the loop's receive buffer. For an ordinary protocol it then makes a `bytes` object and
//! calls `data_received`. A protocol whose class is native and implements [`Receiver`] gets the buffer instead. The
//! transport, and TLS for the protocol above it, find out by [`Sink::for_protocol`] whenever they are given a protocol:
//! when they are made, and by `set_protocol`. Each native class is registered once, when the module is imported, with
//! [`register`].
//!
//! # What a receiver must be
//!
//! A receiver is a class that asyncio can use as a protocol, or the base of one. Everything that happens once per
//! connection or rarely is done by the methods that every protocol has. The transport calls these by name, so a
//! subclass in Python may replace them:
//!
//! - `connection_made(transport)`, before anything is received, and `connection_lost(exc)`, after everything.
//! - `eof_received()`, at the end of the stream: the transport closes unless the answer is true.
//! - `pause_writing()` and `resume_writing()`, when more than the high-water mark waits to be sent, and when that has
//!   gone down to the low-water mark.
//! - the method that [`Receiver::METHOD`] names, `data_received` for most, for transports that are not ours. Ours never
//!   call it: [`Receiver::receive`] takes its place.
//!
//! # What a receiver gets
//!
//! A transport calls [`Receiver::receive`] once for each read that has found something, in the context that reading was
//! started in, with 1 to [`Received::CAPACITY`] bytes. (TLS delivers all that it has decrypted, which may be more.) A
//! receiver that knows where large amounts belong may have them received there, by [`Receiver::gather`]. The transport
//! calls again only after `receive` has returned, even if that makes the loop turn. It reads again, in a later turn,
//! until the kernel has nothing more. It stops calling once reading is paused, the connection is closing, or another
//! protocol has been set. A receiver that hands over to another protocol must itself pass on what it has not used.
//!
//! The bytes are in the loop's own buffer. They may be changed in place, and are gone when the [`Input`] is dropped. To
//! keep a part of them, copy it. While an `Input` exists, the loop has no receive buffer and makes a new one of 256 KB
//! for whoever else reads. So drop it before anything else may receive: before decrypting, and before running the
//! user's code at length.
//!
//! An error that `receive` returns is what an exception from the protocol's method would be: it is reported to the
//! loop's exception handler and ends the connection. `SystemExit` and `KeyboardInterrupt` end the loop.
//!
//! # How a receiver writes
//!
//! Through the transport that `connection_made` gave it: `write`, `writelines`, `write_eof`, `close`, `abort`, and
//! `pause_reading` and `resume_reading` if it is given too much. That transport is a `SocketTransport`, the transport
//! of TLS, or one of asyncio's or the user's. Methods of our own classes may be called natively only if nobody can have
//! replaced them; by name is always right. All of them may be called from within `receive`.

#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use pyo3::prelude::*;
use pyo3::type_object::PyTypeInfo;
use pyo3::types::PyBytes;
use pyo3::{PyTraverseError, PyVisit};

use crate::buffers::{Gathered, Received};
use crate::cell::GilCell;
use crate::event_loop::Loop;
use crate::stream_reader;
use crate::streams;

/// A native class that is a protocol, or the base of one; see the module's documentation.
pub(crate) trait Receiver: PyTypeInfo {
    /// The protocol's method that `receive` stands for, as reports of errors name it.
    const METHOD: &'static str;

    /// Takes what has been received.
    fn receive(this: &Bound<'_, Self>, input: Input<'_, '_>) -> PyResult<()>;

    /// Calls `receive_into` if what comes next is to be received elsewhere than in the loop's buffer. Returns the result of
    /// that, and how many bytes there was room for.
    fn gather(_this: &Bound<'_, Self>, _receive_into: ReceiveInto<'_>) -> Option<Receipt> {
        None
    }

    /// `gather` has received `count` bytes, in place of a call of `receive`.
    fn gathered(_this: &Bound<'_, Self>, _count: usize) -> PyResult<()> {
        Ok(())
    }
}

/// Receives what the socket has.
pub(crate) type ReceiveInto<'a> = &'a mut dyn FnMut(&mut Gathered) -> io::Result<usize>;

/// The result of a receive, and how many bytes there was room for.
pub(crate) type Receipt = (io::Result<usize>, usize);

/// Bytes that were received, for whoever takes them. Dropping it gives the loop its buffer back.
pub(crate) struct Input<'a, 'py> {
    memory: Memory,
    /// Whose buffer it is; None where that goes with the input.
    event_loop: Option<&'a Loop>,
    py: Python<'py>,
}

enum Memory {
    /// A receive buffer, and the number of its first bytes that hold data.
    Buffer(Received, usize),
    Own(Vec<u8>),
    Returned,
}

impl<'a, 'py> Input<'a, 'py> {
    /// The first `count` bytes of the receive buffer of `event_loop`.
    #[inline]
    pub(crate) fn new(
        py: Python<'py>,
        event_loop: Option<&'a Loop>,
        received: Received,
        count: usize,
    ) -> Self {
        Self {
            memory: Memory::Buffer(received, count),
            event_loop,
            py,
        }
    }
}

impl<'py> Input<'_, 'py> {
    /// A copy of bytes that are in nobody's receive buffer.
    pub(crate) fn copied(py: Python<'py>, bytes: &[u8]) -> Self {
        Self {
            memory: Memory::Own(bytes.to_vec()),
            event_loop: None,
            py,
        }
    }
}

impl Deref for Input<'_, '_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Buffer(received, count) => received.bytes(*count),
            Memory::Own(bytes) => bytes,
            Memory::Returned => &[],
        }
    }
}

impl DerefMut for Input<'_, '_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Buffer(received, count) => received.bytes_mut(*count),
            Memory::Own(bytes) => bytes,
            Memory::Returned => &mut [],
        }
    }
}

impl Drop for Input<'_, '_> {
    #[inline]
    fn drop(&mut self) {
        let memory = std::mem::replace(&mut self.memory, Memory::Returned);
        if let (Memory::Buffer(received, _), Some(event_loop)) = (memory, self.event_loop) {
            event_loop.return_receive_buffer(self.py, received);
        }
    }
}

/// A protocol that takes bytes without a Python call.
pub(crate) struct Sink {
    protocol: Py<PyAny>,
    class: &'static Class,
}

/// How the protocols of a class take bytes.
struct Class {
    method: &'static str,
    /// Whether the bytes are to be in a buffer that may be changed.
    wants_buffer: bool,
    receive: fn(&Sink, Input<'_, '_>) -> PyResult<()>,
    receive_bytes: fn(&Sink, Python<'_>, &[u8]) -> PyResult<()>,
    /// See `Sink::room`.
    room: fn(&Sink, Python<'_>) -> PyResult<usize>,
    receive_object: fn(&Sink, &Bound<'_, PyBytes>) -> PyResult<()>,
    gather: fn(&Sink, Python<'_>, ReceiveInto<'_>) -> Option<Receipt>,
    gathered: fn(&Sink, Python<'_>, usize) -> PyResult<()>,
}

/// asyncio's own `StreamReaderProtocol`: its `StreamReader` is fed directly.
const STREAM: Class = Class {
    method: "data_received",
    wants_buffer: false,
    receive: |sink, input| stream_reader::feed(sink.protocol.bind(input.py), &input, None),
    receive_bytes: |sink, py, bytes| stream_reader::feed(sink.protocol.bind(py), bytes, None),
    room: |sink, py| stream_reader::room(sink.protocol.bind(py)),
    receive_object: |sink, bytes| {
        let protocol = sink.protocol.bind(bytes.py());
        stream_reader::feed(protocol, bytes.as_bytes(), Some(bytes))
    },
    gather: |_, _, _| None,
    gathered: |_, _, _| Ok(()),
};

/// The class of a receiver.
struct ClassOf<T>(PhantomData<T>);

impl<T: Receiver> ClassOf<T> {
    const CLASS: Class = Class {
        method: T::METHOD,
        wants_buffer: true,
        receive: Self::receive,
        receive_bytes: |sink, py, bytes| Self::receive(sink, Input::copied(py, bytes)),
        room: |_, _| Ok(0),
        receive_object: |sink, bytes| {
            Self::receive(sink, Input::copied(bytes.py(), bytes.as_bytes()))
        },
        gather: |sink, py, receive_into| T::gather(Self::protocol(sink, py), receive_into),
        gathered: |sink, py, count| T::gathered(Self::protocol(sink, py), count),
    };

    fn protocol<'a, 'py>(sink: &'a Sink, py: Python<'py>) -> &'a Bound<'py, T> {
        let protocol = sink.protocol.bind(py);
        // SAFETY: only `Sink::for_protocol` makes sinks. It gives this class to instances of `T`.
        unsafe { protocol.cast_unchecked::<T>() }
    }

    fn receive(sink: &Sink, input: Input<'_, '_>) -> PyResult<()> {
        T::receive(Self::protocol(sink, input.py), input)
    }
}

/// A native class, and who is an instance of it.
type Registered = (fn(&Bound<'_, PyAny>) -> bool, &'static Class);

static CLASSES: GilCell<Vec<Registered>> = GilCell::new(Vec::new());

/// Makes a native class known to the transports. To be called when the module is imported.
pub(crate) fn register<T: Receiver>(py: Python<'_>) {
    CLASSES.get_mut(py).push((
        |protocol| protocol.is_instance_of::<T>(),
        &ClassOf::<T>::CLASS,
    ));
}

impl Sink {
    /// The protocol as a sink, if it is one.
    pub(crate) fn for_protocol(protocol: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let native = {
            let classes = CLASSES.get(protocol.py());
            let found = classes.iter().find(|(has, _)| has(protocol));
            found.map(|&(_, class)| class)
        };
        let class = match native {
            Some(class) => class,
            None if stream_reader::is_fed(protocol)? => {
                streams::adopt(protocol)?;
                &STREAM
            }
            None => return Ok(None),
        };
        Ok(Some(Self {
            protocol: protocol.clone().unbind(),
            class,
        }))
    }

    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        Self {
            protocol: self.protocol.clone_ref(py),
            class: self.class,
        }
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.protocol)
    }

    /// The protocol's method that this goes without, as reports of errors name it.
    pub(crate) fn method(&self) -> &'static str {
        self.class.method
    }

    /// Whether bytes are better delivered by `receive` than by `receive_bytes`.
    pub(crate) fn wants_buffer(&self) -> bool {
        self.class.wants_buffer
    }

    /// Delivers what was received.
    pub(crate) fn receive(&self, input: Input<'_, '_>) -> PyResult<()> {
        (self.class.receive)(self, input)
    }

    /// Up to how many bytes are better received straight into a `bytes` object, for `receive_object`; 0 for none.
    pub(crate) fn room(&self, py: Python<'_>) -> PyResult<usize> {
        (self.class.room)(self, py)
    }

    /// See `Receiver::gather`.
    pub(crate) fn gather(&self, py: Python<'_>, receive_into: ReceiveInto<'_>) -> Option<Receipt> {
        (self.class.gather)(self, py, receive_into)
    }

    /// See `Receiver::gathered`.
    pub(crate) fn gathered(&self, py: Python<'_>, count: usize) -> PyResult<()> {
        (self.class.gathered)(self, py, count)
    }

    /// Delivers bytes in an object of their own.
    pub(crate) fn receive_object(&self, bytes: &Bound<'_, PyBytes>) -> PyResult<()> {
        (self.class.receive_object)(self, bytes)
    }

    /// Delivers bytes that are in nobody's receive buffer.
    pub(crate) fn receive_bytes(&self, py: Python<'_>, bytes: &[u8]) -> PyResult<()> {
        (self.class.receive_bytes)(self, py, bytes)
    }
}
