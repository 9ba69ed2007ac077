//! I/O objects that are used where they would not receive events: in another runtime, or after their own has ended.

#[path = "common/certificates.rs"]
mod certificates;
mod common;

use std::fs::read_link;
use std::future::{Future, pending};
use std::io::{self, ErrorKind, IoSliceMut, Write};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use common::{LONG, config, config_on, on_both, poll_times, tcp};
use ringloop::driver::BackendChoice;
use ringloop::fs::File;
use ringloop::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream};
use ringloop::signal::{SignalKind, signal};
use ringloop::time::{interval, sleep, timeout};
use ringloop::tls::{TlsAcceptor, TlsConnector, TlsStream};
use ringloop::{Runtime, spawn};

/// Descriptors are counted in the whole process, so one test runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused<T>(result: io::Result<T>) {
    let error = result.err().expect("nobody would tell it of events");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("another runtime"), "{error}");
}

async fn tls() -> (TlsStream, TlsStream) {
    let (near, far) = tcp().await;
    let acceptor = TlsAcceptor::new(certificates::server());
    let accepting = spawn(async move { acceptor.accept(far).await.unwrap() });
    let name = certificates::NAME.try_into().unwrap();
    let connector = TlsConnector::new(certificates::client());
    let near = connector.connect(name, near).await.unwrap();
    (near, accepting.await.unwrap())
}

/// One object of each kind, with something to read where possible.
struct Objects {
    tcp: (TcpStream, TcpStream),
    unix: (UnixStream, UnixStream),
    tls: (TlsStream, TlsStream),
    udp: UdpSocket,
    datagrams: (UnixDatagram, UnixDatagram),
    listener: TcpListener,
    unix_listener: UnixListener,
    file: File,
}

impl Objects {
    async fn new() -> Self {
        let name = format!("\0ringloop-elsewhere-{}", std::process::id());
        let (mut near, far) = tcp().await;
        near.write_all(&b"hello"[..]).await.0.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let unix_listener = UnixListener::bind(name).unwrap();
        // From here on they are watched.
        assert!(poll_times(1, listener.accept()).await.is_none());
        assert!(poll_times(1, unix_listener.accept()).await.is_none());
        Self {
            tcp: (near, far),
            unix: UnixStream::pair().unwrap(),
            tls: tls().await,
            udp: UdpSocket::bind("127.0.0.1:0").await.unwrap(),
            datagrams: UnixDatagram::pair().unwrap(),
            listener,
            unix_listener,
            file: File::open("/etc/passwd").await.unwrap(),
        }
    }

    /// Every call that may wait is refused, and none ever waits.
    async fn check(&mut self) {
        // More often than a task may do without letting others run.
        for _ in 0..200 {
            let room = || Vec::with_capacity(8);
            let bytes = &b"x"[..];
            let (near, far) = &mut self.tcp;
            refused(far.read(room()).await.0);
            refused(far.read_with(|bytes, _| bytes.len()).await);
            refused(far.read_vectored(&mut [IoSliceMut::new(&mut [0; 8])]).await);
            refused(near.write(bytes).await.0);
            refused(near.write_all(bytes).await.0);
            refused(self.unix.0.read(room()).await.0);
            refused(self.unix.0.write_all(bytes).await.0);
            refused(self.tls.0.read(room()).await.0);
            refused(self.tls.0.write_all(bytes).await.0);
            refused(self.udp.recv_from(room()).await.0);
            refused(
                self.udp
                    .send_to(bytes, self.udp.local_addr().unwrap())
                    .await
                    .0,
            );
            refused(self.datagrams.0.recv(room()).await.0);
            refused(self.datagrams.0.send(bytes).await.0);
            refused(self.listener.accept().await);
            refused(self.unix_listener.accept().await);
        }
        // What doesn't wait needs nobody.
        assert_eq!(self.tcp.0.try_write(b"!").unwrap(), 1);
        assert_eq!(
            self.udp.try_recv(&mut Vec::new()).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        // A file belongs to nobody.
        let (count, _) = self.file.read_at(Vec::with_capacity(4), 0).await;
        assert_eq!(count.unwrap(), 4);
    }
}

#[test]
fn what_waits_in_another_runtime_is_an_error() {
    let _alone = alone();
    on_both(|runtime| {
        let mut other = Runtime::new(&config_on(runtime.backend())).unwrap();
        let mut objects = runtime.block_on(Objects::new());
        other.block_on(async {
            timeout(LONG, objects.check()).await.unwrap();
        });
        // At home they work on.
        runtime.block_on(async {
            let (near, far) = &mut objects.tcp;
            let (count, bytes) = far.read(Vec::with_capacity(8)).await;
            assert_eq!((count.unwrap(), &bytes[..]), (6, &b"hello!"[..]));
            near.write_all(&b"again"[..]).await.0.unwrap();
            assert_eq!(far.read(Vec::with_capacity(8)).await.0.unwrap(), 5);
            objects.tls.0.write_all(&b"again"[..]).await.0.unwrap();
            let (count, _) = objects.tls.1.read(Vec::with_capacity(8)).await;
            assert_eq!(count.unwrap(), 5);
            let address = objects.listener.local_addr().unwrap();
            let client = std::net::TcpStream::connect(address).unwrap();
            let (_, peer) = objects.listener.accept().await.unwrap();
            assert_eq!(peer, client.local_addr().unwrap());
        });
    });
}

#[test]
fn what_waits_after_its_runtime_has_ended_is_an_error() {
    let _alone = alone();
    on_both(|runtime| {
        let mut ended = Runtime::new(&config_on(runtime.backend())).unwrap();
        let mut objects = ended.block_on(Objects::new());
        let mut hangups = ended
            .block_on(async { signal(SignalKind::hangup()) })
            .unwrap();
        drop(ended);
        runtime.block_on(async {
            timeout(LONG, objects.check()).await.unwrap();
            refused(timeout(LONG, hangups.recv()).await.unwrap());
        });
    });
}

/// A buffer that can be told from others.
fn marked() -> Vec<u8> {
    let mut buffer = Vec::with_capacity(64);
    buffer.extend_from_slice(b"the only copy");
    buffer
}

/// A future that has begun in one runtime and is polled in another one. Its buffer is not lost.
#[test]
fn an_operation_that_goes_on_in_another_runtime_is_an_error() {
    let _alone = alone();
    on_both(|runtime| {
        let mut other = Runtime::new(&config_on(runtime.backend())).unwrap();
        for turns in 1..3 {
            let (reader, mut writer) = std::io::pipe().unwrap();
            let mut pipe = File::from(OwnedFd::from(reader));
            let mut reading = Box::pin(pipe.read(marked()));
            assert!(
                runtime
                    .block_on(poll_times(turns, reading.as_mut()))
                    .is_none()
            );
            let (count, buffer) = other
                .block_on(timeout(LONG, Pin::new(&mut reading)))
                .unwrap();
            refused(count);
            assert_eq!(buffer, marked());
            drop(reading);
            writer.write_all(b"x").unwrap();
        }
    });
}

/// A future that lives on when its runtime has ended.
#[test]
fn a_buffer_survives_the_runtime_of_its_operation() {
    let _alone = alone();
    on_both(|runtime| {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut pipe = File::from(OwnedFd::from(reader));
        let path = std::env::temp_dir().join(format!("ringloop-survives-{}", std::process::id()));
        let file = File::from(std::fs::File::create(&path).unwrap());
        std::fs::remove_file(path).unwrap();
        let mut ended = Runtime::new(&config_on(runtime.backend())).unwrap();
        let mut reading = Box::pin(pipe.read(marked()));
        let mut writing = Box::pin(file.write_all_at(marked(), 0));
        ended.block_on(async {
            assert!(poll_times(1, reading.as_mut()).await.is_none());
            assert!(poll_times(1, writing.as_mut()).await.is_none());
        });
        drop(ended);
        runtime.block_on(async {
            let (read, buffer) = timeout(LONG, reading).await.unwrap();
            refused(read);
            assert_eq!(buffer, marked());
            // The kernel may have written before it heard of the cancel.
            let (_, buffer) = timeout(LONG, writing).await.unwrap();
            assert_eq!(buffer, marked());
        });
        drop(writer);
    });
}

/// Outside of any runtime there is nobody to wait for. The documentation says where this panics.
#[test]
fn what_needs_a_runtime_says_so_without_one() {
    fn panics<T>(name: &str, call: impl FnOnce() -> T) {
        let payload = catch_unwind(AssertUnwindSafe(call)).err().expect(name);
        let message = payload.downcast_ref::<String>().map_or("", String::as_str);
        assert!(message.contains("no ringloop runtime"), "{name}: {message}");
    }
    fn poll<F: Future>(future: F) {
        let _ = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    panics("UnixStream::pair", UnixStream::pair);
    panics("UnixDatagram::pair", UnixDatagram::pair);
    panics("UnixDatagram::unbound", UnixDatagram::unbound);
    panics("UnixDatagram::bind", || {
        UnixDatagram::bind("\0ringloop-nowhere")
    });
    let stream = std::net::TcpStream::connect(address).unwrap();
    panics("TcpStream::try_from", || TcpStream::try_from(stream));
    panics("TcpStream::connect", || poll(TcpStream::connect(address)));
    panics("UdpSocket::bind", || poll(UdpSocket::bind("127.0.0.1:0")));
    panics("sleep", || poll(sleep(LONG)));
    panics("timeout", || poll(timeout(LONG, pending::<()>())));
    panics("interval", || poll(interval(LONG).tick()));
    panics("fs::read", || poll(ringloop::fs::read("/etc/passwd")));
    let file = File::from(std::fs::File::open("/etc/passwd").unwrap());
    panics("File::read_at", || poll(file.read_at(marked(), 0)));
    let accepting = TcpListener::try_from(listener).unwrap();
    panics("TcpListener::accept", || poll(accepting.accept()));
}

/// How many rings and epoll sets this process has.
fn reactors() -> usize {
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| read_link(entry.ok()?.path()).ok())
        .filter(|target| {
            let target = target.to_string_lossy();
            target == "anon_inode:[io_uring]" || target == "anon_inode:[eventpoll]"
        })
        .count()
}

/// The bytes of a send without a copy, which the kernel uses until it has finished.
struct Body(Arc<Vec<u8>>);

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[test]
fn a_runtime_that_ends_takes_its_ring_along_whatever_lives_on() {
    let _alone = alone();
    for backend in [BackendChoice::Auto, BackendChoice::Epoll] {
        let before = reactors();
        let body = Arc::new(vec![7; 1 << 20]);
        let mut runtime = Runtime::new(&config(backend)).unwrap();
        let (objects, sending, pending) = runtime.block_on(async {
            let objects = Objects::new().await;
            let (mut near, far) = tcp().await;
            while near.try_write(&[7; 4096]).is_ok() {}
            let bytes = bytes::Bytes::from_owner(Body(Arc::clone(&body)));
            let mut sending = Box::pin(async move { near.write_all_zero_copy(bytes).await.0 });
            assert!(poll_times(3, sending.as_mut()).await.is_none());
            (objects, sending, far)
        });
        assert_eq!(reactors(), before + 1);
        drop(runtime);
        assert_eq!(reactors(), before);
        drop((objects, sending, pending));
        assert_eq!(Arc::strong_count(&body), 1);
        assert_eq!(reactors(), before);
    }
}
