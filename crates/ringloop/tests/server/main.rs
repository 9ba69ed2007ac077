//! The promises of a server, on both backends, to clients that behave and to those that do not.

mod beside;
mod case;
#[path = "../common/certificates.rs"]
mod certificates;
#[path = "../common/mod.rs"]
mod common;
mod exchanging;
mod handshakes;
mod idling;
mod limits;
mod listening;
mod outside;
mod panics;
mod queued;
mod shutdown;
mod unix;
