//! Runs a command, and marks the lines that it prints.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use ringloop::driver::BackendChoice;
use ringloop::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use ringloop::signal::SignalKind;
use ringloop::time::timeout;
use ringloop::{Runtime, RuntimeConfig, spawn, stdio};

/// How long a command has to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(1);

/// Runs a command, passes its standard input on, and puts `out: ` or `err: ` in front of each line that it prints.
#[derive(Parser)]
struct Arguments {
    /// End the command after this many seconds, at first with SIGTERM
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// The backend: io_uring, epoll or auto
    #[arg(long, env = ringloop::driver::BACKEND_VARIABLE, default_value = "auto")]
    backend: BackendChoice,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// Passes this program's input on, until its end or until the command reads no more.
async fn pass_on(mut to: ChildStdin) -> io::Result<()> {
    let mut from = stdio::stdin()?;
    let mut buffer = Vec::with_capacity(64 * 1024);
    loop {
        buffer.clear();
        let count;
        (count, buffer) = from.read(buffer).await;
        if count? == 0 {
            return Ok(());
        }
        match to.write_all(&buffer[..]).await.0 {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            result => result?,
        }
    }
}

/// Prints what `read` brings, with a mark in front of each line.
async fn mark(
    mark: &str,
    mut read: impl AsyncFnMut(Vec<u8>) -> (io::Result<usize>, Vec<u8>),
) -> io::Result<()> {
    let mut output = stdio::stdout()?;
    let mut buffer = Vec::new();
    loop {
        buffer.reserve(4096);
        let count;
        (count, buffer) = read(buffer).await;
        let is_over = count? == 0;
        let end = match buffer.iter().rposition(|byte| *byte == b'\n') {
            _ if is_over => buffer.len(),
            Some(end) => end + 1,
            None => continue,
        };
        let rest = buffer.split_off(end);
        let mut lines = Vec::new();
        for line in buffer.split_inclusive(|byte| *byte == b'\n') {
            lines.extend_from_slice(mark.as_bytes());
            lines.extend_from_slice(line);
        }
        output.write_all(&lines[..]).await.0?;
        if is_over {
            return Ok(());
        }
        buffer = rest;
    }
}

/// Waits for a command, or ends it.
async fn ended(child: &mut Child, limit: Option<Duration>) -> io::Result<ExitStatus> {
    let Some(limit) = limit else {
        return child.wait().await;
    };
    if let Ok(status) = timeout(limit, child.wait()).await {
        return status;
    }
    child.signal(SignalKind::terminate())?;
    if let Ok(status) = timeout(GRACE, child.wait()).await {
        return status;
    }
    child.kill().await?;
    child.wait().await
}

async fn run(arguments: &Arguments) -> io::Result<ExitStatus> {
    let [program, others @ ..] = &arguments.command[..] else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mut child = Command::new(program)
        .args(others)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| {
            let message = format!("cannot run {}: {error}", program.display());
            io::Error::new(error.kind(), message)
        })?;
    let input = child.stdin.take().expect("it is piped");
    let mut output = child.stdout.take().expect("it is piped");
    let mut errors = child.stderr.take().expect("it is piped");
    let passing = spawn(pass_on(input));
    let marking = [
        spawn(mark("out: ", async move |buffer| output.read(buffer).await)),
        spawn(mark("err: ", async move |buffer| errors.read(buffer).await)),
    ];
    let limit = arguments.timeout.map(Duration::from_secs_f64);
    let status = ended(&mut child, limit).await?;
    // It may wait for this program's input, which is left to others.
    passing.abort();
    for task in marking {
        task.await.map_err(io::Error::other)??;
    }
    Ok(status)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut config = RuntimeConfig::default();
    config.reactor.driver.backend = arguments.backend;
    let status = Runtime::new(&config).and_then(|mut runtime| runtime.block_on(run(&arguments)));
    match status {
        Ok(status) => {
            let code = status.code().or(status.signal().map(|signal| 128 + signal));
            ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
