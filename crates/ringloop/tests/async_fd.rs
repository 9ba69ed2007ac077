//! Waiting for descriptors of any kind.

mod common;

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream as Plain;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use ringloop::driver::Interest;
use ringloop::net::UnixStream;
use ringloop::time::{sleep, timeout};
use ringloop::{AsyncFd, Runtime, spawn, yield_now};

use common::{LONG, config_on, on_both, poll_times};

fn pair() -> (Plain, Plain) {
    let (near, far) = Plain::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    (near, far)
}

async fn some_turns() {
    for _ in 0..3 {
        sleep(Duration::ZERO).await;
    }
}

fn read_byte(mut from: &Plain) -> io::Result<u8> {
    let mut byte = [0];
    from.read_exact(&mut byte).map(|()| byte[0])
}

#[test]
fn a_descriptor_is_awaited_again_and_again() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, mut far) = pair();
            let near = AsyncFd::new(near).unwrap();
            let writing = thread::spawn(move || {
                for byte in 0..100 {
                    far.write_all(&[byte]).unwrap();
                    if byte % 10 == 0 {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            });
            for expected in 0..100 {
                let byte = near.async_io(Interest::READ, read_byte).await;
                assert_eq!(byte.unwrap(), expected);
            }
            writing.join().unwrap();
            let end = near.async_io(Interest::READ, |mut near| near.read(&mut [0]));
            assert_eq!(end.await.unwrap(), 0);
        });
    });
}

#[test]
fn room_to_write_is_awaited() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, mut far) = pair();
            let near = AsyncFd::new(near).unwrap();
            let reading = thread::spawn(move || {
                let mut all = Vec::new();
                far.read_to_end(&mut all).unwrap();
                all
            });
            let bytes = common::pattern(1_000_000);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let writing = near.async_io(Interest::WRITE, |mut near| near.write(rest));
                rest = &rest[writing.await.unwrap()..];
            }
            drop(near.into_inner());
            assert!(reading.join().unwrap() == bytes);
        });
    });
}

#[test]
fn several_wait_and_each_gets_something() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, mut far) = pair();
            let near = Rc::new(AsyncFd::new(near).unwrap());
            let woken = Rc::new(Cell::new(0));
            let got = Rc::new(RefCell::new(Vec::new()));
            let tasks: Vec<_> = (0..4)
                .map(|_| {
                    let (near, woken, got) = (Rc::clone(&near), Rc::clone(&woken), Rc::clone(&got));
                    spawn(async move {
                        near.readable().await.unwrap();
                        woken.set(woken.get() + 1);
                        let byte = near.async_io(Interest::READ, read_byte).await.unwrap();
                        got.borrow_mut().push(byte);
                    })
                })
                .collect();
            some_turns().await;
            assert_eq!(woken.get(), 0);
            far.write_all(&[0]).unwrap();
            while woken.get() == 0 {
                yield_now().await;
            }
            for byte in 1..4 {
                far.write_all(&[byte]).unwrap();
                some_turns().await;
            }
            for task in tasks {
                timeout(LONG, task).await.unwrap().unwrap();
            }
            got.borrow_mut().sort_unstable();
            assert_eq!(*got.borrow(), [0, 1, 2, 3]);
        });
    });
}

#[test]
fn who_gives_up_does_not_take_the_report_of_others() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, mut far) = pair();
            let near = AsyncFd::new(near).unwrap();
            let staying = near.readable();
            let mut staying = std::pin::pin!(staying);
            for polls in 1..4 {
                assert!(poll_times(polls, near.readable()).await.is_none());
                assert!(poll_times(1, staying.as_mut()).await.is_none());
            }
            far.write_all(b"!").unwrap();
            timeout(LONG, staying).await.unwrap().unwrap();
        });
    });
}

/// A report that came since somebody looked must not be forgotten.
#[test]
fn clearing_late_does_not_lose_a_report() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, mut far) = pair();
            let near = AsyncFd::new(near).unwrap();
            for _ in 0..3 {
                far.write_all(&[1]).unwrap();
                let guard = near.readable().await.unwrap();
                assert_eq!(read_byte(guard.get_inner()).unwrap(), 1);
                far.write_all(&[2]).unwrap();
                some_turns().await;
                guard.clear_ready();
                let guard = timeout(LONG, near.readable()).await.unwrap().unwrap();
                assert_eq!(guard.try_io(read_byte).unwrap().unwrap(), 2);
                // Everything is read, and nothing was reported since.
                let guard = near.readable().await.unwrap();
                guard.clear_ready();
                assert!(poll_times(4, near.readable()).await.is_none());
            }
        });
    });
}

#[test]
fn a_call_that_would_wait_clears_and_another_error_does_not() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, mut far) = pair();
            let near = AsyncFd::new(near).unwrap();
            far.write_all(&[1]).unwrap();
            let guard = near.readable().await.unwrap();
            let failed = guard.try_io(|_| io::Result::<()>::Err(ErrorKind::InvalidData.into()));
            assert_eq!(failed.unwrap().unwrap_err().kind(), ErrorKind::InvalidData);
            assert_eq!(guard.try_io(read_byte).unwrap().unwrap(), 1);
            let error = guard.try_io(read_byte).unwrap_err();
            assert_eq!(io::Error::from(error).kind(), ErrorKind::WouldBlock);
            assert!(poll_times(4, near.readable()).await.is_none());
        });
    });
}

/// As a library does that reconnects: its descriptor's number goes to others.
#[test]
fn a_descriptor_that_is_closed_meanwhile_disturbs_nobody() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, mut far) = pair();
            let number = near.as_raw_fd();
            let mut watched = AsyncFd::new(OwnedFd::from(near)).unwrap();
            assert!(poll_times(2, watched.readable()).await.is_none());
            let other = File::open("/dev/null").unwrap();
            drop(std::mem::replace(watched.get_mut(), other.into()));
            // Other tests of this process open descriptors, too.
            let mut held = Vec::new();
            let (mut next, mut next_far) = loop {
                let (next, next_far) = UnixStream::pair().unwrap();
                if next.as_raw_fd() == number {
                    break (next, next_far);
                } else if next_far.as_raw_fd() == number {
                    break (next_far, next);
                }
                held.push((next, next_far));
                if held.len() > 100 {
                    return;
                }
            };
            next_far
                .write_all(&b"for the next one"[..])
                .await
                .0
                .unwrap();
            some_turns().await;
            assert!(poll_times(2, watched.readable()).await.is_none());
            far.write_all(b"!").unwrap();
            timeout(LONG, watched.readable()).await.unwrap().unwrap();
            drop(watched);
            some_turns().await;
            // The watch of the next one is still there.
            let (count, bytes) = next.read(Vec::with_capacity(64)).await;
            assert_eq!((count.unwrap(), &bytes[..]), (16, &b"for the next one"[..]));
            assert!(
                poll_times(3, next.read(Vec::with_capacity(64)))
                    .await
                    .is_none()
            );
            next_far.write_all(&b"more"[..]).await.0.unwrap();
            let reading = timeout(LONG, next.read(Vec::with_capacity(64)));
            assert_eq!(reading.await.unwrap().0.unwrap(), 4);
        });
    });
}

#[test]
fn the_other_side_hears_of_the_close() {
    on_both(|runtime| {
        runtime.block_on(async {
            for polls in 0..3 {
                let (near, far) = pair();
                far.set_nonblocking(true).unwrap();
                let (near, far) = (AsyncFd::new(near).unwrap(), AsyncFd::new(far).unwrap());
                assert!(poll_times(polls, near.readable()).await.is_none());
                drop(near);
                let end = far.async_io(Interest::READ, |mut far| far.read(&mut [0]));
                assert_eq!(timeout(LONG, end).await.unwrap().unwrap(), 0);
            }
        });
    });
}

#[test]
fn several_watch_one_descriptor() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, mut far) = pair();
            let one = AsyncFd::new(near.as_fd()).unwrap();
            let two = AsyncFd::new(&near).unwrap();
            far.write_all(b"!").unwrap();
            one.readable().await.unwrap();
            drop(one);
            two.readable().await.unwrap();
            assert_eq!(two.into_inner().as_raw_fd(), near.as_raw_fd());
            let stream = UnixStream::try_from(near).unwrap();
            assert!(stream.local_addr().unwrap().is_unnamed());
        });
    });
}

#[test]
fn timers_and_counters_of_the_kernel() {
    on_both(|runtime| {
        runtime.block_on(async {
            // SAFETY: accesses no memory of ours.
            let number = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
            // SAFETY: a new descriptor that nobody else owns.
            let counter =
                AsyncFd::new(File::from(unsafe { OwnedFd::from_raw_fd(number) })).unwrap();
            let remote = counter.get_ref().try_clone().unwrap();
            let adding = thread::spawn(move || (&remote).write_all(&3_u64.to_ne_bytes()));
            let mut count = [0; 8];
            let reading = counter.async_io(Interest::READ, |mut file| file.read(&mut count));
            assert_eq!(reading.await.unwrap(), 8);
            adding.join().unwrap().unwrap();
            assert_eq!(u64::from_ne_bytes(count), 3);

            // SAFETY: accesses no memory of ours.
            let number = unsafe {
                libc::timerfd_create(
                    libc::CLOCK_MONOTONIC,
                    libc::TFD_NONBLOCK | libc::TFD_CLOEXEC,
                )
            };
            // SAFETY: a new descriptor that nobody else owns.
            let timer = File::from(unsafe { OwnedFd::from_raw_fd(number) });
            let when = libc::itimerspec {
                it_interval: libc::timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                },
                it_value: libc::timespec {
                    tv_sec: 0,
                    tv_nsec: 1_000_000,
                },
            };
            // SAFETY: `when` is valid for reads, and outlives the call.
            let set = unsafe {
                libc::timerfd_settime(timer.as_raw_fd(), 0, &raw const when, std::ptr::null_mut())
            };
            assert_eq!(set, 0);
            let timer = AsyncFd::with_interest(timer, Interest::READ).unwrap();
            let reading = timer.async_io(Interest::READ, |mut file| file.read(&mut count));
            assert_eq!(reading.await.unwrap(), 8);
            assert_eq!(u64::from_ne_bytes(count), 1);
        });
    });
}

#[test]
fn mistakes_are_errors() {
    on_both(|runtime| {
        let kept = runtime.block_on(async {
            for path in ["/etc/passwd", "/", "/dev/null"] {
                let error = AsyncFd::new(File::open(path).unwrap()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{path}");
            }
            let (near, _far) = pair();
            let reader = AsyncFd::with_interest(&near, Interest::READ).unwrap();
            let error = reader.writable().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let writer = AsyncFd::with_interest(&near, Interest::WRITE).unwrap();
            let error = writer.readable().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let both = Interest::READ | Interest::WRITE;
            let error = reader.async_io(both, |_| Ok(())).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let error = AsyncFd::with_interest(&near, Interest::PRIORITY).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            AsyncFd::new(pair().0).unwrap()
        });
        let mut other = Runtime::new(&config_on(runtime.backend())).unwrap();
        let error = other.block_on(kept.readable()).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        drop(kept);
    });
}
