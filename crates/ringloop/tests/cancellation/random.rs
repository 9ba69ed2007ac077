//! Random operations on several connections, each with its future dropped somewhere, compared with a model.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bytes::BufMut;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use ringloop::net::{TcpListener, TcpStream, UnixStream};
use ringloop::time::{sleep, timeout};
use ringloop::{spawn, yield_now};

use crate::common::LONG;
use crate::cut::{Cut, When, leaving_nothing};
use crate::memory::{MARKED, buffer};

/// TCP, but for the last.
const CONNECTIONS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    /// Writes this many bytes at an end, once or all of them.
    Write(End, usize, Point, bool),
    /// Reads once at an end: in place, or into this much room.
    Read(End, Point, Option<usize>),
    /// Lets the other tasks run.
    Turn,
    Sleep(Point),
    /// A task that takes this many turns, and may be aborted before.
    Task(usize, bool),
}

/// One end of one of the connections.
#[derive(Clone, Copy, Debug)]
struct End {
    connection: usize,
    side: usize,
}

/// Where a future is dropped.
type Point = (usize, When);

fn step() -> impl Strategy<Value = Step> {
    let end = (0..CONNECTIONS, 0..2_usize).prop_map(|(connection, side)| End { connection, side });
    let point = || {
        (
            0..4_usize,
            prop_oneof![Just(When::Polled), Just(When::Woken)],
        )
    };
    prop_oneof![
        4 => (end.clone(), 1..=MARKED, point(), any::<bool>())
            .prop_map(|(end, length, point, is_all)| Step::Write(end, length, point, is_all)),
        6 => (end, point(), proptest::option::of(1..=MARKED))
            .prop_map(|(end, point, room)| Step::Read(end, point, room)),
        2 => Just(Step::Turn),
        1 => point().prop_map(Step::Sleep),
        1 => (0..4_usize, any::<bool>()).prop_map(|(turns, is_aborted)| Step::Task(turns, is_aborted)),
    ]
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Calls a method of the stream, whatever its kind.
macro_rules! of {
    ($stream:expr, $bound:ident => $call:expr) => {
        match $stream {
            Stream::Tcp($bound) => $call,
            Stream::Unix($bound) => $call,
        }
    };
}

/// An end of a connection, and the bytes on their way to it.
struct Side {
    stream: Stream,
    coming: VecDeque<u8>,
}

impl Side {
    /// Reads once, and compares.
    async fn read(&mut self, cut: Cut, room: Option<usize>) {
        let received = if let Some(room) = room {
            let room = buffer().limit(room);
            let read = of!(&mut self.stream, stream => cut.run(stream.read(room)).await);
            read.map(|(count, filled)| {
                let filled = filled.into_inner();
                assert_eq!(count.unwrap(), filled.len());
                filled
            })
        } else {
            let copy = |bytes: &[u8]| bytes.to_vec();
            of!(&mut self.stream, stream => cut.run(stream.read_with(|bytes, _| copy(bytes))).await)
                .map(|result| result.unwrap())
        };
        for byte in received.unwrap_or_default() {
            assert_eq!(Some(byte), self.coming.pop_front(), "it was not sent");
        }
    }

    /// Writes, and returns how many of the bytes are written.
    async fn write(&mut self, cut: Cut, bytes: &[u8], is_all: bool) -> usize {
        let mut rest = bytes;
        let reported = if is_all {
            let written =
                of!(&mut self.stream, stream => cut.run(stream.write_all(&mut rest)).await);
            written.map(|(result, _)| {
                result.unwrap();
                bytes.len()
            })
        } else {
            let written = of!(&mut self.stream, stream => cut.run(stream.write(&mut rest)).await);
            written.map(|(result, _)| result.unwrap())
        };
        let written = bytes.len() - rest.len();
        match reported {
            Some(count) => assert_eq!(count, written),
            None => assert!(is_all || written == 0, "{written} bytes without a report"),
        }
        written
    }
}

async fn connections() -> Vec<[Side; 2]> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut pairs = Vec::new();
    for _ in 1..CONNECTIONS {
        let near = TcpStream::connect(address).await.unwrap();
        let (far, _) = listener.accept().await.unwrap();
        pairs.push([Stream::Tcp(near), Stream::Tcp(far)]);
    }
    let (near, far) = UnixStream::pair().unwrap();
    pairs.push([Stream::Unix(near), Stream::Unix(far)]);
    let side = |stream| Side {
        stream,
        coming: VecDeque::new(),
    };
    pairs.into_iter().map(|pair| pair.map(side)).collect()
}

/// Counts the tasks that have ended, for whatever reason.
struct Over(Rc<Cell<usize>>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

async fn run(steps: &[Step]) {
    let mut connections = connections().await;
    let mut byte = 0_u8;
    let (mut tasks, tasks_over) = (0, Rc::new(Cell::new(0)));
    for step in steps {
        match *step {
            Step::Write(end, length, (polls, _), is_all) => {
                let mut bytes = buffer();
                bytes.resize_with(length, || {
                    byte = byte.wrapping_mul(5).wrapping_add(77);
                    byte
                });
                // Nobody reads meanwhile: it is dropped where it would wait.
                let cut = Cut::new(polls.min(1), When::Polled);
                let [near, far] = &mut connections[end.connection];
                let (from, to) = if end.side == 0 {
                    (near, far)
                } else {
                    (far, near)
                };
                let written = from.write(cut, &bytes, is_all).await;
                to.coming.extend(&bytes[..written]);
            }
            Step::Read(end, (polls, when), room) => {
                let side = &mut connections[end.connection][end.side];
                let cut = if side.coming.is_empty() {
                    // It would never be woken.
                    Cut::new(polls.min(1), When::Polled)
                } else {
                    Cut::new(polls, when)
                };
                side.read(cut, room).await;
            }
            Step::Turn => yield_now().await,
            Step::Sleep((polls, when)) => {
                let nap = sleep(Duration::from_micros(50));
                let _ = Cut::new(polls, when).run(nap).await;
            }
            Step::Task(turns, is_aborted) => {
                tasks += 1;
                let over = Over(Rc::clone(&tasks_over));
                let task = spawn(async move {
                    let _held = (over, buffer());
                    for _ in 0..turns {
                        yield_now().await;
                    }
                });
                if is_aborted {
                    yield_now().await;
                    task.abort();
                }
            }
        }
    }
    // What is still under way arrives, and nothing else does.
    for side in connections.iter_mut().flatten() {
        while !side.coming.is_empty() {
            side.read(Cut::new(usize::MAX, When::Woken), Some(MARKED))
                .await;
        }
        side.read(Cut::new(1, When::Polled), None).await;
    }
    while tasks_over.get() < tasks {
        yield_now().await;
    }
}

#[test]
fn random_operations_that_are_dropped_lose_nothing() {
    leaving_nothing(|runtime| {
        let runtime = RefCell::new(runtime);
        let config = Config {
            cases: 64,
            failure_persistence: None,
            ..Config::default()
        };
        TestRunner::new(config)
            .run(&vec(step(), 1..80), |steps| {
                let mut runtime = runtime.borrow_mut();
                let result = runtime.block_on(timeout(LONG, run(&steps)));
                result.map_err(|_| TestCaseError::fail("it hangs"))
            })
            .unwrap();
    });
}
