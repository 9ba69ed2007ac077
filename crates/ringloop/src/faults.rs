//! The runtime on a kernel that follows a script: results that are errors, short, late, or never come.

use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::net::TcpStream as Plain;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use ringloop_driver::{Driver, Fault, Readiness, SENT_BY_COPY, SENT_WITHOUT_COPY, Script, Step};
use ringloop_reactor::{BusyPoll, Reactor};

use crate::fs::File;
use crate::net::{TcpListener, TcpStream};
use crate::runtime::{Runtime, RuntimeConfig, yield_now};
use crate::time::sleep;

use Step::{Complete, CompletePath, Late, Overflow, Ready};

mod calls;

/// A runtime whose kernel plays a script, one turn of it per turn of the runtime. It panics where it would wait
/// forever.
fn scripted() -> (Script, Runtime) {
    let script = Script::new();
    let driver = Driver::scripted(script.clone()).unwrap();
    let reactor = Reactor::with_driver(driver);
    let runtime = Runtime::with_reactor(&RuntimeConfig::default(), reactor).unwrap();
    (script, runtime)
}

/// A runtime whose kernel does everything right, and never sleeps.
fn planned() -> Runtime {
    let script = Script::new();
    script.plan(|_| Fault::default());
    let reactor = Reactor::with_driver(Driver::scripted(script).unwrap());
    Runtime::with_reactor(&RuntimeConfig::default(), reactor).unwrap()
}

/// The kernel may be out of memory for a moment.
#[test]
fn a_flush_that_is_refused_while_polling_busily_ends_no_runtime() {
    let script = Script::new();
    let mut reactor = Reactor::with_driver(Driver::scripted(script.clone()).unwrap());
    reactor.set_busy_poll(BusyPoll::Fixed(Duration::from_micros(50)));
    let mut runtime = Runtime::with_reactor(&RuntimeConfig::default(), reactor).unwrap();
    script.refuse_flush();
    runtime.block_on(sleep(Duration::from_millis(1)));
    check(&script, &mut runtime, 0);
}

/// Checks that the script is over, and that nothing but this many watches is left.
fn check(script: &Script, runtime: &mut Runtime, watches: u64) {
    runtime.block_on(async {
        for _ in 0..3 {
            yield_now().await;
        }
    });
    assert!(script.is_over());
    let driver = runtime.metrics().reactor.driver;
    assert_eq!((driver.operations, driver.watches), (0, watches));
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().expect("an error").raw_os_error()
}

fn null() -> (File, RawFd) {
    let file = std::fs::File::open("/dev/null").unwrap();
    let fd = file.as_raw_fd();
    (File::from(file), fd)
}

fn is_closed(mut near: Plain) -> bool {
    matches!(near.read(&mut [0]), Ok(0))
}

#[test]
fn reads_of_a_file_are_short_interrupted_and_fail() {
    let (script, mut runtime) = scripted();
    let (file, fd) = null();
    script
        .turn([Complete(fd, -libc::EINTR)])
        .turn([])
        .turn([Complete(fd, 5)])
        .turn([Complete(fd, -libc::EIO)])
        .turn([Complete(fd, 0)]);
    runtime.block_on(async {
        let (count, bytes) = file.read_at(Vec::with_capacity(8), 0).await;
        assert_eq!((count.unwrap(), &bytes[..]), (5, &[0; 5][..]));
        let (count, bytes) = file.read_at(bytes, 5).await;
        assert_eq!((errno(count), &bytes[..]), (Some(libc::EIO), &[0; 5][..]));
        let (count, bytes) = file.read_at(bytes, 5).await;
        assert_eq!((count.unwrap(), &bytes[..]), (0, &[0; 5][..]));
    });
    check(&script, &mut runtime, 0);
}

#[test]
fn writes_to_a_file_are_short_interrupted_and_fail() {
    let (script, mut runtime) = scripted();
    let (file, fd) = null();
    script
        .turn([Complete(fd, 4)])
        .turn([Complete(fd, -libc::EINTR)])
        .turn([Complete(fd, 6)])
        .turn([Complete(fd, 3)])
        .turn([Complete(fd, 0)])
        .turn([Complete(fd, 9)])
        .turn([Complete(fd, -libc::ENOSPC)])
        .turn([Complete(fd, -libc::EINTR)])
        .turn([Complete(fd, -libc::EIO)]);
    runtime.block_on(async {
        let ten = b"ten bytes.".to_vec();
        let (result, buffer) = file.write_all_at(ten.clone(), 0).await;
        result.unwrap();
        assert_eq!(buffer, ten);
        let (result, buffer) = file.write_all_at(buffer, 0).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::WriteZero);
        assert_eq!(buffer, ten);
        let (result, buffer) = file.write_all_at(buffer, 0).await;
        assert_eq!(errno(result), Some(libc::ENOSPC));
        assert_eq!(buffer, ten);
        assert_eq!(errno(file.sync_all().await), Some(libc::EIO));
    });
    check(&script, &mut runtime, 0);
}

#[test]
fn what_comes_late_is_nobody_elses() {
    let (script, mut runtime) = scripted();
    let (file, fd) = null();
    script.turn([]).turn([Late(fd), Complete(fd, 3)]);
    runtime.block_on(async {
        {
            let mut reading = pin!(file.read_at(Vec::with_capacity(8), 0));
            let polled = reading
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
            // The kernel takes it.
            yield_now().await;
        }
        let (count, bytes) = file.read_at(Vec::with_capacity(8), 0).await;
        assert_eq!((count.unwrap(), bytes.len()), (3, 3));
    });
    check(&script, &mut runtime, 0);
    // The end of the read that was dropped, and what came behind it.
    assert_eq!(runtime.metrics().reactor.driver.stale_events, 2);
}

#[test]
fn accepting_goes_on_whatever_is_told_of_the_listener() {
    let (script, mut runtime) = scripted();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let fd = listener.as_raw_fd();
    let accept = async || {
        let near = Plain::connect(address).unwrap();
        let (_, peer) = listener.accept().await.unwrap();
        assert_eq!(peer, near.local_addr().unwrap());
    };
    let nothing = async || {
        let mut accepting = pin!(listener.accept());
        let mut context = Context::from_waker(Waker::noop());
        assert!(accepting.as_mut().poll(&mut context).is_pending());
    };
    runtime.block_on(async {
        // What is there before the first event is found without one.
        accept().await;
        nothing().await;
        script
            .turn([Overflow])
            .turn([Late(fd), Ready(fd, Readiness::READABLE)]);
        accept().await;
        // An event for nobody, or for a connection that another process has taken.
        nothing().await;
        script.turn([Ready(fd, Readiness::READABLE)]);
        yield_now().await;
        yield_now().await;
        nothing().await;
        script.turn([Ready(fd, Readiness::READABLE)]);
        accept().await;
    });
    drop(listener);
    check(&script, &mut runtime, 0);
}

#[test]
fn a_connection_that_cannot_be_watched_is_closed_and_said_so() {
    let (script, mut runtime) = scripted();
    let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    script.refuse_watch(libc::ENOSPC).refuse_watch(libc::EBUSY);
    runtime.block_on(async {
        let connected = TcpStream::connect(plain.local_addr().unwrap()).await;
        assert_eq!(errno(connected), Some(libc::ENOSPC));
        // Nor can the listener, for once.
        assert_eq!(errno(listener.accept().await), Some(libc::EBUSY));
        let mut accepting = pin!(listener.accept());
        let mut context = Context::from_waker(Waker::noop());
        assert!(accepting.as_mut().poll(&mut context).is_pending());
        let near = Plain::connect(address).unwrap();
        script
            .refuse_watch(libc::ENOMEM)
            .turn([Ready(listener.as_raw_fd(), Readiness::READABLE)]);
        assert_eq!(errno(accepting.await), Some(libc::ENOMEM));
        assert!(is_closed(near));
    });
    drop(listener);
    check(&script, &mut runtime, 0);
    assert!(is_closed(plain.accept().unwrap().0));
}

/// A connection of the scripted runtime, and its other end.
fn stream(runtime: &mut Runtime) -> (Plain, TcpStream, RawFd) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let near = Plain::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    let stream = runtime
        .block_on(async { TcpStream::try_from(far) })
        .unwrap();
    let fd = stream.as_raw_fd();
    (near, stream, fd)
}

/// Bytes, and a reference that tells whether somebody still holds them.
fn body() -> (Arc<Vec<u8>>, Bytes) {
    struct Shared(Arc<Vec<u8>>);
    impl AsRef<[u8]> for Shared {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let bytes = Arc::new(vec![7; 100_000]);
    (Arc::clone(&bytes), Bytes::from_owner(Shared(bytes)))
}

#[test]
fn sends_without_a_copy_are_short_and_their_bytes_are_held_until_the_end() {
    let (script, mut runtime) = scripted();
    let (mut near, mut stream, fd) = stream(&mut runtime);
    let (held, bytes) = body();
    script
        .turn([Complete(fd, 40_000)])
        .turn([Complete(fd, SENT_WITHOUT_COPY)])
        .turn([Complete(fd, -libc::EINTR)])
        .turn([Complete(fd, 60_000)]);
    runtime.block_on(async {
        let (result, rest) = stream.write_all_zero_copy(bytes).await;
        result.unwrap();
        assert!(rest.is_empty());
    });
    assert_eq!(Arc::strong_count(&held), 2, "the kernel still reads them");
    script.turn([Complete(fd, SENT_BY_COPY)]);
    runtime.block_on(yield_now());
    runtime.block_on(yield_now());
    assert_eq!(Arc::strong_count(&held), 1);
    // There was a copy: what follows is sent as ever, which is by the real kernel here.
    let bytes = Bytes::from(vec![8; 40_000]);
    let (result, _) = runtime.block_on(stream.write_all_zero_copy(bytes));
    result.unwrap();
    let mut received = vec![0; 40_000];
    near.read_exact(&mut received).unwrap();
    assert!(received.iter().all(|byte| *byte == 8));
    drop(stream);
    check(&script, &mut runtime, 0);
}

#[test]
fn sends_without_a_copy_that_fail_give_the_rest_back() {
    for (result, kind) in [
        (-libc::EPIPE, ErrorKind::BrokenPipe),
        (-libc::ECONNRESET, ErrorKind::ConnectionReset),
        (0, ErrorKind::WriteZero),
    ] {
        let (script, mut runtime) = scripted();
        let (_near, mut stream, fd) = stream(&mut runtime);
        let (held, bytes) = body();
        script
            .turn([Complete(fd, 40_000)])
            .turn([Complete(fd, SENT_WITHOUT_COPY)])
            .turn([Complete(fd, result)])
            .turn([Complete(fd, SENT_WITHOUT_COPY)]);
        runtime.block_on(async {
            let (result, rest) = stream.write_all_zero_copy(bytes).await;
            assert_eq!(result.unwrap_err().kind(), kind);
            assert_eq!(rest.len(), 60_000);
        });
        drop(stream);
        check(&script, &mut runtime, 0);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}

/// Begins to send without a copy, and drops the future after something else has happened.
async fn send_and_drop(stream: &mut TcpStream, bytes: Bytes, wait: impl AsyncFnOnce()) {
    let mut sending = pin!(stream.write_all_zero_copy(bytes));
    let polled = sending
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    wait().await;
}

#[test]
fn a_send_without_a_copy_that_is_dropped_is_cancelled_and_its_bytes_are_let_go() {
    let (script, mut runtime) = scripted();
    let (_near, mut stream, fd) = stream(&mut runtime);
    let (held, bytes) = body();
    script.turn([]).turn([Late(fd)]);
    runtime.block_on(async {
        send_and_drop(&mut stream, bytes, async || yield_now().await).await;
        assert_eq!(
            Arc::strong_count(&held),
            2,
            "the kernel may still read them"
        );
    });
    check(&script, &mut runtime, 1);
    assert_eq!(Arc::strong_count(&held), 1);
    drop(stream);
    check(&script, &mut runtime, 0);
}

#[test]
fn a_socket_stays_open_until_the_kernel_has_heard_of_its_end() {
    for is_running in [false, true] {
        let (script, mut runtime) = scripted();
        let (near, stream, _) = stream(&mut runtime);
        script.refuse_flush();
        if is_running {
            script.refuse_flush();
            runtime.block_on(async {
                drop(stream);
                yield_now().await;
            });
        } else {
            drop(stream);
        }
        near.set_nonblocking(true).unwrap();
        let error = (&near).read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        near.set_nonblocking(false).unwrap();
        check(&script, &mut runtime, 0);
        assert!(is_closed(near));
    }
}

/// The send might begin after what is written next.
#[test]
fn a_send_without_a_copy_that_cannot_be_called_back_is_the_last() {
    let (script, mut runtime) = scripted();
    let (near, mut stream, _) = stream(&mut runtime);
    let (held, bytes) = body();
    runtime.block_on(async {
        let wait = async || {
            script.turn([]);
            yield_now().await;
            script.refuse_flush();
        };
        send_and_drop(&mut stream, bytes, wait).await;
        let (written, _) = stream.write_all(&b"behind it"[..]).await;
        assert_eq!(written.unwrap_err().kind(), ErrorKind::BrokenPipe);
    });
    check(&script, &mut runtime, 1);
    assert_eq!(Arc::strong_count(&held), 1);
    assert!(is_closed(near));
    drop(stream);
    check(&script, &mut runtime, 0);
}

/// The kernel leaves its own position unchanged when a transfer is cut short, so it must not be relied on.
#[test]
fn the_position_of_a_file_follows_what_was_reported() {
    let (script, mut runtime) = scripted();
    let path = std::env::temp_dir().join(format!("ringloop-position-{}", std::process::id()));
    let mut plain = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    std::fs::remove_file(path).unwrap();
    let mut file = File::from(plain.try_clone().unwrap());
    let fd = file.as_raw_fd();
    plain.seek(SeekFrom::Start(100)).unwrap();
    script
        .turn([Complete(fd, 5)])
        .turn([Complete(fd, -libc::EIO)])
        .turn([Complete(fd, 3)])
        .turn([Complete(fd, -libc::ENOSPC)])
        .turn([Complete(fd, 4)])
        .turn([Complete(fd, -libc::EINTR)])
        .turn([Complete(fd, 4)])
        .turn([Complete(fd, -libc::EIO)])
        .turn([CompletePath(0)])
        .turn([Complete(fd, 6)])
        .turn([Complete(fd, -libc::EIO)])
        .turn([]);
    let mut is_at = |expected| assert_eq!(plain.stream_position().unwrap(), expected);
    runtime.block_on(async {
        let (count, bytes) = file.read(Vec::with_capacity(8)).await;
        assert_eq!((count.unwrap(), bytes.len()), (5, 5));
        is_at(105);
        let (count, bytes) = file.read(bytes).await;
        assert_eq!((errno(count), bytes.len()), (Some(libc::EIO), 5));
        is_at(105);
        let (count, _) = file.write(vec![1; 8]).await;
        assert_eq!(count.unwrap(), 3);
        is_at(108);
        let (count, _) = file.write(vec![1; 8]).await;
        assert_eq!(errno(count), Some(libc::ENOSPC));
        is_at(108);
        let (result, buffer) = file.write_all(vec![1; 10]).await;
        assert_eq!((errno(result), buffer.len()), (Some(libc::EIO), 10));
        is_at(116);
        // Asks how long the file is, reads, and fails.
        let (count, bytes) = file.read_to_end(Vec::new()).await;
        assert_eq!((errno(count), bytes.len()), (Some(libc::EIO), 6));
        is_at(122);
        {
            let mut reading = pin!(file.read(Vec::with_capacity(8)));
            let polled = reading
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
            yield_now().await;
        }
        is_at(122);
    });
    check(&script, &mut runtime, 0);
}
