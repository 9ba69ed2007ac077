//! What takes a process of its own: forks, refusals and limits.
//!
//! Apart from the other tests, whose sockets a child would inherit and keep open.

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
