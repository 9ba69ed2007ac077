//! Echo, a fixed HTTP answer and discarding on tokio: its current-thread runtime with one worker, else its multi-threaded one.

use std::io;
use std::time::Instant;

use target_support::{ANYWHERE, Arguments, Binding, Command, Mode, Requests, Serving};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, Runtime};

fn main() -> io::Result<()> {
    match <Arguments as clap::Parser>::parse().command {
        Command::Echo(serving) => serve(serving, echo),
        Command::Http(serving) => serve(serving, http),
        Command::Discard(serving) => serve(serving, discard),
        Command::Bind(binding) => time_binding(binding),
    }
}

fn runtime(workers: u16) -> io::Result<Runtime> {
    if workers == 1 {
        Builder::new_current_thread().enable_io().build()
    } else {
        Builder::new_multi_thread()
            .worker_threads(usize::from(workers))
            .enable_io()
            .build()
    }
}

fn serve<F>(serving: Serving, converse: fn(TcpStream, usize) -> F) -> io::Result<()>
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let listener = target_support::listen_once(serving)?;
    target_support::announce(&listener)?;
    runtime(serving.workers)?.block_on(async {
        // In a task, because what block_on runs itself is no worker's.
        let accepting = tokio::spawn(async move {
            let listener = TcpListener::from_std(listener)?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                // A connection that fails is over, and nobody else's business.
                tokio::spawn(converse(stream, serving.buffer as usize));
            }
        });
        accepting.await?
    })
}

async fn echo(mut stream: TcpStream, buffer_bytes: usize) -> io::Result<()> {
    let mut buffer = vec![0; buffer_bytes];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..count]).await?;
    }
}

async fn http(mut stream: TcpStream, buffer_bytes: usize) -> io::Result<()> {
    let mut buffer = vec![0; buffer_bytes];
    let mut requests = Requests::default();
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        stream
            .write_all(&requests.answers(&buffer[..count]))
            .await?;
    }
}

async fn discard(mut stream: TcpStream, buffer_bytes: usize) -> io::Result<()> {
    let mut buffer = vec![0; buffer_bytes];
    let mut received = 0;
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return stream.write_all(&target_support::count(received)).await;
        }
        received += count as u64;
    }
}

fn time_binding(binding: Binding) -> io::Result<()> {
    let each = binding.count.div_ceil(binding.concurrent);
    runtime(1)?.block_on(async {
        let begin = Instant::now();
        let tasks: Vec<_> = (0..binding.concurrent)
            .map(|_| tokio::spawn(bind(binding.mode, each)))
            .collect();
        for task in tasks {
            task.await??;
        }
        target_support::report(each * binding.concurrent, begin.elapsed());
        Ok(())
    })
}

async fn bind(mode: Mode, count: u64) -> io::Result<()> {
    for _ in 0..count {
        match mode {
            Mode::Bind => TcpSocket::new_v4()?.bind(ANYWHERE)?,
            Mode::Listen => drop(TcpListener::bind(ANYWHERE).await?),
            Mode::Accept => {
                let listener = TcpListener::bind(ANYWHERE).await?;
                let client = TcpStream::connect(listener.local_addr()?).await?;
                let (server, _) = listener.accept().await?;
                target_support::reset_at_close(&client)?;
                drop((client, server));
            }
        }
    }
    Ok(())
}
