//! `echo` and `tls_echo`.

use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::common::pattern;
use crate::program::{Folder, Program, echoes, rest, with_each};

#[test]
fn echo_sends_each_byte_back() {
    with_each("echo", &["--drain-timeout", "0"], |program| {
        let streams: Vec<_> = (0..8).map(|_| program.connect()).collect();
        for (index, stream) in streams.iter().enumerate() {
            echoes(stream, &pattern(1 << (2 * index)));
        }
        let mut one = program.connect();
        one.write_all(&pattern(100_000)).unwrap();
        one.shutdown(Shutdown::Write).unwrap();
        assert!(rest(&mut one) == pattern(100_000));
    });
}

#[test]
fn connections_that_do_not_end_are_waited_for_and_then_closed() {
    let program = Program::start("echo", &["--workers", "2", "--drain-timeout", "1"]);
    let mut stream = program.connect();
    echoes(&stream, b"hello");
    let said = program.end(libc::SIGINT);
    assert_eq!(said, "SIGINT: waiting up to 1 s for 1 connections\nended\n");
    assert_eq!(rest(&mut stream), b"");
}

#[test]
fn tls_echo_sends_each_byte_back_to_who_trusts_it() {
    let made = rcgen::generate_simple_self_signed(["ringloop.test".to_owned()]).unwrap();
    let folder = Folder::new();
    let (certificate, key) = (folder.0.join("certificate.pem"), folder.0.join("key.pem"));
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = Arc::new(config);
    let arguments = [
        "--certificate",
        certificate.to_str().unwrap(),
        "--key",
        key.to_str().unwrap(),
    ];
    with_each("tls_echo", &arguments, |program| {
        let name = "ringloop.test".try_into().unwrap();
        let connection = ClientConnection::new(Arc::clone(&config), name).unwrap();
        let mut stream = StreamOwned::new(connection, program.connect());
        let bytes = pattern(100_000);
        for piece in bytes.chunks(30_000) {
            stream.write_all(piece).unwrap();
            let mut answer = vec![0; piece.len()];
            stream.read_exact(&mut answer).unwrap();
            assert!(answer == piece);
        }
    });
    // Without a certificate it makes one that nobody trusts.
    with_each("tls_echo", &[], |program| {
        let name = "localhost".try_into().unwrap();
        let connection = ClientConnection::new(Arc::clone(&config), name).unwrap();
        let mut stream = StreamOwned::new(connection, program.connect());
        let error = stream.write_all(b"hello").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    });
}
