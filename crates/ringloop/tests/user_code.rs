//! The user's code that runs in the middle of the runtime's work: wakers that panic, destructors that panic or spawn. The
//! rest of the work is done all the same, and no task outlives its runtime.

mod common;

use std::future::{Future, pending};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, RawWaker, RawWakerVTable, Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{LONG, backends, config, on_both, pool_config, tcp};
use ringloop::net::{UdpSocket, UnixStream};
use ringloop::time::{sleep, timeout};
use ringloop::{Handle, JoinHandle, Pool, Runtime, spawn, yield_now};

/// A waker that panics when it is used.
fn panicking() -> Waker {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics, on purpose");
        }
    }
    Waker::from(Arc::new(Panics))
}

/// A waker that counts how often it is used.
#[derive(Default)]
struct Counter(AtomicUsize);

impl Counter {
    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Polls a future once, with a waker of its own, and lets it wait.
fn wait_with<F: Future + Unpin>(waker: &Waker, future: &mut F) {
    let polled = Pin::new(future).poll(&mut Context::from_waker(waker));
    assert!(polled.is_pending());
}

/// Runs turns until a condition holds.
async fn until(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LONG);
        yield_now().await;
    }
}

/// The thread in which something was dropped.
type Thread = Arc<Mutex<Option<ThreadId>>>;

/// Where a destructor puts the handle of the task that it spawns.
type Place = Arc<Mutex<Option<JoinHandle<()>>>>;

/// Not `Send`. Notes the thread in which it is dropped.
struct Local {
    dropped: Thread,
    _rc: Rc<()>,
}

impl Local {
    fn new() -> (Self, Thread) {
        let dropped = Arc::default();
        let local = Self {
            dropped: Arc::clone(&dropped),
            _rc: Rc::default(),
        };
        (local, dropped)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        *self.dropped.lock().unwrap() = Some(thread::current().id());
    }
}

fn dropped_here(dropped: &Mutex<Option<ThreadId>>) -> bool {
    *dropped.lock().unwrap() == Some(thread::current().id())
}

#[test]
fn a_waker_that_panics_does_not_keep_the_runtime_from_ending_its_tasks() {
    for backend in backends() {
        let mut runtime = Runtime::new(&config(backend)).unwrap();
        let (local, dropped) = Local::new();
        let (mut first, second) = runtime.block_on(async {
            let first = spawn(pending::<()>());
            let second = spawn(async move {
                let _local = local;
                pending::<()>().await;
            });
            yield_now().await;
            (first, second)
        });
        wait_with(&panicking(), &mut first);
        drop(runtime);
        assert!(dropped_here(&dropped), "its thread is gone");
        assert!(second.is_finished());
        // Nothing is left of the future, wherever the handle goes.
        thread::spawn(move || drop(second)).join().unwrap();
        assert!(
            catch_unwind(Handle::current).is_err(),
            "the dead runtime is current"
        );
    }
}

#[test]
fn a_waker_that_panics_ends_neither_its_worker_nor_other_tasks() {
    for backend in backends() {
        let pool = Pool::new(1, &pool_config(backend)).unwrap();
        let (go, gone) = ringloop::channel::bounded::<()>(1);
        let innocent_gone = gone.clone();
        let innocent = pool.spawn_on(0, move || async move {
            let _ = innocent_gone.recv().await;
            yield_now().await;
            7
        });
        let mut ending = pool.spawn_on(0, move || async move {
            let _ = gone.recv().await;
            5
        });
        wait_with(&panicking(), &mut ending);
        drop(go);
        let mut runtime = Runtime::new(&config(backend)).unwrap();
        assert_eq!(runtime.block_on(innocent).unwrap(), 7);
        // Its result is not lost, either.
        assert_eq!(runtime.block_on(ending).unwrap(), 5);
        pool.shutdown(LONG);
    }
}

#[test]
fn a_task_whose_handle_has_a_waker_that_panics_leaves_the_list() {
    on_both(|runtime| {
        let mut task = runtime.spawn(async { 5 });
        wait_with(&panicking(), &mut task);
        runtime.block_on(yield_now());
        assert_eq!(runtime.metrics().tasks_live, 0);
        assert_eq!(runtime.block_on(task).unwrap(), 5);
    });
}

#[test]
fn a_waker_that_panics_when_it_is_cloned_does_not_lose_the_result() {
    const TABLE: RawWakerVTable =
        RawWakerVTable::new(|_| panic!("on purpose"), |_| (), |_| (), |_| ());
    on_both(|runtime| {
        let mut task = runtime.spawn(async { 5 });
        // SAFETY: the functions of the table may be called with any pointer, in any thread.
        let waker = unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &TABLE)) };
        let polled = catch_unwind(AssertUnwindSafe(|| wait_with(&waker, &mut task)));
        assert!(polled.is_err());
        assert!(!task.is_finished());
        assert_eq!(runtime.block_on(task).unwrap(), 5);
    });
}

/// Spawns a task when it is dropped, and stores its handle.
struct SpawnsAtTheEnd {
    local: Mutex<Option<Stowed>>,
    handle: Place,
}

/// A `Local` in a type that requires `Send`. The tests move it nowhere.
struct Stowed(#[expect(dead_code, reason = "it is only dropped")] Local);

// SAFETY: it is created and dropped in the thread of its test.
unsafe impl Send for Stowed {}

impl SpawnsAtTheEnd {
    fn new() -> (Self, Thread, Place) {
        let ((local, dropped), handle) = (Local::new(), Arc::default());
        let spawner = Self {
            local: Mutex::new(Some(Stowed(local))),
            handle: Arc::clone(&handle),
        };
        (spawner, dropped, handle)
    }
}

impl Drop for SpawnsAtTheEnd {
    fn drop(&mut self) {
        let stowed = self.local.lock().unwrap().take();
        let task = spawn(async move {
            let _stowed = stowed;
            pending::<()>().await;
        });
        *self.handle.lock().unwrap() = Some(task);
    }
}

impl Wake for SpawnsAtTheEnd {
    fn wake(self: Arc<Self>) {}
}

impl AsRef<[u8]> for SpawnsAtTheEnd {
    fn as_ref(&self) -> &[u8] {
        static BYTES: [u8; 100_000] = [7; 100_000];
        &BYTES
    }
}

#[test]
fn a_task_that_is_spawned_while_timers_are_dropped_is_ended() {
    for backend in backends() {
        let mut runtime = Runtime::new(&config(backend)).unwrap();
        let (spawner, dropped, handle) = SpawnsAtTheEnd::new();
        let mut waiting = sleep(LONG);
        let waker = Waker::from(Arc::new(spawner));
        runtime.block_on(async { wait_with(&waker, &mut waiting) });
        drop(waker);
        drop(runtime);
        assert!(dropped_here(&dropped));
        let handle = handle.lock().unwrap().take().unwrap();
        assert!(handle.is_finished());
        drop(waiting);
    }
}

#[test]
fn a_task_that_is_spawned_while_sources_are_dropped_is_ended() {
    for backend in backends() {
        let mut runtime = Runtime::new(&config(backend)).unwrap();
        let (spawner, dropped, handle) = SpawnsAtTheEnd::new();
        let waker = Waker::from(Arc::new(spawner));
        let (mut near, far) = runtime.block_on(async { UnixStream::pair().unwrap() });
        let mut reading = Box::pin(near.read(Vec::with_capacity(1)));
        runtime.block_on(async { wait_with(&waker, &mut reading) });
        drop(waker);
        drop(runtime);
        assert!(dropped_here(&dropped));
        assert!(handle.lock().unwrap().take().unwrap().is_finished());
        drop((reading, far));
    }
}

#[test]
fn a_task_that_is_spawned_while_lent_bytes_are_dropped_is_ended() {
    for backend in backends() {
        let mut runtime = Runtime::new(&config(backend)).unwrap();
        let (spawner, dropped, handle) = SpawnsAtTheEnd::new();
        runtime.block_on(async {
            let (mut near, far) = tcp().await;
            let bytes = Bytes::from_owner(spawner);
            // The kernel has the bytes until the connection is gone.
            near.write_all_zero_copy(bytes).await.0.unwrap();
            drop((near, far));
        });
        drop(runtime);
        assert!(dropped_here(&dropped));
        assert!(handle.lock().unwrap().take().unwrap().is_finished());
    }
}

#[test]
fn destructors_that_panic_together_end_neither_the_process_nor_the_rest() {
    struct Bomb(Arc<AtomicUsize>);
    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Bomb {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            panic!("a destructor that panics, on purpose");
        }
    }
    for backend in backends() {
        let mut runtime = Runtime::new(&config(backend)).unwrap();
        let drops = Arc::new(AtomicUsize::new(0));
        let (local, dropped) = Local::new();
        let bomb = || Waker::from(Arc::new(Bomb(Arc::clone(&drops))));
        let mut sleeps = [sleep(LONG), sleep(LONG), sleep(LONG)];
        let (socket, mut near, far) = runtime.block_on(async {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let (near, far) = UnixStream::pair().unwrap();
            (socket, near, far)
        });
        let mut receiving = [(); 3].map(|()| Box::pin(socket.recv(Vec::with_capacity(1))));
        let mut reading = Box::pin(near.read(Vec::with_capacity(1)));
        runtime.block_on(async {
            for sleep in &mut sleeps {
                wait_with(&bomb(), sleep);
            }
            for receiving in &mut receiving {
                wait_with(&bomb(), receiving);
            }
            wait_with(&bomb(), &mut reading);
            drop(spawn(async move {
                let _local = local;
                pending::<()>().await;
            }));
        });
        drop(runtime);
        assert!(dropped_here(&dropped));
        assert_eq!(drops.load(Ordering::Relaxed), 7);
        drop((receiving, reading, sleeps, far));
        assert!(
            catch_unwind(Handle::current).is_err(),
            "the dead runtime is current"
        );
    }
}

#[test]
fn a_waker_that_panics_keeps_no_other_connection_from_being_woken() {
    on_both(|runtime| {
        runtime.block_on(async {
            let mut pairs: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
            let counters = [(); 3].map(|()| Arc::new(Counter::default()));
            let (first, rest) = pairs.split_first_mut().unwrap();
            let mut bad = Box::pin(first.0.read(Vec::with_capacity(1)));
            wait_with(&panicking(), &mut bad);
            let mut good: Vec<_> = (rest.iter_mut())
                .map(|(near, _)| Box::pin(near.read(Vec::with_capacity(1))))
                .collect();
            for (reading, counter) in good.iter_mut().zip(&counters) {
                wait_with(&Waker::from(Arc::clone(counter)), reading);
            }
            drop((bad, good));
            // Again with all of them ready in one turn, each pair the first one once.
            for bad in 0..3 {
                let before = counters.each_ref().map(|counter| counter.get());
                let mut reading = Vec::new();
                for (index, (near, far)) in pairs.iter_mut().enumerate() {
                    let mut future = Box::pin(near.read(Vec::with_capacity(1)));
                    let counter = Waker::from(Arc::clone(&counters[index]));
                    let waker = if index == bad { panicking() } else { counter };
                    wait_with(&waker, &mut future);
                    far.try_write(b"x").unwrap();
                    reading.push(future);
                }
                let is_woken = |index: usize| index == bad || counters[index].get() > before[index];
                until(|| (0..3).all(is_woken)).await;
                for future in reading {
                    assert_eq!(timeout(LONG, future).await.unwrap().0.unwrap(), 1);
                }
            }
        });
    });
}

#[test]
fn a_readers_waker_that_panics_does_not_keep_the_writer_from_being_woken() {
    on_both(|runtime| {
        runtime.block_on(async {
            let (near, mut far) = tcp().await;
            let (mut reader, mut writer) = near.into_split();
            let counter = Arc::new(Counter::default());
            let mut reading = Box::pin(reader.read(Vec::with_capacity(1)));
            wait_with(&panicking(), &mut reading);
            let mut writing = Box::pin(writer.write_all(Bytes::from(vec![0; 32 << 20])));
            wait_with(&Waker::from(Arc::clone(&counter)), &mut writing);
            // The reset is one event for both directions.
            socket2::SockRef::from(&far)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
            drop(far.read(Vec::with_capacity(1)).await);
            drop(far);
            until(|| counter.get() > 0).await;
        });
    });
}

#[test]
fn a_waker_that_panics_keeps_no_other_receiver_of_a_socket_from_being_woken() {
    on_both(|runtime| {
        runtime.block_on(async {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let counters = [(); 3].map(|()| Arc::new(Counter::default()));
            let mut receiving = [(); 5].map(|()| Box::pin(socket.recv(Vec::with_capacity(1))));
            for (index, future) in receiving.iter_mut().enumerate() {
                let waker = match index {
                    1 | 3 => panicking(),
                    _ => Waker::from(Arc::clone(&counters[index / 2])),
                };
                wait_with(&waker, future);
            }
            socket
                .try_send_to(b"x", socket.local_addr().unwrap())
                .unwrap();
            until(|| counters.iter().all(|counter| counter.get() > 0)).await;
        });
    });
}

#[test]
fn a_waker_that_panics_keeps_no_other_sleeper_from_being_woken() {
    on_both(|runtime| {
        runtime.block_on(async {
            let counters = [(); 3].map(|()| Arc::new(Counter::default()));
            let mut sleeps = Vec::new();
            for counter in &counters {
                let (mut bad, mut good) = (sleep(Duration::ZERO), sleep(Duration::ZERO));
                wait_with(&panicking(), &mut bad);
                wait_with(&Waker::from(Arc::clone(counter)), &mut good);
                sleeps.push((bad, good));
            }
            until(|| counters.iter().all(|counter| counter.get() == 1)).await;
        });
    });
}

/// The operation of a send whose bytes the kernel still has is dropped outside of the runtime.
#[test]
fn an_owner_of_bytes_may_use_the_runtime_wherever_it_is_dropped() {
    struct Owner {
        bytes: Vec<u8>,
        _connection: ringloop::hyper::Io<UnixStream>,
    }
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }
    for backend in backends() {
        let mut runtime = Runtime::new(&config(backend)).unwrap();
        let (near, far) = runtime.block_on(async {
            let (mut near, far) = tcp().await;
            let (other, _) = UnixStream::pair().unwrap();
            let owner = Owner {
                bytes: vec![1; 100_000],
                _connection: ringloop::hyper::Io::new(other),
            };
            let bytes = Bytes::from_owner(owner);
            near.write_all_zero_copy(bytes).await.0.unwrap();
            (near, far)
        });
        drop(near);
        drop(far);
        drop(runtime);
    }
}
