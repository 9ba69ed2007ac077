//! New keys. Linux can renew the keys of a connection since 6.14; before that, an error says that it cannot.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;

use ringloop::time::timeout;
use ringloop::tls::rustls::crypto::ring;

use crate::certificates::{self, connect_blocking};
use crate::common::{LONG, ReadOnce, on_both, pattern, tcp};
use crate::{
    accept_from, can_renew_keys, client_of, frugal, is_on, read_to_end, server_of, shake, suites,
};

/// A client that shares nothing with the code under test but rustls, and renews its keys as often as it can.
#[test]
fn the_peer_may_renew_its_keys_where_the_kernel_can() {
    on_both(|runtime| {
        runtime.block_on(async {
            for suite in suites().filter(|suite| suite.tls13().is_some()) {
                let (mut stream, peer) = accept_from(server_of(suite), move |socket| {
                    let mut stream = connect_blocking(client_of(suite), socket)?;
                    for round in 0..20 {
                        stream.conn.refresh_traffic_keys().unwrap();
                        let message = pattern(round * 700 + 1);
                        stream.write_all(&message)?;
                        let mut answer = vec![0; message.len()];
                        stream.read_exact(&mut answer)?;
                        assert!(answer == message);
                    }
                    stream.conn.send_close_notify();
                    stream.flush()?;
                    assert_eq!(stream.read_once(&mut [0; 1])?, 0);
                    std::io::Result::Ok(())
                })
                .await;
                let fails = is_on(&stream) && !can_renew_keys();
                loop {
                    let (count, bytes) = timeout(LONG, stream.read(Vec::with_capacity(10_000)))
                        .await
                        .unwrap();
                    if fails {
                        let error = count.unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::InvalidData);
                        assert!(error.to_string().contains("Linux 6.14"), "{error}");
                        // It stays over, and the peer is told.
                        stream.write(&b"more"[..]).await.0.unwrap_err();
                        let told = peer.join().unwrap().unwrap_err();
                        assert!(told.to_string().contains("InternalError"), "{told}");
                        break;
                    }
                    if count.unwrap() == 0 {
                        stream.shutdown().await.unwrap();
                        peer.join().unwrap().unwrap();
                        break;
                    }
                    stream.write_all(&bytes[..]).await.0.unwrap();
                }
            }
        });
    });
}

/// Each key makes as many records as it may, and then a new one follows.
#[test]
fn a_key_makes_no_more_records_than_it_may() {
    let frugal = frugal();
    let ordinary = ring::ALL_CIPHER_SUITES.iter().copied();
    let ordinary = ordinary
        .into_iter()
        .find(|suite| suite.suite() == frugal.suite())
        .unwrap();
    on_both(|runtime| {
        runtime.block_on(async {
            let (client, server) = (client_of(ordinary), Arc::new(server_of(frugal)));
            let (mut near, mut far) = shake(tcp().await, client, server, (false, true)).await;
            let fails = is_on(&far) && !can_renew_keys();
            let receiving = ringloop::spawn(async move {
                let received = read_to_end(&mut near).await.unwrap();
                near.write_all(&b"all of it"[..]).await.0.unwrap();
                near.shutdown().await.unwrap();
                received
            });
            let mut sent = 0;
            let failed = loop {
                match far.write_all(&pattern(100)[..]).await.0 {
                    Ok(()) if sent == 20_000 => break None,
                    Ok(()) => sent += 100,
                    Err(error) => break Some(error),
                }
            };
            if fails {
                let failed = failed.unwrap();
                assert!(failed.to_string().contains("Linux 6.14"), "{failed}");
                assert!((3000..=5000).contains(&sent), "{sent}");
                let error = far.write(&b"more"[..]).await.0.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::BrokenPipe);
            } else {
                assert!(failed.is_none(), "{failed:?}");
                timeout(LONG, far.shutdown()).await.unwrap().unwrap();
                sent += 100;
            }
            // In either case the end is told, and the other direction goes on.
            let answer = timeout(LONG, read_to_end(&mut far)).await.unwrap();
            assert_eq!(answer.unwrap(), b"all of it");
            assert_eq!(receiving.await.unwrap().len(), sent);
        });
    });
    drop(certificates::certificate());
}
