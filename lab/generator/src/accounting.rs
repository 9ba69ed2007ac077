//! What the server's processes cost: CPU time, context switches, threads, memory.
//!
//! CPU time comes from the processes' own CPU clocks, in ns and without a rounding to ticks. It is read in the instants in which the
//! window opens and closes. What /proc tells takes longer to read and stands outside of these instants: the window opens after
//! it was read and closes before.

use std::collections::HashMap;
use std::fs;
use std::io;

use serde_json::{Value, json};
use thiserror::Error;

use crate::system::{self, Clock, Switches};

/// Why a process can't be accounted for.
#[derive(Debug, Error)]
#[error(
    "process {pid} (--account) can't be accounted for: {source}; is it running, and is its number right?"
)]
pub(crate) struct NoProcess {
    pid: i32,
    source: io::Error,
}

#[derive(Clone, Copy, Debug)]
struct Process {
    pid: i32,
    clock: Clock,
}

/// The processes of the server.
#[derive(Debug)]
pub(crate) struct Account {
    processes: Vec<Process>,
}

/// What /proc says of all processes together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Details {
    user_ns: u64,
    system_ns: u64,
    threads: u64,
    pub(crate) rss_bytes: u64,
    /// Of each thread, because those of a thread that has ended are gone.
    switches: HashMap<i32, Switches>,
}

impl Details {
    /// The switches since `earlier` of all threads that are there still.
    fn switches_since(&self, earlier: &Self) -> Switches {
        let mut all = Switches::default();
        for (thread, now) in &self.switches {
            let before = earlier.switches.get(thread).copied().unwrap_or_default();
            all.voluntary += now.voluntary.saturating_sub(before.voluntary);
            all.involuntary += now.involuntary.saturating_sub(before.involuntary);
        }
        all
    }
}

/// The readings of a run; `None` where a process was gone.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    pub(crate) rss_bytes_at_rest: Option<u64>,
    pub(crate) cpu_ns_begin: Option<u64>,
    pub(crate) cpu_ns_end: Option<u64>,
    pub(crate) details_begin: Option<Details>,
    pub(crate) details_end: Option<Details>,
    /// Why something is missing.
    pub(crate) error: Option<String>,
}

impl Account {
    /// Accounts for the processes with these numbers.
    pub(crate) fn open(pids: &[i32]) -> Result<Self, NoProcess> {
        let processes = pids
            .iter()
            .map(|&pid| {
                let clock = Clock::of_process(pid).map_err(|source| NoProcess { pid, source })?;
                Ok(Process { pid, clock })
            })
            .collect::<Result<_, NoProcess>>()?;
        Ok(Self { processes })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// The CPU time so far, in ns.
    pub(crate) fn cpu_ns(&self) -> Result<u64, NoProcess> {
        self.sum(|process| process.clock.read_ns())
    }

    /// What /proc says now.
    pub(crate) fn details(&self) -> Result<Details, NoProcess> {
        let mut all = Details::default();
        for process in &self.processes {
            let one = details_of(process.pid).map_err(|source| NoProcess {
                pid: process.pid,
                source,
            })?;
            all.user_ns += one.user_ns;
            all.system_ns += one.system_ns;
            all.threads += one.threads;
            all.rss_bytes += one.rss_bytes;
            all.switches.extend(one.switches);
        }
        Ok(all)
    }

    fn sum(&self, read: impl Fn(&Process) -> io::Result<u64>) -> Result<u64, NoProcess> {
        self.processes
            .iter()
            .map(|process| {
                read(process).map_err(|source| NoProcess {
                    pid: process.pid,
                    source,
                })
            })
            .sum()
    }

    /// The result's `server`: differences over the window; null without processes.
    pub(crate) fn to_json(&self, readings: &Readings) -> Value {
        if self.is_empty() {
            return Value::Null;
        }
        let (begin, end) = (&readings.details_begin, &readings.details_end);
        let switches = begin
            .as_ref()
            .zip(end.as_ref())
            .map(|(begin, end)| end.switches_since(begin));
        let difference = |what: fn(&Details) -> u64| {
            Some(what(end.as_ref()?).saturating_sub(what(begin.as_ref()?)))
        };
        json!({
            "processes": self.processes.iter().map(|process| process.pid).collect::<Vec<_>>(),
            "cpu_ns": readings.cpu_ns_end.zip(readings.cpu_ns_begin).map(|(end, begin)| end.saturating_sub(begin)),
            "user_ns": difference(|details| details.user_ns),
            "system_ns": difference(|details| details.system_ns),
            "voluntary_switches": switches.map(|switches| switches.voluntary),
            "involuntary_switches": switches.map(|switches| switches.involuntary),
            "threads": end.as_ref().map(|details| details.threads),
            "rss_rest_bytes": readings.rss_bytes_at_rest,
            "rss_connected_bytes": begin.as_ref().map(|details| details.rss_bytes),
            "rss_end_bytes": end.as_ref().map(|details| details.rss_bytes),
            "error": readings.error,
        })
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("can't read {what}"))
}

fn details_of(pid: i32) -> io::Result<Details> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold anything; what follows the last one is numbers, from the third field on (proc_pid_stat(5)).
    let (_, fields) = stat.rsplit_once(") ").ok_or_else(|| invalid("stat"))?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let field = |number: usize| {
        fields
            .get(number - 3)
            .and_then(|text| text.parse::<u64>().ok())
            .ok_or_else(|| invalid("stat"))
    };
    let mut switches = HashMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        // A thread may end between being listed and being read.
        let Ok(status) = fs::read_to_string(task.path().join("status")) else {
            continue;
        };
        let thread = task.file_name().to_string_lossy().parse::<i32>();
        let one = switches
            .entry(thread.map_err(|_| invalid("task"))?)
            .or_insert_with(Switches::default);
        for line in status.lines() {
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            let value = || value.trim().parse().unwrap_or(0);
            match name {
                "voluntary_ctxt_switches" => one.voluntary = value(),
                "nonvoluntary_ctxt_switches" => one.involuntary = value(),
                _ => {}
            }
        }
    }
    Ok(Details {
        user_ns: field(14)? * system::tick_ns(),
        system_ns: field(15)? * system::tick_ns(),
        threads: field(20)?,
        rss_bytes: field(24)? * system::page_bytes(),
        switches,
    })
}
