"""`accelerate launch` with two CPU processes makes the update of one."""

import runpy
import subprocess
import sys
from pathlib import Path

import torch
from leyden.infra.local.ports import free_port
from safetensors.torch import load_file

SCRIPT = Path(__file__).with_name("sharded_step.py")


def test_two_processes_make_the_update_of_one(tiny_model_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "two.safetensors"
    # --multi_gpu means torchrun, whatever the device is; with --cpu and without MPI accelerate starts one process only.
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    command += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    command += ["--main_process_port", str(free_port()), str(SCRIPT), str(tiny_model_dir), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    two = load_file(out)
    assert int(two.pop("n_processes")) == 2
    alone = runpy.run_path(str(SCRIPT), run_name="sharded_step")
    one = alone["train"](alone["make_stepper"](tiny_model_dir))
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-5, atol=1e-5)
