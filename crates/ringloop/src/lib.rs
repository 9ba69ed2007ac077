//! The reactor of ringloop: one object that waits for the kernel's events, for timers' deadlines
//! and for other threads, and that polls for a short while before it sleeps where that pays.
//!
//! | module | what is in it |
//! | --- | --- |
//! | [`reactor`] | [`Reactor`]: the driver, a way to be woken, and [`Reactor::turn`], the only wait |
//! | [`busy_poll`] | [`BusyPoll`], the user's choice, and the policy that decides how long to poll |
//! | [`timers`] | [`timers::Timers`]: cheap to insert, cancel and expire with a million alive |
//! | [`inbox`] | [`inbox::Inbox`]: values from other threads, with a wake only when one is needed |
//! | [`clock`] | [`clock::now_ns`]: the one clock that all deadlines are on |
//!
//! The parts do not call one another: an event loop owns a [`Reactor`], its [`timers::Timers`] and
//! perhaps an [`inbox::Inbox`], and its turn reads as
//!
//! ```
//! use ringloop::{Config, Reactor, clock, inbox::Inbox, timers::Timers};
//!
//! # fn main() -> std::io::Result<()> {
//! let mut reactor = Reactor::new(&Config::default())?;
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
//!         println!("descriptor watched under {:?}: {}", event.token, event.result);
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
//! All are off by default.
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `hyper` | `hyper`: hyper's `Read` and `Write` for connections, an executor and a timer |
//! | `tokio` | tokio's `AsyncRead` and `AsyncWrite` for connections and their halves; no runtime of tokio's is needed |
//! | `futures-io` | the same for the traits of `futures-io` |

#![deny(unsafe_code)]

#[cfg(any(feature = "futures-io", feature = "hyper", feature = "tokio"))]
mod adapters;
pub mod blocking;
pub mod busy_poll;
pub mod clock;
pub mod fs;
#[cfg(feature = "hyper")]
pub mod hyper;
pub mod inbox;
pub mod net;
pub mod pool;
pub mod reactor;
mod runtime;
pub mod server;
pub mod signal;
mod source;
mod sys;
mod task;
pub mod time;
pub mod timers;

pub use async_channel as channel;
pub use busy_poll::BusyPoll;
pub use pool::{Pool, PoolConfig};
pub use reactor::{Config, Counters, Reactor};
pub use ringloop_driver as driver;
pub use runtime::{Handle, Metrics, Runtime, RuntimeConfig, spawn, yield_now};
pub use server::Server;
pub use task::{JoinError, JoinHandle};
