"""There is one import package: a module that is also found at top level would give every class in it a twin."""

import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import leyden

FOLDERS = ("avro", "infra", "producers", "stream", "learner", "serving", "examples")
# Only by the engine's process, which has the packages that they need in the versions that they need.
NEEDS_ENGINE = ("leyden.infra.local.engine",)


def modules() -> list[str]:
    found = pkgutil.walk_packages(leyden.__path__, "leyden.", onerror=lambda name: None)
    return [m.name for m in found if m.name.split(".")[1] in FOLDERS and not m.name.startswith("leyden.examples")]


def test_no_folder_is_imported_as_a_top_level_package() -> None:
    assert not [name for name in sys.modules if name.split(".")[0] in FOLDERS]


def test_every_module_can_be_imported_and_starts_nothing(tmp_path: Path) -> None:
    names = [name for name in modules() if name not in NEEDS_ENGINE and not name.endswith("__main__")]
    assert len(names) > 30
    program = (
        "import importlib, sys, threading\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"twins = [n for n in sys.modules if n.split('.')[0] in {FOLDERS!r}]\n"
        "ours = [t.name for t in threading.enumerate() if t is not threading.main_thread()]\n"
        "assert not twins and not ours, (twins, ours)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_roles_do_not_import_one_another() -> None:
    root, apart = Path(leyden.__file__).parent, ("producers", "stream", "learner", "serving")
    mixed = [
        f"{file} imports {other}"
        for folder in apart
        for file in (root / folder).rglob("*.py")
        for other in apart
        if other != folder and re.search(rf"(leyden|\.)\.{other}[. ]", file.read_text())
    ]
    assert not mixed
