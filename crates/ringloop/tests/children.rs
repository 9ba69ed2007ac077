//! Child processes.

mod common;

use std::future::Future;
use std::io::{ErrorKind, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ringloop::driver::affinity;
use ringloop::process::{Child, Command, Stdio};
use ringloop::signal::SignalKind;
use ringloop::time::{sleep, timeout};
use ringloop::{Pool, Runtime, spawn};

use common::{LONG, backends, config_on, in_child, on_both, pattern, poll_times, pool_config};

/// Children and limits belong to the whole process, so one test runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a body on both backends, and checks that no child is left, dead or alive.
fn without_children(body: impl Fn(&mut Runtime)) {
    let _alone = alone();
    on_both(|runtime| {
        body(runtime);
        until(|| children().is_empty());
    });
}

fn on_runtime<F: Future<Output = ()>>(body: impl Fn() -> F) {
    without_children(|runtime| {
        runtime.block_on(async { timeout(LONG, body()).await.unwrap() });
    });
}

/// The children of this process, with those that have ended.
fn children() -> Vec<String> {
    let mut all = Vec::new();
    for thread in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let children: PathBuf = thread.path().join("children");
        // The thread may have ended.
        let children = std::fs::read_to_string(children).unwrap_or_default();
        all.extend(children.split_whitespace().map(str::to_owned));
    }
    all
}

fn until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "{:?}", children());
        thread::sleep(Duration::from_millis(1));
    }
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// A child that runs until it is killed.
fn endless() -> Command {
    let mut command = Command::new("sleep");
    command.arg("1000");
    command
}

fn id(child: &Child) -> i32 {
    child.id().unwrap().cast_signed()
}

/// Whether a process exists, maybe as a zombie.
fn exists(id: i32) -> bool {
    // SAFETY: sends no signal.
    unsafe { libc::kill(id, 0) == 0 }
}

#[test]
fn a_status_is_what_the_child_says() {
    on_runtime(|| async {
        for code in [0, 1, 7, 255] {
            let status = shell(&format!("exit {code}")).status().await.unwrap();
            assert_eq!((status.code(), status.success()), (Some(code), code == 0));
        }
        for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGABRT] {
            let status = shell(&format!("ulimit -c 0; kill -{signal} $$"))
                .status()
                .await;
            assert_eq!(status.unwrap().signal(), Some(signal));
        }
    });
}

#[test]
fn a_status_stays_and_may_be_asked_for_again() {
    on_runtime(|| async {
        let mut child = shell("read line; exit 3")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(child.try_wait().unwrap(), None);
        assert!(child.stdin.is_some() && child.id().is_some());
        let status = child.wait().await.unwrap();
        assert!(child.stdin.is_none() && child.id().is_none());
        assert_eq!(status.code(), Some(3));
        assert_eq!(child.try_wait().unwrap(), Some(status));
        assert_eq!(child.wait().await.unwrap(), status);
        child.start_kill().unwrap();
        child.kill().await.unwrap();
        child.signal(SignalKind::hangup()).unwrap();
    });
}

#[test]
fn a_child_that_ended_before_it_is_waited_for() {
    on_runtime(|| async {
        let mut child = shell("exit 4").spawn().unwrap();
        // Some turns, in which the end is reported.
        let mut status = None;
        while status.is_none() {
            sleep(Duration::from_millis(1)).await;
            status = child.try_wait().unwrap();
        }
        let mut other = shell("exit 5").spawn().unwrap();
        sleep(Duration::from_millis(50)).await;
        assert_eq!(other.wait().await.unwrap().code(), Some(5));
        assert_eq!(child.wait().await.unwrap().code(), Some(4));
    });
}

#[test]
fn a_wait_may_be_dropped_and_begun_again() {
    on_runtime(|| async {
        let mut child = endless().spawn().unwrap();
        for polls in 0..5 {
            assert!(poll_times(polls, child.wait()).await.is_none());
        }
        let id = id(&child);
        assert!(exists(id));
        child.signal(SignalKind::terminate()).unwrap();
        assert_eq!(child.wait().await.unwrap().signal(), Some(libc::SIGTERM));
        assert!(!exists(id));
    });
}

#[test]
fn many_children_at_once() {
    on_runtime(|| async {
        let tasks: Vec<_> = (0..20)
            .map(|code| spawn(async move { (code, shell(&format!("exit {code}")).status().await) }))
            .collect();
        for task in tasks {
            let (code, status) = task.await.unwrap();
            assert_eq!(status.unwrap().code(), Some(code));
        }
    });
}

#[test]
fn output_and_error_are_read_at_once() {
    on_runtime(|| async {
        // More than fits into either pipe, in alternation.
        let script = "i=0; while [ $i -lt 40 ]; do printf '%09999d\\n' $i; printf '%04999d\\n' $i >&2; i=$((i+1)); done; exit 2";
        let mut command = shell(script);
        for _ in 0..2 {
            let output = command.output().await.unwrap();
            assert_eq!(output.status.code(), Some(2));
            assert_eq!(
                (output.stdout.len(), output.stderr.len()),
                (400_000, 200_000)
            );
            assert!(output.stdout.ends_with(b"0039\n") && output.stderr.ends_with(b"0039\n"));
        }
        // The input is at its end.
        let output = Command::new("cat").output().await.unwrap();
        assert!(output.status.success() && output.stdout.is_empty());
        // What was set is left as it was set.
        let output = shell("echo no; echo yes >&2")
            .stdout(Stdio::null())
            .output()
            .await
            .unwrap();
        assert_eq!(
            (&output.stdout[..], &output.stderr[..]),
            (&b""[..], &b"yes\n"[..])
        );
    });
}

#[test]
fn much_goes_through_a_child_and_back() {
    on_runtime(|| async {
        let bytes = pattern(1_000_000);
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let writing = {
            let bytes = bytes.clone();
            spawn(async move { input.write_all(&bytes[..]).await.0 })
        };
        let (count, output) = child.stdout.as_mut().unwrap().read_to_end(Vec::new()).await;
        assert_eq!(count.unwrap(), bytes.len());
        assert!(output == bytes);
        writing.await.unwrap().unwrap();
        assert!(child.wait().await.unwrap().success());
    });
}

#[test]
fn lines_come_when_they_are_written() {
    on_runtime(|| async {
        let mut child = shell("while read line; do echo \"got $line\"; done")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        assert!(
            poll_times(3, output.read(Vec::with_capacity(64)))
                .await
                .is_none()
        );
        for line in ["one", "two"] {
            input
                .write_all(format!("{line}\n").as_bytes())
                .await
                .0
                .unwrap();
            let (_, answer) = output.read(Vec::with_capacity(64)).await;
            assert_eq!(answer, format!("got {line}\n").as_bytes());
        }
        drop(input);
        assert_eq!(output.read(Vec::with_capacity(64)).await.0.unwrap(), 0);
        assert!(child.wait().await.unwrap().success());
    });
}

#[test]
fn a_child_that_reads_nothing_breaks_the_pipe() {
    on_runtime(|| async {
        let mut child = shell("exec <&-; sleep 0.01")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let error = loop {
            if let Err(error) = input.write_all(&[0; 4096][..]).await.0 {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        child.wait().await.unwrap();
    });
}

#[test]
fn two_children_are_joined() {
    on_runtime(|| async {
        let mut first = shell("echo one; echo two")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = first.stdout.take().unwrap();
        let mut second = Command::new("sort");
        second.arg("-r").stdin(Stdio::try_from(output).unwrap());
        let output = second.output().await.unwrap();
        assert_eq!(output.stdout, b"two\none\n");
        first.wait().await.unwrap();
    });
}

#[test]
fn what_is_dropped_is_not_killed_unless_asked_and_leaves_no_zombie() {
    without_children(|runtime| {
        let (kept, killed) = runtime.block_on(async {
            let kept = endless().spawn().unwrap();
            let killed = endless().kill_on_drop(true).spawn().unwrap();
            let ids = (id(&kept), id(&killed));
            drop((kept, killed));
            // One that has ended already.
            drop(shell("exit 1").spawn().unwrap());
            ids
        });
        until(|| !exists(killed));
        until(|| children().len() == 1);
        assert!(exists(kept));
        // SAFETY: takes no memory of ours. It is a child that nobody has waited for.
        unsafe { libc::kill(kept, libc::SIGKILL) };
        until(|| !exists(kept));
    });
}

#[test]
fn a_child_may_outlive_its_runtime() {
    let _alone = alone();
    for backend in backends() {
        let mut runtime = Runtime::new(&common::config(backend)).unwrap();
        let mut child = runtime.block_on(async { endless().kill_on_drop(true).spawn().unwrap() });
        let number = id(&child);
        let mut other = Runtime::new(&config_on(runtime.backend())).unwrap();
        let error = other.block_on(child.wait()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(child.try_wait().unwrap(), None);
        drop(runtime);
        let error = other.block_on(child.wait()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        drop(child);
        until(|| !exists(number) && children().is_empty());
    }
}

#[test]
fn a_future_that_is_dropped_ends_its_child_if_asked() {
    on_runtime(|| async {
        let mut command = shell("exec sleep 1000");
        command.as_std_mut().process_group(0);
        command.kill_on_drop(true);
        assert!(poll_times(1, command.output()).await.is_none());
        assert!(poll_times(5, command.status()).await.is_none());
        until(|| children().is_empty());
    });
}

/// Other libraries wait for their own children, and have handlers for SIGCHLD.
#[test]
fn other_children_of_the_process_are_left_alone() {
    on_runtime(|| async {
        let mut listener = ringloop::signal::signal(SignalKind::child()).unwrap();
        let mut theirs = std::process::Command::new("false").spawn().unwrap();
        let ours = Command::new("true").status().await.unwrap();
        assert!(ours.success());
        assert_eq!(theirs.wait().unwrap().code(), Some(1));
        listener.recv().await.unwrap();
    });
}

#[test]
fn a_status_that_somebody_else_took_is_an_error() {
    on_runtime(|| async {
        let mut child = shell("exit 6").spawn().unwrap();
        let mut status = 0;
        // SAFETY: `status` is valid for writes, and the child is ours.
        let taken = unsafe { libc::waitpid(id(&child), &raw mut status, 0) };
        assert_eq!(taken, id(&child));
        let error = child.wait().await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECHILD));
        // Signals reach no other process that may have got the number.
        child.start_kill().unwrap();
    });
}

#[test]
fn a_program_that_is_not_there_leaves_nothing() {
    on_runtime(|| async {
        let error = Command::new("/no/such/program").spawn().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let error = Command::new("true")
            .current_dir("/no/such/place")
            .output()
            .await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::NotFound);
    });
}

/// Without descriptors, a process is started and watched, or not started.
#[test]
fn running_out_of_descriptors_leaves_no_child_behind() {
    without_children(|runtime| {
        let (soft, hard) = rlimit::Resource::NOFILE.get().unwrap();
        runtime.block_on(async {
            for room in 0..12 {
                let mut held = Vec::new();
                let least = std::fs::File::open("/dev/null").unwrap();
                let highest = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 + 30;
                rlimit::setrlimit(rlimit::Resource::NOFILE, highest, hard).unwrap();
                while let Ok(file) = least.try_clone() {
                    held.push(file);
                }
                held.truncate(held.len() - room);
                let result = Command::new("cat").kill_on_drop(true).output().await;
                drop(held);
                rlimit::setrlimit(rlimit::Resource::NOFILE, soft, hard).unwrap();
                match result {
                    Ok(output) => assert!(output.status.success()),
                    Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{room}"),
                }
            }
            assert!(Command::new("cat").output().await.unwrap().status.success());
        });
        rlimit::setrlimit(rlimit::Resource::NOFILE, soft, hard).unwrap();
    });
}

#[test]
fn a_forked_child_neither_ends_nor_reaps_its_parents_children() {
    let _alone = alone();
    for backend in backends() {
        let mut runtime = Runtime::new(&common::config(backend)).unwrap();
        let child = runtime.block_on(async { endless().kill_on_drop(true).spawn().unwrap() });
        let number = id(&child);
        let mut held = Some(child);
        in_child(|| {
            let mut child = held.take().unwrap();
            let is_refused = child.try_wait().is_err();
            drop(child);
            is_refused && exists(number)
        });
        assert!(exists(number));
        drop(held);
        until(|| children().is_empty());
    }
}

/// A program may have given SIGPIPE its default action again.
#[test]
fn a_child_that_reads_nothing_does_not_end_the_process() {
    let _alone = alone();
    for backend in backends() {
        in_child(|| {
            // SAFETY: the default action is no function of ours.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            let mut runtime = Runtime::new(&common::config(backend)).unwrap();
            runtime.block_on(async {
                let mut child = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
                let mut input = child.stdin.take().unwrap();
                child.wait().await.unwrap();
                let error = input.write_all(&b"unread"[..]).await.0.unwrap_err();
                error.kind() == ErrorKind::BrokenPipe
            })
        });
    }
}

#[test]
fn a_child_of_a_bound_worker_is_not_bound() {
    let _alone = alone();
    let all = affinity::usable_cpus().unwrap().len();
    for backend in backends() {
        let mut config = pool_config(backend);
        config.pin = true;
        let pool = Pool::new(1, &config).unwrap();
        let task = pool.spawn_on(0, move || async move {
            let before = affinity::usable_cpus().unwrap();
            let output = Command::new("nproc").output().await.unwrap();
            (before == affinity::usable_cpus().unwrap(), output.stdout)
        });
        let mut runtime = Runtime::new(&common::config(backend)).unwrap();
        let (is_same, output) = runtime.block_on(task).unwrap();
        assert!(is_same);
        assert_eq!(String::from_utf8(output).unwrap().trim(), all.to_string());
        pool.shutdown(LONG);
    }
    until(|| children().is_empty());
}

#[cfg(all(feature = "tokio", feature = "futures-io"))]
#[test]
fn other_libraries_read_and_write_pipes() {
    on_runtime(|| async {
        use futures_util::AsyncReadExt as _;
        use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
        let mut child = Command::new("tee")
            .arg("/dev/stderr")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        AsyncWriteExt::write_all(&mut input, b"one\ntwo\n")
            .await
            .unwrap();
        AsyncWriteExt::shutdown(&mut input).await.unwrap();
        drop(input);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("one"));
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("two"));
        assert_eq!(lines.next_line().await.unwrap(), None);
        let mut errors = String::new();
        let mut stderr = child.stderr.take().unwrap();
        stderr.read_to_string(&mut errors).await.unwrap();
        assert_eq!(errors, "one\ntwo\n");
        assert!(child.wait().await.unwrap().success());
    });
}

/// The child's end of a pipe is in blocking mode, as programs expect.
#[test]
fn only_our_end_of_a_pipe_is_non_blocking() {
    on_runtime(|| async {
        let script = "for fd in 0 1 2; do grep flags /proc/self/fdinfo/$fd || exit 1; done";
        let mut child = shell(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.stdout.take().unwrap();
        let mut file = std::fs::File::from(output.into_owned_fd().unwrap());
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        for line in text.lines() {
            let flags = line.split_whitespace().last().unwrap();
            let flags = i32::from_str_radix(flags, 8).unwrap();
            assert_eq!(flags & libc::O_NONBLOCK, 0, "{text}");
        }
        assert_eq!(text.lines().count(), 3);
        child.wait().await.unwrap();
    });
}
