//! Ten thousand idle connections on one worker: their cost in memory and CPU time.

use std::io::{self, BufRead, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringloop::server::{Connection, Handler, Server};

const CONNECTIONS: usize = 10_000;
/// The first connections make the worker's tables grow.
const FIRST: usize = 1_000;
/// One process has the server's ends, another one the clients'.
const DESCRIPTORS: u64 = CONNECTIONS as u64 + 200;
const PATIENCE: Duration = Duration::from_secs(60);

/// The share of a CPU that the worker may use while nothing happens.
const CPU_MAX: f64 = 0.01;

struct Echo;

impl Handler for Echo {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        connection.write(bytes)
    }
}

fn main() -> io::Result<()> {
    if let Ok(sanitizer) = std::env::var("RINGLOOP_TEST_SANITIZER") {
        println!("left out: {sanitizer} sanitizer takes memory and time of its own");
        return Ok(());
    }
    if let Err(error) = rlimit::increase_nofile_limit(DESCRIPTORS).and_then(|limit| {
        if limit < DESCRIPTORS {
            Err(io::Error::other(format!(
                "the limit is {limit}, see ulimit -n"
            )))
        } else {
            Ok(())
        }
    }) {
        println!("left out: {DESCRIPTORS} descriptors are needed: {error}");
        return Ok(());
    }
    match std::env::var(ADDRESS_VARIABLE) {
        Ok(address) => clients(&address),
        Err(_) => server(),
    }
}

/// Tells the process of the clients where the server is.
const ADDRESS_VARIABLE: &str = "RINGLOOP_TEST_IDLE_ADDRESS";

fn server() -> io::Result<()> {
    let server = Server::new("127.0.0.1:0").workers(1).start(|| Echo)?;
    let mut child = Command::new(std::env::current_exe()?)
        .env(ADDRESS_VARIABLE, server.local_addr().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut reports = io::BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let mut next = || reports.next().expect("the clients have failed");

    assert_eq!(next()?, "first");
    let before = resident_bytes();
    writeln!(child.stdin.as_mut().expect("it is piped"))?;
    assert_eq!(next()?, "all");
    assert_eq!(server.counters().live, CONNECTIONS as u64);
    let bytes_each = (resident_bytes() - before) as f64 / (CONNECTIONS - FIRST) as f64;

    let mut cpu = f64::INFINITY;
    // What a hypervisor takes away counts as the worker's time: once or twice it may be as much as the limit.
    for _ in 0..3 {
        cpu = cpu.min(cpu_in_one_second());
        if cpu < CPU_MAX {
            break;
        }
    }
    println!(
        "{bytes_each:.0} bytes of user memory per idle connection; {:.3}% of a CPU",
        cpu * 100.0
    );
    assert!(
        bytes_each < 1024.0,
        "{bytes_each:.0} bytes per idle connection"
    );
    // Its own time, however busy the machine is; a worker that did something for each connection would take far more.
    assert!(
        cpu < CPU_MAX,
        "{:.3}% of a CPU while nothing happens",
        cpu * 100.0
    );

    writeln!(child.stdin.as_mut().expect("it is piped"))?;
    assert_eq!(next()?, "all are still served");
    assert!(child.wait()?.success());
    server.shutdown(PATIENCE);
    Ok(())
}

fn clients(address: &str) -> io::Result<()> {
    let mut line = String::new();
    let mut clients = connect(address, FIRST)?;
    println!("first");
    io::stdin().read_line(&mut line)?;
    clients.extend(connect(address, CONNECTIONS - FIRST)?);
    println!("all");
    io::stdin().read_line(&mut line)?;
    for client in &mut clients {
        ask(client)?;
    }
    println!("all are still served");
    Ok(())
}

fn connect(address: &str, count: usize) -> io::Result<Vec<TcpStream>> {
    (0..count)
        .map(|_| {
            let mut client = TcpStream::connect(address)?;
            client.set_read_timeout(Some(PATIENCE))?;
            ask(&mut client)?;
            Ok(client)
        })
        .collect()
}

fn ask(client: &mut TcpStream) -> io::Result<()> {
    client.write_all(b"still there?")?;
    let mut answer = [0; 12];
    client.read_exact(&mut answer)?;
    assert_eq!(&answer, b"still there?");
    Ok(())
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    let kilobytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kilobytes * 1024
}

/// The share of a CPU that the worker uses during a second.
fn cpu_in_one_second() -> f64 {
    let (before, start) = (worker_cpu(), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    worker_cpu().saturating_sub(before).as_secs_f64() / start.elapsed().as_secs_f64()
}

/// The CPU time of the worker's thread.
fn worker_cpu() -> Duration {
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        if std::fs::read_to_string(path.join("comm"))
            .is_ok_and(|name| name.starts_with("ringloop-"))
        {
            let schedule = std::fs::read_to_string(path.join("schedstat")).unwrap();
            let nanoseconds = schedule.split_whitespace().next().unwrap().parse().unwrap();
            return Duration::from_nanos(nanoseconds);
        }
    }
    panic!("the worker has no thread");
}
