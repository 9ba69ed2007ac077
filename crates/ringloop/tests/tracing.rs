//! The spans and events of the feature `tracing`, as a subscriber sees them.

mod common;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{LONG, backends, connect, echo, on_both, pool_config};
use ringloop::server::{Connection, Handler, Server};
use ringloop::{Pool, PoolConfig, RuntimeConfig, spawn, yield_now};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Fields and their values as strings; an event's message is its field `message`.
type Fields = HashMap<&'static str, String>;

#[derive(Clone, Debug)]
struct Recorded {
    name: &'static str,
    fields: Fields,
    parent: Option<u64>,
}

impl Recorded {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

/// Records every span, and every event with its span.
#[derive(Default)]
struct Recorder {
    spans: Mutex<HashMap<u64, Recorded>>,
    events: Mutex<Vec<Recorded>>,
    ids: AtomicU64,
}

static RECORDER: LazyLock<Arc<Recorder>> = LazyLock::new(|| {
    let recorder = Arc::new(Recorder::default());
    tracing::subscriber::set_global_default(Arc::clone(&recorder)).unwrap();
    recorder
});

thread_local! {
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn current() -> Option<u64> {
    ENTERED.with_borrow(|entered| entered.last().copied())
}

struct Collector<'a>(&'a mut Fields);

impl Visit for Collector<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::new();
        span.record(&mut Collector(&mut fields));
        let id = self.ids.fetch_add(1, Ordering::Relaxed) + 1;
        self.spans.lock().unwrap().insert(
            id,
            Recorded {
                name: span.metadata().name(),
                fields,
                parent: current(),
            },
        );
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::new();
        event.record(&mut Collector(&mut fields));
        self.events.lock().unwrap().push(Recorded {
            name: event.metadata().level().as_str(),
            fields,
            parent: current(),
        });
    }

    fn enter(&self, span: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(span.into_u64()));
    }

    fn exit(&self, span: &Id) {
        let left = ENTERED.with_borrow_mut(Vec::pop);
        assert_eq!(left, Some(span.into_u64()), "spans nest");
    }
}

impl Recorder {
    /// The events that have a field with this value, with the spans that they were in.
    fn events(&self, field: &str, value: &str) -> Vec<(Recorded, Option<Recorded>)> {
        let events = self.events.lock().unwrap().clone();
        let spans = self.spans.lock().unwrap();
        events
            .into_iter()
            .filter(|event| event.field(field) == value)
            .map(|event| {
                let span = event.parent.map(|id| spans[&id].clone());
                (event, span)
            })
            .collect()
    }

    /// The latest span.
    fn latest(&self) -> u64 {
        self.ids.load(Ordering::Relaxed)
    }

    /// Waits for events in the span of the connection from a peer. The span must be later than another one, because
    /// ports are reused. Returns messages and levels.
    fn of_connection(&self, peer: &str, before: u64, last: &str) -> Vec<(String, &'static str)> {
        let start = Instant::now();
        loop {
            // A span is there before its events: those that are seen have theirs.
            let events = self.events.lock().unwrap().clone();
            let spans = self.spans.lock().unwrap().clone();
            let seen: Vec<_> = events
                .into_iter()
                .filter(|event| {
                    event.parent.is_some_and(|id| {
                        id > before
                            && spans[&id].name == "connection"
                            && spans[&id].field("peer") == peer
                    })
                })
                .map(|event| (event.field("message").to_owned(), event.name))
                .collect();
            if seen.iter().any(|(text, _)| text == last) {
                return seen;
            }
            assert!(start.elapsed() < LONG, "{seen:?}");
            thread::sleep(Duration::from_micros(200));
        }
    }
}

#[test]
fn a_task_is_in_its_span_while_it_is_polled_and_dropped() {
    struct SaysWhenDropped(&'static str);
    impl Drop for SaysWhenDropped {
        fn drop(&mut self) {
            tracing::info!(mark = self.0, "dropped");
        }
    }
    let recorder = &**RECORDER;
    on_both(|runtime| {
        let mark = if runtime.backend().name() == "epoll" {
            "polled on epoll"
        } else {
            "polled on io_uring"
        };
        runtime.block_on(async {
            let outer = current();
            let say = move || async move {
                let _says = SaysWhenDropped(mark);
                tracing::info!(mark, "first");
                yield_now().await;
                tracing::info!(mark, "second");
            };
            let (one, other) = (spawn(say()), spawn(say()));
            assert_eq!(current(), outer);
            yield_now().await;
            assert_eq!(current(), outer, "the spans of tasks end with their polls");
            one.await.unwrap();
            other.await.unwrap();
        });
        let events = recorder.events("mark", mark);
        let texts: Vec<_> = events
            .iter()
            .map(|(event, _)| event.field("message"))
            .collect();
        assert_eq!(
            texts,
            ["first", "first", "second", "dropped", "second", "dropped"]
        );
        let parents: Vec<_> = events
            .iter()
            .map(|(event, _)| event.parent.unwrap())
            .collect();
        assert_ne!(parents[0], parents[1]);
        assert_eq!(
            (parents[0], parents[0], parents[1], parents[1]),
            (parents[2], parents[3], parents[4], parents[5])
        );
        for (_, span) in &events {
            let span = span.as_ref().unwrap();
            assert_eq!(span.name, "task");
            let name = span.field("name");
            assert!(name.contains("a_task_is_in_its_span"), "{name}");
        }
    });
}

#[test]
fn a_panic_is_told_in_the_span_of_its_task() {
    let recorder = &**RECORDER;
    on_both(|runtime| {
        let message = format!("no good on {}", runtime.backend());
        let text = message.clone();
        let error = runtime
            .block_on(async { spawn(async move { panic!("{text}") }).await })
            .unwrap_err();
        assert!(error.is_panic());
        let events = recorder.events("panic", &message);
        let [(event, Some(span))] = &events[..] else {
            panic!("told once, in a span: {events:?}")
        };
        assert_eq!((event.name, event.field("message")), ("ERROR", "panicked"));
        assert_eq!(span.name, "task");
    });
}

/// Echoes; fails and panics when told to.
struct Moody;

impl Handler for Moody {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        match bytes {
            b"fail" => Err(io::Error::other("told to")),
            b"panic" => panic!("told to panic"),
            _ => connection.write(bytes),
        }
    }
}

#[test]
fn a_connection_has_a_span_from_accepting_to_its_end() {
    let recorder = &**RECORDER;
    for backend in backends() {
        let server = Server::new("127.0.0.1:0")
            .workers(2)
            .pool_config(pool_config(backend));
        let server = server.start(|| Moody).unwrap();
        let converse = |words: &[u8]| {
            let mut client = std::net::TcpStream::connect(server.local_addr()).unwrap();
            let peer = client.local_addr().unwrap().to_string();
            client.write_all(words).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            // What has failed may be reset.
            let _ = client.read_to_end(&mut Vec::new());
            peer
        };
        for (words, end) in [
            (&b"hello"[..], ("closed".to_owned(), "DEBUG")),
            (b"fail", ("failed".to_owned(), "WARN")),
            (b"panic", ("panicked".to_owned(), "ERROR")),
        ] {
            let before = recorder.latest();
            let peer = converse(words);
            let seen = recorder.of_connection(&peer, before, &end.0);
            assert_eq!(seen, [("accepted".to_owned(), "DEBUG"), end]);
        }
        let workers: Vec<_> = recorder
            .spans
            .lock()
            .unwrap()
            .values()
            .filter(|span| span.name == "connection")
            .map(|span| span.field("worker").to_owned())
            .collect();
        assert!(!workers.is_empty());
        assert!(workers.iter().all(|worker| worker.starts_with("ringloop-")));
        let reason = format!("{backend}: ");
        let chosen = recorder.events("message", "backend chosen");
        assert!(chosen.iter().any(|(event, _)| {
            event.field("backend") == backend.to_string()
                && event.field("reason").starts_with(&reason)
        }));
        server.shutdown(Duration::from_secs(5));
    }
}

#[test]
fn a_function_that_is_idle_for_too_long_is_told_of() {
    let recorder = &**RECORDER;
    for backend in backends() {
        let server = Server::new("127.0.0.1:0")
            .workers(1)
            .pool_config(pool_config(backend))
            .idle_timeout(Duration::from_millis(5))
            .start_with(|stream, _client| async move {
                let _stream = stream;
                std::future::pending().await
            })
            .unwrap();
        let before = recorder.latest();
        let client = std::net::TcpStream::connect(server.local_addr()).unwrap();
        let peer = client.local_addr().unwrap().to_string();
        let seen = recorder.of_connection(&peer, before, "timed out");
        let expected = ["accepted", "timed out"].map(|text| (text.to_owned(), "DEBUG"));
        assert_eq!(seen, expected);
        drop(client);
    }
}

#[test]
fn a_shutdown_tells_how_long_it_waits_and_what_it_drops() {
    let recorder = &**RECORDER;
    let pool = Pool::new(1, &PoolConfig::default()).unwrap();
    for _ in 0..3 {
        drop(pool.spawn_on(0, std::future::pending::<()>));
    }
    pool.shutdown(Duration::from_micros(1234));
    assert_eq!(recorder.events("patience", "1.234ms").len(), 1);
    let dropped = recorder.events("message", "tasks dropped");
    assert!(
        dropped
            .iter()
            .any(|(event, _)| event.field("tasks") == "3" && event.field("worker") == "ringloop-0")
    );
}

/// Opens files until no descriptor is left.
fn use_up_descriptors() -> Vec<File> {
    let open = || File::open("/dev/null");
    std::iter::repeat_with(open).map_while(Result::ok).collect()
}

#[test]
#[ignore = "it uses up the descriptors of its process: the next test runs it in one of its own"]
fn without_descriptors_accepting_waits_and_says_so() {
    let recorder = &**RECORDER;
    let mut pool = PoolConfig::default();
    pool.runtime = RuntimeConfig::from_env().unwrap();
    // Before the server begins: an accept of io_uring's keeps to the limit that there was when it was submitted.
    rlimit::setrlimit(rlimit::Resource::NOFILE, 64, 64).unwrap();
    let server = Server::new("127.0.0.1:0").workers(1).pool_config(pool);
    let server = server.start(|| Moody).unwrap();
    // The worker has begun to listen, and has opened what it needs for that.
    let mut first = connect(server.local_addr());
    echo(&mut first, b"hello");
    let mut files = use_up_descriptors();
    drop(files.pop());
    let mut client = std::net::TcpStream::connect(server.local_addr()).unwrap();
    client.write_all(b"hello").unwrap();
    let start = Instant::now();
    let told = loop {
        let events = recorder.events("message", "cannot accept");
        if let Some((event, _)) = events.first() {
            break event.clone();
        }
        assert!(start.elapsed() < LONG);
        thread::sleep(Duration::from_micros(200));
    };
    assert_eq!(told.name, "WARN");
    assert_eq!(told.field("back_off"), "5ms");
    assert!(
        told.field("error").contains("Too many open files"),
        "{told:?}"
    );
    drop(files);
    client.read_exact(&mut [0; 5]).unwrap();
    drop((first, client));
    server.shutdown(Duration::from_secs(5));
}

#[test]
fn accepting_without_descriptors_is_told() {
    let program = std::env::current_exe().unwrap();
    let inner = "without_descriptors_accepting_waits_and_says_so";
    for backend in ["auto", "epoll"] {
        let output = std::process::Command::new(&program)
            .args(["--exact", inner, "--ignored"])
            .env("RINGLOOP_BACKEND", backend)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
    }
}

/// A worker that does not look at the kernel is named with the task that keeps it, once for each time.
#[test]
fn a_worker_that_a_task_blocks_is_named() {
    let recorder = &**RECORDER;
    let mut reported = 0;
    for backend in backends() {
        let mut config = pool_config(backend);
        config.blocked_after = Some(Duration::from_millis(20));
        let pool = Pool::new(2, &config).unwrap();
        for _ in 0..2 {
            let (release, released) = std::sync::mpsc::channel::<()>();
            let place = format!("tracing.rs:{}:", line!() + 1);
            let task = pool.spawn_on(1, move || async move {
                yield_now().await;
                // Blocks the worker, until it was reported.
                released.recv().unwrap();
                yield_now().await;
            });
            // Tests beside this one have workers that are blocked, too.
            let of_this_task = || {
                let mut events = recorder.events("message", "worker blocked");
                events.retain(|(event, _)| event.field("location").contains(&place));
                events
            };
            let start = Instant::now();
            while of_this_task().len() == reported {
                assert!(start.elapsed() < LONG);
                thread::sleep(Duration::from_micros(500));
            }
            // It is not reported again.
            thread::sleep(Duration::from_millis(50));
            reported += 1;
            let events = of_this_task();
            assert_eq!(events.len(), reported);
            let (event, span) = events.last().unwrap();
            assert!(span.is_none());
            assert_eq!(event.name, "WARN");
            assert_eq!(event.field("worker"), "1");
            assert!(event.field("task").contains("a_worker_that_a_task_blocks"));
            assert!(event.field("blocked").ends_with('s'), "{event:?}");
            release.send(()).unwrap();
            let mut waiting = ringloop::Runtime::new(&RuntimeConfig::default()).unwrap();
            waiting.block_on(task).unwrap();
        }
        let start = Instant::now();
        while recorder.events("message", "worker runs again").len() < reported {
            assert!(start.elapsed() < LONG);
            thread::sleep(Duration::from_micros(500));
        }
        pool.shutdown(LONG);
    }
}

/// A place in the program that spawns a task is known, whichever function it uses.
#[test]
fn the_place_where_a_task_was_spawned_is_known() {
    let recorder = &**RECORDER;
    let mut config = PoolConfig::default();
    config.blocked_after = Some(Duration::from_millis(5));
    let pool = Pool::new(1, &config).unwrap();
    let has_seen = |line: u32| {
        let place = format!("tracing.rs:{line}:");
        let seen = recorder.events("message", "worker blocked");
        seen.iter()
            .any(|(event, _)| event.field("location").contains(&place))
    };
    let blocks = move |line: u32| {
        let start = Instant::now();
        while !has_seen(line) {
            assert!(start.elapsed() < LONG, "line {line}");
            thread::sleep(Duration::from_micros(500));
        }
    };
    let (done, is_done) = std::sync::mpsc::channel();
    let first = line!() + 1;
    let tasks = pool.spawn_on_each(move |_| async move { blocks(first) });
    drop(tasks);
    let second = line!() + 1;
    drop(pool.handle(0).spawn_with(move || async move {
        blocks(second);
        let third = line!() + 1;
        spawn(async move { blocks(third) }).await.unwrap();
        let mut tasks = ringloop::JoinSet::new();
        let fourth = line!() + 1;
        tasks.spawn(async move { blocks(fourth) });
        tasks.join_next().await.unwrap().unwrap();
        done.send(()).unwrap();
    }));
    is_done.recv_timeout(LONG).unwrap();
    pool.shutdown(LONG);
}
