//! Effects on a server's whole process: signals, and running out of descriptors. Each case runs in its own process with
//! its clients, on each backend, over TCP and over TLS.

#[path = "common/certificates.rs"]
mod certificates;
mod common;

use std::env;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::{LONG, ReadOnce, backends, echo, pool_config, with_time_limits};
use ringloop::server::{Client, Connection, EndSignals, Handler, Running, Server, Transport};
use signal_hook::consts::SIGTERM;
use signal_hook::low_level::raise;
use socket2::{Domain, Socket, Type};

/// The cases, and the exit codes of their processes.
const CASES: [(&str, i32); 7] = [
    ("a_signal_lets_handlers_finish", 0),
    ("the_deadline_cuts_functions_off", 0),
    ("a_second_signal_ends_the_process_at_once", 128 + SIGTERM),
    (
        "a_signal_that_no_server_waits_for_ends_the_process",
        128 + SIGTERM,
    ),
    ("a_process_may_serve_again_after_a_signal", 0),
    ("a_listener_that_is_dropped_beside_another_ends_nothing", 0),
    ("without_descriptors_accepting_backs_off_and_goes_on", 0),
];

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [case, backend, transport] = &arguments[..] {
        return run_here(case, backend, transport);
    }
    for backend in backends() {
        let backend = &backend.to_string();
        for transport in ["tcp", "tls"] {
            for (case, expected) in CASES {
                let status = Command::new(env::current_exe().unwrap())
                    .args([case, backend, transport])
                    .status()
                    .unwrap();
                assert_eq!(
                    status.code(),
                    Some(expected),
                    "{case} ({backend}, {transport}): {status}"
                );
                println!("test {case} ({backend}, {transport}) ... ok");
            }
        }
    }
}

/// Runs a case in this process.
fn run_here(case: &str, backend: &str, transport: &str) {
    // A port that is free; nobody else takes it so soon.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    drop(taken);
    let server = Server::new(address.to_string())
        .workers(2)
        .pool_config(pool_config(backend.parse().unwrap()));
    if transport == "tls" {
        run_with(case, server.tls(certificates::server()), address, true);
    } else {
        run_with(case, server, address, false);
    }
}

fn run_with<S: Transport>(case: &str, server: Server<S>, address: SocketAddr, is_secure: bool) {
    let slow = || Slow { is_draining: false };
    match case {
        "a_signal_lets_handlers_finish" => {
            let client = thread::spawn(move || {
                let mut stream = connect(address, is_secure);
                echo(&mut *stream, b"hello");
                raise(SIGTERM).unwrap();
                let mut told = [0; 5];
                stream.read_exact(&mut told).unwrap();
                assert_eq!(&told, b"hurry");
                let start = Instant::now();
                while TcpStream::connect(address).is_ok() {
                    assert!(start.elapsed() < LONG, "it still listens");
                }
                echo(&mut *stream, b"still served");
                echo(&mut *stream, b"done");
                assert_eq!(stream.read_once(&mut [0; 1]).unwrap(), 0);
            });
            server.drain_timeout(LONG).serve(slow).unwrap();
            client.join().unwrap();
        }
        "the_deadline_cuts_functions_off" => {
            let (serving, is_serving) = mpsc::channel();
            let client = thread::spawn(move || {
                let mut stream = connect(address, is_secure);
                is_serving.recv_timeout(LONG).unwrap();
                raise(SIGTERM).unwrap();
                match stream.read_once(&mut [0; 1]) {
                    // Without TLS's word for the end.
                    Err(error) if is_secure => assert_eq!(error.kind(), ErrorKind::UnexpectedEof),
                    end => assert_eq!(end.unwrap(), 0),
                }
            });
            server
                .drain_timeout(Duration::from_millis(30))
                .serve_with(move |stream: S, client: Client| {
                    let serving = serving.clone();
                    async move {
                        serving.send(()).unwrap();
                        client.draining().await;
                        std::future::pending::<()>().await;
                        drop(stream);
                        Ok(())
                    }
                })
                .unwrap();
            client.join().unwrap();
        }
        "a_second_signal_ends_the_process_at_once" => {
            drop(thread::spawn(move || {
                let mut stream = connect(address, is_secure);
                echo(&mut *stream, b"hello");
                raise(SIGTERM).unwrap();
                stream.read_exact(&mut [0; 5]).unwrap();
                raise(SIGTERM).unwrap();
            }));
            server.drain_timeout(LONG).serve(slow).unwrap();
            panic!("the connection has not ended, and the deadline is far");
        }
        "a_signal_that_no_server_waits_for_ends_the_process" => {
            let _taken = TcpListener::bind(address).unwrap();
            let error = server.serve(slow).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrInUse);
            raise(SIGTERM).unwrap();
        }
        "a_process_may_serve_again_after_a_signal" => {
            for _ in 0..3 {
                let client = thread::spawn(move || {
                    let mut stream = connect(address, is_secure);
                    echo(&mut *stream, b"hello");
                    raise(SIGTERM).unwrap();
                });
                server.clone().serve(|| Echo).unwrap();
                client.join().unwrap();
            }
        }
        "a_listener_that_is_dropped_beside_another_ends_nothing" => {
            let (first, second) = (EndSignals::listen().unwrap(), EndSignals::listen().unwrap());
            drop(EndSignals::listen().unwrap());
            raise(SIGTERM).unwrap();
            assert_eq!(first.wait().number(), SIGTERM);
            assert_eq!(second.wait().number(), SIGTERM);
        }
        _ => {
            // Before the server begins: io_uring looks at the limit when an operation is submitted.
            rlimit::Resource::NOFILE.set(128, 128).unwrap();
            exhaust(&server.workers(1).start(slow).unwrap(), is_secure);
        }
    }
}

/// More clients than there are descriptors: all are served in the end.
fn exhaust(server: &Running, is_secure: bool) {
    const CLIENTS: usize = 8;
    let address = server.local_addr().into();
    let sockets: Vec<Socket> = (0..CLIENTS)
        .map(|_| Socket::new(Domain::IPV4, Type::STREAM, None).unwrap())
        .collect();
    // All that the limit allows, and then room for two connections.
    let mut fillers: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    fillers.truncate(fillers.len() - 2);
    let (answered, is_answered) = mpsc::channel();
    let (finish, may_finish) = mpsc::channel::<()>();
    let may_finish = std::sync::Arc::new(std::sync::Mutex::new(may_finish));
    for socket in sockets {
        socket.connect(&address).unwrap();
        let (answered, may_finish) = (answered.clone(), may_finish.clone());
        drop(thread::spawn(move || {
            let mut stream = secured(socket.into(), is_secure);
            echo(&mut *stream, b"hello");
            answered.send(()).unwrap();
            may_finish.lock().unwrap().recv().unwrap();
        }));
    }
    let start = Instant::now();
    while server.counters().accept_errors == 0 {
        assert!(
            start.elapsed() < LONG,
            "there were enough descriptors: {:?}",
            server.counters()
        );
        thread::sleep(Duration::from_millis(1));
    }
    assert!(server.counters().live < CLIENTS as u64);
    for _ in 0..CLIENTS {
        is_answered
            .recv_timeout(LONG)
            .expect("accepting has gone on");
        finish.send(()).unwrap();
    }
    assert_eq!(server.counters().accepted, CLIENTS as u64);
}

/// Answers, and ends at once when it is asked to.
struct Echo;

impl Handler for Echo {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        connection.write(bytes)
    }
}

/// Answers, and takes its time to end when it is asked to.
struct Slow {
    is_draining: bool,
}

impl Handler for Slow {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        if self.is_draining && bytes == b"done" {
            connection.close();
        }
        connection.write(bytes)
    }

    fn draining(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
        self.is_draining = true;
        connection.write(b"hurry")
    }
}

trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// Connects a client as soon as the server listens.
fn connect(address: SocketAddr, is_secure: bool) -> Box<dyn Stream> {
    let start = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return secured(stream, is_secure),
            Err(error) => assert!(start.elapsed() < LONG, "{error}"),
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn secured(stream: TcpStream, is_secure: bool) -> Box<dyn Stream> {
    let stream = with_time_limits(stream);
    if is_secure {
        Box::new(certificates::connect_blocking(certificates::client(), stream).unwrap())
    } else {
        Box::new(stream)
    }
}
