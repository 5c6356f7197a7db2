"""Three ways to train that give the same numbers: the builder, the setup, the plain loop.

- The builder owns the loop.
- The setup chooses the device, moves the model and makes the optimizer. The user writes the loop.
- The plain loop is PyTorch alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from flodl.log import msg
from flodl.train.builder import TrainerBuilder
from flodl.train.plain_loop.setup import (
    HasGraph,
    SetupConfig,
    TrainingSetup,
    model_of,
    prepare,
    summary,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

    from flodl.graph import Graph
    from flodl.ranks.settings import DdpConfig
    from flodl.train.handle import TrainerHandle
    from flodl.train.settings import ModelFactory, OptimizerFactory, TrainingPlan
    from flodl.train.step.base import TrainFn


@final
class Trainer:
    """The entry point of every training."""

    @staticmethod
    def builder(
        model: ModelFactory | nn.Module,
        optimizer: OptimizerFactory | torch.optim.Optimizer,
        train_fn: TrainFn,
    ) -> TrainerBuilder:
        """Describe a training that flodl carries out.

        If you pass a model, flodl moves it to the device and trains it in place. A second ``run()``
        continues from the values of the first and prints a warning. If you pass a function, each
        run begins with a new model. With several ranks, all begin with the values of rank 0.

        Args:
            model: A module, or a function ``(device) -> module`` that is called once.
            optimizer: A function ``(parameters) -> optimizer``, called once, after the model is on
                its device. With a module, also an optimizer over parameters of that module.
            train_fn: ``(model, batch) -> loss``, one step: the forward pass and a scalar loss.

        Raises:
            ValueError: One of them has another type, or cannot be called with these arguments.
        """
        return TrainerBuilder(model, optimizer, train_fn, _run)

    @staticmethod
    def setup(
        model: nn.Module,
        factory: ModelFactory | None,
        optimizer: OptimizerFactory | torch.optim.Optimizer,
        *,
        device: torch.device | str | None = None,
        config: SetupConfig | DdpConfig | None = None,
    ) -> TrainingSetup:
        """Prepare a model for the user's own training loop.

        It moves the model to the device and makes the optimizer. A model that is in eval mode as a
        whole is switched to training mode; otherwise every module keeps its mode. If the model has
        ``set_optimizer``, as a Graph does, the optimizer is attached to it. In the loop,
        compute a loss, call ``loss.backward()``, then ``step()`` of the setup. For a Graph
        ``model.step()`` does the same.

        If a launcher started several processes of this program, the same loop trains on all of
        them, see :class:`~flodl.train.plain_loop.setup.TrainingSetup`. They begin with the
        parameters of rank 0. Windows adapt to the speed of the ranks if their devices differ.

        Args:
            model: Any module, on any device.
            factory: ``(device) -> module``; called only if the model cannot be moved, for instance
                from the device ``"meta"``.
            optimizer: ``(parameters) -> optimizer``, or an optimizer over parameters of the model.
            device: Default: the device of this rank; without ranks the best usable CUDA device,
                else the CPU.
            config: Further settings. With a :class:`~flodl.ranks.settings.DdpConfig`, windows
                always adapt to the speed of the ranks.

        Raises:
            ValueError: The device does not exist here, or there are a device and a config.
            DistributedError: The models of the ranks differ.
        """
        if config is not None and device is not None:
            raise ValueError("setup takes device= or config=: give the device in the config")
        return prepare(model, factory, optimizer, config or SetupConfig(device=device))

    @staticmethod
    def setup_head(
        head: HasGraph | Graph,
        factory: ModelFactory | None,
        optimizer: OptimizerFactory | torch.optim.Optimizer,
        *,
        config: SetupConfig | DdpConfig | None = None,
    ) -> TrainingSetup:
        """Prepare a Graph, or an object that wraps a model as its ``graph``, such as a task head.

        It works as :meth:`setup` does; rank 0 also prints where the model is trained. The loop is
        the same on one device and on many::

            Trainer.setup_head(head, None, lambda parameters: AdamW(parameters, lr=5e-5))
            for enc, labels in batches:
                head.compute_loss(enc, labels).backward()
                clip_grad_norm(head.graph.parameters(), 1.0)
                head.graph.step()

        Args:
            head: Its graph is moved to the device. If it is in eval mode, it is switched to
                training mode.
            factory: ``(device) -> model`` for further devices of this process. A process has only
                one device, so None is enough: with several ranks, each rank makes its own head.
            optimizer: ``(parameters) -> optimizer``, or an optimizer over parameters of the model.
            config: Settings.

        Raises:
            ValueError: The device does not exist here, or the graph's parameters have no values.
            TypeError: ``head.graph`` is not a module.
            DistributedError: The models of the ranks differ.
        """
        setup = Trainer.setup(model_of(head), factory, optimizer, config=config)
        if setup.rank == 0:
            msg(summary(setup))
        return setup


def _run(plan: TrainingPlan) -> TrainerHandle:
    # Imported here: the modules for many ranks take a moment to import.
    from flodl.train import runner

    return runner.run(plan)
