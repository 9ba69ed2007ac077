//! Settings: valid ones work on both backends, and invalid ones are refused with a message.

mod common;

use std::io;
use std::time::Duration;

use common::config;
use ringloop::driver::{BackendChoice, Driver, SLOTS_MAX, Script};
use ringloop::net::{TcpListener, TcpStream};
use ringloop::{BusyPoll, Pool, PoolConfig, Reactor, Runtime, RuntimeConfig, spawn};

const BACKENDS: [BackendChoice; 2] = [BackendChoice::IoUring, BackendChoice::Epoll];

/// Many connections at once, each with a message in both directions.
async fn converse() -> io::Result<()> {
    let listener = TcpListener::bind("localhost:0").await?;
    let address = listener.local_addr()?;
    let mut echoes = Vec::new();
    let mut clients = Vec::new();
    for _ in 0..100 {
        clients.push(TcpStream::connect(address).await?);
        let (mut stream, _) = listener.accept().await?;
        echoes.push(spawn(async move {
            let (count, buffer) = stream.read(Vec::with_capacity(4096)).await;
            count?;
            stream.write_all(&buffer[..]).await.0
        }));
    }
    for (index, client) in clients.iter_mut().enumerate() {
        client.write_all(&[index as u8; 1000][..]).await.0?;
    }
    for (index, client) in clients.iter_mut().enumerate() {
        let mut received = 0;
        while received < 1000 {
            let length = client
                .read_with(|bytes, _| {
                    assert!(bytes.iter().all(|byte| *byte == index as u8));
                    bytes.len()
                })
                .await?;
            assert!(length > 0, "the echo ends early");
            received += length;
        }
    }
    for echo in echoes {
        echo.await??;
    }
    Ok(())
}

#[test]
fn small_queues_buffers_and_slots_serve_many_connections() {
    let settings: [fn(&mut RuntimeConfig); 6] = [
        |config| config.reactor.driver.entries = 1,
        |config| {
            config.reactor.driver.entries = 2;
            config.reactor.driver.completion_entries = Some(2);
        },
        |config| config.reactor.driver.entries = 32_768,
        |config| config.reactor.driver.slots = 10,
        |config| config.hot_buffer_bytes = 1,
        |config| config.reactor.busy_poll = BusyPoll::Off,
    ];
    for backend in BACKENDS {
        for set in settings {
            let mut config = config(backend);
            set(&mut config);
            match Runtime::new(&config) {
                Ok(mut runtime) => runtime.block_on(converse()).unwrap(),
                Err(error) if backend == BackendChoice::IoUring => eprintln!("left out: {error}"),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn what_cannot_be_is_refused_with_its_limits() {
    type Mistake = fn(&mut RuntimeConfig);
    let mistakes: [(Mistake, &str); 8] = [
        (
            |config| config.hot_buffer_bytes = 0,
            "hot_buffer_bytes is 0; use a size from 1",
        ),
        (
            |config| config.hot_buffer_bytes = usize::MAX,
            "to 1073741824",
        ),
        (
            |config| config.reactor.driver.entries = 0,
            "entries is 0: a submission queue has 1 to 32768",
        ),
        (
            |config| config.reactor.driver.completion_entries = Some(1),
            "completion_entries is 1",
        ),
        (
            |config| config.reactor.driver.slots = SLOTS_MAX + 1,
            "can be set aside",
        ),
        (
            |config| config.blocking_threads = 0,
            "blocking_threads is 0; use 1 to 4096 threads",
        ),
        (
            |config| config.blocking_threads = 4097,
            "blocking_threads is 4097",
        ),
        (
            |config| config.resolver_threads = 0,
            "resolver_threads is 0",
        ),
    ];
    for backend in BACKENDS {
        for (set, text) in mistakes {
            let mut pool = PoolConfig::default();
            pool.runtime = config(backend);
            set(&mut pool.runtime);
            let errors = [
                Runtime::new(&pool.runtime).map(drop).unwrap_err(),
                Pool::new(1, &pool).map(drop).unwrap_err(),
            ];
            for error in errors {
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
                assert!(error.to_string().contains(text), "{error}");
            }
        }
    }
}

#[test]
fn workers_with_cpus_of_their_own_work_too() {
    for backend in BACKENDS {
        let mut settings = PoolConfig::default();
        settings.runtime = config(backend);
        settings.pin = true;
        let pool = match Pool::new(3, &settings) {
            Ok(pool) => pool,
            Err(error) if backend == BackendChoice::IoUring => {
                eprintln!("left out: {error}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let mut runtime = Runtime::new(&config(BackendChoice::Epoll)).unwrap();
        for handle in pool.spawn_on_each(|_| converse()) {
            runtime.block_on(handle).unwrap().unwrap();
        }
        pool.shutdown(Duration::from_secs(5));
    }
}

#[test]
fn a_runtime_on_a_given_reactor_checks_its_own_sizes() {
    for set in [
        |config: &mut RuntimeConfig| config.reactor.driver.slots = SLOTS_MAX + 1,
        |config: &mut RuntimeConfig| config.reactor.driver.slots = usize::MAX,
        |config: &mut RuntimeConfig| config.hot_buffer_bytes = 0,
        |config: &mut RuntimeConfig| config.hot_buffer_bytes = usize::MAX,
    ] {
        let mut config = RuntimeConfig::default();
        set(&mut config);
        let reactor = Reactor::with_driver(Driver::scripted(Script::new()).unwrap());
        let error = Runtime::with_reactor(&config, reactor).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
