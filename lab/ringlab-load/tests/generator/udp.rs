//! Servers of datagrams, some of which lose them.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::common::{assert_only_failure, flawless, result};

const BRIEFLY: [&str; 4] = ["--warm-up", "0.1", "--window", "0.3"];
/// A window that a failure must end.
const ENDLESS: [&str; 4] = ["--warm-up", "0", "--window", "3600"];

/// Answers each datagram with those that `answer` makes for its number and itself, until the test ends. Returns its address.
fn server(answer: impl Fn(u64, &[u8]) -> Vec<Vec<u8>> + Send + 'static) -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = format!("udp:{}", socket.local_addr().unwrap());
    thread::spawn(move || {
        let mut buffer = vec![0; 65536];
        for number in 0.. {
            let (bytes, peer) = socket.recv_from(&mut buffer).unwrap();
            for datagram in answer(number, &buffer[..bytes]) {
                // An earlier answer may have found no generator any more.
                let _ = socket.send_to(&datagram, peer);
            }
        }
    });
    address
}

fn echo(_: u64, datagram: &[u8]) -> Vec<Vec<u8>> {
    vec![datagram.to_vec()]
}

fn count(result: &Value, kind: &str) -> u64 {
    result["errors"][kind]["count"].as_u64().unwrap_or(0)
}

#[test]
fn a_right_server_has_no_failures_whatever_the_load() {
    let address = server(echo);
    let loads: [&[&str]; 5] = [
        &["--size", "1", "--connections", "1"],
        &["--size", "100", "--connections", "20"],
        &["--size", "1024", "--connections", "6"],
        &["--size", "65507", "--connections", "1"],
        &["--size", "64", "--connections", "3", "--rate", "200"],
    ];
    for load in loads {
        let result = flawless("echo", &address, &[&BRIEFLY, load].concat());
        assert_eq!(result["options"]["address"], address.as_str());
        let in_flight = result["littles_law"]["in_flight_average"].as_f64().unwrap();
        let expected = result["littles_law"]["expected"].as_f64().unwrap();
        assert!(in_flight < 1.5 * expected + 0.1, "{result}");
    }
}

#[test]
fn wrong_datagrams_void_the_run() {
    type Change = fn(&[u8]) -> Vec<u8>;
    let changes: [(Change, &str); 4] = [
        (
            |datagram| datagram[1..].to_vec(),
            "message 0: a datagram of 99 bytes came, and 100 were sent",
        ),
        (
            |_| Vec::new(),
            "message 0: a datagram of 0 bytes came, and 100 were sent",
        ),
        (
            |datagram| [datagram, b"!"].concat(),
            "message 0: a datagram of 101 bytes came, and 100 were sent",
        ),
        (
            |datagram| {
                let mut wrong = datagram.to_vec();
                wrong[50] ^= 1;
                wrong
            },
            "message 0: byte 50 of 100 is 0x",
        ),
    ];
    for (change, words) in changes {
        let address = server(move |_, datagram| vec![change(datagram)]);
        let load = ["--size", "100", "--connections", "1"];
        let result = result("echo", address, &[&ENDLESS[..], &load].concat());
        assert_only_failure(&result, "mismatch", 1, words);
        assert_eq!(result["ended_early"], "void");
    }
}

#[test]
fn an_answer_that_comes_twice_voids_the_run() {
    let address = server(|number, datagram| vec![datagram.to_vec(); 1 + usize::from(number == 3)]);
    let load = ["--size", "100", "--connections", "1"];
    let result = result("echo", address, &[&ENDLESS[..], &load].concat());
    assert_only_failure(
        &result,
        "mismatch",
        1,
        "what came begins as message 3 of connection 0",
    );
}

#[test]
fn lost_datagrams_are_counted_and_the_others_go_on() {
    // On a busy machine an answer may come too late, so how many are lost is known only from below.
    static LOST: AtomicU64 = AtomicU64::new(0);
    let address = server(|number, datagram| {
        if number % 10 == 4 {
            LOST.fetch_add(1, Ordering::Relaxed);
            return Vec::new();
        }
        echo(number, datagram)
    });
    let load = ["--connections", "2", "--timeout", "0.2", "--window", "3"];
    let result = result("echo", address, &load);
    assert!(result["void"].is_null(), "{result}");
    assert!(count(&result, "lost") >= LOST.load(Ordering::Relaxed).saturating_sub(2));
    assert!(count(&result, "lost") >= 2, "{result}");
    assert!(result["operations"].as_u64().unwrap() > 5, "{result}");
    assert_eq!(result["connections"]["alive_at_end"], 2, "{result}");
    let first = result["errors"]["lost"]["first"].as_str().unwrap();
    assert!(first.starts_with("no answer came to datagram "), "{first}");
    assert!(first.ends_with(" within 0.2 s"), "{first}");
}

#[test]
fn a_server_that_loses_everything_ends_no_later_than_asked() {
    let address = server(|_, _| Vec::new());
    let load = ["--timeout", "0.1", "--warm-up", "0", "--window", "0.5"];
    let result = result("echo", address, &[&load[..], &["-c", "3"]].concat());
    assert_eq!(result["void"], "nothing was answered in the window");
    assert!(count(&result, "lost") >= 3, "{result}");
    assert_eq!(result["operations"], 0);
}

#[test]
fn an_echo_that_comes_late_is_not_taken_for_a_wrong_one() {
    for size in ["100", "8"] {
        let address = server(|number, datagram| {
            if number == 3 {
                thread::sleep(Duration::from_millis(800));
            }
            echo(number, datagram)
        });
        let load = ["--connections", "1", "--timeout", "0.3", "--window", "3"];
        let result = result("echo", &address, &[&load[..], &["--size", size]].concat());
        assert!(result["void"].is_null(), "{result}");
        assert!(count(&result, "lost") >= 1, "{result}");
        assert!(result["operations"].as_u64().unwrap() > 0, "{result}");
    }
}

#[test]
fn datagrams_of_the_open_loop_that_are_lost_count_with_their_waiting() {
    let address = server(|number, datagram| match number % 2 {
        0 => echo(number, datagram),
        _ => Vec::new(),
    });
    let load = ["--connections", "1", "--timeout", "0.1", "--rate", "5"];
    let window = ["--warm-up", "0", "--window", "3"];
    let result = result("echo", address, &[&load[..], &window].concat());
    let lost = result["open_loop"]["unfinished"].as_u64().unwrap();
    assert!(lost >= 3, "{result}");
    let longest_ns = result["latency"]["corrected"]["max_ns"].as_u64().unwrap();
    assert!(longest_ns >= 99_000_000, "{result}");
    let due = result["open_loop"]["due"].as_u64().unwrap();
    assert_eq!(result["latency"]["corrected"]["count"], due, "{result}");
}

#[test]
fn a_port_without_a_server_is_explained() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = format!("udp:{}", socket.local_addr().unwrap());
    drop(socket);
    let load = ["--connections", "2"];
    let result = result("echo", &address, &[&ENDLESS[..], &load].concat());
    let first = result["errors"]["connect"]["first"].as_str().unwrap();
    assert!(
        first.starts_with("connection 0 to udp:127.0.0.1:"),
        "{first}"
    );
    assert!(first.contains("is the server listening there?"), "{first}");
    assert!(!result["void"].is_null(), "{result}");
    assert_eq!(result["connections"]["alive_at_end"], 0);
}
