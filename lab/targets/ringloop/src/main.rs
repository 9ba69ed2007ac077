//! Echo and a fixed HTTP answer on ringloop's socket pool, and discarding on its streams: the pool's handlers don't hear of the end of a
//! stream. `RINGLOOP_BACKEND` chooses the backend.

use std::io;
use std::thread;
use std::time::Instant;

use ringloop::net::{TcpListener, TcpStream};
use ringloop::server::{Connection, Handler, Running, Server};
use ringloop::{PoolConfig, Runtime, RuntimeConfig, spawn};
use target_support::{ANYWHERE, Arguments, Binding, Command, Mode, Requests, Serving};

struct Echo;

impl Handler for Echo {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        connection.write(bytes)
    }
}

#[derive(Default)]
struct Hello(Requests);

impl Handler for Hello {
    fn data(&mut self, connection: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
        connection.write(&self.0.answers(bytes))
    }
}

fn main() -> io::Result<()> {
    match <Arguments as clap::Parser>::parse().command {
        Command::Echo(serving) => serve(&server(serving)?.start(|| Echo)?),
        Command::Http(serving) => serve(&server(serving)?.start(Hello::default)?),
        Command::Discard(serving) => target_support::serve_on_threads(serving, discard_all),
        Command::Bind(binding) => time_binding(binding),
    }
}

fn server(serving: Serving) -> io::Result<Server> {
    let mut config = PoolConfig::default();
    config.runtime = RuntimeConfig::from_env()?;
    config.runtime.hot_buffer_bytes = serving.buffer as usize;
    let server = Server::new(format!("{}:{}", serving.host, serving.port)).pool_config(config);
    // No other target closes idle connections.
    Ok(server
        .idle_timeout(None)
        .workers(usize::from(serving.workers)))
}

fn serve(server: &Running) -> io::Result<()> {
    target_support::announce_at(server.local_addr())?;
    loop {
        // The signal ends the process.
        thread::park();
    }
}

fn discard_all(listener: std::net::TcpListener, buffer_bytes: usize) -> io::Result<()> {
    let mut config = RuntimeConfig::from_env()?;
    config.hot_buffer_bytes = buffer_bytes;
    Runtime::new(&config)?.block_on(async {
        let listener = TcpListener::try_from(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            // A connection that fails is over, and nobody else's business.
            drop(spawn(discard(stream)));
        }
    })
}

async fn discard(mut stream: TcpStream) -> io::Result<()> {
    let mut received = 0;
    loop {
        let count = stream.read_with(|bytes, _| bytes.len()).await?;
        if count == 0 {
            let answer = target_support::count(received);
            return stream.write_all(&answer[..]).await.0;
        }
        received += count as u64;
    }
}

fn time_binding(binding: Binding) -> io::Result<()> {
    if binding.mode == Mode::Bind {
        eprintln!("ringloop: its listener binds and listens in one: use --mode listen or accept");
        std::process::exit(2);
    }
    let each = binding.count.div_ceil(binding.concurrent);
    Runtime::new(&RuntimeConfig::from_env()?)?.block_on(async {
        let begin = Instant::now();
        let tasks: Vec<_> = (0..binding.concurrent)
            .map(|_| spawn(bind(binding.mode, each)))
            .collect();
        for task in tasks {
            task.await.expect("nobody aborts it")?;
        }
        target_support::report(each * binding.concurrent, begin.elapsed());
        Ok(())
    })
}

async fn bind(mode: Mode, count: u64) -> io::Result<()> {
    for _ in 0..count {
        let listener = TcpListener::bind(ANYWHERE).await?;
        if mode == Mode::Accept {
            let client = TcpStream::connect(listener.local_addr()?).await?;
            let (server, _) = listener.accept().await?;
            target_support::reset_at_close(&client)?;
            drop((client, server));
        }
    }
    Ok(())
}
