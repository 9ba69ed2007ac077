//! The generator, as the process that it is, against small servers that misbehave in known ways.

mod command;
mod common;
mod connections;
mod discard;
mod echo;
mod http;
mod protocols;
mod udp;
mod unix;
mod windows;
