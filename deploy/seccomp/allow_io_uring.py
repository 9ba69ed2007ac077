"""Allow io_uring in a seccomp profile of Docker's format, and change nothing else.

usage: allow_io_uring.py PROFILE >NEW

PROFILE is the default profile of your container runtime: Docker's is seccomp/default.json of github.com/moby/profiles, Podman's is
/usr/share/containers/seccomp.json.
"""

import json
import sys

CALLS = ["io_uring_setup", "io_uring_enter", "io_uring_register"]


def allow(profile: dict) -> dict:  # type: ignore[type-arg]
    """Return the profile with a rule for io_uring. Other rules that name its calls no longer do."""
    rules = [rule | {"names": [name for name in rule["names"] if name not in CALLS]} for rule in profile["syscalls"]]
    rules = [rule for rule in rules if rule["names"]]
    return profile | {"syscalls": [*rules, {"names": CALLS, "action": "SCMP_ACT_ALLOW"}]}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        with open(sys.argv[1]) as file:
            allowed = allow(json.load(file))
    except OSError as error:
        sys.exit(f"{sys.argv[1]}: {error.strerror}")
    except (ValueError, LookupError, TypeError):
        sys.exit(f"{sys.argv[1]}: this is no seccomp profile in Docker's format, which is JSON with a list of syscalls")
    json.dump(allowed, sys.stdout, indent=2)
    print()
