//! `ringloop._core`: asyncio's event loop on ringloop's reactor.
//!
//! From the highest layer to the lowest; a module imports only those below it (docs/layers.md):
//!
//! | module | what it holds |
//! | --- | --- |
//! | `loop_methods` | what Python calls on a loop |
//! | `turn` | one turn of the loop |
//! | `http` | the HTTP server's native half: connections, requests, ASGI |
//! | `tls` | `SSLProtocol`, the hot half of asyncio's TLS |
//! | `transport` | `SocketTransport`: reading, writing, flow control, closing |
//! | `datagram` | `DatagramTransport` |
//! | `endpoint` | what both kinds of transports have in common |
//! | `pipes` | the methods of asyncio's pipe transports that run per read and per write |
//! | `files` | what `ringloop.files` needs of the kernel |
//! | `socket_operation` | `sock_recv`, `sock_sendall` and their like |
//! | `receiver` | native protocols, which get bytes without a Python call |
//! | `streams` | the methods of asyncio's streams that run per read and per write |
//! | `stream_reader` | asyncio's `StreamReader`, fed directly |
//! | `waiter` | what a task waits for in a native read |
//! | `watching` | who is notified about which descriptor |
//! | `scheduling` | putting callbacks into the queue, and taking them out |
//! | `watchdog` | who holds the loop, as another thread sees it |
//! | `event_loop` | `Loop`: the state of a loop |
//! | `watches` | the tables of what is watched |
//! | `operations` | the table of operations in progress |
//! | `stopwatch` | how callbacks are timed |
//! | `buffers` | bytes between sockets and Python objects |
//! | `queue` | what waits for its turn |
//! | `posting` | callbacks from other threads |
//! | `addresses` | socket addresses between the kernel and Python |
//! | `handle` | `Handle` and `TimerHandle` |
//! | `metrics` | what a loop counts about itself |
//! | `socket_object` | the descriptor that a socket has now |
//! | `collected` | all that a stream has until its end |
//! | `coroutine` | native objects that act like coroutines |
//! | `run_lock` | the equivalent of the lock in asyncio's thread-safe handles |
//! | `support` | state under the GIL, errors, contexts, the boundary between C and Rust |
//! | `fields` | the attributes that Python objects have themselves |
//! | `slotted` | the base of classes whose objects have slots |
//! | `names` | the names of Python attributes, made at import |
//! | `objects` | creating Python objects and errors without panics |
//! | `cell`, `lock`, `lock_order` | state that one thread at a time touches |
//! | `native_type` | types of the C API |
//! | `thread_exit` | daemon threads at the end of the interpreter |
//! | `reserve` | memory for bookkeeping when the system has none left |
//!
//! The rule: native if it runs per callback or per packet, Python if it runs per connection or per loop.

#![deny(unsafe_code)]

mod addresses;
mod buffers;
mod cell;
mod collected;
mod coroutine;
mod datagram;
mod endpoint;
mod event_loop;
mod fields;
mod files;
mod handle;
mod http;
#[cfg(Py_GIL_DISABLED)]
mod lock;
#[cfg(all(Py_GIL_DISABLED, debug_assertions))]
mod lock_order;
mod loop_methods;
mod metrics;
mod names;
mod native_type;
mod objects;
mod operations;
mod originals;
mod pipes;
mod posting;
mod queue;
mod receiver;
mod reserve;
mod run_lock;
mod scheduling;
mod slotted;
mod socket_object;
mod socket_operation;
mod stopwatch;
mod stream_reader;
mod streams;
mod support;
mod thread_exit;
mod tls;
mod transport;
mod turn;
mod waiter;
mod watchdog;
mod watches;
mod watching;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    names::make(module.py())?;
    support::check_interpreter(module.py())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    scheduling::add_to(module)?;
    loop_methods::add_to(module)?;
    socket_object::add_to(module)?;
    socket_operation::add_to(module)?;
    files::add_to(module)?;
    module.add_class::<datagram::DatagramTransport>()?;
    tls::add_to(module)?;
    http::add_to(module)?;
    slotted::add_to(module)?;
    waiter::add_to(module)?;
    streams::add_to(module)?;
    pipes::add_to(module)?;
    watchdog::add_to(module)?;
    transport::add_to(module)
}
