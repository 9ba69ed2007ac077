//! Every future is dropped after each of its polls, and when it was woken for the next one. Afterwards no descriptor
//! and no buffer is left, no buffer was touched after it was freed, no byte of a stream is lost or doubled, and the
//! runtime still works.

#[path = "../common/certificates.rs"]
mod certificates;
#[path = "../common/mod.rs"]
mod common;
mod connections;
mod copying;
mod cut;
mod datagrams;
mod failing;
mod files;
mod http;
mod memory;
mod processes;
mod quic;
#[path = "../common/quic.rs"]
mod quic_endpoints;
mod random;
mod readiness;
mod servers;
mod sockets;
mod streams;
mod tasks;
mod tls;
