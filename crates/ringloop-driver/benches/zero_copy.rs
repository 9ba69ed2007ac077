//! The size from which on zero-copy sending pays off.
//!
//! Measures the sender's CPU time per send, of `send(2)` and of [`Op::SendZeroCopy`], in alternating rounds. Prints
//! medians, and the median of the rounds' ratios. Without arguments it sends over TCP to another process on the
//! loopback, where the kernel copies after all: it does not deliver other processes' memory to a local socket.
//!
//! ```text
//! zero_copy                 TCP over the loopback
//! zero_copy tcp ADDRESS     TCP to a sink that runs elsewhere, such as behind a veth pair
//! zero_copy udp ADDRESS     datagrams, to be routed to a device that drops them: what is saved where a device takes the data
//! zero_copy sink ADDRESS    accepts connections, and reads and forgets what comes
//! ```
//!
//! As such a device, use one end of a veth pair whose other end is down (as root):
//!
//! ```text
//! unshare -n sh -c 'ip link add near type veth peer name far; ip link set near mtu 65535 up
//!     ip addr add 10.9.0.1/24 dev near; ip neigh add 10.9.0.2 lladdr 02:00:00:00:00:01 dev near nud permanent
//!     zero_copy udp 10.9.0.2:9'
//! ```

use std::io::{self, BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;

use ringloop_driver::{BackendChoice, Bytes, Config, Driver, Op, SharedFd};

const ROUNDS: usize = 9;

/// The number of bytes that each arm sends in a round.
const ROUND_BYTES: usize = 64 << 20;

/// More than processor caches hold.
const MEMORY_BYTES: usize = 512 << 20;

/// The maximum number of sends.
const ROUND_SENDS: usize = 20_000;

/// A part of memory that many sends share.
struct Body {
    memory: Arc<[u8]>,
    range: Range<usize>,
}

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.range.clone()]
    }
}

/// The source of bodies: successive parts of memory that is larger than the caches, or the same part each time.
struct Source {
    memory: Arc<[u8]>,
    next: usize,
}

impl Source {
    fn new(bytes: usize) -> Source {
        Source {
            memory: vec![1; bytes].into(),
            next: 0,
        }
    }

    fn body(&mut self, size: usize) -> Body {
        if self.next + size > self.memory.len() {
            self.next = 0;
        }
        let range = self.next..self.next + size;
        self.next = range.end;
        Body {
            memory: Arc::clone(&self.memory),
            range,
        }
    }
}

/// CPU time of this process, in nanoseconds.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec to `time`, which outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn send_copying(fd: RawFd, body: &Body) {
    let body = body.as_ref();
    let mut sent = 0;
    while sent < body.len() {
        let rest = &body[sent..];
        // SAFETY: the kernel reads no more than `rest`, which outlives the call.
        let count = unsafe { libc::send(fd, rest.as_ptr().cast(), rest.len(), 0) };
        assert!(count > 0, "{}", io::Error::last_os_error());
        sent += count as usize;
    }
}

/// Sends, and waits only for the count, as a writer would.
fn send_zero_copy(driver: &mut Driver, fd: RawFd, body: Body) {
    let size = body.range.len();
    let op = Op::SendZeroCopy {
        // SAFETY: the socket is closed after the driver is dropped.
        fd: unsafe { SharedFd::borrow_raw(fd) },
        bytes: Bytes::new(body),
        flags: libc::MSG_WAITALL,
    };
    let token = driver.submit(op).unwrap();
    let mut events = Vec::new();
    loop {
        driver.poll(None, &mut events).unwrap();
        if let Some(event) = events.iter().find(|event| event.token() == token) {
            assert_eq!(event.io_result().unwrap() as usize, size);
            return;
        }
        events.clear();
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn race(socket: &OwnedFd, sizes: &[usize]) {
    println!("bodies of which the processor's caches know nothing:");
    race_from(socket, sizes, |_| MEMORY_BYTES);
    println!("the same body each time:");
    race_from(socket, sizes, |size| size);
}

fn race_from(socket: &OwnedFd, sizes: &[usize], memory_bytes: fn(usize) -> usize) {
    let Ok(mut driver) = Driver::new(&Config::with_backend(BackendChoice::IoUring)) else {
        eprintln!("io_uring is refused here");
        return;
    };
    let fd = socket.as_raw_fd();
    println!("   bytes   send us   without a copy us   ratio   copied all the same");
    for &size in sizes {
        let mut source = Source::new(memory_bytes(size));
        let sends = (ROUND_BYTES / size).min(ROUND_SENDS);
        let (mut copying, mut zero_copy, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let before = driver.counters();
        for _ in 0..ROUNDS {
            let start = cpu_ns();
            for _ in 0..sends {
                send_copying(fd, &source.body(size));
            }
            let between = cpu_ns();
            for _ in 0..sends {
                send_zero_copy(&mut driver, fd, source.body(size));
            }
            while driver.counters().operations > 0 {
                driver.poll(None, &mut Vec::new()).unwrap();
            }
            let end = cpu_ns();
            let per_send = |from: u64, to: u64| (to - from) as f64 / sends as f64 / 1000.0;
            copying.push(per_send(start, between));
            zero_copy.push(per_send(between, end));
            ratios.push((end - between) as f64 / (between - start) as f64);
        }
        let after = driver.counters();
        let done = after.zero_copy_sends - before.zero_copy_sends;
        let copied = after.zero_copy_copies - before.zero_copy_copies;
        println!(
            "{size:8} {:9.2} {:19.2} {:7.2} {:20.0}%",
            median(copying),
            median(zero_copy),
            median(ratios),
            100.0 * copied as f64 / done as f64
        );
    }
}

fn sink(address: SocketAddr) {
    let listener = TcpListener::bind(address).unwrap();
    println!("{}", listener.local_addr().unwrap());
    for connection in listener.incoming() {
        thread::spawn(move || {
            let mut connection = connection.unwrap();
            let mut buffer = vec![0; 256 << 10];
            while connection.read(&mut buffer).is_ok_and(|count| count > 0) {}
        });
    }
}

struct Sink {
    process: Child,
    address: SocketAddr,
}

impl Sink {
    fn start() -> Sink {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["sink", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        Sink {
            address: line.trim().parse().unwrap(),
            process,
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

const STREAM_SIZES: &[usize] = &[4096, 16_384, 65_536, 262_144, 1 << 20, 4 << 20];
const DATAGRAM_SIZES: &[usize] = &[1024, 4096, 8192, 16_384, 32_768, 65_000];

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let address = || arguments[1].parse::<SocketAddr>().unwrap();
    match arguments.first().map(String::as_str) {
        Some("sink") => sink(address()),
        Some("tcp") => race(&TcpStream::connect(address()).unwrap().into(), STREAM_SIZES),
        Some("udp") => {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect(address()).unwrap();
            race(&socket.into(), DATAGRAM_SIZES);
        }
        _ => {
            let sink = Sink::start();
            let stream = TcpStream::connect(sink.address).unwrap();
            race(&stream.into(), STREAM_SIZES);
        }
    }
}
