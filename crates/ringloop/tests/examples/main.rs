//! The examples, run as programs: what they send, byte by byte, and how they end.

mod chat;
mod command_line;
#[path = "../common/mod.rs"]
mod common;
mod echo;
mod file_server;
mod http;
mod http_proxy;
mod program;
mod proxy;
mod quic_echo;
mod run;
mod static_files;
