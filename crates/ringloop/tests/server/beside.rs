//! Tasks that run beside the connections of a server, and the end of it.

use std::future::pending;
use std::io::Read;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ringloop::time::{interval, sleep};
use ringloop::{spawn, spawn_background, stopping};

use crate::case::{Echo, ask, on_both};
use crate::common::{self, LONG, ReadOnce};

/// Sends its word when it is dropped.
struct Last(mpsc::Sender<&'static str>);

impl Drop for Last {
    fn drop(&mut self) {
        self.0.send("dropped").unwrap();
    }
}

#[test]
fn a_shutdown_waits_for_connections_and_not_for_what_runs_beside_them() {
    on_both(|case| {
        let server = case.start(|| Echo);
        let (sender, words) = mpsc::channel();
        for worker in 0..2 {
            let last = Last(sender.clone());
            drop(server.running.pool().spawn_on(worker, || async move {
                let _last = last;
                let mut ticks = interval(Duration::from_millis(10));
                loop {
                    ticks.tick().await;
                }
            }));
        }
        let mut stream = server.connect();
        ask(&mut stream, b"hello");
        let start = Instant::now();
        server.running.shutdown(20 * LONG);
        assert!(start.elapsed() < LONG, "it has waited for a ticker");
        assert_eq!(stream.read_once(&mut [0; 1]).unwrap(), 0);
        drop(sender);
        assert_eq!(words.iter().count(), 2);
    });
}

#[test]
fn what_a_connection_has_spawned_belongs_to_it() {
    on_both(|case| {
        if case.is_secure {
            return;
        }
        let (sender, words) = mpsc::channel();
        let running = case
            .server
            .start_with(move |mut stream, client| {
                let sender = sender.clone();
                async move {
                    drop(spawn(async move {
                        client.draining().await;
                        // A task of a task.
                        drop(spawn(async move {
                            sleep(Duration::from_millis(50)).await;
                            sender.send("recorded").unwrap();
                        }));
                    }));
                    // One that is kept for later, as a pool of connections does.
                    drop(spawn_background(pending::<()>()));
                    stream.write_all(&b"bye"[..]).await.0
                }
            })
            .unwrap();
        let mut stream = common::connect(running.local_addr());
        stream.read_exact(&mut [0; 3]).unwrap();
        assert_eq!(stream.read_once(&mut [0; 1]).unwrap(), 0);
        let start = Instant::now();
        running.shutdown(20 * LONG);
        assert!(start.elapsed() < LONG, "it has waited for the background");
        assert_eq!(words.try_recv(), Ok("recorded"));
    });
}

#[test]
fn who_has_asked_is_told_and_waited_for() {
    on_both(|case| {
        let server = case.start(|| Echo);
        let (sender, words) = mpsc::channel();
        let told = sender.clone();
        drop(server.running.pool().spawn_on(0, || async move {
            let mut stopping = stopping();
            (&mut stopping).await;
            told.send("told").unwrap();
            sleep(Duration::from_millis(50)).await;
            told.send("flushed").unwrap();
            drop(stopping);
            pending::<()>().await;
        }));
        // Dropped before it is told, so that nobody is waited for.
        drop(server.running.pool().spawn_on(1, || async move {
            drop(stopping());
            pending::<()>().await;
        }));
        let mut stream = server.connect();
        ask(&mut stream, b"hello");
        let start = Instant::now();
        server.running.shutdown(20 * LONG);
        assert!(start.elapsed() < LONG);
        drop(sender);
        assert_eq!(words.iter().collect::<Vec<_>>(), ["told", "flushed"]);
    });
}

#[test]
fn a_pool_waits_for_its_tasks_but_not_for_the_background() {
    for backend in common::backends() {
        let pool = ringloop::Pool::new(2, &common::pool_config(backend)).unwrap();
        let (sender, words) = mpsc::channel();
        let ends = sender.clone();
        drop(pool.spawn_on(0, || async move {
            drop(spawn_background(async move {
                let _last = Last(ends);
                // What the background spawns is the background's.
                drop(spawn(pending::<()>()));
                pending::<()>().await;
            }));
            stopping().await;
            sleep(Duration::from_millis(20)).await;
            sender.send("ended").unwrap();
        }));
        let start = Instant::now();
        pool.shutdown(20 * LONG);
        assert!(start.elapsed() < LONG, "it has waited for the background");
        assert_eq!(words.iter().collect::<Vec<_>>(), ["ended", "dropped"]);
    }
}
