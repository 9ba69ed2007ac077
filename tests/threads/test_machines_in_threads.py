"""The state machines of `make soak`, in two threads at once, while a third one forces garbage collections."""

import argparse

import pytest

import soak
from thread_support import rounds

pytestmark = [pytest.mark.examples, pytest.mark.ringloop_only]


@pytest.mark.parametrize("machine", ["PlainMachine", "TlsMachine", "PipeMachine", "UnixStreamsMachine"])
def test_machines_in_two_threads_behave_as_in_one(arm, machine):
    options = argparse.Namespace(arms=[arm], machines=[machine], examples=rounds(20), steps=20, threads=2)
    soak.run_in_threads(options, seed=1)
