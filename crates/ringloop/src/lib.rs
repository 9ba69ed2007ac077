//! A thread-per-core runtime on `io_uring`, with epoll as the fallback where the kernel or a container refuses
//! `io_uring`.
//!
//! Tasks run in the thread that spawned them, and need not be `Send`. Each worker of a [`Pool`] has its own reactor and
//! shares nothing on its hot path. The
//! [guide](https://github.com/ringloop/ringloop/blob/main/docs/rust.md) explains the parts.
//!
//! ```
//! use ringloop::server::{Connection, Handler, Server};
//! use std::io;
//!
//! struct Echo;
//!
//! impl Handler for Echo {
//!     fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
//!         connection.write(bytes)
//!     }
//! }
//!
//! # fn main() -> io::Result<()> {
//! let server = Server::new("127.0.0.1:0").start(|| Echo)?;
//! println!("listening on {}", server.local_addr());
//! # server.shutdown(std::time::Duration::ZERO);
//! # Ok(())
//! # }
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | [`Runtime`], [`spawn`], [`JoinHandle`], [`JoinSet`] | tasks, on one thread |
//! | [`pool`] | [`Pool`]: a worker per core, to which tasks can be sent |
//! | [`server`] | [`Server`]: TCP and TLS servers with a handler or function per connection, limits and graceful shutdown |
//! | [`net`], [`fs`], [`time`], [`signal`] | sockets, files, timers and signals |
//! | [`process`], [`stdio`] | child processes, and the standard streams of this one |
//! | [`AsyncFd`] | waiting for descriptors that the crate has no type for |
//! | [`channel`] | channels between tasks of any workers |
//! | [`io`] | copying between files, pipes and sockets, in the kernel |
//! | [`blocking`] | blocking calls, in a pool of threads |
//! | [`metrics`] | counters of runtimes and workers, also as text for Prometheus |
//!
//! # The reactor
//!
//! Below the runtime is one object that waits for events from the kernel, for the deadlines of timers and for other
//! threads. It is the crate [`ringloop-reactor`](ringloop_reactor), which is for those who write an event loop of their
//! own. A program that uses the runtime finds its modules here: [`reactor`], [`busy_poll`], [`timers`], [`inbox`] and
//! [`clock`].
//!
//! # Features
//!
//! None is on by default.
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `hyper` | the module `hyper`: HTTP servers and clients, and hyper's `Read` and `Write` for connections |
//! | `quinn` | the module `quinn`: a runtime for quinn, which does QUIC |
//! | `tls` | the module `tls`: TLS connections with rustls, and TLS servers |
//! | `tokio` | tokio's `AsyncRead` and `AsyncWrite` for connections, their halves, the pipes of children and streams of files (also `AsyncSeek`), without tokio's runtime |
//! | `tokio-rt` | the module `tokio`: libraries that need tokio's runtime, beside a worker |
//! | `futures-io` | the same for the traits of `futures-io` |
//! | `opentelemetry` | `metrics::observe`: instruments for the metrics of workers |
//! | `test-util` | a runtime on a kernel that plays a script, for tests: `Runtime::with_reactor` |
//! | `tracing` | spans per task and per connection of a server, and events, for the crate `tracing` |
//!
//! # Other crates in the interface
//!
//! Types and traits of these crates are part of the interface on purpose, so a new major version of one of them is a
//! breaking change here: [`bytes`], `async-channel` (the errors of [`channel`]), `futures-core` (the stream that a
//! [`Receiver`](channel::Receiver) is), `ringloop-driver` (as [`driver`]), `ringloop-reactor`, and with the features of these
//! names `rustls` (as `tls::rustls`), `hyper`, `quinn`, `tokio` and `futures-io`.

#![deny(unsafe_code)]
// docs.rs shows which feature each item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(any(feature = "futures-io", feature = "hyper", feature = "tokio"))]
mod adapters;
mod async_fd;
pub mod blocking;
mod budget;
mod buffer;
pub mod channel;
mod drain;
#[cfg(all(test, feature = "test-util"))]
mod faults;
pub mod fs;
#[cfg(feature = "hyper")]
pub mod hyper;
pub mod io;
pub mod metrics;
pub mod net;
mod pipe;
pub mod pool;
pub mod process;
#[cfg(feature = "quinn")]
pub mod quinn;
mod runtime;
mod sealed;
pub mod server;
mod shared;
pub mod signal;
mod source;
pub mod stdio;
mod stopping;
mod sys;
mod task;
mod threads;
pub mod time;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(feature = "tokio-rt")]
pub mod tokio;
mod trace;

pub use async_fd::{AsyncFd, NotReady, ReadyGuard};
pub use bytes;
pub use metrics::Metrics;
pub use pool::{Pool, PoolConfig};
pub use ringloop_driver as driver;
#[doc(inline)]
pub use ringloop_reactor::{
    BusyPoll, Reactor, ReactorConfig, ReactorCounters, busy_poll, clock, inbox, reactor, timers,
};
pub use runtime::{
    Handle, JoinSet, Runtime, RuntimeConfig, consume_budget, spawn, spawn_background, yield_now,
};
pub use server::Server;
pub use stopping::{Stopping, stopping};
pub use task::{AbortHandle, AbortOnDrop, JoinError, JoinHandle};

/// Compiles the programs of the guide, and of the README.
#[cfg(doctest)]
#[doc = include_str!("../GUIDE.md")]
#[cfg_attr(
    all(feature = "hyper", feature = "tls"),
    doc = include_str!("../README.md")
)]
struct Guide;
