//! The cost of TLS per MB over loopback, by the kernel and by rustls: `tools/kernels.py measure`. It runs a virtual machine in which each
//! instruction takes a nanosecond, so that a thread's CPU time is its number of instructions, the kernel's included.

use std::io::{Read, Write};
use std::sync::Arc;

use ringloop::fs::File;
use ringloop::io::send_file;
use ringloop::net::TcpListener;
use ringloop::tls::rustls::SupportedCipherSuite;
use ringloop::tls::{TlsAcceptor, TlsStream};
use ringloop::{Runtime, yield_now};

use crate::certificates::connect_blocking;
use crate::common::{self, on_both};
use crate::{client_of, server_of, suites};

const BYTES: usize = 4 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Sends pieces of this number of bytes.
    Send(usize),
    /// Receives all, in place.
    Receive,
    /// Sends a file: by sendfile(2) where the kernel encrypts, and otherwise by reads of 128 KB and writes of 64 KB.
    SendFile,
}

fn thread_ns() -> u64 {
    // SAFETY: `now` is valid for writes, and outlives the call.
    unsafe {
        let mut now: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

/// How many reads this thread has made that were no sendfile(2), which counts as a read and as a write.
fn reads_here() -> u64 {
    let counts = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let count = |name| {
        let line = counts.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().parse::<u64>().unwrap()
    };
    count("syscr: ") - count("syscw: ")
}

async fn work(stream: &mut TlsStream, work: Work, file: &File) -> u64 {
    let mut own_calls = 0;
    match work {
        Work::Send(size) => {
            let piece = vec![7; size];
            for _ in 0..BYTES / size {
                stream.write_all(&piece[..]).await.0.unwrap();
            }
        }
        Work::Receive => {
            let mut received = 0;
            while received < BYTES {
                received += stream.read_with(|bytes, _| bytes.len()).await.unwrap();
            }
        }
        Work::SendFile => {
            let before = reads_here();
            let sent = send_file(file, 0, BYTES as u64, stream).await.unwrap();
            assert_eq!(sent, BYTES as u64);
            // Those that ask what is in memory. The runtime counts its writes, and sendfile(2) among them.
            own_calls = reads_here() - before;
        }
    }
    own_calls
}

/// Returns the system calls and the nanoseconds of CPU time per MB.
fn measure(
    runtime: &mut Runtime,
    suite: SupportedCipherSuite,
    kind: Work,
    in_kernel: bool,
) -> (f64, f64) {
    let path = std::env::temp_dir().join(format!("ringloop-measuring-{}", std::process::id()));
    std::fs::write(&path, vec![7; BYTES]).unwrap();
    let file = File::from(std::fs::File::open(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    let (mut stream, peer) = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = Arc::new(client_of(suite));
        let peer = std::thread::spawn(move || {
            let socket = common::connect(address);
            let mut client = connect_blocking((*client).clone(), socket).unwrap();
            let mut buffer = vec![7; 256 << 10];
            if kind == Work::Receive {
                for _ in 0..BYTES / buffer.len() {
                    client.write_all(&buffer).unwrap();
                }
                client.flush().unwrap();
            }
            // Without decrypting.
            while let Ok(1..) = client.sock.read(&mut buffer) {}
        });
        let (stream, _) = listener.accept().await.unwrap();
        let acceptor = TlsAcceptor::new(server_of(suite)).kernel(in_kernel);
        (acceptor.accept(stream).await.unwrap(), peer)
    });
    assert_eq!(in_kernel, stream.kernel().is_on(), "{}", stream.kernel());
    let (calls, begin) = (runtime.metrics().system_calls, thread_ns());
    let own = runtime.block_on(work(&mut stream, kind, &file));
    let ns = thread_ns() - begin;
    let calls = runtime.metrics().system_calls - calls + own;
    drop(stream);
    runtime.block_on(yield_now());
    peer.join().unwrap();
    let megabytes = (BYTES >> 20) as f64;
    (calls as f64 / megabytes, ns as f64 / megabytes)
}

#[test]
#[ignore = "a measurement"]
fn measuring() {
    println!(
        "| backend | cipher | what | calls: rustls, kernel | ratio | million ns: rustls, kernel | ratio |"
    );
    on_both(|runtime| {
        for suite in suites().filter(|suite| suite.tls13().is_some()) {
            for kind in [
                Work::Send(16 << 10),
                Work::Send(1 << 20),
                Work::Receive,
                Work::SendFile,
            ] {
                let rustls = measure(runtime, suite, kind, false);
                let kernel = measure(runtime, suite, kind, true);
                println!(
                    "| {} | {:?} | {kind:?} | {:.1}, {:.1} | {:.2} | {:.2}, {:.2} | {:.2} |",
                    runtime.backend(),
                    suite.suite(),
                    rustls.0,
                    kernel.0,
                    kernel.0 / rustls.0,
                    rustls.1 / 1e6,
                    kernel.1 / 1e6,
                    kernel.1 / rustls.1,
                );
            }
        }
    });
}
