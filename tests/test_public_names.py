"""The surface that users build on: exported names, and what `import leyden` costs."""

import subprocess
import sys

import leyden

NAMES = [
    "LLM",
    "FitResult",
    "LeydenError",
    "LightningRL",
    "Progress",
    "PromptTemplate",
    "RolloutResult",
    "StepResult",
    "Trainer",
    "emit",
    "rollout",
]


def test_exported_names_are_these_and_all_can_be_imported() -> None:
    assert sorted(leyden.__all__, key=str.lower) == sorted(NAMES, key=str.lower)
    for name in NAMES:
        assert getattr(leyden, name).__name__ == name


def test_import_leyden_imports_none_of_the_heavy_libraries() -> None:
    program = (
        "import sys, leyden; print([m for m in ('torch', 'confluent_kafka', 'pydantic', 'faust') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
