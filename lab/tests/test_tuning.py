"""Tuning the machine, on a folder that looks like /proc and /sys: what is changed is undone, whatever happens in between."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ringlab import Refused, cli, tuning

SETTINGS = {
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave",
    "sys/devices/system/cpu/intel_pstate/no_turbo": "0",
    "proc/sys/kernel/randomize_va_space": "2",
    "proc/sys/kernel/perf_event_max_sample_rate": "100000",
    "proc/sys/kernel/nmi_watchdog": "1",
    "proc/irq/1/smp_affinity_list": "0-3",
    "proc/irq/24/smp_affinity_list": "2",
}


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Return a machine that has every setting."""
    for name, value in SETTINGS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value)
    return tmp_path


def tuner_of(machine: Path) -> tuning.Tuner:
    return tuning.Tuner(machine, machine / "journal.json", [2, 3])


def values(machine: Path) -> dict[str, str]:
    return {name: (machine / name).read_text() for name in SETTINGS}


def test_settings_are_changed_and_undone(machine: Path) -> None:
    tuner = tuner_of(machine)
    outcomes = {outcome.title: outcome.status for outcome in tuner.tune()}
    assert outcomes == {
        "CPU governor": "set", "turbo": "set", "address space layout": "as it should be", "perf sampling": "set",
        "NMI watchdog": "set", "interrupts": "set",
    }  # fmt: skip
    assert values(machine) == {
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance",
        "sys/devices/system/cpu/intel_pstate/no_turbo": "1",
        "proc/sys/kernel/randomize_va_space": "2",
        "proc/sys/kernel/perf_event_max_sample_rate": "1",
        "proc/sys/kernel/nmi_watchdog": "0",
        "proc/irq/1/smp_affinity_list": "2-3",
        "proc/irq/24/smp_affinity_list": "2-3",
    }
    assert tuner.restore() == []
    assert values(machine) == SETTINGS
    assert not (machine / "journal.json").exists()


def test_a_virtual_machine_says_what_cannot_be_done(tmp_path: Path) -> None:
    outcomes = tuner_of(tmp_path).tune()
    assert {outcome.status for outcome in outcomes} == {"can't be done"}
    assert "the hypervisor or the firmware decides" in outcomes[0].text


def test_what_a_killed_tune_left_is_undone(machine: Path) -> None:
    tuner_of(machine).tune()
    # Another process, which has died since.
    journal = machine / "journal.json"
    content = json.loads(journal.read_text())
    content["process"] = 1 << 30
    journal.write_text(json.dumps(content))
    found = tuning.left_over(machine, journal)
    assert found is not None
    assert found.restore() == []
    assert values(machine) == SETTINGS
    assert tuning.left_over(machine, journal) is None


def test_a_tune_that_still_runs_is_left_alone(machine: Path) -> None:
    tuner_of(machine).tune()
    journal = machine / "journal.json"
    content = json.loads(journal.read_text()) | {"process": 77}
    journal.write_text(json.dumps(content))
    (machine / "proc/77").mkdir()
    (machine / "proc/77/cmdline").write_bytes(b"python\0/bin/ringlab\0tune\0")
    with pytest.raises(Refused, match="process 77 has tuned this machine and still runs"):
        tuning.left_over(machine, journal)


@pytest.mark.parametrize("path", ["/etc/passwd", "{machine}/proc/../secret", "relative"])
def test_a_journal_cannot_name_other_files(machine: Path, path: str) -> None:
    journal = machine / "journal.json"
    journal.write_text(json.dumps({"process": 1 << 30, "changes": [[path.format(machine=machine), "x"]]}))
    with pytest.raises(Refused, match="names files outside of /proc and /sys"):
        tuning.left_over(machine, journal)


def test_a_broken_journal_is_an_error(machine: Path) -> None:
    (machine / "journal.json").write_text("{")
    with pytest.raises(Refused, match="can't be read"):
        tuning.left_over(machine, machine / "journal.json")


def test_without_a_journal_nothing_is_changed(machine: Path) -> None:
    tuner = tuning.Tuner(machine, machine / "no such folder" / "journal.json")
    with pytest.raises(Refused, match="can't be written"):
        tuner.tune()
    assert values(machine) == SETTINGS


PROGRAM = """
import sys
from pathlib import Path
from ringlab import cli, tuning
machine = Path(sys.argv.pop(1))
made = tuning.Tuner
tuning.Tuner = lambda **options: made(machine, machine / "journal.json", [0])
tuning.left_over = lambda: None
cli.main(["tune", *sys.argv[1:]])
"""


def test_ctrl_c_undoes_it(machine: Path) -> None:
    # A file that the command makes says that the machine is tuned by now.
    fifo = machine / "tuned"
    os.mkfifo(fifo)
    words = [sys.executable, "-c", PROGRAM, str(machine), "--", "sh", "-c", f"echo > {fifo}; exec sleep 600"]
    process = subprocess.Popen(words, start_new_session=True, stdout=subprocess.PIPE, text=True)
    try:
        fifo.read_text()
        assert (machine / "proc/sys/kernel/nmi_watchdog").read_text() == "0"
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "undone" in output
    assert values(machine) == SETTINGS


def test_the_status_is_that_of_the_command(machine: Path) -> None:
    words = [sys.executable, "-c", PROGRAM, str(machine), "--", "sh", "-c", "exit 7"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 7, done.stderr
    assert values(machine) == SETTINGS
    words[-3:] = ["no such program"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "can't be run" in done.stderr
    assert values(machine) == SETTINGS


@pytest.mark.parametrize(("cpus", "text"), [([0], "0"), ([3, 1, 2], "1-3"), ([0, 2, 3, 7], "0,2-3,7")])
def test_cpus_are_written_as_the_kernel_shows_them(cpus: list[int], text: str) -> None:
    assert tuning.cpu_list(cpus) == text


@pytest.mark.parametrize("command", ["tune", "trend", "publish", "replicate", "audit"])
def test_help_explains(command: str) -> None:
    found = CliRunner().invoke(cli.main, [command, "--help"])
    assert found.exit_code == 0
    assert "Usage: " in found.output
