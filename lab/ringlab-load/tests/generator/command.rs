//! The generator as a command: what it prints, what it refuses, how it ends.

use crate::common::{
    PROGRAM, assert_flawless, echo_server, events, events_of, flawless, histogram, is_alone,
    result, run, text,
};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio, id};
use std::time::Duration;

const BRIEFLY: [&str; 6] = ["--warm-up", "0.1", "--window", "0.3", "--connections", "3"];

#[test]
fn events_come_in_their_order_and_the_result_is_the_last() {
    let load = ["--warm-up", "0.1", "--window", "2.5", "--connections", "3"];
    let events = events("echo", echo_server(), &load);
    let names: Vec<_> = events
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["connected", "window_start", "window_end", "result"]);
    let result = events.last().unwrap();
    assert_flawless(result);
    assert_eq!(result["schema_version"], 1);
    assert_eq!(result["workload"], "echo");
    assert_eq!(result["options"]["window_s"], 2.5);
    assert!(result["window_s"].as_f64().unwrap() >= 2.5);
    assert!(result["server"].is_null());
    assert!(result["latency"]["service"]["hdr"].is_null());
}

#[test]
fn the_histogram_holds_what_the_figures_say() {
    let result = result("echo", echo_server(), &[&BRIEFLY[..], &["--hdr"]].concat());
    let histogram = histogram(&result, "service");
    let service = &result["latency"]["service"];
    assert_eq!(service["count"], histogram.len());
    assert_eq!(service["p99_ns"], histogram.value_at_quantile(0.99));
    assert_eq!(service["max_ns"], histogram.max());
    let mean = service["mean_ns"].as_f64().unwrap();
    assert!(
        (mean / histogram.mean() - 1.0).abs() < 0.002,
        "{mean} {}",
        histogram.mean()
    );
}

#[test]
fn the_servers_processes_are_accounted_for() {
    // The server's threads are this process's.
    if !is_alone("command::the_servers_processes_are_accounted_for") {
        return;
    }
    let pid = id().to_string();
    let result = flawless(
        "echo",
        echo_server(),
        &[&BRIEFLY[..], &["--account", &pid]].concat(),
    );
    let server = &result["server"];
    let figure = |name: &str| server[name].as_u64().unwrap();
    let processes = server["processes"].as_array().unwrap();
    assert!(processes.contains(&id().into()), "{server}");
    assert!(figure("cpu_ns") > 0);
    assert!(figure("voluntary_switches") > 0);
    assert!(figure("threads") >= 4);
    for name in ["rss_rest_bytes", "rss_connected_bytes", "rss_end_bytes"] {
        assert!(figure(name) > 100_000, "{server}");
    }
    assert!(server["error"].is_null());
}

/// Runs the generator on an echo server until `meanwhile` returns, which begins when the window is open; returns the result.
fn result_while(options: &[&str], meanwhile: impl FnOnce()) -> Value {
    let mut child = Command::new(PROGRAM)
        .args(["echo", "--address", &echo_server().to_string()])
        .args(["--warm-up", "0.1", "--window", "3600", "--connections", "2"])
        .args(options)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut meanwhile = Some(meanwhile);
    let mut last = Value::Null;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        last = serde_json::from_str(&line.unwrap()).unwrap();
        if last["event"] == "window_start" {
            meanwhile.take().unwrap()();
            interrupt(&child.id().to_string());
        }
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    last
}

/// Sends SIGINT to a process, or with a minus to a group of processes.
fn interrupt(which: &str) {
    let killed = Command::new("kill").args(["-INT", "--", which]).status();
    assert!(killed.unwrap().success());
}

/// A shell with a script, which says something when it is ready, and something more each time that something was said to it.
struct Script {
    child: std::process::Child,
    said: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Script {
    fn start(script: &str) -> Self {
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut script = Self { child, said };
        script.hear();
        script
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn hear(&mut self) -> String {
        self.said.next().unwrap().unwrap()
    }

    fn ask(&mut self) -> String {
        let mut stdin = self.child.stdin.as_ref().unwrap();
        stdin.write_all(b"go on\n").unwrap();
        self.hear()
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

const WORK: &str = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";

#[test]
fn children_that_a_process_has_before_the_window_and_those_of_the_window_count() {
    for (before, script) in [
        (
            true,
            format!("(read x; {WORK}; echo done; read x) <&3 & echo ready; wait"),
        ),
        (
            false,
            format!("echo ready; read x; (({WORK}; echo done; read x) <&3) & wait"),
        ),
    ] {
        let mut server = Script::start(&format!("exec 3<&0; {script}"));
        let pid = server.pid();
        let result = result_while(&["--account", &pid], || {
            server.ask();
        });
        let processes = result["server"]["processes"].as_array().unwrap();
        assert!(processes.len() >= 2, "{before}: {result}");
        assert!(result["server"]["error"].is_null(), "{result}");
        // The shell itself only waits, or forks once.
        let cpu_ns = result["server"]["cpu_ns"].as_u64().unwrap();
        assert!(cpu_ns > 10_000_000, "{before}: {result}");
    }
}

#[test]
fn children_that_end_in_the_window_count_as_far_as_they_worked_in_it() {
    // `times` says what the shell and, in a second line, its ended children have used.
    let ended = format!("({WORK}); times");
    let mut server = Script::start(&format!("{ended}; read x; {ended}; read x"));
    server.hear();
    let pid = server.pid();
    let seconds = |text: &str| -> f64 {
        let both = text.split_whitespace();
        both.map(|time| {
            let (minutes, seconds) = time.trim_end_matches('s').split_once('m').unwrap();
            minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
        })
        .sum()
    };
    let mut said = String::new();
    let result = result_while(&["--account", &pid], || {
        server.ask();
        said = server.hear();
    });
    // It has done the same before the window, which doesn't count.
    let in_all_s = seconds(&said);
    let cpu_s = result["server"]["cpu_ns"].as_f64().unwrap() / 1e9;
    assert!(
        cpu_s > 0.2 * in_all_s && cpu_s < 0.8 * in_all_s,
        "{said}: {result}"
    );
}

#[test]
fn a_process_that_has_left_the_servers_tree_counts_below_the_one_that_adopts_it() {
    // It is ready when its parent, a child of the server, has ended.
    let script = |ends: bool| {
        let end = if ends { "os._exit(0)" } else { "pass" };
        format!(
            "exec python3 -c '
import ctypes, os, signal
ctypes.CDLL(None).prctl(36, 1)
adopts = os.getpid()
server = os.fork()
if server == 0:
    server = os.getpid()
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            while os.getppid() != adopts:
                pass
            print(\"ready\", server, sep=\"\\n\", flush=True)
            os.read(0, 100)
            sum(range(10_000_000))
            {end}
            print(\"done\", flush=True)
            os.read(0, 100)
        os._exit(0)
    os.wait()
    signal.pause()
os.wait()
print(\"ended\", flush=True)
os.read(0, 100)
os.kill(server, 9)
'"
        )
    };
    for (ends, counts) in [(false, true), (true, true), (false, false)] {
        let mut adopts = Script::start(&script(ends));
        let (below, pid) = (adopts.pid(), adopts.hear());
        let options = ["--account", &pid, "--account-below", &below];
        let options = &options[..if counts { 4 } else { 2 }];
        let result = result_while(options, || {
            adopts.ask();
        });
        let server = &result["server"];
        assert!(server["error"].is_null(), "{ends}: {result}");
        let cpu_ns = server["cpu_ns"].as_u64().unwrap();
        assert_eq!(cpu_ns > 10_000_000, counts, "{ends}: {result}");
        let processes = server["processes"].as_array().unwrap();
        let adopting = below.parse::<u32>().unwrap().into();
        assert!(!processes.contains(&adopting), "{ends}: {result}");
    }
}

#[test]
fn children_that_ended_without_being_waited_for_are_an_error() {
    // No shell can be made to ignore SIGCHLD.
    let script = |action: &str| {
        format!(
            "exec python3 -c '
import os, signal
signal.signal(signal.SIGCHLD, signal.{action})
if os.fork() == 0:
    os.read(0, 100)
    os._exit(0)
print(\"ready\", flush=True)
try:
    os.wait()
except ChildProcessError:
    pass  # It has ended, and was ignored.
print(\"ended\", flush=True)
os.read(0, 100)
'"
        )
    };
    for (action, lost) in [("SIG_DFL", false), ("SIG_IGN", true)] {
        let mut server = Script::start(&script(action));
        let pid = server.pid();
        let result = result_while(&["--account", &pid], || {
            server.ask();
        });
        let server = &result["server"];
        assert_eq!(server["cpu_ns"].is_null(), lost, "{action}: {result}");
        let error = server["error"].as_str().unwrap_or_default();
        assert_eq!(error.contains("ignore SIGCHLD"), lost, "{action}: {result}");
    }
}

#[test]
fn a_process_that_is_named_twice_counts_once() {
    let server = Script::start("echo ready; read x");
    let pid = server.pid();
    let accounted = ["--account", &pid, "--account", &pid];
    let result = result("echo", echo_server(), &[&BRIEFLY[..], &accounted].concat());
    let pids = serde_json::json!([pid.parse::<u32>().unwrap()]);
    assert_eq!(result["server"]["processes"], pids, "{result}");
}

#[test]
fn ctrl_c_is_for_the_generator_and_not_for_its_responder() {
    use std::os::unix::process::CommandExt as _;
    let mut child = Command::new(PROGRAM)
        .args(["ceiling", "echo", "--window", "3600", "--connections", "2"])
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut last = Value::Null;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        last = serde_json::from_str(&line.unwrap()).unwrap();
        if last["event"] == "window_start" {
            std::thread::sleep(Duration::from_millis(500));
            // As a terminal does it.
            interrupt(&format!("-{}", child.id()));
        }
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_flawless(&last);
    assert_eq!(last["interrupted"], true);
}

#[test]
fn a_process_that_ends_meanwhile_is_told() {
    let mut sleeper = Command::new("sleep").arg("0.4").spawn().unwrap();
    let pid = sleeper.id().to_string();
    let waiter = std::thread::spawn(move || sleeper.wait());
    let load = [
        "--warm-up",
        "0",
        "--window",
        "1.5",
        "--connections",
        "1",
        "--account",
        &pid,
    ];
    let result = result("echo", echo_server(), &load);
    waiter.join().unwrap().unwrap();
    assert!(result["server"]["cpu_ns"].is_null(), "{result}");
    let error = result["server"]["error"].as_str().unwrap();
    assert!(
        error.contains(&format!("process {pid} (--account) can't be accounted for")),
        "{error}"
    );
}

#[test]
fn the_window_can_end_by_operations() {
    let load = [
        "--warm-up",
        "0",
        "--window",
        "3600",
        "--connections",
        "2",
        "--max-operations",
        "500",
    ];
    let result = flawless("echo", echo_server(), &load);
    assert!(result["operations"].as_u64().unwrap() >= 500);
    assert!(result["ended_early"].is_null());
}

#[test]
fn connections_can_be_opened_over_a_while() {
    let load = [
        "--warm-up",
        "0",
        "--window",
        "0.2",
        "--connections",
        "10",
        "--ramp",
        "0.5",
    ];
    let result = flawless("echo", echo_server(), &load);
    // The last one is due after nine tenths of the time.
    assert!(
        result["connections"]["opening_s"].as_f64().unwrap() >= 0.4,
        "{result}"
    );
}

#[test]
fn the_time_in_which_the_generator_works_is_no_more_than_the_window() {
    for spin_us in ["0", "100", "1000000"] {
        let options = ["--spin-us", spin_us, "--cpu", "0"];
        let result = flawless("echo", echo_server(), &[&BRIEFLY[..], &options].concat());
        let busy = result["client"]["busy_fraction"].as_f64().unwrap();
        assert!(busy > 0.0 && busy <= 1.0, "{result}");
    }
}

#[test]
fn ctrl_c_ends_the_run_and_keeps_what_was_measured() {
    let mut child = Command::new(PROGRAM)
        .args(["echo", "--address", &echo_server().to_string()])
        .args(["--warm-up", "0", "--window", "3600", "--connections", "2"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut last = Value::Null;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        last = serde_json::from_str(&line.unwrap()).unwrap();
        if last["event"] == "window_start" {
            std::thread::sleep(Duration::from_millis(500));
            interrupt(&child.id().to_string());
        }
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_flawless(&last);
    assert_eq!(last["interrupted"], true);
    assert_eq!(last["ended_early"], "interrupted");
}

#[test]
fn a_reader_that_goes_away_ends_the_run() {
    let mut child = Command::new(PROGRAM)
        .args(["echo", "--address", &echo_server().to_string()])
        .args(["--warm-up", "0", "--window", "3600", "--connections", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(
        stderr.starts_with("ringlab-load: stdout can't be written: Broken pipe"),
        "{stderr}"
    );
}

#[test]
fn ctrl_c_does_not_wait_for_a_server_that_is_silent() {
    for workload in ["echo", "rtt"] {
        // It takes connections, because they are in its backlog, and answers nothing.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut child = Command::new(PROGRAM)
            .args([
                workload,
                "--address",
                &listener.local_addr().unwrap().to_string(),
            ])
            .args(["--warm-up", "0", "--window", "86400", "--timeout", "86400"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().to_string();
        let _fresh = (workload == "rtt").then(|| {
            // Fresh connections come before all events.
            let fresh = listener.accept().unwrap();
            interrupt(&pid);
            fresh
        });
        let mut last = Value::Null;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            last = serde_json::from_str(&line.unwrap()).unwrap();
            if last["event"] == "window_start" {
                interrupt(&pid);
            }
        }
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert_eq!(last["event"], "result");
        assert_eq!(last["interrupted"], true, "{last}");
        assert_eq!(last["errors"], serde_json::json!({}), "{last}");
    }
}

#[test]
fn sigterm_ends_a_run_that_has_not_begun_to_measure() {
    // The last connection is due after an hour.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let child = Command::new(PROGRAM)
        .args([
            "echo",
            "--address",
            &listener.local_addr().unwrap().to_string(),
        ])
        .args(["--connections", "2", "--ramp", "7200"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Its first connection, which stays open.
    let _connection = listener.accept().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let killed = Command::new("kill").arg(child.id().to_string()).status();
    assert!(killed.unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let last = events_of(&output).pop().unwrap();
    assert_eq!(last["event"], "result");
    assert_eq!(last["interrupted"], true);
    assert_eq!(last["connections"]["opened"], 1, "{last}");
    assert_eq!(last["void"], "the run ended before the window was opened");
}

#[test]
fn a_server_may_listen_on_ipv6() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        eprintln!("this machine has no IPv6: nothing to test");
        return;
    };
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut answers = stream.try_clone().unwrap();
                std::io::copy(&mut stream, &mut answers)
            });
        }
    });
    for workload in ["echo", "rtt"] {
        let result = flawless(workload, address, &BRIEFLY);
        assert_eq!(result["options"]["address"], address.to_string());
    }
}

#[test]
fn every_help_has_examples_and_says_where_the_result_is_explained() {
    let help = |words: &[&str]| {
        let output = Command::new(PROGRAM).args(words).arg("--help").output();
        text(&output.unwrap().stdout)
    };
    for workload in ["echo", "http", "rtt", "ceiling"] {
        let help = help(&[workload]);
        assert!(
            help.contains(&format!("\n  ringlab-load {workload} ")),
            "{help}"
        );
        assert!(
            help.ends_with("`ringlab-load --help` explains the result.\n"),
            "{help}"
        );
        // Examples that can be copied: each line is one that the program takes.
        for example in help
            .lines()
            .filter_map(|line| line.strip_prefix("  ringlab-load "))
        {
            let line = format!("{PROGRAM} {example} --no-such-option");
            let output = Command::new("sh").args(["-c", &line]).output().unwrap();
            let stderr = text(&output.stderr);
            assert!(
                stderr.contains("unexpected argument '--no-such-option'"),
                "{stderr}"
            );
        }
    }
    assert!(help(&[]).contains("The result:"));
}

#[test]
fn a_server_that_refuses_connections_cannot_be_measured() {
    let address = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    for workload in ["echo", "http", "rtt"] {
        let output = run(workload, address, &BRIEFLY);
        assert_eq!(output.status.code(), Some(1));
        let stderr = text(&output.stderr);
        assert!(
            stderr.starts_with("ringlab-load: no connection could be made: "),
            "{stderr}"
        );
        assert!(
            stderr.contains("refused") && stderr.contains("is the server listening there?"),
            "{stderr}"
        );
    }
}

#[test]
fn the_soft_limit_of_descriptors_is_raised_and_the_hard_one_explained() {
    let address = echo_server().to_string();
    let limited = |limit: &str| {
        let load = "--warm-up 0 --window 0.2 --connections 100";
        let script = format!("ulimit {limit} 64 && exec {PROGRAM} echo --address {address} {load}");
        Command::new("sh").args(["-c", &script]).output().unwrap()
    };
    let raised = limited("-S -n");
    assert_eq!(
        events_of(&raised).last().unwrap()["connections"]["opened"],
        100
    );

    let refused = limited("-n");
    assert_eq!(refused.status.code(), Some(1));
    let stderr = text(&refused.stderr);
    assert!(
        stderr.contains("100 connections need 132 descriptors, and this process may have 64"),
        "{stderr}"
    );
    assert!(stderr.contains("ulimit -Hn"), "{stderr}");
}

#[test]
fn what_cannot_be_accounted_for_or_pinned_is_explained() {
    let address = echo_server();
    // The greatest number that a process can have is below this one (proc_sys_kernel(5), pid_max).
    let no_process = run("echo", address, &["--account", "4194305"]);
    assert_eq!(no_process.status.code(), Some(1));
    let stderr = text(&no_process.stderr);
    assert!(
        stderr.contains("process 4194305 (--account) can't be accounted for"),
        "{stderr}"
    );

    let no_cpu = run("echo", address, &["--cpu", "1000"]);
    assert_eq!(no_cpu.status.code(), Some(1));
    let stderr = text(&no_cpu.stderr);
    assert!(
        stderr.contains("the generator can't be put on CPU 1000 (--cpu)"),
        "{stderr}"
    );
}

#[test]
fn wrong_command_lines_are_refused_with_status_2() {
    for (options, words) in [
        (&["echo"][..], "--address"),
        (&["echo", "--address", "localhost"], "HOST:PORT"),
        (
            &["echo", "--address", "127.0.0.1:1", "--size", "0"],
            "--size",
        ),
        (
            &["echo", "--address", "127.0.0.1:1", "--window=-1"],
            "--window",
        ),
        (
            &["echo", "--address", "127.0.0.1:1", "--timeout", "0"],
            "more than 0 seconds",
        ),
        (
            &["echo", "--address", "127.0.0.1:1", "--window", "0"],
            "more than 0 seconds",
        ),
        (
            &["rtt", "--address", "127.0.0.1:1", "--size", "1k"],
            "invalid value '1k' for '--size <BYTES>'",
        ),
        (
            &["echo", "--address", "127.0.0.1:0"],
            "the port must be the one that the server listens on",
        ),
        (
            &["http", "--address", "127.0.0.1:1", "--rate", "1e9"],
            "from 0.001 to 10000000",
        ),
        (
            &["echo", "--address", "127.0.0.1:1", "--cpu", "x"],
            "invalid value 'x' for '--cpu <N>'",
        ),
        (
            &["http", "--address", "127.0.0.1:1", "--rate", "0"],
            "requests per second",
        ),
        (
            &["http", "--address", "127.0.0.1:1", "--path", "index"],
            "must begin with /",
        ),
        (
            &["http", "--address", "127.0.0.1:1", "--header", "a\r\nb: c"],
            "in one line",
        ),
        (
            &[
                "echo",
                "--address",
                "127.0.0.1:1",
                "--mode",
                "stream",
                "--pipeline",
                "2",
            ],
            "leave it out, or use --mode framed",
        ),
        (&["nothing"], "nothing"),
    ] {
        assert_refused(options, words);
    }
}

#[test]
fn what_cannot_be_done_with_a_kind_of_socket_is_refused() {
    for (options, words) in [
        (
            &["echo", "--address", "unix:"][..],
            "the path of the socket is missing",
        ),
        (
            &["echo", "--address", &format!("unix:/{}", "x".repeat(200))],
            "no socket can have this path",
        ),
        (
            &["discard", "--address", "unix:/tmp/socket"],
            "which a Unix socket can't tell",
        ),
        (
            &["rtt", "--address", "udp:127.0.0.1:1"],
            "rtt needs connections, and UDP has none",
        ),
        (
            &["echo", "--address", "udp:127.0.0.1:1", "--churn"],
            "--churn is for connections",
        ),
        (
            &["echo", "--address", "udp:127.0.0.1:1", "--pipeline", "2"],
            "use more --connections",
        ),
        (
            &["echo", "--address", "udp:127.0.0.1:1", "--size", "65508"],
            "a datagram has at most 65507 bytes",
        ),
        (
            &["echo", "--address", "udp:127.0.0.1:1", "--tls"],
            "--tls is for connections",
        ),
        (
            &["echo", "--address", "127.0.0.1:1", "--certificate", "a"],
            "--tls",
        ),
    ] {
        assert_refused(options, words);
    }
}

fn assert_refused(options: &[&str], words: &str) {
    let output = Command::new(PROGRAM).args(options).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{options:?}");
    let stderr = text(&output.stderr);
    assert!(stderr.contains(words), "{options:?}: {stderr}");
}

#[test]
fn the_ceiling_is_measured_without_a_server() {
    for protocol in ["echo", "http"] {
        let output = Command::new(PROGRAM)
            .args([
                "ceiling",
                protocol,
                "--warm-up",
                "0.1",
                "--window",
                "0.5",
                "--connections",
                "4",
            ])
            .output()
            .unwrap();
        let result = events_of(&output).pop().unwrap();
        assert_flawless(&result);
        assert_eq!(result["workload"], "ceiling");
        assert!(result["ceiling"]["operations_per_s"].as_f64().unwrap() > 0.0);
        // The responder was a process of its own, and has ended.
        let responder = &result["server"]["processes"][0];
        assert!(!std::path::Path::new(&format!("/proc/{responder}")).exists());
    }
}

#[test]
fn an_address_that_swallows_connections_times_out() {
    // A listener that accepts nothing takes as many connections as its backlog has room for; the rest hear nothing.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket
        .bind(
            &"127.0.0.1:0"
                .parse::<std::net::SocketAddr>()
                .unwrap()
                .into(),
        )
        .unwrap();
    socket.listen(1).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let load = [
        "--warm-up",
        "0",
        "--window",
        "3600",
        "--connections",
        "8",
        "--timeout",
        "0.5",
    ];
    let result = result("echo", address, &load);
    let errors = &result["errors"];
    let count = |kind: &str| errors[kind]["count"].as_u64().unwrap();
    assert_eq!(count("connect") + count("timeout"), 8, "{result}");
    let first = errors["connect"]["first"].as_str().unwrap();
    assert!(first.contains("timed out"), "{first}");
    let opened = result["connections"]["opened"].as_u64().unwrap();
    assert_eq!(opened, count("timeout"), "{result}");
    assert_eq!(result["connections"]["asked"], 8);
}
