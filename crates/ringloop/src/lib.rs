//! A thread-per-core runtime on `io_uring`, with epoll as the fallback where the kernel or a container refuses
//! `io_uring`.
//!
//! Tasks run in the thread that spawned them, and need not be `Send`. Each worker of a [`Pool`] has its own reactor and
//! shares nothing on its hot path. The
//! [guide](https://github.com/ringloop/ringloop/blob/main/docs/rust.md) explains the parts.
//!
#![cfg_attr(feature = "runtime", doc = "```")]
#![cfg_attr(not(feature = "runtime"), doc = "```ignore")]
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
//! let server = Server::bind("127.0.0.1:0").start(|| Echo)?;
//! println!("listening on {}", server.local_addr());
//! # server.shutdown(std::time::Duration::ZERO);
//! # Ok(())
//! # }
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | [`Runtime`], [`spawn`], [`JoinHandle`] | tasks, on one thread |
//! | [`pool`] | [`Pool`]: a worker per core, to which tasks can be sent |
//! | [`server`] | [`Server`]: TCP and TLS servers with a handler or function per connection, limits and graceful shutdown |
//! | [`net`], [`fs`], [`time`], [`signal`] | sockets, files, timers and signals |
//! | [`channel`] | channels between tasks of any workers, from `async-channel` |
//! | [`blocking`] | blocking calls, in a pool of threads |
//!
//! # The reactor
//!
//! Below the runtime is one object that waits for events from the kernel, for the deadlines of timers and for other
//! threads. Where it pays, it polls for a short while before it sleeps. It is public because ringloop's Python event
//! loop uses it without the runtime.
//!
//! | module | contents |
//! | --- | --- |
//! | [`reactor`] | [`Reactor`]: the driver, a waker, and [`Reactor::turn`], the only wait |
//! | [`busy_poll`] | [`BusyPoll`]: whether and how long to poll before sleeping |
//! | [`timers`] | [`timers::Timers`]: fast insertion, cancellation and expiry with a million timers |
//! | [`inbox`] | [`inbox::Inbox`]: values from other threads, which wake the reactor only if necessary |
//! | [`clock`] | [`clock::now_ns`]: the clock of all deadlines |
//!
//! The parts do not call one another. An event loop owns a [`Reactor`], its [`timers::Timers`] and perhaps an
//! [`inbox::Inbox`], and a turn of it looks like this:
//!
//! ```
//! use ringloop::{Reactor, ReactorConfig, clock, inbox::Inbox, timers::Timers};
//!
//! # fn main() -> std::io::Result<()> {
//! let mut reactor = Reactor::new(&ReactorConfig::default())?;
//! let mut inbox = Inbox::new(reactor.waker());
//! let mut timers = Timers::new();
//! timers.insert(clock::now_ns() + 1_000_000, "one millisecond later");
//! let sender = inbox.sender();
//! let thread = std::thread::spawn(move || sender.send("from another thread"));
//!
//! let mut events = Vec::new();
//! let mut messages = Vec::new();
//! let mut seen = Vec::new();
//! while seen.len() < 2 {
//!     if inbox.prepare_wait() {
//!         reactor.turn(timers.next_deadline_ns(), &mut events)?;
//!     } else {
//!         reactor.poll_now(&mut events)?;
//!     }
//!     for event in events.drain(..) {
//!         println!("descriptor watched under {:?}: {}", event.token(), event.result());
//!     }
//!     inbox.receive(&mut messages);
//!     seen.append(&mut messages);
//!     let now_ns = clock::now_ns();
//!     while let Some(value) = timers.pop_expired(now_ns) {
//!         seen.push(value);
//!     }
//! }
//! # thread.join().expect("the thread only sends").expect("the inbox is alive");
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `runtime` | everything but the reactor; on by default, unlike the others |
//! | `hyper` | the module `hyper`: hyper's `Read` and `Write` for connections, an executor and a timer |
//! | `tls` | the module `tls`: TLS connections with rustls, and TLS servers |
//! | `tokio` | tokio's `AsyncRead` and `AsyncWrite` for connections and their halves, without tokio's runtime |
//! | `futures-io` | the same for the traits of `futures-io` |
//! | `test-util` | a runtime on a kernel that plays a script, for tests: `Runtime::with_reactor` |
//! | `tracing` | spans per task and per connection of a server, and events, for the crate `tracing` |
//!
//! # Other crates in the interface
//!
//! Types and traits of these crates are part of the interface on purpose, so a new major version of one of them is a
//! breaking change here: [`bytes`], `async-channel` (as [`channel`]), `ringloop-driver` (as [`driver`]), and with the
//! features of these names `rustls` (as `tls::rustls`), `hyper`, `tokio` and `futures-io`.

#![deny(unsafe_code)]
// docs.rs shows which feature each item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(any(feature = "futures-io", feature = "hyper", feature = "tokio"))]
mod adapters;
#[cfg(feature = "runtime")]
pub mod blocking;
pub mod busy_poll;
pub mod clock;
#[cfg(all(test, feature = "runtime", feature = "test-util"))]
mod faults;
#[cfg(feature = "runtime")]
pub mod fs;
#[cfg(feature = "hyper")]
pub mod hyper;
pub mod inbox;
#[cfg(feature = "runtime")]
mod metrics;
#[cfg(feature = "runtime")]
pub mod net;
mod panics;
#[cfg(feature = "runtime")]
pub mod pool;
pub mod reactor;
#[cfg(feature = "runtime")]
mod runtime;
#[cfg(feature = "runtime")]
mod sealed;
#[cfg(feature = "runtime")]
pub mod server;
#[cfg(feature = "runtime")]
mod shared;
#[cfg(feature = "runtime")]
pub mod signal;
#[cfg(feature = "runtime")]
mod source;
mod sys;
#[cfg(feature = "runtime")]
mod task;
#[cfg(feature = "runtime")]
pub mod time;
pub mod timers;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(feature = "runtime")]
mod trace;

/// Channels between tasks of any workers, and other threads, from the crate `async-channel`.
#[cfg(feature = "runtime")]
pub mod channel {
    pub use async_channel::{
        Receiver, Recv, RecvError, Send, SendError, Sender, TryRecvError, TrySendError,
        WeakReceiver, WeakSender, bounded, unbounded,
    };
}

pub use busy_poll::BusyPoll;
#[cfg(feature = "runtime")]
pub use bytes;
#[cfg(feature = "runtime")]
pub use metrics::Metrics;
#[cfg(feature = "runtime")]
pub use pool::{Pool, PoolConfig};
pub use reactor::{Reactor, ReactorConfig, ReactorCounters};
pub use ringloop_driver as driver;
#[cfg(feature = "runtime")]
pub use runtime::{Handle, Runtime, RuntimeConfig, spawn, yield_now};
#[cfg(feature = "runtime")]
pub use server::Server;
#[cfg(feature = "runtime")]
pub use task::{JoinError, JoinHandle};

/// Compiles the programs of the guide, and of the README.
#[cfg(all(doctest, feature = "runtime"))]
#[doc = include_str!("../GUIDE.md")]
#[doc = include_str!("../README.md")]
struct Guide;
