//! The load generator of ringlab.
#![deny(unsafe_code)]

mod accounting;
mod arguments;
mod exchange;
mod failure;
mod http;
mod latencies;
mod output;
mod pattern;
mod run;
mod system;
mod worker;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context as _;
use clap::Parser as _;
use serde::Serialize;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::arguments::{Arguments, Echo, Http, Mode, Workload};
use crate::exchange::{Frames, Stream};
use crate::http::Requests;
use crate::pattern::Pattern;
use crate::worker::READ_BYTES;

/// How many connections a workload has that is about many.
const CONNECTIONS: u32 = 50;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match measure(&arguments.workload) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringlab-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(workload: &Workload) -> anyhow::Result<()> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The second signal ends the process in its default way.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&interrupted))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&interrupted)))
            .context("signals can't be handled")?;
    }
    match workload {
        Workload::Echo(echo) => print_result("echo", echo, measure_echo(echo, &interrupted)?),
        Workload::Http(http) => print_result("http", http, measure_http(http, &interrupted)?),
    }
    Ok(())
}

fn measure_echo(echo: &Echo, interrupted: &AtomicBool) -> anyhow::Result<Value> {
    let settings = echo.common.settings(&echo.load, CONNECTIONS, None);
    let result = match echo.mode {
        Mode::Framed => {
            let pattern = Pattern::new(echo.common.seed, echo.size as usize);
            run::run(&settings, interrupted, || Frames(pattern.clone()))
        }
        Mode::Stream => run::run(&settings, interrupted, || Stream::new(READ_BYTES)),
    }?;
    Ok(result)
}

fn measure_http(http: &Http, interrupted: &AtomicBool) -> anyhow::Result<Value> {
    let settings = http.common.settings(&http.load, CONNECTIONS, http.rate);
    let body = (!http.any_body).then(|| http.body.clone().into_bytes());
    let host = http.common.address.to_string();
    let requests = Requests::new(&http.path, &host, &http.header, body);
    Ok(run::run(&settings, interrupted, || requests.clone())?)
}

fn print_result(workload: &str, options: &impl Serialize, mut result: Value) {
    result["schema_version"] = output::SCHEMA_VERSION.into();
    result["workload"] = workload.into();
    result["options"] = json!(options);
    output::event("result", result);
}
