//! An echo server: one task per connection, which reads in place and writes back.

use std::io;

use clap::Parser;
use ringloop::driver::BackendChoice;
use ringloop::net::{TcpListener, TcpListenerOptions, TcpStream};
use ringloop::{Runtime, RuntimeConfig, spawn};

/// Sends back what it receives.
#[derive(Parser)]
struct Arguments {
    /// The port to listen on; 0 lets the kernel choose.
    #[arg(long, default_value_t = 7000)]
    port: u16,
    /// io_uring, epoll or auto.
    #[arg(long, default_value = "auto")]
    backend: BackendChoice,
}

fn main() -> io::Result<()> {
    let arguments = Arguments::parse();
    let mut config = RuntimeConfig::from_env()?;
    config.reactor.driver.backend = arguments.backend;
    let mut runtime = Runtime::new(&config)?;
    eprintln!(
        "backend: {}, {}",
        runtime.backend(),
        runtime.backend_reason()
    );
    runtime.block_on(async {
        let options = TcpListenerOptions::default();
        let listener = TcpListener::bind_with(("127.0.0.1", arguments.port), &options).await?;
        println!("{{\"port\": {}}}", listener.local_addr()?.port());
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            drop(spawn(echo(stream)));
        }
    })
}

/// Answers from the thread's own buffer; only what the socket does not take at once is copied.
async fn echo(mut stream: TcpStream) -> io::Result<()> {
    loop {
        let answered = stream.read_with(|bytes, stream| {
            let count = match stream.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                result => result?,
            };
            Ok::<_, io::Error>((bytes.is_empty(), bytes[count..].to_vec()))
        });
        let (is_over, rest) = answered.await??;
        if is_over {
            return Ok(());
        }
        stream.write_all(&rest[..]).await.0?;
    }
}
