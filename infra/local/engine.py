"""`python -m leyden.infra.local.engine ARGUMENTS`: vLLM's API server, with half the CPU time where it runs on CPUs."""

import os
from typing import Any


def adapt_to_cpu() -> None:
    """Let vLLM fork its engine process and run the model in that one, where the platform is a CPU.

    It insists on spawn there, which imports everything again: 7 s of two cores. Nothing that does not survive a fork
    is initialised before (no CUDA, no torch threads). Can go when vLLM honours VLLM_WORKER_MULTIPROC_METHOD on CPUs.

    It insists on a worker process beside the engine process, too, which then turns in a loop while the worker computes:
    as much CPU time again. vLLM's reason is that OpenMP is configured by the environment of a new process; ours is,
    before this one starts. Can go when vLLM waits without spinning, or takes `uni` on CPUs.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def check_and_adapt(cls: type, config: Any) -> None:
        check(cls, config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        if config.parallel_config.world_size == 1:
            config.parallel_config.distributed_executor_backend = "uni"

    CpuPlatform.check_and_update_config = classmethod(check_and_adapt)  # type: ignore[assignment]
    # Imported before the fork, so that the child has them.
    import vllm.v1.engine.core
    import vllm.v1.executor.uniproc_executor
    import vllm.v1.worker.cpu_worker  # noqa: F401


def main() -> None:
    """Serve; the arguments are vLLM's."""
    adapt_to_cpu()
    from vllm.entrypoints.launchers.api_server.entry import main as serve

    serve()


if __name__ == "__main__":
    main()
