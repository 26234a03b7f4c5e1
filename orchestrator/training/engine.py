"""What a training step is made of: the terms of a batch, exact gradients, the optimiser's step.

The engine knows of precision, processes, gradient caching, warm-up and clipping, so that a method which overrides
`update` is as exact as one that does not.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from orchestrator.config.training import Training
from orchestrator.errors import InputError, TrainingFailed
from orchestrator.method import Batch, Method, Outputs
from orchestrator.training.caching import Cached
from orchestrator.training.device import name_of, random_state, set_random_state
from orchestrator.training.distributed import alike, as_on_first, data_parallel, mean
from orchestrator.training.learner import Learner, describe_value, require_terms
from orchestrator.training.optimizer import clip_gradients
from orchestrator.training.precision import arithmetic, autocast


class Engine:
    """Runs the training steps of a learner; `orchestrator.method.Engine` says what a method may use of it.

    A method that does not override `update` runs under DDP, which sends gradients while others are still computed.
    Otherwise, and with gradient caching, the gradients' mean over the processes is taken afterwards.
    """

    def __init__(
        self,
        learner: Learner,
        training: Training,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        rng: Generator,
        device: torch.device,
    ) -> None:
        self.learner, self.training, self.optimizer, self.scaler = learner, training, optimizer, scaler
        self.rng, self.device = rng, device
        has_own_update = type(learner.method).update is not Method.update
        self._plain = not has_own_update and training.images_per_pass is None
        self._together = training.accumulate_batches or 1
        self._gathered = 0
        if has_own_update and self._together > 1:
            raise InputError(
                f"accumulate_batches: {self._together}: method '{learner.method.name}' has a training step of its own, "
                "which says itself when gradients are applied: leave it out"
            )
        if not alike(name_of(device)):
            learner.method.generator_on = lambda rng, _: rng  # numbers drawn on unlike GPUs differ
        self._own = has_own_update
        self._backbone = [value for value in learner.network.backbone.parameters() if value.requires_grad]
        self._frozen = False
        self._module: nn.Module = learner
        if self._plain:
            self._module = self._parallel()
        else:
            as_on_first([*learner.network.parameters(), *learner.network.buffers()])
        self._cached: list[Cached] = []
        self._warming = self._applied = False
        self._start: tuple[Tensor, list[Tensor]] | None = None
        self.first: dict[str, Tensor] = {}
        """The terms that the first call of `terms` in this step gave."""
        self.seen: list[Outputs] = []
        """The outputs of the runs of the network in that call."""

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name, `network. ...` and `method. ...`."""
        return {name: value for name, value in self.learner.named_parameters() if value.requires_grad}

    def step(self, batch: Batch, epoch: int) -> dict[str, Tensor]:
        """One training step; returns the terms of the method's `update`."""
        self._warming = epoch < self.training.warmup_epochs
        self._freeze(self._warming and not self._own and self._ends_in_warm_up(batch.step))
        self._start, self.first, self.seen = None, {}, []
        self.learner.train()
        first, self._gathered = self._gathered == 0, (self._gathered + 1) % self._together
        if self.training.freeze_batch_norm:
            self.learner.freeze_batch_norm()
        if first:
            self.optimizer.zero_grad(set_to_none=True)
        self.learner.batch = batch
        if (features := self.learner.features) is not None:
            features.expect(batch)
        try:
            terms = require_terms(self.learner.method, self.learner.method.update(batch, self))
        finally:
            self.learner.batch = None
            if features is not None:
                features.expect(None)
        self._cached.clear()
        if not self._plain and not self.training.freeze_batch_norm:
            as_on_first(self.learner.network.buffers())  # as DDP does
        return terms

    @property
    def has_stepped(self) -> bool:
        """Whether the last step was one of the optimiser: every step, unless gradients of several batches are added."""
        return self._gathered == 0

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the gradients of batches that are not applied yet, and how many these are."""
        gradients = {} if self.has_stepped else {name: value.grad for name, value in self.parameters.items()}
        return {"gathered": self._gathered, "gradients": gradients}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self._gathered = state.get("gathered", 0)
        for name, gradient in state.get("gradients", {}).items():
            if gradient is not None:
                self.parameters[name].grad = torch.empty_like(self.parameters[name].detach()).copy_(gradient)

    def require_applied(self) -> None:
        """TrainingFailed if no step has called `apply`: called once there were several."""
        if not self._applied:
            raise TrainingFailed(
                f"{self.learner.method.name}: update() trains nothing: it should call engine.backward(loss), then "
                "engine.apply()"
            )

    def terms(self, batch: Batch, parameters: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """The terms of the method's `step`; `parameters` take the place of the learner's by name."""
        if not isinstance(batch, Batch):
            raise TrainingFailed(
                f"{self.learner.method.name}: engine.terms() got {describe_value(batch)}, not a batch: there is a "
                "batch.meta if the Config has a field meta_share, above 0"
            )
        with self._same_draws():
            terms, outputs = self._run(self._module, (batch, self.rng, self._cache(parameters)), parameters)
        if not self.first:
            self.first, self.seen = terms, outputs
        return cast(dict[str, Tensor], terms)

    def outputs(self, images: Tensor, parameters: Mapping[str, Tensor] | None = None) -> Outputs:
        """The gathered outputs of the network for this process's block of any images."""
        return self.learner.gather_outputs(self._run(self.learner, (images,), parameters))

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss to `.grad` of every trained parameter."""
        if self._together > 1:
            loss = loss / self._together
        if self._plain:
            with self._backward():
                self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            return
        parameters, scale = list(self.parameters.values()), self._scale()
        gradients = self._gradients(loss * scale, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                gradient = gradient / scale  # what the method finds in `.grad`, or puts there, is never scaled
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def gradients(
        self, loss: Tensor, of: Mapping[str, Tensor] | None = None, *, create_graph: bool = False
    ) -> dict[str, Tensor]:
        """The gradient of a loss on each of these tensors, the trained parameters if none are given."""
        of = dict(self.parameters if of is None else of)
        scale = torch.ones((), device=self.device) if create_graph else self._scale()
        gradients = self._gradients(loss * scale, list(of.values()), create_graph=create_graph)
        return {
            name: torch.zeros_like(tensor) if gradient is None else gradient / scale
            for (name, tensor), gradient in zip(of.items(), gradients, strict=True)
        }

    def apply(self, only: Iterable[str] | None = None) -> None:
        """Clip the gradients, make the optimiser's step, forget the gradients; only of these parameters if given."""
        set_aside: dict[nn.Parameter, Tensor | None] = {}
        self._applied = True
        if not self.has_stepped:
            return
        if only is not None:
            parameters, names = self.parameters, set(only)
            if unknown := sorted(names - parameters.keys()):
                raise TrainingFailed(
                    f"{self.learner.method.name}: update() applies {unknown[0]!r}, which is not trained: "
                    "see engine.parameters"
                )
            set_aside = {value: value.grad for name, value in parameters.items() if name not in names}
        if not self._plain and all(value.grad is None for value in self.parameters.values() if value not in set_aside):
            raise TrainingFailed(
                f"{self.learner.method.name}: update() calls engine.apply() where no parameter has a gradient: it "
                "should call engine.backward(loss) before"
            )
        if self._warming:
            set_aside |= dict.fromkeys(self.learner.network.backbone.parameters())
        for parameter in set_aside:
            parameter.grad = None
        if not self._plain and self.scaler.is_enabled():  # as the scaler wants them, which looks for infinite ones
            scale = self._scale()
            for parameter in self.parameters.values():
                parameter.grad = None if parameter.grad is None else parameter.grad * scale
        self.scaler.unscale_(self.optimizer)
        clip_gradients(self.learner, self.training)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if only is not None or not self._plain:
            self.optimizer.zero_grad(set_to_none=True)
        for parameter, gradient in set_aside.items():
            parameter.grad = gradient

    def _parallel(self) -> nn.Module:
        """The learner under DDP, which then waits for no gradient of a frozen parameter."""
        return data_parallel(self.learner, unsynchronised=self.learner.state_outside_synchronisation())

    def _freeze(self, frozen: bool) -> None:
        """Whether no gradient of the backbone is computed, in steps that leave it as it is; DDP is then made anew. A
        method with an `update` of its own may ask for these gradients: it has them."""
        if frozen == self._frozen or not self._backbone:
            return
        self._frozen = frozen
        for parameter in self._backbone:
            parameter.requires_grad_(not frozen)
        if self._plain:
            self._module = self.learner  # the old one ends before
            self._module = self._parallel()

    def _ends_in_warm_up(self, step: int) -> bool:
        """Whether the batches whose gradients are added to this one's all lie in warm-up epochs: the last one is where
        they are applied."""
        steps, later = self.learner.method.task.steps_per_epoch, self._together - 1 - self._gathered
        return later == 0 or step + later < self.training.warmup_epochs * steps

    def _scale(self) -> Tensor:
        """fp16's factor of the loss, on the device: `get_scale` would wait for it."""
        return self.scaler.scale(torch.ones((), device=self.device))

    def _backward(self) -> contextlib.AbstractContextManager[None]:
        """The arithmetic of a loss's backward pass; `network_from_here` changes it where the network begins."""
        return arithmetic(self.training.precision, self.device, products=False)

    def _run(self, module: nn.Module, arguments: tuple[Any, ...], parameters: Mapping[str, Tensor] | None) -> Any:
        with autocast(self.training.precision, self.device):
            if not parameters:
                return module(*arguments)
            if unknown := sorted(parameters.keys() - dict(self.learner.named_parameters()).keys()):
                raise TrainingFailed(
                    f"{self.learner.method.name}: {unknown[0]!r} is no parameter of the learner: see engine.parameters"
                )
            return functional_call(self.learner, dict(parameters), arguments)

    def _cache(self, parameters: Mapping[str, Tensor] | None) -> Cached | None:
        """Where the runs of the network in one call of `terms` are cached."""
        if self.training.images_per_pass is None:
            return None
        again = lambda images: self._run(self.learner, (images,), parameters)  # noqa: E731
        self._cached.append(Cached(self.training.images_per_pass, again, self.device))
        return self._cached[-1]

    def _gradients(self, loss: Tensor, of: list[Any], *, create_graph: bool = False) -> list[Tensor | None]:
        """One-process gradients, None of a tensor that the loss does not depend on."""
        leaves = [leaf for cached in self._cached for leaf in cached.leaves]
        if create_graph and leaves:
            raise TrainingFailed(
                f"images_per_pass: {self.training.images_per_pass}: {self.learner.method.name} takes gradients of "
                "gradients, for which all images must pass the network at once: leave it out"
            )
        with self._backward():
            gradients = torch.autograd.grad(
                loss, [*of, *leaves], retain_graph=True, create_graph=create_graph, allow_unused=True
            )
            of_tensors: list[Any] = list(gradients[: len(of)])
            rest = gradients[len(of) :]
            for cached in self._cached:
                cached.add(of_tensors, of, rest[: len(cached.leaves)])
                rest = rest[len(cached.leaves) :]
        there = [index for index, gradient in enumerate(of_tensors) if gradient is not None]
        for index, gradient in zip(there, mean([of_tensors[index] for index in there]), strict=True):
            of_tensors[index] = gradient
        return of_tensors

    @contextlib.contextmanager
    def _same_draws(self) -> Iterator[None]:
        """Every call in one step draws the same random numbers; the first one's use of them counts."""
        if self._plain:  # there is one call
            yield
            return
        if self._start is None:
            self._start = self.rng.get_state(), random_state(self.device)
            yield
            return
        after = self.rng.get_state(), random_state(self.device)
        self._set_draws(*self._start)
        try:
            yield
        finally:
            self._set_draws(*after)

    def _set_draws(self, own: Tensor, of_torch: list[Tensor]) -> None:
        self.rng.set_state(own)
        set_random_state(of_torch, self.device)
