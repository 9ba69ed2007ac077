//! Futures that need tokio's runtime, on ours.

mod common;

use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use common::{LONG, backends, on_both, pattern, poll_times, pool_config};
use ringloop::time::{sleep, timeout};
use ringloop::tokio::in_tokio;
use ringloop::{Pool, spawn, yield_now};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Handle, Runtime as Tokio};

fn tokio() -> Tokio {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

/// Sends bytes through a connection of tokio's and back.
async fn echo(length: usize) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // On tokio's thread.
    let echoing = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut reader, mut writer) = stream.split();
        tokio::io::copy(&mut reader, &mut writer).await.unwrap()
    });
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut reader, mut writer) = stream.split();
    let mut received = Vec::new();
    let sending = async {
        writer.write_all(&pattern(length)).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let ((), count) = futures_util::future::join(sending, reader.read_to_end(&mut received)).await;
    assert_eq!(count.unwrap(), length);
    assert!(received == pattern(length));
    assert_eq!(echoing.await.unwrap(), length as u64);
}

#[test]
fn sockets_timers_and_tasks_of_tokio_work_beside_ours() {
    let other = tokio();
    on_both(|runtime| {
        runtime.block_on(async {
            let tokio = other.handle();
            let here = thread::current().id();
            let both = in_tokio(tokio, async {
                for length in [0, 1, 500_000] {
                    echo(length).await;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
                let never = tokio::time::timeout(Duration::from_millis(1), pending::<()>());
                assert!(never.await.is_err());
                // Ours work in between, and the future stays in its thread.
                sleep(Duration::from_millis(1)).await;
                spawn(yield_now()).await.unwrap();
                assert_eq!(thread::current().id(), here);
                assert_ne!(
                    tokio::spawn(async { thread::current().id() })
                        .await
                        .unwrap(),
                    here
                );
            });
            timeout(LONG, both).await.unwrap();
            assert!(Handle::try_current().is_err(), "it is left behind");
            // A handle of a task of tokio's can be awaited without it.
            let task = tokio.spawn(async { tokio::time::sleep(Duration::from_millis(1)).await });
            timeout(LONG, task).await.unwrap().unwrap();
        });
    });
}

#[test]
fn many_tasks_of_all_workers_share_one_runtime_of_tokio() {
    let other = tokio();
    for backend in backends() {
        let pool = Pool::new(2, &pool_config(backend)).unwrap();
        let done = Arc::new(AtomicU32::new(0));
        for number in 0..40 {
            let (tokio, done) = (other.handle().clone(), Arc::clone(&done));
            drop(pool.spawn_on(number % 2, move || async move {
                in_tokio(&tokio, echo(number * 1000)).await;
                done.fetch_add(1, Ordering::SeqCst);
            }));
        }
        pool.shutdown(LONG);
        assert_eq!(done.load(Ordering::SeqCst), 40);
    }
}

/// Needs tokio's runtime when it is polled and when it is dropped.
struct Needy(Arc<AtomicU32>, bool);

impl Future for Needy {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Handle::current();
        if self.1 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Drop for Needy {
    fn drop(&mut self) {
        Handle::current();
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_future_is_dropped_inside_tokio_too() {
    let other = tokio();
    on_both(|runtime| {
        let drops = Arc::new(AtomicU32::new(0));
        runtime.block_on(async {
            let new = |completes| in_tokio(other.handle(), Needy(Arc::clone(&drops), completes));
            drop(new(false));
            assert!(poll_times(2, new(false)).await.is_none());
            new(true).await;
            let task = spawn(new(false));
            yield_now().await;
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
            assert_eq!(drops.load(Ordering::SeqCst), 4);
            // When it completes, and not later.
            let mut kept = std::pin::pin!(new(true));
            poll_fn(|context| kept.as_mut().poll(context)).await;
            assert_eq!(drops.load(Ordering::SeqCst), 5);
            // A task that is left when its runtime ends.
            drop(spawn(new(false)));
            let panics = in_tokio(other.handle(), async { panic!("on purpose") });
            assert!(spawn(panics).await.unwrap_err().is_panic());
            assert!(Handle::try_current().is_err());
        });
        runtime.block_on(async {});
        let leftover = runtime.spawn(in_tokio(other.handle(), Needy(Arc::clone(&drops), false)));
        drop(leftover);
        // Ends what waits for ever.
        let fresh = ringloop::Runtime::new(&ringloop::RuntimeConfig::default()).unwrap();
        let ended = std::mem::replace(runtime, fresh);
        drop(ended);
        assert_eq!(drops.load(Ordering::SeqCst), 7);
        assert!(Handle::try_current().is_err());
    });
}

#[test]
fn without_it_tokio_says_what_is_missing() {
    on_both(|runtime| {
        runtime.block_on(async {
            let sleeping = catch_unwind(AssertUnwindSafe(|| tokio::time::sleep(Duration::ZERO)));
            assert!(sleeping.is_err());
        });
    });
}
