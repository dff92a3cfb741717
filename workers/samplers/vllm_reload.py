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
        """Replaces the weights by those in the folder's safetensors files. On a CPU the packed lm_head is packed anew.

        Raises ModelError; the weights may be mixed then, so nothing may be sampled until a whole policy is taken.
        """
        try:
            self.reload_weights(weights_iterator=read_weights(Path(folder)))
        except (KeyError, ValueError, RuntimeError, AssertionError) as problem:  # as vLLM's loaders refuse names and shapes
            raise ModelError(
                f"vLLM can't take the weights in {folder} into its model ({type(problem).__name__}: {problem})",
                "The folder is of another model than the run's: policies of one run have one architecture",
            ) from problem
        model = self.model_runner.model
        head = getattr(model, "lm_head", None)
        if head is not None and head.weight.device.type == "cpu":
            importlib.import_module("vllm.model_executor.layers.utils").dispatch_cpu_unquantized_gemm(head, remove_weight=False)


def read_weights(folder: Path) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of every weight. Raises ModelError naming a file that can't be read, or a folder that holds none."""
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:  # the engine would go on with the weights that it has
        raise ModelError(f"{folder} holds no *.safetensors", "Name an ordinary Hugging Face folder with config.json and weights")
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no mapping
                    yield name, opened.get_tensor(name)
        except (SafetensorError, OSError) as problem:
            raise ModelError(
                f"{file} holds no readable weights: {problem}", "The policy is cut off or changed: publish it again"
            ) from problem
