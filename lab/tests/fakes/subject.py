"""A fake of a program that measures one thing itself, at a cost that is given."""

import argparse
import json
import os
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--cost", type=float, default=1.0)
parser.add_argument("--fault", default="")
parser.add_argument("--window", type=float)
parser.add_argument("--warm-up", type=float)
parser.add_argument("--server-cpus")
parser.add_argument("--load-cpus")
parser.add_argument("--load", default="")
parser.add_argument("--check", action="store_true")
parser.add_argument("words", nargs="+")
options = parser.parse_args()
if options.check:
    if options.fault == "without-tls" and "tls" in options.words:
        sys.exit("no floor under TLS: apt-get install libssl-dev")
    print("{}")
    sys.exit()
if options.fault == "crash":
    sys.exit("WrongBehaviour: not so: callbacks run in order")
value = float("nan") if options.fault == "nan" else options.cost * (1 + os.getpid() % 5 / 1000)
figures = {"operation_ns": value, "server_cpu_us": value, "window_s": options.window, "odd": float("nan")}
figures["has_load"] = float(os.access(options.load, os.X_OK))
if options.fault == "none":
    figures = {}
print(json.dumps({"figures": figures}))
