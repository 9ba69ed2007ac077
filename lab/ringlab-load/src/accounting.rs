//! The cost of the server's processes: CPU time, context switches, threads, memory.
//!
//! A process counts with its descendants, including those that start or end during the run, and everything else below a process
//! that adopts what has left its tree (PR_SET_CHILD_SUBREAPER in prctl(2)). CPU time comes from the processes' CPU clocks, in ns,
//! and that of ended children from /proc, in ticks. The clock of a busy process may lag by a tick of the kernel (1 to 10 ms). Both
//! are read at the instants at which the window opens and closes. To find the processes, and to read the rest of /proc, takes
//! longer; that is done before the window opens and after it closes.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::thread;
use std::time::Duration;

use anyhow::anyhow;
use serde::Serialize;
use serde_json::{Value, json};

use crate::system::{self, Clock, now_ns};

/// How long a server's clocks must stand still before it counts as having nothing to do, and how long that is waited for.
const SETTLING: Duration = Duration::from_micros(200);
const SETTLING_NS_MAX: u64 = 5_000_000;

/// How often a thread gave up its CPU, and how often it was preempted.
#[derive(Clone, Copy, Debug, Default)]
struct Switches {
    voluntary: u64,
    involuntary: u64,
}

/// The processes of the server that were named. Their descendants count as well, and so do those of the process that adopts what
/// has left their tree, which itself doesn't count.
#[derive(Debug)]
pub(crate) struct Account {
    pids: Vec<i32>,
    below: Option<i32>,
}

/// The figures of /proc, summed over all processes. Times include those of ended children that were waited for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Details {
    /// The processes, in ascending order.
    pids: Vec<i32>,
    user_ns: u64,
    system_ns: u64,
    threads: u64,
    pub(crate) rss_bytes: u64,
    /// By thread, because the numbers of an ended thread are lost.
    switches: HashMap<i32, Switches>,
    kinship: HashMap<i32, Kinship>,
}

/// The evidence for whether a process that has ended was waited for. The kernel adds the minor page faults of such a
/// process to its parent's where it adds the CPU time, and /proc rounds only the latter. A process can't start without
/// a page fault.
#[derive(Clone, Copy, Debug)]
struct Kinship {
    parent: i32,
    /// With those of children that were waited for.
    faults: u64,
    waited_faults: u64,
}

impl Kinship {
    fn of(stat: &Stat) -> io::Result<Self> {
        let waited_faults = stat.field(11)?;
        Ok(Self {
            parent: stat.field(4)? as i32,
            faults: stat.field(10)? + waited_faults,
            waited_faults,
        })
    }
}

impl Details {
    /// Adds the figures of a process.
    fn add(&mut self, pid: i32) -> io::Result<()> {
        let stat = Stat::read(pid)?;
        let mut switches = HashMap::new();
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            let task = task?;
            // A thread may end between being listed and being read.
            let Ok(status) = fs::read_to_string(task.path().join("status")) else {
                continue;
            };
            let of = |name| {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
            };
            let thread = task.file_name().to_string_lossy().parse::<i32>();
            let one = Switches {
                voluntary: of("voluntary_ctxt_switches:"),
                involuntary: of("nonvoluntary_ctxt_switches:"),
            };
            switches.insert(thread.map_err(|_| invalid("task"))?, one);
        }
        // utime, stime, and the same for the children that were waited for.
        let ns = |own, waited| {
            Ok::<_, io::Error>((stat.field(own)? + stat.field(waited)?) * system::tick_ns())
        };
        let (user_ns, system_ns) = (ns(14, 16)?, ns(15, 17)?);
        let (threads, pages) = (stat.field(20)?, stat.field(24)?);
        self.pids.push(pid);
        self.user_ns += user_ns;
        self.system_ns += system_ns;
        self.threads += threads;
        self.rss_bytes += pages * system::page_bytes();
        self.switches.extend(switches);
        Ok(())
    }

    /// Whether one of these processes, which have ended since, had no parent that waited for it, or one that doesn't count. The
    /// kernel waits in the place of a process that ignores SIGCHLD, and forgets the CPU time. What `below` has adopted meanwhile it
    /// has waited for.
    fn lost(&self, ended: impl Iterator<Item = i32>, later: &Self, below: Option<i32>) -> bool {
        let mut expected: HashMap<i32, u64> = HashMap::new();
        for (pid, one) in ended.filter_map(|pid| Some((pid, self.kinship.get(&pid)?))) {
            let mut heir = one.parent;
            // If the parent has ended as well, the grandparent was given what both have used.
            while let Some(parent) = self.kinship.get(&heir)
                && !later.kinship.contains_key(&heir)
            {
                heir = parent.parent;
            }
            // Processes are read in ascending order. An heir that was read later, after the numbers have begun again at the
            // lowest, may have waited before it was read.
            if heir < pid {
                *expected.entry(heir).or_default() += one.faults;
            }
        }
        let waited = |heir: i32| {
            let of = |details: &Self| {
                details
                    .kinship
                    .get(&heir)
                    .map_or(0, |one| one.waited_faults)
            };
            of(later).saturating_sub(of(self))
        };
        let adopted = below.map_or(0, |below| {
            let own = expected.get(&below).copied().unwrap_or_default();
            waited(below).saturating_sub(own)
        });
        let missing = |(&heir, &faults): (&i32, &u64)| faults.saturating_sub(waited(heir));
        expected.iter().map(missing).sum::<u64>() > adopted
    }

    /// The switches of a kind since `earlier`, of all threads that still exist.
    fn switches_since(&self, earlier: &Self, kind: fn(&Switches) -> u64) -> u64 {
        let before = |thread| earlier.switches.get(thread).map_or(0, kind);
        let since = |(thread, now)| kind(now).saturating_sub(before(thread));
        self.switches.iter().map(since).sum()
    }
}

/// The memory of the server's processes at a number of connections.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Level {
    pub(crate) connections: u64,
    rss_bytes: u64,
    /// Pages that several processes share count in parts.
    pss_bytes: u64,
}

/// The CPU time of each process up to an instant, in ns, with that of its ended children that were waited for, and of theirs.
type CpuTimes = BTreeMap<i32, u64>;

/// The readings of a run. `None` where a process was gone.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    rss_bytes_at_rest: Option<u64>,
    cpu_begin: Option<CpuTimes>,
    cpu_end: Option<CpuTimes>,
    details_begin: Option<Details>,
    details_end: Option<Details>,
    below: Option<i32>,
    /// Why something is missing.
    error: Option<String>,
}

impl Readings {
    /// The memory at rest, before anything connects.
    pub(crate) fn rest(&mut self, account: &Account) -> anyhow::Result<()> {
        self.rss_bytes_at_rest = Some(account.details()?.rss_bytes);
        Ok(())
    }

    /// The slow readings before the window.
    pub(crate) fn prepare(&mut self, account: &Account) {
        // A server may have a child for each connection, which ends with it, and none at this instant. No connection of the
        // generator ends while it reads, so the second reading finds those that began during the first.
        account.everything();
        self.below = account.below;
        self.details_begin = self.noted(account.details());
    }

    /// The fast readings at the instant at which the window opens.
    pub(crate) fn open(&mut self, account: &Account) {
        let pids = self.details_begin.as_ref().map(|details| {
            let pids = details.pids.iter().copied();
            pids.chain(account.below).collect::<Vec<_>>()
        });
        let cpu = pids.map(|pids| account.cpu_times(&pids));
        self.cpu_begin = cpu.and_then(|cpu| self.noted(cpu));
    }

    /// The fast readings at the instant at which the window closes.
    pub(crate) fn close(&mut self, account: &Account) {
        let begin = self.cpu_begin.as_ref();
        let pids = begin.map(|begin| begin.keys().copied().collect::<Vec<_>>());
        let cpu = pids.map(|pids| account.cpu_times(&pids));
        self.cpu_end = cpu.and_then(|cpu| self.noted(cpu));
    }

    /// The readings when a window closes in which everything was answered: as soon as the server has nothing more to do. The clocks
    /// of processes that sleep don't lag.
    pub(crate) fn close_at_rest(&mut self, account: &Account) {
        let latest_ns = now_ns() + SETTLING_NS_MAX;
        self.close(account);
        while !account.is_empty() && now_ns() < latest_ns {
            let before = self.cpu_end.take();
            thread::sleep(SETTLING);
            self.close(account);
            if self.cpu_end == before {
                return;
            }
        }
    }

    /// The slow readings before and after the window.
    fn details(&self) -> Option<(&Details, &Details)> {
        self.details_begin.as_ref().zip(self.details_end.as_ref())
    }

    /// The CPU time of the processes from the end of this window to the beginning of the next one.
    fn rest_ns(&self, next: &Self) -> u64 {
        let (Some(end), Some(begin)) = (&self.cpu_end, &next.cpu_begin) else {
            return 0;
        };
        let used = |(pid, &later): (&i32, &u64)| Some(later.saturating_sub(*end.get(pid)?));
        begin.iter().filter_map(used).sum()
    }

    /// The slow readings after the window, and those of the processes that began in it.
    pub(crate) fn complete(&mut self, account: &Account) {
        self.details_end = self.noted(account.details());
        let (Some(details), Some(begin)) = (&self.details_end, &self.cpu_begin) else {
            return;
        };
        let pids = details.pids.iter().copied();
        let new: Vec<i32> = pids.filter(|pid| !begin.contains_key(pid)).collect();
        let cpu = account.cpu_times(&new);
        if let (Some(new), Some(end)) = (self.noted(cpu), &mut self.cpu_end) {
            end.extend(new);
        }
    }

    pub(crate) fn noted<T>(&mut self, reading: anyhow::Result<T>) -> Option<T> {
        reading
            .map_err(|error| {
                self.error.get_or_insert_with(|| error.to_string());
            })
            .ok()
    }

    /// The CPU time of the window: what all processes, including ended ones, have used by its end, minus what they had used
    /// before.
    pub(crate) fn cpu_ns(&self) -> Result<u64, &'static str> {
        let missing = "a process was gone";
        let (before, after) = self.details().ok_or(missing)?;
        let (begin, end) = self
            .cpu_begin
            .as_ref()
            .zip(self.cpu_end.as_ref())
            .ok_or(missing)?;
        // Many a child has ended before the window, which is later than this reading.
        let seen = before.kinship.keys();
        let ended = seen.filter(|pid| !end.contains_key(pid));
        if before.lost(ended.copied(), after, self.below) {
            return Err(
                "a child process ended, and the server hasn't waited for it (it may ignore SIGCHLD), so its CPU time is lost",
            );
        }
        let total = |times: &CpuTimes| times.values().sum::<u64>();
        Ok(total(end).saturating_sub(total(begin)))
    }
}

impl Account {
    /// Accounts for the processes with these numbers, and those below that one.
    pub(crate) fn open(pids: &[i32], below: Option<i32>) -> anyhow::Result<Self> {
        let mut pids = pids.to_vec();
        pids.sort_unstable();
        pids.dedup();
        let account = Self { pids, below };
        account.cpu_times(&account.pids)?;
        Ok(account)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pids.is_empty()
    }

    /// The CPU time so far of each of these processes: that of `below` only of what it has waited for. A process that is gone is
    /// left out, unless it was named.
    fn cpu_times(&self, pids: &[i32]) -> anyhow::Result<CpuTimes> {
        // A child that ends between the two is missing. That happens as often when the window opens as when it closes; in the
        // other order it would count twice.
        let waited: Vec<u64> = pids.iter().map(|&pid| waited_ns(pid)).collect();
        let time = |(&pid, waited_ns): (&i32, u64)| {
            if Some(pid) == self.below {
                return Some(Ok((pid, waited_ns)));
            }
            let read = Clock::of_process(pid).and_then(Clock::read_ns);
            let time = self.unless_gone(pid, read);
            time.map(|own_ns| Some((pid, own_ns? + waited_ns)))
                .transpose()
        };
        pids.iter().zip(waited).filter_map(time).collect()
    }

    /// Reads the figures of /proc.
    pub(crate) fn details(&self) -> anyhow::Result<Details> {
        let (pids, kinship) = self.everything();
        let mut all = Details {
            kinship,
            ..Details::default()
        };
        for pid in pids {
            let added = all.add(pid);
            self.unless_gone(pid, added)?;
        }
        Ok(all)
    }

    /// The memory of all processes, page by page: /proc/PID/stat may lag behind by tens of pages for each thread.
    pub(crate) fn memory(&self, connections: u64) -> anyhow::Result<Level> {
        let mut all = Level {
            connections,
            ..Level::default()
        };
        for pid in self.everything().0 {
            if let Some((rss, pss)) = self.unless_gone(pid, memory_of(pid))? {
                all.rss_bytes += rss;
                all.pss_bytes += pss;
            }
        }
        Ok(all)
    }

    /// A reading of a process. `None` if it is gone, which is an error for a process that was named.
    fn unless_gone<T>(&self, pid: i32, read: io::Result<T>) -> anyhow::Result<Option<T>> {
        match read {
            Ok(value) => Ok(Some(value)),
            Err(error) if self.pids.contains(&pid) => Err(anyhow!(
                "process {pid} (--account) can't be accounted for: {error}; is it running, and is its number right?"
            )),
            Err(_) => Ok(None),
        }
    }

    /// All processes that count, in ascending order, and what was read of those that exist.
    fn everything(&self) -> (Vec<i32>, HashMap<i32, Kinship>) {
        let mut found = self.pids.clone();
        if found.is_empty() {
            return (found, HashMap::new());
        }
        let own_pid = std::process::id() as i32;
        let mut all: BTreeMap<i32, Kinship> = BTreeMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            // The generator may have been started by the server's program.
            if pid == own_pid {
                continue;
            }
            if let Ok(kinship) = Stat::read(pid).and_then(|stat| Kinship::of(&stat)) {
                all.insert(pid, kinship);
            }
        }
        let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
        for (&pid, one) in &all {
            children.entry(one.parent).or_default().push(pid);
        }
        found.extend(self.below);
        let mut next = 0;
        while let Some(pid) = found.get(next) {
            found.extend(children.remove(pid).unwrap_or_default());
            next += 1;
        }
        found.sort_unstable();
        found.dedup();
        all.retain(|pid, _| found.binary_search(pid).is_ok());
        found.retain(|&pid| Some(pid) != self.below);
        (found, all.into_iter().collect())
    }

    /// The `server` field of the result: differences over the windows, which are in their order. Null without processes.
    pub(crate) fn to_json(&self, windows: &[Readings]) -> Value {
        let (Some(first), Some(last)) = (windows.first(), windows.last()) else {
            return Value::Null;
        };
        if self.is_empty() {
            return Value::Null;
        }
        let (begin, end) = (&first.details_begin, &last.details_end);
        let ends = || windows.iter().map(Readings::details);
        let switches = |kind: fn(&Switches) -> u64| {
            ends()
                .map(|both| both.map(|(begin, end)| end.switches_since(begin, kind)))
                .sum::<Option<u64>>()
        };
        let difference = |what: fn(&Details) -> u64| {
            ends()
                .map(|both| both.map(|(begin, end)| what(end).saturating_sub(what(begin))))
                .sum::<Option<u64>>()
        };
        let cpu_ns = windows.iter().map(Readings::cpu_ns).sum::<Result<u64, _>>();
        let error = cpu_ns.err().map(str::to_owned);
        let read = windows.iter().find_map(|one| one.error.clone());
        let rest_ns = windows.windows(2).map(|two| two[0].rest_ns(&two[1]));
        json!({
            "processes": end.as_ref().map_or(&self.pids, |details| &details.pids),
            "cpu_ns": cpu_ns.ok(),
            "user_ns": difference(|details| details.user_ns),
            "system_ns": difference(|details| details.system_ns),
            "voluntary_switches": switches(|one| one.voluntary),
            "involuntary_switches": switches(|one| one.involuntary),
            "threads": end.as_ref().map(|details| details.threads),
            "rest_cpu_ns": rest_ns.sum::<u64>(),
            "rss_rest_bytes": first.rss_bytes_at_rest,
            "rss_connected_bytes": begin.as_ref().map(|details| details.rss_bytes),
            "rss_end_bytes": end.as_ref().map(|details| details.rss_bytes),
            "error": read.or(error),
        })
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("can't read {what}"))
}

/// The numbers of /proc/PID/stat.
struct Stat(String);

impl Stat {
    fn read(pid: i32) -> io::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The name in parentheses may contain anything. After the last parenthesis come the fields, from the third one on.
        let (_, fields) = stat.rsplit_once(") ").ok_or_else(|| invalid("stat"))?;
        Ok(Self(fields.to_owned()))
    }

    /// A field, by its number in proc_pid_stat(5).
    fn field(&self, number: usize) -> io::Result<u64> {
        let field = self.0.split_whitespace().nth(number - 3);
        field
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| invalid("stat"))
    }
}

/// The resident and the proportional set size of a process, in bytes.
fn memory_of(pid: i32) -> io::Result<(u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
            .map(|kilobytes| kilobytes * 1024)
            .ok_or_else(|| invalid("smaps_rollup"))
    };
    Ok((field("Rss:")?, field("Pss:")?))
}

/// The CPU time of a process's ended children that it has waited for, and that of theirs; 0 if it is gone.
fn waited_ns(pid: i32) -> u64 {
    let ticks = Stat::read(pid).and_then(|stat| Ok(stat.field(16)? + stat.field(17)?));
    ticks.map_or(0, |ticks| ticks * system::tick_ns())
}
