"""DeepSpeed's engine around a policy: its configuration, the process group it lives in, and how its parameters are seen whole.

In: a module and TrainSettings. Out: DeepSpeed's engine. Called by trainer/engine; trainer/team joins the group of several
processes before. Raises SettingsError where the environment asks for processes that nobody started.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from schemas.errors import SettingsError
from schemas.settings import TrainSettings

if TYPE_CHECKING:
    import torch


def start_deepspeed(module: torch.nn.Module, settings: TrainSettings) -> Any:
    """DeepSpeed's engine around the module, over torch's AdamW (DeepSpeed's own costs 1.6 times as much on a CPU)."""
    import torch

    join_alone()
    # Without this DeepSpeed would put the model on a GPU that it finds, whatever train.device says.
    os.environ.setdefault("DS_ACCELERATOR", settings.device)
    import deepspeed
    import deepspeed.ops

    # The shared-memory operator makes collectives on one host quicker than gloo's. It is declared absent, which spares the
    # install a compiler and a minute, and the start a build lock that a killed process would leave behind.
    deepspeed.ops.__compatible_ops__ = {"deepspeed_shm_comm": False, "deepspeed_not_implemented": False}
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay)
    with known_warnings():
        engine, _, _, _ = deepspeed.initialize(
            model=module, optimizer=optimizer, config=deepspeed_config(settings), dist_init_required=False
        )
    return engine


def deepspeed_config(settings: TrainSettings) -> dict[str, Any]:
    """What DeepSpeed is told. In bfloat16 stage 0 is stage 1: only ZeRO's optimizers keep float32 masters."""
    bfloat16 = settings.dtype == "bfloat16"
    zero: dict[str, Any] = {"stage": max(settings.zero_stage, 1 if bfloat16 else 0)}
    if settings.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu"}
    if settings.offload == "all":
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": settings.max_grad_norm,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        # Else it would insist on its own optimizer for offloading, which a compiler has to build.
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": bfloat16, "check_grad_overflow": True},
        "steps_per_print": 2**31,
    }


def join_alone() -> None:
    """A gloo group of this one process over a store in memory, unless a group stands: no port, nothing another could meet."""
    from torch import distributed

    if distributed.is_initialized():
        return
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SettingsError(
            "WORLD_SIZE is above 1: the trainer starts its processes itself", "Unset it; train.processes says how many"
        )
    tell_deepspeed(rank=0, world=1)
    store = distributed.HashStore()  # type: ignore[attr-defined]  # public, but missing in torch's __all__
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


def tell_deepspeed(rank: int, world: int) -> None:
    """The variables that DeepSpeed asks for even where the group stands."""
    told = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    if world > 1:
        os.environ.update(told)
    for name, value in told.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def gathered(stage: int, parameters: Sequence[torch.nn.Parameter], modify: bool = False) -> Iterator[None]:
    """Under ZeRO 3 parameters are whole only inside this, in every process; what rank 0 wrote into them counts, with `modify`."""
    if stage < 3:
        yield
        return
    import deepspeed

    with known_warnings(), deepspeed.zero.GatheredParameters(list(parameters), modifier_rank=0 if modify else None):
        yield


@contextlib.contextmanager
def known_warnings() -> Iterator[None]:
    """DeepSpeed calls collectives by names that this torch renames later."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed.*")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield
