//! The contract of the driver, on every backend: one body per property, run once on `io_uring` and once on epoll.
//!
//! Where `io_uring` is refused, its half prints SKIPPED with the reason instead of failing.

mod bounds;
mod cancelling;
mod files;
mod kernel;
mod lifecycle;
mod load;
mod operations;
mod registry;
mod scripted;
mod streams;
#[allow(
    dead_code,
    reason = "shared with the tests of processes, which use the rest"
)]
mod support;
mod watches;
mod zero_copy;
