//! The HTTP server's native half, which connects `ringloop_http` (the messages) with ASGI (the applications).
//!
//! | module | what it holds |
//! | --- | --- |
//! | `service` | `HttpService`: what the connections of a server have in common |
//! | `service_methods` | what Python calls on it |
//! | `task` | a task for each request |
//! | `connection` | the protocol of a connection: parsing, order |
//! | `connection/ending` | how a connection ends: refusals, lingering, deadlines |
//! | `connection/websocket` | a connection that speaks WebSocket |
//! | `exchange` | a request with its response; what it needs of a protocol, and a connection of who answers it |
//! | `request` | what an application receives and sends |
//! | `awaitable` | `receive` and `send`, and the awaitables that they return |
//! | `websocket` | a WebSocket's frames, its queue, and how far it has got |
//! | `websocket_messages` | its messages between application and client |
//! | `calls` | calls of the C API, for requests |
//! | `message` | reading what applications send |
//! | `scope` | what an application is told about a request |
//! | `h2` | what a connection does that speaks HTTP/2 |
//! | `settings` | the settings of a server, as Python has them |
//! | `deadlines` | deadlines of connections |
//! | `counters` | what a service counts |
//! | `access_log` | lines of the access log |

mod access_log;
mod awaitable;
mod calls;
mod connection;
mod counters;
mod deadlines;
mod exchange;
mod h2;
mod message;
mod request;
mod scope;
mod service;
mod service_methods;
mod settings;
mod task;
mod websocket;
mod websocket_messages;

use pyo3::prelude::*;

use crate::receiver;

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    awaitable::add_to(module)?;
    module.add_class::<service::HttpService>()?;
    module.add_class::<connection::Connection>()?;
    module.add_class::<request::Request>()?;
    receiver::register::<connection::Connection>(module.py());
    Ok(())
}
