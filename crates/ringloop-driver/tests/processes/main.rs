//! Tests that need a process of their own: forks, refusals and limits.
//!
//! They are separate from the other tests, because a child would inherit their sockets and keep them open.

mod children;
mod numbers;
mod refusal;
mod stuck;
#[path = "../contract/support.rs"]
#[allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "shared with the contract's tests, which use the rest"
)]
mod support;
