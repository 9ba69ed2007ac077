//! Echo, a fixed HTTP answer and discarding on monoio, with `io_uring`: a thread with a listener of its own per worker.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Instant;

use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::{TcpListener, TcpStream};
use monoio::{IoUringDriver, RuntimeBuilder};
use target_support::{ANYWHERE, Arguments, Binding, Command, Mode, Requests, Serving};

fn main() -> io::Result<()> {
    match <Arguments as clap::Parser>::parse().command {
        Command::Echo(serving) => serve(serving, echo),
        Command::Http(serving) => serve(serving, http),
        Command::Discard(serving) => serve(serving, discard),
        Command::Bind(binding) => time_binding(binding),
    }
}

fn serve<F>(serving: Serving, converse: fn(TcpStream, usize) -> F) -> io::Result<()>
where
    F: Future<Output = io::Result<()>> + 'static,
{
    target_support::serve_on_threads(serving, move |listener, buffer_bytes| {
        RuntimeBuilder::<IoUringDriver>::new()
            .build()?
            .block_on(async {
                let listener = TcpListener::from_std(listener)?;
                loop {
                    let (stream, _) = listener.accept().await?;
                    stream.set_nodelay(true)?;
                    // A connection that fails is over, and nobody else's business.
                    monoio::spawn(converse(stream, buffer_bytes));
                }
            })
    })
}

async fn echo(mut stream: TcpStream, buffer_bytes: usize) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(buffer_bytes);
    loop {
        let (count, received) = stream.read(buffer).await;
        if count? == 0 {
            return Ok(());
        }
        // Writes as much as the vector holds; what is received next takes its place.
        let (sent, returned) = stream.write_all(received).await;
        sent?;
        buffer = returned;
        buffer.clear();
    }
}

async fn http(mut stream: TcpStream, buffer_bytes: usize) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(buffer_bytes);
    let mut requests = Requests::default();
    loop {
        let (count, received) = stream.read(buffer).await;
        if count? == 0 {
            return Ok(());
        }
        match requests.answers(&received) {
            std::borrow::Cow::Borrowed(answer) => stream.write_all(answer).await.0?,
            std::borrow::Cow::Owned(answers) => stream.write_all(answers).await.0?,
        };
        buffer = received;
        buffer.clear();
    }
}

async fn discard(mut stream: TcpStream, buffer_bytes: usize) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(buffer_bytes);
    let mut received = 0;
    loop {
        let (count, returned) = stream.read(buffer).await;
        let count = count?;
        if count == 0 {
            return stream
                .write_all(target_support::count(received))
                .await
                .0
                .map(drop);
        }
        received += count as u64;
        buffer = returned;
        buffer.clear();
    }
}

fn time_binding(binding: Binding) -> io::Result<()> {
    if binding.mode == Mode::Bind {
        eprintln!("monoio: its listener binds and listens in one: use --mode listen or accept");
        std::process::exit(2);
    }
    let each = binding.count.div_ceil(binding.concurrent);
    RuntimeBuilder::<IoUringDriver>::new()
        .build()?
        .block_on(async {
            let begin = Instant::now();
            let tasks: Vec<_> = (0..binding.concurrent)
                .map(|_| monoio::spawn(bind(binding.mode, each)))
                .collect();
            for task in tasks {
                task.await?;
            }
            target_support::report(each * binding.concurrent, begin.elapsed());
            Ok(())
        })
}

async fn bind(mode: Mode, count: u64) -> io::Result<()> {
    for _ in 0..count {
        let listener = TcpListener::bind(ANYWHERE)?;
        if mode == Mode::Accept {
            let client = TcpStream::connect(listener.local_addr()?).await?;
            let (server, _) = listener.accept().await?;
            // SAFETY: `client` keeps its descriptor open for as long as this is borrowed.
            let descriptor = unsafe { BorrowedFd::borrow_raw(client.as_raw_fd()) };
            target_support::reset_at_close(&descriptor)?;
            drop((client, server));
        }
    }
    Ok(())
}
