//! The generator's own maximum, measured against a [responder](crate::responder) in a process of its own.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, anyhow};
use serde_json::{Value, json};

use crate::arguments::{Ceiling, Protocol};
use crate::exchange::Frames;
use crate::failure::Failures;
use crate::http::{Expected, Requests};
use crate::pattern::Pattern;
use crate::run;

/// The responder's process, which ends with this value.
struct Process {
    child: Child,
    address: SocketAddr,
    _stdin: ChildStdin,
}

impl Process {
    fn start(ceiling: &Ceiling) -> anyhow::Result<Self> {
        let program =
            std::env::current_exe().context("the generator's own program can't be found")?;
        let mut command = Command::new(program);
        command.arg("responder").arg(match ceiling.protocol {
            Protocol::Echo => "echo",
            Protocol::Http => "http",
        });
        for cpu in &ceiling.responder_cpu {
            command.arg("--cpu").arg(cpu.to_string());
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for the generator only, which ends the run first and then the responder.
            .process_group(0)
            .spawn()
            .context("the responder can't be started")?;
        let stdin = child.stdin.take().context("the responder has no stdin")?;
        let stdout = child.stdout.take().context("the responder has no stdout")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line
            .trim()
            .strip_prefix("listening on ")
            .and_then(|address| address.parse().ok())
            .ok_or_else(|| anyhow!("the responder doesn't listen: it said '{}'", line.trim()))?;
        Ok(Self {
            child,
            address,
            _stdin: stdin,
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended already or ends now. In both cases there is nothing else to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures the ceiling. Returns the result of loading the responder, with the ceiling computed from it.
pub(crate) fn measure(
    ceiling: &Ceiling,
    connections: u32,
    interrupted: &AtomicBool,
) -> anyhow::Result<Value> {
    let process = Process::start(ceiling)?;
    let common = ceiling.common(process.address, process.child.id() as i32);
    let settings = common.settings(connections);
    let failures = Failures::default();
    let mut result = match ceiling.protocol {
        Protocol::Echo => {
            let pattern = Pattern::new(common.seed, ceiling.size.size);
            run::run(&settings, interrupted, failures, Frames::<false>(pattern))
        }
        Protocol::Http => {
            let expected = Expected {
                body: Some(b"Hello, World!".to_vec()),
                ..Expected::default()
            };
            let host = process.address.to_string();
            let requests = Requests::new(&Requests::request("GET", "/", &host, &[], &[]), expected);
            run::run(&settings, interrupted, failures, requests)
        }
    }?;
    let figure = |name: &str| result[name].as_f64().unwrap_or_default();
    let operations = figure("operations");
    let busy_s = result["client"]["busy_ns"].as_f64().unwrap_or_default() / 1e9;
    result["ceiling"] = json!({
        "operations_per_s": (busy_s > 0.0).then(|| operations / busy_s),
        "client_busy_ns_per_operation": (operations > 0.0).then(|| busy_s * 1e9 / operations),
    });
    Ok(result)
}
