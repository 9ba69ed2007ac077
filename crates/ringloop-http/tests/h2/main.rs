//! HTTP/2: checks of requests, responses, flow control, floods, and the end of connections.

mod bodies;
mod endings;
mod floods;
mod pieces;
mod requests;
mod responses;
mod support;
#[path = "../targets/mod.rs"]
mod targets;
mod websockets;
