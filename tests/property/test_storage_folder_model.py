"""A folder behaves as a dictionary does that never forgets, whatever is done to it and whoever dies."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from common.errors import ObjectMissingError, StorageConflictError
from common.storage import ObjectInfo
from common.storage.folder import FolderStorage
from common.storage.names import TEMPORARY_PREFIX, TEMPORARY_SUFFIX, is_listed

# Leaves and folders have names of their own: a file cannot be a folder too, as a key in S3 can.
NAMES = st.builds(
    "{}{}".format,
    st.sampled_from(["", "a/", "a/b/", "ü/", ".p/"]),
    st.sampled_from(["x", "y", "x.1", "名", ".z"]),
)
PREFIXES = st.sampled_from(["", "a", "a/", "a/b/", "x", ".", ".p/", "ü", "nothing", "a/."])
DATA = st.binary(max_size=12)


class FolderMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.top = Path(tempfile.mkdtemp(prefix="promptmill-test-"))
        self.root = self.top / "out"
        self.model: dict[str, bytes] = {}
        self.storage = FolderStorage(self.root)

    def teardown(self):
        shutil.rmtree(self.top)

    @rule(name=NAMES, data=DATA)
    def create(self, name, data):
        if name not in self.model:
            assert self.storage.create(name, data) is True
            self.model[name] = data
        elif self.model[name] == data:
            assert self.storage.create(name, data) is False
        else:
            with pytest.raises(StorageConflictError):
                self.storage.create(name, data)

    @rule(name=NAMES, data=DATA)
    def replace(self, name, data):
        self.storage.replace(name, data)
        self.model[name] = data

    @rule(name=NAMES)
    def read(self, name):
        if name in self.model:
            assert self.storage.read(name) == self.model[name]
            assert self.storage.stat(name) == ObjectInfo(name, len(self.model[name]))
        else:
            with pytest.raises(ObjectMissingError):
                self.storage.read(name)
            assert self.storage.stat(name) is None

    @rule(prefix=PREFIXES)
    def list(self, prefix):
        expected = [
            ObjectInfo(name, len(data))
            for name, data in sorted(self.model.items())
            if is_listed(name, prefix)
        ]
        assert list(self.storage.list(prefix)) == expected

    @rule(data=DATA)
    def die_in_the_middle_and_start_again(self, data):
        if self.root.exists():
            (self.root / f"{TEMPORARY_PREFIX}{len(data):016x}{TEMPORARY_SUFFIX}").write_bytes(data)
        self.storage = FolderStorage(self.root)

    @rule()
    def open_again(self):
        self.storage = FolderStorage(self.root)

    @invariant()
    def the_files_are_the_model(self):
        found = {
            path.relative_to(self.root).as_posix(): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() and not path.name.startswith(TEMPORARY_PREFIX)
        }
        assert found == self.model


TestFolderMachine = FolderMachine.TestCase
TestFolderMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
