"""What a vLLM worker needs besides, to take new weights in place: called by name through collective_rpc (samplers.vllm)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schemas.errors import ModelError


class PolicyReload:
    """Mixed into vLLM's worker class by worker_extension_cls; `self` is the worker."""

    model_runner: Any
    reload_weights: Any

    def take_policy(self, folder: str) -> None:
        """Replaces the weights by those in the folder's safetensors files. On a CPU the packed lm_head is packed anew."""
        self.reload_weights(weights_iterator=_weights(Path(folder)))
        model = self.model_runner.model
        head = getattr(model, "lm_head", None)
        if head is not None and head.weight.device.type == "cpu":
            importlib.import_module("vllm.model_executor.layers.utils").dispatch_cpu_unquantized_gemm(head, remove_weight=False)


def _weights(folder: Path) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of every weight. Raises ModelError naming a file that can't be read."""
    from safetensors import SafetensorError, safe_open

    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no mapping
                    yield name, opened.get_tensor(name)
        except (SafetensorError, OSError) as problem:
            raise ModelError(
                f"{file} holds no readable weights: {problem}", "The policy is cut off or changed: publish it again"
            ) from problem
