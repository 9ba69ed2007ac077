//! Finds out what the kernel grants: `tools/kernels.py` runs this on several kernels, and makes a table of docs/backends.md from it.

use std::io::Write;

use ringloop::Runtime;
use ringloop::tls::KernelTls;
use ringloop::tls::rustls::SupportedCipherSuite;

use crate::certificates::connect_blocking;
use crate::common::{backends, config};
use crate::{accept_from, client_of, server_of, suites};

/// Whether the kernel takes a connection over, and a new key of the peer's.
async fn ask(suite: SupportedCipherSuite) -> (KernelTls, bool) {
    let is_tls13 = suite.tls13().is_some();
    let (mut stream, peer) = accept_from(server_of(suite), move |socket| {
        let mut client = connect_blocking(client_of(suite), socket).unwrap();
        if is_tls13 {
            client.conn.refresh_traffic_keys().unwrap();
        }
        client.write_all(b"x").unwrap();
        client
    })
    .await;
    let state = stream.kernel();
    let is_read = stream.read(Vec::with_capacity(1)).await.0.is_ok();
    drop(peer.join().unwrap());
    (state, is_tls13 && is_read)
}

#[test]
#[ignore = "output for the documentation"]
fn what_is_granted() {
    // The harness has begun a line.
    println!();
    let backend = backends().next().unwrap();
    let mut renews = true;
    let mut is_on = false;
    for suite in suites() {
        let mut runtime = Runtime::new(&config(backend)).unwrap();
        let (state, renews_key) = runtime.block_on(ask(suite));
        let answer = match &state {
            KernelTls::On => "yes",
            KernelTls::Refused(_) => "no",
            other => panic!("{other}"),
        };
        println!("{state}\ngrants\tkernel TLS\t{:?}\t{answer}", suite.suite());
        if state.is_on() && suite.tls13().is_some() {
            renews &= renews_key;
            is_on = true;
        }
    }
    let answer = if is_on && renews { "yes" } else { "no" };
    println!("grants\tkernel TLS\tnew keys (`KeyUpdate`)\t{answer}");
}
