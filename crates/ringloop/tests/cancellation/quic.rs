//! QUIC: a client that is dropped at any point leaves nothing behind, and its endpoint still works.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use quinn::TransportConfig;
use ringloop::quinn::RingloopRuntime;
use ringloop::spawn;

use crate::common::pattern;
use crate::cut::at_every_poll;
use crate::quic_endpoints::{Identity, connect, echo, serve_echo};

static IDENTITY: LazyLock<Identity> = LazyLock::new(|| {
    let mut identity = Identity::new();
    let mut transport = TransportConfig::default();
    // A connection that is given up is remembered for a multiple of this; by the server, if its handshake had just begun,
    // until it is idle for too long.
    transport.initial_rtt(Duration::from_micros(200));
    let idle = Duration::from_secs(2);
    transport.max_idle_timeout(Some(idle.try_into().unwrap()));
    identity.transport = Arc::new(transport);
    identity
});

#[test]
fn connecting_and_echoing_over_quic() {
    at_every_poll(async |cut| {
        let runtime = RingloopRuntime::current();
        let server = IDENTITY.endpoint(&runtime).unwrap();
        let address = server.local_addr().unwrap();
        let serving = spawn(serve_echo(server.clone()));
        let client = IDENTITY.endpoint(&runtime).unwrap();
        cut.run_keeping_wakers(async {
            let connection = connect(&client, address).await;
            echo(&connection, &pattern(5000)).await;
        })
        .await;
        let connection = connect(&client, address).await;
        echo(&connection, &pattern(1000)).await;
        connection.close(0_u32.into(), b"");
        server.close(0_u32.into(), b"");
        serving.await.unwrap();
    });
}
