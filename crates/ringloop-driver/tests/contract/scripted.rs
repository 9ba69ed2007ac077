//! Rare events, on the scripted backend: late completions, overflow, short submits, failures.

use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ringloop_driver::{
    BackendKind, Bytes, Driver, Event, Fault, Interest, Mode, Op, Peek, Readiness,
    SENT_WITHOUT_COPY, Script, SharedFd, Step,
};

use crate::support::{lend, pair, pipe, raw, read};

/// Descriptors of the script: just numbers.
const ONE: i32 = 10;
const TWO: i32 = 11;

fn scripted() -> (Script, Driver) {
    let script = Script::new();
    let driver = Driver::scripted(script.clone()).unwrap();
    assert_eq!(driver.backend(), BackendKind::Scripted);
    (script, driver)
}

/// The events of one poll that does not wait.
fn events(driver: &mut Driver) -> Vec<Event> {
    let mut events = Vec::new();
    driver.poll(Some(Duration::ZERO), &mut events).unwrap();
    events
}

#[test]
fn a_late_completion_misses_the_slots_next_owner() {
    let (script, mut driver) = scripted();
    let first = driver.watch(ONE, Interest::READ, Mode::Edge).unwrap();
    assert_eq!(events(&mut driver), []);
    driver.unwatch(first);
    let second = driver.watch(TWO, Interest::READ, Mode::Edge).unwrap();
    assert_eq!(first.index(), second.index());
    script.turn([Step::Late(ONE)]);
    assert_eq!(events(&mut driver), []);
    assert_eq!(driver.counters().stale_events, 1);
    script.turn([Step::Ready(TWO, Readiness::READABLE)]);
    assert_eq!(events(&mut driver)[0].token(), second);
}

#[test]
fn a_late_completion_misses_the_same_watch_armed_anew() {
    let (script, mut driver) = scripted();
    let token = driver.watch(ONE, Interest::READ, Mode::OneShot).unwrap();
    assert_eq!(events(&mut driver), []);
    driver
        .rewatch(token, Interest::WRITE, Mode::OneShot)
        .unwrap();
    script
        .turn([Step::Late(ONE)])
        .turn([Step::Ready(ONE, Readiness::WRITABLE)]);
    assert_eq!(events(&mut driver), []);
    let events = events(&mut driver);
    assert_eq!(events.len(), 1);
    assert!(events[0].token() == token && events[0].readiness().is_writable());
}

#[test]
fn an_overflow_ends_no_watch() {
    let (script, mut driver) = scripted();
    let watch = driver.watch(ONE, Interest::READ, Mode::Edge).unwrap();
    let operation = driver.submit(read(TWO, 8)).unwrap();
    assert_eq!(events(&mut driver), []);
    script.turn([Step::Overflow]);
    assert_eq!(events(&mut driver), []);
    assert_eq!(
        driver.peek(),
        Peek::Ready,
        "an arming waits to be submitted"
    );
    script.turn([Step::Late(ONE), Step::Late(TWO)]);
    assert_eq!(events(&mut driver), []);
    script.turn([
        Step::Ready(ONE, Readiness::READABLE),
        Step::Complete(TWO, 3),
    ]);
    let events = events(&mut driver);
    assert_eq!(
        events.iter().map(Event::token).collect::<Vec<_>>(),
        [watch, operation]
    );
    assert!(events.iter().all(|event| driver.take_fd(event).is_none()));
    assert_eq!(
        (driver.counters().overflows, driver.counters().rearms),
        (1, 1)
    );
}

#[test]
fn what_a_short_submit_leaves_behind_goes_along_later() {
    let (script, mut driver) = scripted();
    let tokens = [ONE, TWO].map(|fd| driver.watch(fd, Interest::READ, Mode::Edge).unwrap());
    let ready = [
        Step::Ready(ONE, Readiness::READABLE),
        Step::Ready(TWO, Readiness::READABLE),
    ];
    script.turn([Step::Accept(1)].into_iter().chain(ready));
    assert_eq!(
        events(&mut driver)
            .iter()
            .map(Event::token)
            .collect::<Vec<_>>(),
        [tokens[0]]
    );
    assert_eq!(driver.counters().short_submits, 1);
    assert_eq!(
        events(&mut driver)
            .iter()
            .map(Event::token)
            .collect::<Vec<_>>(),
        [tokens[1]]
    );
}

#[test]
fn an_interrupted_poll_keeps_its_events() {
    let (script, mut driver) = scripted();
    let token = driver.watch(ONE, Interest::READ, Mode::Level).unwrap();
    script.turn([Step::Ready(ONE, Readiness::READABLE), Step::Interrupt]);
    let mut events = Vec::new();
    let error = driver.poll(None, &mut events).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Interrupted);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].token(), token);
}

#[test]
fn a_failure_is_reported_once() {
    let (script, mut driver) = scripted();
    script.turn([Step::Fail(libc::ENOMEM)]);
    let error = driver
        .poll(Some(Duration::ZERO), &mut Vec::new())
        .unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
    assert_eq!(events(&mut driver), []);
    script.refuse_watch(libc::ENOSPC);
    assert_eq!(
        driver
            .watch(ONE, Interest::READ, Mode::Edge)
            .unwrap_err()
            .raw_os_error(),
        Some(libc::ENOSPC)
    );
    assert!(driver.watch(ONE, Interest::READ, Mode::Edge).is_ok());
}

#[test]
fn an_operation_finishes_is_cancelled_or_is_discarded() {
    let (script, mut driver) = scripted();
    let token = driver.submit(read(ONE, 8)).unwrap();
    script.turn([Step::Complete(ONE, 3)]);
    assert_eq!(events(&mut driver)[0].io_result().unwrap(), 3);
    assert!(
        matches!(driver.take(token), Some(Op::Read { buffer, .. }) if buffer.filled() == [0; 3])
    );
    let token = driver.submit(read(ONE, 8)).unwrap();
    driver.cancel(token);
    assert_eq!(events(&mut driver)[0].result(), -libc::ECANCELED);
    let token = driver.submit(read(ONE, 8)).unwrap();
    driver.discard(token);
    assert_eq!(events(&mut driver), []);
    script.turn([Step::Late(ONE)]);
    assert_eq!(events(&mut driver), []);
    assert_eq!(driver.counters().operations, 0);
}

#[test]
fn a_wake_ends_a_wait_and_timeouts_are_noted() {
    let (script, mut driver) = scripted();
    script.turn([Step::Wake]);
    driver.poll(None, &mut Vec::new()).unwrap();
    driver.waker().wake();
    driver.poll(None, &mut Vec::new()).unwrap();
    driver
        .poll(Some(Duration::from_millis(5)), &mut Vec::new())
        .unwrap();
    let error = driver.poll(None, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("for ever"), "{error}");
    assert!(script.is_over());
    let noted = [
        None,
        Some(Duration::ZERO),
        Some(Duration::from_millis(5)),
        None,
    ];
    assert_eq!(script.timeouts(), noted);
}

#[test]
fn a_zero_copy_send_has_a_count_and_then_its_memory() {
    let (script, mut driver) = scripted();
    script.turn([
        Step::Complete(ONE, 3),
        Step::Complete(ONE, SENT_WITHOUT_COPY),
    ]);
    let send = driver
        .submit(Op::SendZeroCopy {
            fd: lend(ONE),
            bytes: Bytes::new("abc"),
            flags: 0,
        })
        .unwrap();
    let results: Vec<_> = events(&mut driver)
        .iter()
        .map(|event| (event.token(), event.result(), event.is_more()))
        .collect();
    assert_eq!(results, [(send, 3, true), (send, SENT_WITHOUT_COPY, false)]);
    assert_eq!(driver.counters().zero_copy_sends, 1);
    assert_eq!(driver.counters().zero_copy_copies, 0);
}

/// A driver that really performs its requests, with the same fault each time.
fn planned(fault: Fault) -> Driver {
    let script = Script::new();
    script.plan(move |_| fault);
    Driver::scripted(script).unwrap()
}

#[test]
fn under_a_plan_operations_are_done_late_in_part_or_not_at_all() {
    let write = |fd: &SharedFd| Op::Write {
        fd: fd.clone(),
        bytes: Bytes::new("planned"),
        start: 0,
        offset: None,
    };
    let mut late = Fault::default();
    late.polls = 2;
    let mut in_part = Fault::default();
    in_part.bytes_max = 4;
    let mut failing = Fault::default();
    failing.errno = libc::EIO;
    for (fault, polls, result) in [(late, 2, 7), (in_part, 0, 4), (failing, 0, -libc::EIO)] {
        let mut driver = planned(fault);
        let (mut reader, writer) = pipe();
        let writer = SharedFd::new(writer);
        let token = driver.submit(write(&writer)).unwrap();
        for _ in 0..polls {
            assert_eq!(events(&mut driver), []);
        }
        let seen = events(&mut driver);
        assert_eq!((seen[0].token(), seen[0].result()), (token, result));
        assert!(driver.take(token).is_some());
        assert_eq!(driver.counters().operations, 0);
        drop(writer);
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"planned"[..result.max(0) as usize]);
    }
}

#[test]
fn under_a_plan_a_cancel_comes_in_time_or_too_late() {
    for outruns_cancel in [false, true] {
        let mut fault = Fault::default();
        fault.polls = 2;
        fault.outruns_cancel = outruns_cancel;
        let mut driver = planned(fault);
        let (here, mut there) = pair();
        there.write_all(b"x").unwrap();
        let token = driver.submit(read(raw(&here), 8)).unwrap();
        assert_eq!(events(&mut driver), []);
        driver.cancel(token);
        assert_eq!(events(&mut driver), []);
        let expected = if outruns_cancel { 1 } else { -libc::ECANCELED };
        assert_eq!(events(&mut driver)[0].result(), expected);
        // A waiting one ends, too.
        driver.submit(read(raw(&there), 8)).unwrap();
        assert_eq!(events(&mut driver), []);
        driver.cancel_fd(raw(&there));
        assert_eq!(events(&mut driver), []);
        assert_eq!(events(&mut driver)[0].result(), -libc::ECANCELED);
    }
}

#[test]
fn under_a_plan_a_watch_reports_what_the_kernel_finds_and_late() {
    let mut fault = Fault::default();
    fault.polls = 1;
    let mut driver = planned(fault);
    let (here, mut there) = pair();
    let watch = driver
        .watch(raw(&here), Interest::READ, Mode::Edge)
        .unwrap();
    assert_eq!(events(&mut driver), []);
    there.write_all(b"x").unwrap();
    assert_eq!(events(&mut driver), []);
    let seen = events(&mut driver);
    assert!(seen[0].token() == watch && seen[0].readiness().is_readable());
}

/// A script hands a descriptor of its own to the user of a driver, or none.
#[test]
fn a_script_never_invents_a_descriptor() {
    let open = || Op::OpenAt {
        directory: None,
        path: c"/somewhere".to_owned(),
        flags: 0,
        mode: 0,
    };
    let victim = std::fs::File::open("/dev/null").unwrap();
    for (op, step) in [
        (open(), Step::CompletePath(raw(&victim))),
        (
            Op::UnlinkAt {
                directory: None,
                path: c"/somewhere".to_owned(),
                flags: 0,
            },
            Step::Open(victim.try_clone().unwrap().into()),
        ),
    ] {
        let (script, mut driver) = scripted();
        driver.submit(op).unwrap();
        script.turn([step]);
        let played = catch_unwind(AssertUnwindSafe(|| events(&mut driver)));
        assert!(played.is_err());
    }
    let (script, mut driver) = scripted();
    let token = driver.submit(open()).unwrap();
    let file = victim.try_clone().unwrap();
    let number = raw(&file);
    script.turn([Step::Open(file.into())]);
    let seen = events(&mut driver);
    assert_eq!((seen[0].token(), seen[0].result()), (token, number));
    assert_eq!(raw(&driver.take_fd(&seen[0]).unwrap()), number);
    // One that nobody waits for is closed.
    let (mut reader, writer) = pipe();
    script.turn([Step::Open(writer.into())]);
    assert_eq!(events(&mut driver), []);
    assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap(), 0);
}

#[test]
fn a_script_returns_no_result_that_is_no_errno() {
    for result in [-4096, i32::MIN] {
        for step in [Step::Complete(ONE, result), Step::CompletePath(result)] {
            let turned = catch_unwind(|| Script::new().turn([step]).is_over());
            assert!(turned.is_err(), "{result}");
        }
    }
    for errno in [-1, -64, 4096, i32::MIN] {
        let mut fault = Fault::default();
        fault.errno = errno;
        let mut driver = planned(fault);
        let (here, _there) = pair();
        driver.submit(read(raw(&here), 64)).unwrap();
        let played = catch_unwind(AssertUnwindSafe(|| events(&mut driver)));
        assert!(played.is_err(), "{errno}");
    }
}
