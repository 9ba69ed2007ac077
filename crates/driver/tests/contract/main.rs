//! The contract of the driver, on every backend: one body per property, run once on io_uring and once on epoll.
//!
//! Where io_uring is refused, its half says SKIPPED with the reason instead of failing.

#![allow(clippy::cast_lossless, missing_docs)]

mod support;
mod watches;
