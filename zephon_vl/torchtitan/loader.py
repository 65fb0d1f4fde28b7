"""The data loader that TorchTitan builds: a recipe's microbatches in its form, and their state in its checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
import tyro

from zephon_vl.errors import RecipeError
from zephon_vl.loader import Loader
from zephon_vl.recipe import load_recipe
from zephon_vl.stats import LoaderStats
from zephon_vl.torchtitan import checks, metrics
from zephon_vl.torchtitan.batches import model_inputs
from zephon_vl.torchtitan.interfaces import BaseDataLoader, sizes_of, trainer_step
from zephon_vl.torchtitan.peers import is_first_of_peers
from zephon_vl.torchtitan.steps import StepWatch

_log = logging.getLogger("zephon_vl")
_LANE = "lane_"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class ZephonVLDataLoader(BaseDataLoader):
    """Iterates `(inputs, labels)`, one microbatch of this data-parallel rank after the other.

    TorchTitan says what it owns: the rank, the number of ranks, the tokenizer, the sequence length and the local batch
    size. Where the recipe says otherwise, the start is refused.

    Raises:
        RecipeError: with both values and the remedy, for whatever TorchTitan and the recipe do not agree on, and for
            ranks and batch sizes that cannot be served.
        SourceError, StorageError: for data that cannot be opened.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        recipe: str = ""
        """Path of the recipe file, which decides the data."""
        workers: int = 2
        """Processes per rank that read, decode and tokenize. 0 does it in the trainer, for debugging."""
        prefetch: int = 4
        """Microbatches to have ready beyond those of the step."""
        memory_limit: int | None = None
        """Most bytes of buffers per rank. None: as much as a step and the prefetch take."""
        start_step: int = 0
        """First step of the recipe to deliver where no checkpoint says it; the steps before are planned only."""
        allow: list[str] = field(default_factory=list)
        """Parts of a checkpoint's identity that may differ: image_code, operators, tokenizer, data, recipe."""
        pixel_dtype: Literal["float32", "bfloat16"] = "float32"
        """Type of `pixel_values` on the device; the models convert it to their own."""
        ledger: str | None = None
        """Directory, shared by all ranks and restarts, for the record of what was delivered; see docs/ledger.md."""
        log_every: int = 10
        """Steps between lines of the loader in the log; 0 for none."""
        infinite: Annotated[bool | None, tyro.conf.Suppress] = None
        """Set by the validator of TorchTitan 0.3.0."""
        repeat: Annotated[bool | None, tyro.conf.Suppress] = None
        """Set by the validator of TorchTitan's main."""

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, tokenizer: Any, **sizes: Any) -> None:
        if not config.recipe:
            raise RecipeError("dataloader.recipe is empty: give the path of a recipe file")
        given = sizes_of(sizes)
        forever = config.infinite if config.infinite is not None else config.repeat
        self._validating = forever is not None
        recipe = load_recipe(config.recipe)
        checks.check_recipe(recipe, given)
        checks.check_repeats(recipe, forever)
        self._loader = Loader(
            recipe,
            dp_rank=dp_rank,
            dp_size=dp_world_size,
            microbatch_size=given.rows,
            workers=config.workers,
            prefetch=config.prefetch,
            memory_limit=config.memory_limit,
            start_step=config.start_step,
            ledger=config.ledger if config.ledger and is_first_of_peers(dp_rank) else None,
        )
        checks.check_tokenizer(recipe, self._loader.setup.vocabulary, tokenizer)
        self._special_tokens = checks.special_tokens(recipe, tokenizer)
        self._dtype = _DTYPES[config.pixel_dtype]
        self._allow = tuple(config.allow)
        self._log_every = config.log_every if dp_rank == 0 and not self._validating else 0
        self._watch = StepWatch()
        self._window = metrics.Window(self._loader.stats)
        self._begun = self._loaded = False
        if not self._validating:
            metrics.set_training(self)

    # --- iteration ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
        return self

    def __next__(self) -> tuple[dict[str, Any], torch.Tensor]:
        loader, step = self._loader, trainer_step()
        if not self._validating:
            self._watch.before(step, loader.recipe, loader.topology)
            if not self._begun:
                self._begun = True
                self._say_where(step)
        batch = next(loader)
        self._watch.after(batch.last)
        if batch.last and self._log_every and (batch.step + 1) % self._log_every == 0:
            _log.info("data of rank 0, step %d: %s", batch.step, self._window.take().text())
        return model_inputs(batch, self._special_tokens, self._dtype, self._validating)

    def _say_where(self, step: int | None) -> None:
        """Log where the data starts, loudly where the model does not start there."""
        first, recipe = self._loader.next_step, self._loader.recipe
        why = "as the checkpoint says" if self._loaded else "no state of the loader was loaded"
        left_out = sum(min(stop, first) - start for start, stop in recipe.skip_steps if start < first)
        if step is None or step - 1 == first - left_out:
            _log.info("the data of %d lanes starts with step %d of the recipe: %s", recipe.lanes, first, why)
            return
        _log.warning(
            "THE DATA STARTS WITH STEP %d OF THE RECIPE, BUT THE TRAINER HAS DONE %d STEPS: %s. If that is not meant, "
            "load the checkpoint with its dataloader (not in checkpoint.exclude_from_loading), or set "
            "dataloader.start_step",
            first,
            step - 1,
            why,
        )

    # --- checkpoints ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state right after the last microbatch that the trainer took: `identity`, and an entry of bytes for each
        lane of this rank. A distributed checkpoint keeps them by name, so another number of ranks finds its lanes."""
        self._watch.check_save(self._loader.recipe, self._loader.topology)
        state = self._loader.state_dict()
        return {"identity": state["identity"], **state["lanes"]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state. Raises `StateError` for the state of another run, naming what differs."""
        lanes = {key: entry for key, entry in state_dict.items() if key.startswith(_LANE)}
        self._loader.load_state_dict({"identity": state_dict.get("identity"), "lanes": lanes}, self._allow)
        self._loaded = True

    # --- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop all processes; also done when the loader is collected, and at exit."""
        self._loader.close()

    @property
    def stats(self) -> LoaderStats:
        """What this rank's loader has done so far."""
        return self._loader.stats
