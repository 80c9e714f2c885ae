"""The loop: iterations, evaluations and checkpoints in the one order that a resumed run repeats exactly."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from enum import Enum

from dnncore import Handle
from dnncore.errors import DivergedError
from dnncore.nn.heads import with_probabilities
from dnncore.train.checkpoint import Checkpoint, CheckpointStore, TrainingState
from dnncore.train.data import Batch, Prefetcher
from dnncore.train.evaluate import Evaluator
from dnncore.train.interruption import Interruption
from dnncore.train.journal import Journal
from dnncore.train.learner import Learner
from dnncore.train.progress import Progress
from dnncore.train.recipe import Recipe

__all__ = ["Ending", "Solver"]


class Ending(Enum):
    """Why the loop ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"


class Solver:
    """Trains a net as its recipe says. Owned by one thread; checked by the handle.

    Args:
        handle: Where it trains.
        recipe: What it trains, on what, how long.
        store: Where checkpoints go.
        journal: Where events go.
        progress: What people see.
        interruption: Asks it to stop.
        checkpoint: To resume from; None starts from the seed's initial weights.
        clock: Monotonic seconds; no result depends on it.
    """

    def __init__(
        self,
        handle: Handle,
        recipe: Recipe,
        store: CheckpointStore,
        journal: Journal,
        progress: Progress,
        interruption: Interruption,
        checkpoint: Checkpoint | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recipe = recipe
        self._store = store
        self._journal = journal
        self._progress = progress
        self._interruption = interruption
        self._clock = clock
        self._saved_iteration = checkpoint.state.iteration if checkpoint else None
        self.state = checkpoint.state if checkpoint else TrainingState()
        config = recipe.config
        weights = checkpoint.weights if checkpoint else recipe.initial_weights()
        self.learner = Learner(
            handle, recipe.net, weights, config.optimizer, checkpoint.momenta if checkpoint else None, config.seed
        )
        self._evaluator = Evaluator(
            handle,
            with_probabilities(recipe.net.served),
            self.learner.parameters,
            recipe.preprocessing,
            config.training.batch,
        )

    def run(self) -> Ending:
        """Train to the end of the recipe, to `training.stop_after`, or until a signal comes; the last state is saved.

        Raises:
            DivergedError: the loss is not finite; the message names the iteration. Nothing is saved then.
            PreprocessingError: an image cannot be read; the message names its file.
        """
        training = self._recipe.config.training
        batches = self._recipe.loader.batches(self.state.epoch, self.state.position)
        with Prefetcher(batches, training.prefetch) as prefetcher:
            while True:
                if self._interruption.signal is not None:
                    ending = Ending.INTERRUPTED
                elif self._evaluation_is_due():
                    self._evaluate()
                    continue
                elif self.state.iteration == self._recipe.iterations:
                    ending = Ending.FINISHED
                elif 0 < training.stop_after <= self.state.iteration:
                    ending = Ending.STOPPED
                else:
                    self._step(prefetcher)
                    if self.state.iteration % self._recipe.config.checkpoint.every == 0:
                        self._save()
                    continue
                self._save()
                return ending

    def close(self) -> None:
        """Give everything back; a second call does nothing."""
        self._evaluator.close()
        self.learner.close()

    def _step(self, prefetcher: Prefetcher[Batch]) -> None:
        before = self._clock()
        batch = prefetcher.take()
        waited = self._clock() - before
        state, images = self.state, len(batch.labels)
        lr = self._recipe.schedule.rate(state.iteration)
        try:
            total = self.learner.step(batch.images, batch.labels, lr, state.iteration)
        except DivergedError as error:
            # As text: JSON has neither NaN nor infinity.
            self._journal.write("diverged", iteration=state.iteration + 1, lr=lr, message=str(error))
            last = "no checkpoint yet" if self._saved_iteration is None else f"last checkpoint: {self._saved_iteration}"
            raise DivergedError(
                f"iteration {state.iteration + 1} (epoch {state.epoch + 1}): {error} at lr {lr:g}; "
                f"lower optimizer.lr or lengthen schedule.warmup_epochs ({last})"
            ) from error
        ends_epoch = state.position + 1 == self._recipe.loader.batches_per_epoch
        self.state = dataclasses.replace(
            state,
            iteration=state.iteration + 1,
            epoch=state.epoch + ends_epoch,
            position=0 if ends_epoch else state.position + 1,
            epoch_loss=0.0 if ends_epoch else state.epoch_loss + total,
            epoch_images=0 if ends_epoch else state.epoch_images + images,
        )
        epoch, loss = state.epoch + 1, total / images
        report = self._progress.step(self.state.iteration, epoch, images, waited, lr, loss)
        if self.state.iteration % self._recipe.config.training.report_every == 0:
            self._journal.write(
                "step", iteration=self.state.iteration, epoch=epoch, lr=lr, loss=loss, **dataclasses.asdict(report)
            )
        if ends_epoch:
            mean = (state.epoch_loss + total) / (state.epoch_images + images)
            self._journal.write("epoch", epoch=epoch, iteration=self.state.iteration, loss=mean)

    def _evaluation_is_due(self) -> bool:
        state, training = self.state, self._recipe.config.training
        if state.iteration == state.evaluated:
            return False
        if state.iteration == self._recipe.iterations:
            return True
        if training.evaluate_iterations:
            return state.iteration % training.evaluate_iterations == 0
        return state.position == 0 and state.epoch % training.evaluate_every == 0

    def _evaluate(self) -> None:
        before = self._clock()
        evaluation = self._evaluator.evaluate(self._recipe.split.held_out)
        best = self.state.best_top1
        is_best = best is None or evaluation.top1 > best
        self.state = dataclasses.replace(
            self.state, evaluated=self.state.iteration, best_top1=evaluation.top1 if is_best else best
        )
        self._journal.write(
            "evaluation", epoch=self.state.epoch, iteration=self.state.iteration, best=is_best, **evaluation.summary()
        )
        if is_best:
            self._store.save_best(self._checkpoint())
        self._progress.exclude(self._clock() - before)
        self._progress.line(
            f"epoch {self.state.epoch}: held-out top-1 {evaluation.top1:.2%}  top-5 {evaluation.top5:.2%}  "
            f"loss {evaluation.loss:.4f}{'  (best so far)' if is_best else ''}"
        )

    def _checkpoint(self) -> Checkpoint:
        recipe = self._recipe
        return Checkpoint(
            self.state,
            recipe.identity,
            recipe.dataset.fingerprint,
            self.learner.weights(),
            self.learner.momenta(),
        )

    def _save(self) -> None:
        before = self._clock()
        path = self._store.save(self._checkpoint())
        self._saved_iteration = self.state.iteration
        self._journal.write("checkpoint", iteration=self.state.iteration, path=str(path))
        self._progress.exclude(self._clock() - before)
