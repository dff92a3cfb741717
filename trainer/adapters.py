"""Low-rank adapters by peft (LoRA, arXiv 2106.09685): few trained parameters beside frozen weights, published merged.

In: a model and TrainSettings. Out: the model with adapters in its layers; its weights with the adapters added in, under the names
of the model without them. Called by trainer/engine. Adapters start at no effect (B = 0), so version 0 is the model itself. Their
random part comes from the run's seed. Raises SettingsError where no layer has a name of `lora_targets`.
"""

from __future__ import annotations

from typing import Any

import torch

from schemas.errors import SettingsError
from schemas.settings import TrainSettings

ADAPTER = "default"
BASE = ".base_layer"


def add_adapters(model: Any, settings: TrainSettings) -> None:
    """Puts adapters into the layers of lora_targets and freezes all else."""
    from peft import LoraConfig, inject_adapter_in_model

    targets = settings.lora_targets
    config = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        lora_dropout=0.0,  # the sampler has none
        bias="none",
        target_modules=targets[0] if targets == ("all-linear",) else list(targets),
    )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    try:
        inject_adapter_in_model(config, model, adapter_name=ADAPTER)
    except ValueError as problem:  # peft's only word for targets that match nothing or no linear layer
        raise SettingsError(
            f"train.lora_targets ({', '.join(targets)}): {str(problem).splitlines()[0]}",
            "Name linear layers of the model, such as q_proj, or all-linear",
        ) from problem
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_A." in name or ".lora_B." in name)


def is_adapter(name: str) -> bool:
    """Whether a parameter belongs to an adapter."""
    return ".lora_A." in name or ".lora_B." in name


def plain_name(name: str) -> str:
    """A weight's name in the model without adapters."""
    return name.replace(BASE, "")


def adapted_layer(model: Any, name: str) -> Any | None:
    """The layer whose frozen weight bears `name`; None where it has no adapter."""
    owner, _, last = name.rpartition(".")
    return model.get_submodule(owner.removesuffix(BASE)) if owner.endswith(BASE) and last == "weight" else None


def merged(weight: torch.Tensor, layer: Any) -> torch.Tensor:
    """The layer's weight with its adapter added, computed in float32, in the weight's own type."""
    up, down = layer.lora_B[ADAPTER].weight.detach().float(), layer.lora_A[ADAPTER].weight.detach().float()
    found: torch.Tensor = weight.detach().float() + (up @ down) * float(layer.scaling[ADAPTER])
    return found.to(weight.dtype)
