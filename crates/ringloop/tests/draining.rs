//! A draining server handles data that has arrived before it ends a connection, even data that its worker has not
//! noticed yet.

#[path = "common/certificates.rs"]
mod certificates;
mod common;

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::{LONG, ReadOnce, backends, pattern, pool_config};
use futures_util::future::{Either, select};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use ringloop::hyper::Http;
use ringloop::net;
use ringloop::server::{Client, Connection, Handler, Running, Server};

/// A server with one worker, on each backend, whose reads in place take at most this many bytes.
fn on_both(hot_buffer_bytes: usize, body: impl Fn(Server)) {
    for backend in backends() {
        let mut pool = pool_config(backend);
        pool.runtime.hot_buffer_bytes = hot_buffer_bytes;
        body(Server::new("127.0.0.1:0").workers(1).pool_config(pool));
    }
}

fn connect(server: &Running) -> TcpStream {
    let stream = common::connect(server.local_addr());
    stream.set_nodelay(true).unwrap();
    stream
}

/// How many bytes written to a connection have not arrived in the receive buffer of its other end.
fn on_the_way(stream: &TcpStream) -> usize {
    let mut count: libc::c_int = 0;
    // SAFETY: the request writes one int.
    let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    assert_eq!(result, 0);
    usize::try_from(count).unwrap()
}

fn until_it_has_come(stream: &TcpStream) {
    let start = Instant::now();
    while on_the_way(stream) > 0 {
        assert!(start.elapsed() < LONG, "it never comes");
        thread::sleep(Duration::from_micros(200));
    }
}

/// Shuts down a server. `write` sends what its worker has not noticed when it learns about the shutdown.
fn shut_down_behind(server: Running, write: impl FnOnce()) {
    let block = || {
        let (go, gone) = mpsc::channel::<()>();
        let (begin, has_begun) = mpsc::channel();
        let blocking = move || async move {
            begin.send(()).unwrap();
            gone.recv().unwrap_err();
        };
        drop(server.pool().spawn_on(0, blocking));
        (go, has_begun)
    };
    let (first, has_begun) = block();
    has_begun.recv_timeout(LONG).unwrap();
    // In the worker's next turn this comes before whoever is told to end, and behind the look at the kernel.
    let (second, has_begun) = block();
    let closing = thread::spawn(move || server.shutdown(LONG));
    // It tells the worker first. Should it take longer than this, the case is another one, and what is looked for holds too.
    thread::sleep(Duration::from_millis(30));
    drop(first);
    has_begun.recv_timeout(LONG).unwrap();
    write();
    drop(second);
    closing.join().unwrap();
}

struct Echo;

impl Handler for Echo {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        connection.write(bytes)
    }
}

/// Whether the server answers a question that arrived before it knew of its end, from a client that asked one before.
fn answers(server: Running, mut stream: impl Read + Write, socket: &TcpStream) {
    let mut answer = [0; 5];
    stream.write_all(b"hello").unwrap();
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hello");
    shut_down_behind(server, || {
        stream.write_all(b"late!").unwrap();
        stream.flush().unwrap();
        until_it_has_come(socket);
    });
    stream
        .read_exact(&mut answer)
        .expect("what had come is lost");
    assert_eq!(&answer, b"late!");
    // Then it is closed in order.
    assert_eq!(stream.read_once(&mut answer).unwrap(), 0);
}

#[test]
fn a_handler_sees_what_has_come() {
    on_both(4096, |server| {
        let running = server.clone().start(|| Echo).unwrap();
        let stream = connect(&running);
        answers(running, &stream, &stream);

        let running = server.tls(certificates::server()).start(|| Echo).unwrap();
        let stream = connect(&running);
        let socket = stream.try_clone().unwrap();
        let stream = certificates::connect_blocking(certificates::client(), stream).unwrap();
        answers(running, stream, &socket);
    });
}

/// Reads until it is told to end, and asks for that anew each time or only once.
async fn echo(mut stream: net::TcpStream, client: Client, anew: bool) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(16);
    let mut draining = client.draining();
    loop {
        let read = match select(pin!(stream.read(buffer)), pin!(&mut draining)).await {
            Either::Left((read, _)) => read,
            Either::Right(((), _)) => return Ok(()),
        };
        let (count, filled) = read;
        if count? == 0 {
            return Ok(());
        }
        stream.write_all(&filled[..]).await.0?;
        buffer = filled;
        buffer.clear();
        if anew {
            draining = client.draining();
        }
    }
}

#[test]
fn a_function_sees_what_has_come() {
    on_both(4096, |server| {
        for anew in [true, false] {
            let serve = move |stream, client| echo(stream, client, anew);
            let running = server.clone().start_with(serve).unwrap();
            let stream = connect(&running);
            answers(running, &stream, &stream);
        }
    });
}

async fn echo_halves(
    mut reader: net::OwnedReadHalf,
    mut writer: net::OwnedWriteHalf,
) -> io::Result<()> {
    loop {
        let (count, filled) = reader.read(Vec::with_capacity(16)).await;
        if count? == 0 {
            return Ok(());
        }
        writer.write_all(&filled[..]).await.0?;
    }
}

/// One task reads while another one waits for the end.
#[test]
fn a_function_whose_reader_is_a_task_of_its_own_sees_what_has_come() {
    on_both(4096, |server| {
        let running = server
            .start_with(|stream, client| async move {
                let (reader, writer) = stream.into_split();
                let reading = ringloop::spawn(echo_halves(reader, writer));
                client.draining().await;
                reading.abort();
                Ok(())
            })
            .unwrap();
        let stream = connect(&running);
        answers(running, &stream, &stream);
    });
}

/// Each of several tasks that wait for the end could cut off the one that reads.
#[test]
fn several_who_wait_for_the_end_let_the_reader_see_what_has_come() {
    on_both(4096, |server| {
        let running = server
            .start_with(|stream, client| async move {
                let (reader, writer) = stream.into_split();
                let reading = Rc::new(ringloop::spawn(echo_halves(reader, writer)));
                let waiting = [(); 3].map(|()| {
                    let (client, reading) = (client.clone(), Rc::clone(&reading));
                    ringloop::spawn(async move {
                        client.draining().await;
                        reading.abort();
                    })
                });
                for waiting in waiting {
                    waiting.await.unwrap();
                }
                Ok(())
            })
            .unwrap();
        let stream = connect(&running);
        answers(running, &stream, &stream);
    });
}

/// A peer that keeps sending must not prevent a task that does not read from learning about the end.
#[test]
fn a_function_that_does_not_read_hears_of_the_end() {
    on_both(4096, |server| {
        let running = server
            .start_with(|mut stream, client| async move {
                stream.write_all(&b"hello"[..]).await.0?;
                client.draining().await;
                stream.write_all(&b"bye"[..]).await.0
            })
            .unwrap();
        let mut stream = connect(&running);
        stream.read_exact(&mut [0; 5]).unwrap();
        stream.write_all(b"never read").unwrap();
        shut_down_behind(running, || stream.write_all(b"nor this").unwrap());
        let mut farewell = [0; 3];
        stream.read_exact(&mut farewell).unwrap();
        assert_eq!(&farewell, b"bye");
    });
}

#[test]
fn http_answers_a_request_that_has_come() {
    on_both(4096, |server| {
        let http = Http::new();
        let hello = |_: Request<Incoming>| async {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"hello"))))
        };
        let running = server
            .start_with(move |stream, client| {
                let http = http.clone();
                async move { http.serve(stream, &client, service_fn(hello)).await }
            })
            .unwrap();
        let mut stream = connect(&running);
        let question = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        stream.write_all(question).unwrap();
        let mut first = Vec::new();
        while !first.ends_with(b"hello") {
            let mut piece = [0; 256];
            let count = stream.read_once(&mut piece).unwrap();
            assert!(count > 0, "{first:?}");
            first.extend_from_slice(&piece[..count]);
        }
        shut_down_behind(running, || {
            stream.write_all(question).unwrap();
            until_it_has_come(&stream);
        });
        let mut second = String::new();
        stream.read_to_string(&mut second).unwrap();
        assert!(second.starts_with("HTTP/1.1 200 OK"), "{second}");
        assert!(second.ends_with("hello"), "{second}");
    });
}

/// So few bytes that a task uses up its budget several times before it has read everything from a socket.
const MANY_READS: usize = 64;

#[test]
fn all_that_has_come_is_handled_however_much_it_is() {
    struct Sink(mpsc::Sender<Vec<u8>>);
    impl Handler for Sink {
        fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
            if bytes == b"hello" {
                return connection.write(bytes);
            }
            self.0.send(bytes.to_vec()).unwrap();
            Ok(())
        }
    }
    async fn collect(
        mut stream: net::TcpStream,
        client: Client,
        sink: mpsc::Sender<Vec<u8>>,
    ) -> io::Result<()> {
        loop {
            let reading = stream.read(Vec::with_capacity(MANY_READS));
            let (count, bytes) = match select(pin!(reading), client.draining()).await {
                Either::Left((read, _)) => read,
                Either::Right(((), _)) => return Ok(()),
            };
            if count? == 0 {
                return Ok(());
            }
            if bytes == b"hello" {
                stream.write_all(&bytes[..]).await.0?;
            } else {
                sink.send(bytes).unwrap();
            }
        }
    }
    on_both(MANY_READS, |server| {
        for is_function in [false, true] {
            let (sink, arrivals) = mpsc::channel();
            let running = if is_function {
                let serve = move |stream, client| collect(stream, client, sink.clone());
                server.clone().start_with(serve).unwrap()
            } else {
                server.clone().start(move || Sink(sink.clone())).unwrap()
            };
            let mut stream = connect(&running);
            stream.write_all(b"hello").unwrap();
            stream.read_exact(&mut [0; 5]).unwrap();
            let bytes = pattern(4 << 20);
            let mut sent = 0;
            shut_down_behind(running, || {
                stream.set_nonblocking(true).unwrap();
                while let Ok(count) = stream.write(&bytes[sent..]) {
                    sent += count;
                }
                // What the other end has no room for has not come.
                let start = Instant::now();
                let mut before = 0;
                loop {
                    let come = sent - on_the_way(&stream);
                    if come == before && come > 500 * MANY_READS {
                        sent = come;
                        break;
                    }
                    before = come;
                    assert!(start.elapsed() < LONG, "it takes too little");
                    thread::sleep(Duration::from_millis(20));
                }
            });
            let handled = arrivals.iter().collect::<Vec<_>>().concat();
            assert!(handled.len() >= sent, "{} of {sent}", handled.len());
            assert!(bytes.starts_with(&handled));
        }
    });
}
