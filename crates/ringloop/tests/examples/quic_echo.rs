//! `quic_echo`.

use std::fs;
use std::future::Future;
use std::sync::Arc;

use quinn::rustls::RootCertStore;
use quinn::{ClientConfig, ConnectionError, Endpoint, EndpointConfig};
use ringloop::quinn::RingloopRuntime;
use ringloop::time::timeout;
use ringloop::{Runtime, RuntimeConfig};

use crate::common::{LONG, pattern};
use crate::program::{Folder, Program, with_each};

/// Runs a body with a client that trusts this certificate.
fn with_client<F: Future>(made: &rcgen::Certificate, body: impl FnOnce(Endpoint) -> F) {
    let mut roots = RootCertStore::empty();
    roots.add(made.der().clone()).unwrap();
    let config = ClientConfig::with_root_certificates(Arc::new(roots)).unwrap();
    let mut runtime = Runtime::new(&RuntimeConfig::default()).unwrap();
    runtime.block_on(async {
        let mut client = Endpoint::new(
            EndpointConfig::default(),
            None,
            std::net::UdpSocket::bind("127.0.0.1:0").unwrap(),
            Arc::new(RingloopRuntime::current()),
        )
        .unwrap();
        client.set_default_client_config(config);
        timeout(LONG, body(client.clone())).await.unwrap();
        timeout(LONG, client.wait_idle()).await.unwrap();
    });
}

#[test]
fn quic_echo_sends_each_byte_back_to_who_trusts_it() {
    let made = rcgen::generate_simple_self_signed(["ringloop.test".to_owned()]).unwrap();
    let folder = Folder::new();
    let (certificate, key) = (folder.0.join("certificate.pem"), folder.0.join("key.pem"));
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let arguments = [
        "--certificate",
        certificate.to_str().unwrap(),
        "--key",
        key.to_str().unwrap(),
    ];
    with_each("quic_echo", &arguments, |program| {
        with_client(&made.cert, |client| async move {
            for _ in 0..4 {
                let connecting = client.connect(program.address, "ringloop.test");
                let connection = connecting.unwrap().await.unwrap();
                for size in [1, 5000, 500_000] {
                    let bytes = pattern(size);
                    let (mut sender, mut receiver) = connection.open_bi().await.unwrap();
                    let sending = async {
                        sender.write_all(&bytes).await.unwrap();
                        sender.finish().unwrap();
                    };
                    let receiving = receiver.read_to_end(size);
                    let ((), answer) = futures_util::future::join(sending, receiving).await;
                    assert!(answer.unwrap() == bytes);
                }
                connection.close(0_u32.into(), b"done");
            }
        });
    });
    // Without a certificate it makes one that nobody trusts.
    with_each("quic_echo", &[], |program| {
        with_client(&made.cert, |client| async move {
            let connecting = client.connect(program.address, "localhost").unwrap();
            let error = connecting.await.unwrap_err();
            assert!(
                matches!(error, ConnectionError::TransportError(_)),
                "{error}"
            );
        });
    });
}

#[test]
fn connections_over_quic_that_do_not_end_are_waited_for_and_then_closed() {
    let made = rcgen::generate_simple_self_signed(["ringloop.test".to_owned()]).unwrap();
    let folder = Folder::new();
    let (certificate, key) = (folder.0.join("certificate.pem"), folder.0.join("key.pem"));
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let program = Program::start(
        "quic_echo",
        &[
            "--drain-timeout",
            "1",
            "--certificate",
            certificate.to_str().unwrap(),
            "--key",
            key.to_str().unwrap(),
        ],
    );
    with_client(&made.cert, |client| async move {
        let connecting = client.connect(program.address, "ringloop.test").unwrap();
        let connection = connecting.await.unwrap();
        let said = ringloop::blocking::run(move || program.end(libc::SIGTERM));
        let said = said.await.unwrap();
        assert_eq!(
            said,
            "SIGTERM: waiting up to 1 s for 1 connections\nended\n"
        );
        let end = connection.closed().await;
        assert!(
            matches!(end, ConnectionError::ApplicationClosed(_)),
            "{end}"
        );
    });
}
