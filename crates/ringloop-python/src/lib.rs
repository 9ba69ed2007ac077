//! `ringloop._core`: asyncio's event loop on ringloop's reactor.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `event_loop` | `Loop`: the queue, the timers, scheduling |
//! | `handle` | `Handle` and `TimerHandle` |
//! | `metrics` | what a loop counts about itself |
//! | `turn` | one turn of the loop |
//! | `posting` | callbacks from other threads |
//! | `watches` | who hears about which descriptor |
//! | `datagram` | `DatagramTransport`, with the memory it receives into |
//! | `addresses` | socket addresses between the kernel and Python |
//! | `transport` | `SocketTransport`, with its reading and its writing |
//! | `socket_object` | the descriptor that a socket has now |
//! | `socket_operation` | `sock_recv`, `sock_recv_into`, `sock_sendall` |
//! | `buffers` | bytes between sockets and Python objects |
//! | `stream_reader` | asyncio's `StreamReader`, fed directly |
//! | `names` | the names that are looked up in Python objects |
//! | `objects` | Python objects of Rust's values, and errors, made without panics |
//! | `native_type` | types of the C API |
//! | `tls` | `SSLProtocol`, the hot half of asyncio's TLS |
//! | `thread_exit` | daemon threads at the end of the interpreter |
//! | `support` | state under the GIL, errors, the border between C and Rust |
//!
//! The rule: native if it runs per callback or per packet, Python if it runs per connection or per loop.

#![deny(unsafe_code)]

mod addresses;
mod buffers;
mod datagram;
mod endpoint;
mod event_loop;
mod handle;
mod loop_methods;
mod metrics;
mod names;
mod native_type;
mod objects;
mod posting;
mod queue;
mod receiver;
mod run_lock;
mod scheduling;
mod socket_object;
mod socket_operation;
mod stopwatch;
mod stream_reader;
mod support;
mod thread_exit;
mod tls;
mod transport;
mod turn;
mod watches;
mod watching;

use pyo3::prelude::*;

#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    names::make(module.py())?;
    support::check_interpreter(module.py())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    scheduling::add_to(module)?;
    loop_methods::add_to(module)?;
    socket_object::add_to(module)?;
    socket_operation::add_to(module)?;
    module.add_class::<datagram::DatagramTransport>()?;
    tls::add_to(module)?;
    module.add_class::<transport::SocketTransport>()
}
