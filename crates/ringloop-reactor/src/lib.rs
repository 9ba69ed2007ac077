//! The one wait of an event loop: for events from the kernel, for the deadlines of timers and for other threads.
//!
//! Where it pays, it polls for a short while before it sleeps. This is the layer between the
//! [`ringloop_driver`] and an event loop, which has the tasks or callbacks. ringloop's native runtime is built on
//! it, and so is its event loop for Python. Programs use [ringloop](https://docs.rs/ringloop), which offers the same
//! modules.
//!
//! | module | contents |
//! | --- | --- |
//! | [`reactor`] | [`Reactor`]: the driver, a waker, and [`Reactor::turn`], the only wait |
//! | [`busy_poll`] | [`BusyPoll`]: whether and how long to poll before sleeping |
//! | [`timers`] | [`timers::Timers`]: fast insertion, cancellation and expiry with a million timers |
//! | [`inbox`] | [`inbox::Inbox`]: values from other threads, which wake the reactor only if necessary |
//! | [`clock`] | [`clock::now_ns`]: the clock of all deadlines |
//! | [`panics`] | calls of the user's code that contain its panics |
//!
//! The parts do not call one another. An event loop owns a [`Reactor`], its [`timers::Timers`] and perhaps an
//! [`inbox::Inbox`], and a turn of it looks like this:
//!
//! ```
//! use ringloop_reactor::{Reactor, ReactorConfig, clock, inbox::Inbox, timers::Timers};
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
//! The feature `test-util` adds `Reactor::with_driver`, for tests with a driver that plays a script. The crate
//! `ringloop-driver`, as [`driver`], is part of the interface on purpose: a new major version of it is a breaking change
//! here.

#![deny(unsafe_code)]
// docs.rs shows which feature each item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod busy_poll;
pub mod clock;
pub mod inbox;
pub mod panics;
pub mod reactor;
mod sys;
pub mod timers;

pub use busy_poll::BusyPoll;
pub use reactor::{Reactor, ReactorConfig, ReactorCounters};
pub use ringloop_driver as driver;

/// Compiles the program of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
