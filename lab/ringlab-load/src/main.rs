//! The load generator of ringlab: it loads a server, checks every byte that comes back, and prints its measurements as JSON.
//!
//! `ringlab-load --help` explains workloads, options, units and the result. The principles:
//!
//! - **It favours nobody.** Plain epoll, no runtime, no code of the servers that it measures. It allocates nothing per request,
//!   and 96% of its CPU time is the kernel's TCP.
//! - **Every byte counts.** Echo frames contain the numbers of their connection and message and are compared with a seeded
//!   pattern ([`pattern`]). Responses are parsed, or compared with one that was parsed ([`http`]). One wrong byte voids the run.
//! - **One clock, one window.** A run connects, warms up, measures and drains ([`control`]). The server's CPU clocks are read at
//!   the instants at which the window opens and closes ([`accounting`]), between two turns of the loop
//!   ([`worker`]). Operations and their latencies count if they are completed in the window, in the open loop if they were due in
//!   it.
//! - **The open loop doesn't wait for the server.** Requests are due at fixed instants ([`schedule`]), from which latencies
//!   count.
//! - **It doesn't sleep while there is something to do**, because a local server would pay for waking its client.
//! - **It knows its limits**: it reports how busy it was, how late it was, and its own maximum ([`ceiling`]).
//!
//! [`exchange`] is the interface between the loop and the protocols, [`link`] between both and the socket; `unsafe` is in [`system`] alone.

#![deny(unsafe_code)]

mod accounting;
mod arguments;
mod beside;
mod ceiling;
mod cold;
mod connection;
mod control;
mod endpoint;
mod exchange;
mod failure;
mod http;
mod http2;
mod latencies;
mod link;
mod measured;
mod outcome;
mod output;
mod pattern;
mod probe;
mod responder;
mod run;
mod schedule;
mod settings;
mod shared;
mod system;
mod websocket;
mod windows;
mod worker;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context as _;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::arguments::{Arguments, Discard, Echo, Http, Mode, Rtt, WebSocket, Workload};
use crate::endpoint::Endpoint;
use crate::exchange::{Discarded, Frames, Stream};
use crate::failure::Failures;
use crate::http::{Expected, Requests};
use crate::http2::Streams;
use crate::pattern::Pattern;
use crate::settings::Beside;
use crate::websocket::Messages;

/// The default number of connections, for workloads with many.
const CONNECTIONS: u32 = 50;

fn main() -> ExitCode {
    let arguments = Arguments::get();
    match measure(&arguments.workload) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringlab-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(workload: &Workload) -> anyhow::Result<()> {
    if let Workload::Responder(responder) = workload {
        return responder::serve(responder).context("the responder failed");
    }
    if let Workload::Http(http) = workload
        && http.probe
    {
        let (address, timeout) = (&http.common.address, http.common.timeout);
        output::event("probe", probe::probe(address, &http.path, timeout)?);
        return Ok(());
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The second signal has its default action, which ends the process.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&interrupted))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&interrupted)))
            .context("signals can't be handled")?;
    }
    let mut result = match workload {
        Workload::Echo(echo) => measure_echo(echo, &interrupted),
        Workload::Discard(discard) => measure_discard(discard, &interrupted),
        Workload::Http(http) => measure_http(http, &interrupted),
        Workload::Websocket(websocket) => measure_websocket(websocket, &interrupted),
        Workload::Rtt(rtt) => measure_rtt(rtt, &interrupted),
        Workload::Ceiling(ceiling) => ceiling::measure(ceiling, CONNECTIONS, &interrupted),
        Workload::Responder(_) => return Ok(()),
    }?;
    let options = json!(workload);
    result["schema_version"] = output::SCHEMA_VERSION.into();
    result["workload"] = options["workload"].clone();
    result["options"] = options;
    output::event("result", result);
    Ok(())
}

fn measure_echo(echo: &Echo, interrupted: &AtomicBool) -> anyhow::Result<Value> {
    let mut settings = echo.common.settings(CONNECTIONS);
    echo.connecting.apply(&mut settings, None)?;
    let failures = Failures::default();
    let pattern = Pattern::new(echo.common.seed, echo.size.size);
    match echo.mode {
        Mode::Framed if matches!(settings.endpoint, Endpoint::Udp(_)) => {
            run::run(&settings, interrupted, failures, Frames::<true>(pattern))
        }
        Mode::Framed => run::run(&settings, interrupted, failures, Frames::<false>(pattern)),
        Mode::Stream => {
            let stream = Stream::new(echo.message.as_bytes());
            run::run(&settings, interrupted, failures, stream)
        }
    }
}

fn measure_discard(discard: &Discard, interrupted: &AtomicBool) -> anyhow::Result<Value> {
    let settings = discard.common.settings(CONNECTIONS);
    let discarded = Discarded(Stream::new(discard.message.as_bytes()));
    run::run(&settings, interrupted, Failures::default(), discarded)
}

fn measure_http(http: &Http, interrupted: &AtomicBool) -> anyhow::Result<Value> {
    let mut settings = http.common.settings(CONNECTIONS);
    let protocol = if http.http2 { "h2" } else { "http/1.1" };
    http.connecting.apply(&mut settings, Some(protocol))?;
    let body = || http.body.repeat(http.times).into_bytes();
    let expected = Expected {
        status: http.status,
        body: (!http.any_body && http.contains.is_none()).then(body),
        part: http.contains.clone().unwrap_or_default().into_bytes(),
        fields: http.expect_header.clone(),
    };
    let host = &http.common.address.name;
    settings.beside = http.beside.map(|connections| Beside {
        connections,
        request: Requests::request("GET", &http.beside_path, host, &[], &[]),
    });
    let failures = Failures::default();
    if http.http2 {
        let streams = Streams::new(
            &http.path,
            host,
            http.connecting.tls,
            settings.pipeline,
            expected,
        );
        return run::run(&settings, interrupted, failures, streams);
    }
    let mut headers = http.header.clone();
    if settings.churn {
        headers.push("Connection: close".to_owned());
    }
    let sent = match &http.data {
        Some(data) => data.clone().into_bytes(),
        None => Requests::filler(http.send),
    };
    let method = http.method.as_deref();
    let method = method.unwrap_or(if sent.is_empty() { "GET" } else { "POST" });
    let request = Requests::request(method, &http.path, host, &headers, &sent);
    let requests = Requests::new(&request, expected);
    run::run(&settings, interrupted, failures, requests)
}

fn measure_websocket(websocket: &WebSocket, interrupted: &AtomicBool) -> anyhow::Result<Value> {
    let settings = websocket.common.settings(CONNECTIONS);
    let pattern = Pattern::new(websocket.common.seed, websocket.size.size);
    let messages = Messages::new(&websocket.path, &websocket.common.address.name, pattern);
    let failures = Failures::default();
    run::run(&settings, interrupted, failures, messages)
}

fn measure_rtt(rtt: &Rtt, interrupted: &AtomicBool) -> anyhow::Result<Value> {
    let settings = rtt.common.settings(1);
    let mut pattern = Pattern::new(rtt.common.seed, rtt.size.size);
    let failures = Failures::default();
    run::prepare_thread(&settings)?;
    let cold = cold::measure(&settings, &mut pattern, rtt.cold, interrupted, &failures);
    let mut result = run::run(&settings, interrupted, failures, Frames::<false>(pattern))?;
    result["latency"]["cold"] = cold.to_json(settings.hdr);
    Ok(result)
}
