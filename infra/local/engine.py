"""`python -m leyden.infra.local.engine ARGUMENTS`: vLLM's API server, starting faster on a CPU."""

import os


def fork_engine_core() -> None:
    """Let vLLM fork its engine process where the platform is a CPU.

    It insists on spawn there, which imports everything again: 7 s of two cores. Nothing that does not survive a fork
    is initialised before (no CUDA, no torch threads). Can go when vLLM honours VLLM_WORKER_MULTIPROC_METHOD on CPUs.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def check_and_fork(cls: type, config: object) -> None:
        check(cls, config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    CpuPlatform.check_and_update_config = classmethod(check_and_fork)  # type: ignore[assignment]
    # Imported before the fork, so that the child has them.
    import vllm.v1.engine.core
    import vllm.v1.executor.uniproc_executor
    import vllm.v1.worker.cpu_worker  # noqa: F401


def main() -> None:
    """Serve; the arguments are vLLM's."""
    fork_engine_core()
    from vllm.entrypoints.launchers.api_server.entry import main as serve

    serve()


if __name__ == "__main__":
    main()
