//! `account`: what a server's processes cost while generators on other machines load it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use crate::accounting::{Account, Readings};
use crate::arguments::Bookkeeping;
use crate::output;
use crate::start;
use crate::system::{self, now_ns};

/// How long before the window the slow readings begin. They take about a millisecond per hundred processes of the machine.
const PREPARATION_NS: u64 = 50_000_000;
/// How often to look whether the user wants an end.
const LOOK: Duration = Duration::from_millis(100);

/// Reads the clocks of the processes when the window opens and when it closes: stdin says when the warm-up before it begins.
pub(crate) fn measure(options: &Bookkeeping, interrupted: &AtomicBool) -> anyhow::Result<Value> {
    let account = Account::open(&options.account, options.account_mark.as_deref())?;
    let mut readings = Readings::default();
    readings.rest(&account)?;
    system::ask_for_precise_waits();
    output::event("accounting", json!({}));
    let start_ns = start::read().context("stdin ended before it said when to start")?;
    let due_ns = start_ns + system::ns(options.warm_up);
    wait_until(due_ns.saturating_sub(PREPARATION_NS), interrupted)?;
    readings.prepare(&account);
    wait_until(due_ns, interrupted)?;
    readings.open(&account);
    let opened_ns = now_ns();
    output::event("window_start", json!({}));
    wait_until(opened_ns + system::ns(options.window), interrupted)?;
    readings.close(&account);
    let window_s = (now_ns() - opened_ns) as f64 / 1e9;
    readings.complete(&account);
    output::event("window_end", json!({"seconds": window_s}));
    Ok(json!({
        "window_s": window_s,
        "start_late_ns": opened_ns.saturating_sub(due_ns),
        "server": account.to_json(&readings),
    }))
}

fn wait_until(instant_ns: u64, interrupted: &AtomicBool) -> anyhow::Result<()> {
    loop {
        if interrupted.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        let left_ns = instant_ns.saturating_sub(now_ns());
        if left_ns == 0 {
            return Ok(());
        }
        thread::sleep(Duration::from_nanos(left_ns).min(LOOK));
    }
}
