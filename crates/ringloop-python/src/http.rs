//! The HTTP server's native half, which connects `ringloop_http` (the messages) with ASGI (the applications).
//!
//! Who calls whom, from top to bottom; docs/layers.md has the layers:
//!
//! | module | what it holds |
//! | --- | --- |
//! | `service_methods` | what Python calls on a service; here it is chosen who answers requests |
//! | `task` | who answers them: a task of asyncio's for each, which runs the application |
//! | `wsgi` | the same for WSGI: a pool of threads, which run its views |
//! | `awaitable` | `receive` and `send`, and the awaitables that they return |
//! | `request`, `websocket_messages` | what an application receives and sends, by request and by WebSocket |
//! | `connection` | the protocol of a connection, as asyncio knows it: what arrives, and the order of requests |
//! | `connection/http1`, `http2`, `websocket` | what the exchanges need of each protocol |
//! | `connection/ending` | how a connection ends: refusals, lingering, deadlines |
//! | `h2` | the state of a connection that speaks HTTP/2 |
//! | `exchange` | a request with its response; what it needs of a protocol, and a connection of who answers it |
//! | `link` | a connection's transport: what goes out, the deadlines, the end |
//! | `websocket` | a WebSocket's frames, its queue, and how far it has got |
//! | `scope` | what an application is told about a request |
//! | `environ` | the same for WSGI |
//! | `service` | `HttpService`: what the connections of a server have in common |
//! | `settings` | the settings of a server, as Python has them |
//! | `message` | reading what applications send |
//! | `deadlines` | deadlines of connections |
//! | `counters` | what a service counts |
//! | `access_log` | lines of the access log |
//! | `pages` | which requests the server answers itself |
//! | `calls` | calls of the C API, for requests |

mod access_log;
mod awaitable;
mod calls;
mod connection;
mod counters;
mod deadlines;
mod environ;
mod exchange;
mod gathering;
mod h2;
mod link;
mod message;
mod pages;
mod request;
mod scope;
mod service;
mod service_methods;
mod settings;
mod task;
mod websocket;
mod websocket_messages;
mod wsgi;

use pyo3::prelude::*;

use crate::receiver;

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    awaitable::add_to(module)?;
    module.add_class::<service::HttpService>()?;
    module.add_class::<connection::Connection>()?;
    module.add_class::<request::Request>()?;
    wsgi::add_to(module)?;
    receiver::register::<connection::Connection>(module.py());
    Ok(())
}
