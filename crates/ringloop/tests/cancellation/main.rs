//! Every future is dropped after each of its polls, and when it has been woken for the next one. Afterwards no descriptor
//! is left, no buffer is left or was touched after it was freed, no byte of a stream is lost or doubled, and the runtime
//! goes on.

#[path = "../common/certificates.rs"]
mod certificates;
#[path = "../common/mod.rs"]
mod common;
mod connections;
mod cut;
mod datagrams;
mod failing;
mod files;
mod http;
mod memory;
mod random;
mod servers;
mod sockets;
mod streams;
mod tasks;
mod tls;
