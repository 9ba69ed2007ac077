"""These tests are about races: the first failure of ringloop counts. asyncio, the control, has some of its own."""

import pathlib

FOLDER = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        arm = item.callspec.params.get("arm") if hasattr(item, "callspec") else None
        if item.path.parent == FOLDER and arm != "asyncio":
            item.add_marker("exact")
