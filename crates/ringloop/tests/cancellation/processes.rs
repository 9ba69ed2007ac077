//! Children, and the pipes to them.

use std::cell::RefCell;

use ringloop::process::{Command, Stdio};
use ringloop::spawn;

use crate::cut::at_every_poll;
use crate::memory::buffer;
use crate::sockets::a_turn;

#[test]
fn the_output_of_a_child() {
    at_every_poll(async |cut| {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; exit 3"]);
        if let Some(output) = cut.run(command.kill_on_drop(true).output()).await {
            let output = output.unwrap();
            assert_eq!(output.status.code(), Some(3));
            assert_eq!(
                (&output.stdout[..], &output.stderr[..]),
                (&b"one\n"[..], &b"two\n"[..])
            );
        }
    });
}

#[test]
fn the_status_of_a_child_that_is_not_killed() {
    at_every_poll(async |cut| {
        cut.run(Command::new("true").status()).await;
        let mut child = Command::new("false").spawn().unwrap();
        cut.run(child.wait()).await;
        assert_eq!(child.wait().await.unwrap().code(), Some(1));
    });
}

#[test]
fn reading_from_a_child_and_writing_to_it_lose_nothing() {
    at_every_poll(async |cut| {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let writing = spawn(async move {
            for byte in 0..4_u8 {
                a_turn().await;
                input.write_all(&[byte][..]).await.0.unwrap();
            }
        });
        let received = RefCell::new(Vec::new());
        let mut reading = async || {
            loop {
                let (count, bytes) = output.read(buffer()).await;
                if count.unwrap() == 0 {
                    return;
                }
                received.borrow_mut().extend_from_slice(&bytes);
            }
        };
        cut.run(reading()).await;
        reading().await;
        writing.await.unwrap();
        assert_eq!(received.into_inner(), [0, 1, 2, 3]);
        cut.run(child.wait()).await;
        assert!(child.wait().await.unwrap().success());
    });
}

#[test]
fn writing_more_than_a_pipe_holds() {
    at_every_poll(async |cut| {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let reading = spawn(async move { output.read_to_end(Vec::new()).await });
        let bytes = vec![7; 300_000];
        let mut bytes = &bytes[..];
        cut.run(input.write_all(&mut bytes)).await;
        let sent = 300_000 - bytes.len();
        drop(input);
        let (count, _) = reading.await.unwrap();
        assert_eq!(count.unwrap(), sent);
        child.wait().await.unwrap();
    });
}
