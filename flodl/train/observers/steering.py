"""Acts of people on a training while it runs: what each of them changes, and its record.

A training takes letters between two optimizer steps. With several ranks, rank 0 takes them and all
ranks carry them out after the same step. Nothing happens in a step while nobody asks.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

from flodl import log
from flodl.errors import FlodlError
from flodl.nn.optim import set_rate
from flodl.train.observers.journal import Act, Journal
from flodl.train.observers.requests import Mailbox, PrivateSocket, Wish, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch.optim import Optimizer

    from flodl.train.observers.requests import Answer, BetweenSteps
    from flodl.train.run.run_directory import RunDirectory
    from flodl.train.step.learning_rate import SteeredRate
    from flodl.train.step.torch_schedule import TorchSchedule


Value: TypeAlias = bool | int | float | str

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@final
@dataclass(frozen=True, slots=True)
class LiveSetting:
    """A declared setting.

    Attributes:
        name: Its name.
        default: The value at the beginning; its type is the type of all values.
        on_change: Called with each new value.
    """

    name: str
    default: Value
    on_change: Callable[[Value], object]

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"live_setting({self.name!r}): use letters, digits and underscores")
        if self.name == "lr":
            raise ValueError(
                "live_setting('lr'): every training has it already; type fdl runs tell RUN lr=1e-4"
            )
        if not isinstance(self.default, bool | int | float | str):
            raise ValueError(
                f"live_setting({self.name!r}): the default is a {type(self.default).__name__}; "
                "give a number, a text, True or False"
            )
        if not callable(self.on_change):
            raise ValueError(f"live_setting({self.name!r}): on_change must be a function")

    def read(self, text: str) -> Value:
        """Return the value that a text means.

        Raises:
            ValueError: It has another type than the default.
        """
        if isinstance(self.default, str):
            return text
        if isinstance(self.default, bool):
            word = text.strip().lower()
            if word in _TRUE or word in _FALSE:
                return word in _TRUE
            raise ValueError(f"{self.name}={text!r}: use true or false")
        kind = int if isinstance(self.default, int) else float
        try:
            value = kind(text)
        except ValueError:
            name = "a whole number" if kind is int else "a number"
            raise ValueError(f"{self.name}={text!r}: it must be {name}") from None
        if not math.isfinite(value):
            raise ValueError(f"{self.name}={text!r}: it must be finite")
        return value


@final
class LiveSettings:
    """The declared settings of a training, with their current values.

    Args:
        declared: The settings.
    """

    def __init__(self, declared: Sequence[LiveSetting] = ()) -> None:
        self._declared = {one.name: one for one in declared}
        self._values: dict[str, Value] = {one.name: one.default for one in declared}

    @property
    def values(self) -> Mapping[str, Value]:
        """The current values by name."""
        return dict(self._values)

    def changed(self) -> dict[str, Value]:
        """Return the values that are not their defaults."""
        return {k: v for k, v in self._values.items() if v != self._declared[k].default}

    def set(self, name: str, text: str) -> tuple[Value, Value]:
        """Change a setting, and call its function.

        Returns:
            The new value and the one before.

        Raises:
            ValueError: No such setting is declared, the text is not a value of it, or its function
                refused the value with a ``ValueError``.
        """
        setting = self._declared.get(name)
        if setting is None:
            known = ", ".join(self._declared) or "none"
            raise ValueError(
                f"{name!r} is not a live setting of this program; declared: {known}; declare it "
                f"with .live_setting({name!r}, default, on_change=…)"
            )
        value = setting.read(text)
        self._call(setting, value)
        old, self._values[name] = self._values[name], value
        return value, old

    def restore(self, values: Mapping[str, Value]) -> None:
        """Set the values of a checkpoint; settings that are no longer declared are left out."""
        for name, value in values.items():
            setting = self._declared.get(name)
            if setting is None:
                log.warning(
                    f"the checkpoint has {name}={value!r}, which is not a live setting any more; "
                    "it is left out"
                )
            elif value != self._values[name]:
                self._call(setting, value)
                self._values[name] = value

    @staticmethod
    def _call(setting: LiveSetting, value: Value) -> None:
        try:
            setting.on_change(value)
        except Exception as error:
            error.add_note(f"in on_change of the live setting {setting.name}={value!r}")
            raise


PAGE = "live page"
"""Stands for the user who acts with a button; all users of the page have the same token."""

_LOOK_SECONDS = 0.2
"""How often a paused training looks for signals."""


@final
class Steering:
    """Carries out acts on a training, and records them.

    Args:
        declared: The live settings.
        run: The run directory; None without one.
        optimizer: Its rates change if nothing else sets them.
        torch_schedule: Sets the rates; None if no scheduler of torch does.
        rate: The source of learning rates.
        wake: Makes the training look for letters soon.

    Attributes:
        mailbox: Gets the wishes; only on the rank that writes the run directory.
        settings: The live settings.
        stopping: Whether somebody asked to stop.
        announce: Called after each act with the state for a live page.
        on_pause: Called with None when a pause begins, and with its seconds when it has ended.
    """

    def __init__(
        self,
        declared: Sequence[LiveSetting],
        run: RunDirectory | None,
        optimizer: Optimizer,
        torch_schedule: TorchSchedule | None,
        rate: SteeredRate,
        wake: Callable[[], object] = lambda: None,
    ) -> None:
        self._optimizer, self._torch_schedule, self._rate = optimizer, torch_schedule, rate
        self.settings = LiveSettings(declared)
        self.mailbox = Mailbox(wake)
        self.stopping = False
        self.announce: Callable[[Mapping[str, Any]], object] = lambda _: None
        self.on_pause: Callable[[float | None], object] = lambda _: None
        self._paused = False
        self._socket: PrivateSocket | None = None
        self.record_in(run)
        self._announced: Act | None = None
        self._replayed: list[Act] = []

    # --- Beginning and end ---------------------------------------------------------------------

    def record_in(self, run: RunDirectory | None) -> None:
        """Record acts in a run directory from now on, if this rank writes one."""
        self._run = run if run is not None and run.writes else None
        self._journal = Journal.of_run(run)

    def open(self) -> None:
        """Begin to listen, if there is a run directory; without a socket, only warn."""
        if self._run is None:
            return
        try:
            self._socket = PrivateSocket(self._run.path, self.mailbox)
            self._run.add_record({"socket": str(self._socket.path)})
        except (OSError, FlodlError) as failure:
            log.verbose(f"  fdl runs tell cannot reach this training: {failure}")
        self.announce(self.state())

    def close(self) -> None:
        """Refuse what is left, and stop listening."""
        self.mailbox.close("the training has ended")
        if self._socket is not None:
            self._socket.close()

    def saved(self) -> dict[str, Any]:
        """Return what acts have changed, as JSON values for a checkpoint; empty if nothing."""
        schedule = self._torch_schedule
        found = {
            "factor": self._rate.factor if self._rate.factor != 1.0 else None,
            "scheduler": schedule.asked() if schedule is not None else None,
            "settings": self.settings.changed(),
            "journal": [act.as_json() for act in self._replayed],
        }
        return {name: value for name, value in found.items() if value}

    def restore(self, saved: Mapping[str, Any], step: int, source: Path | None) -> None:
        """Continue with the result of :meth:`saved`, and take over its acts into the journal.

        Acts after the checkpoint are not carried out again, because their steps are repeated.

        Args:
            saved: Of the checkpoint.
            step: Complete optimizer steps of the checkpoint.
            source: The checkpoint; None for a new training.
        """
        self._rate.factor = float(saved.get("factor", 1.0))
        if self._torch_schedule is not None:
            self._torch_schedule.restore_asked(saved.get("scheduler", {}))
        self.settings.restore(saved.get("settings", {}))
        self._replayed = [Act.from_json(form) for form in saved.get("journal", [])]
        if source is None or self._run is None:
            return
        acts = Journal.beside(source)
        if source.parent.absolute() != self._run.path.absolute():
            for act in self._replayed:
                self._journal.note(act.replayed(source.parent.name))
        known = [(act.step, act.time, act.assignment) for act in self._replayed]
        undone = [
            act
            for act in acts
            # Several acts can belong to the step of the checkpoint, before and after it.
            if act.step >= step and act.act in ("lr", "set")
            if (act.step, act.time, act.assignment) not in known
        ]
        if undone:
            self._tell_undone(undone, step, self._run.path.name)

    def _tell_undone(self, acts: Sequence[Act], step: int, run: str) -> None:
        what = ", ".join(f"{act.assignment} after step {act.step}" for act in acts)
        words = " ".join(
            f"set {act.assignment}" if act.act == "set" else act.assignment for act in acts[-1:]
        )
        log.warning(
            f"the checkpoint is of step {step}, before these acts: {what}; they are not carried "
            f"out again; to repeat the last one: fdl runs tell {run} {words}"
        )
        self._journal.note(
            Act.now(step, "resume", detail=f"undone, and not carried out again: {what}")
        )

    # --- Acts ----------------------------------------------------------------------------------

    def carry_out(self, step: int, loop: BetweenSteps) -> float:
        """Carry out the letters that have arrived; while the training is paused, wait for more.

        Args:
            step: Complete optimizer steps.
            loop: All ranks of the training.

        Returns:
            Seconds that the training was paused.
        """
        began = time.monotonic()
        paused = False
        while True:
            letters = self.mailbox.take()
            try:
                for wish in loop.share([letter.wish for letter in letters]):
                    answer = self._answer(wish, step, loop)
                    if letters:
                        letters.pop(0).reply(answer)
            finally:
                for letter in letters:
                    letter.reply(refused("it has ended the training with an error"))
            if not self._paused:
                break
            if not paused:
                paused = True
                self.on_pause(None)
            if self.stopping or loop.is_interrupted():
                self._paused = False
                self.announce(self.state())
                break
            self.mailbox.wait(_LOOK_SECONDS)
        if not paused:
            return 0.0
        seconds = time.monotonic() - began
        self.on_pause(seconds)
        return seconds

    def post(self, form: Any, reply: Callable[[Answer], object]) -> None:
        """Take a request of the live page.

        Raises:
            ValueError: It is not a request.
        """
        self.mailbox.post(Wish.read(form, PAGE), reply)

    def state(self) -> dict[str, Any]:
        """Return the state for a live page, as JSON values."""
        return {
            "paused": self._paused,
            "stopping": self.stopping,
            "settings": dict(self.settings.values),
            "last": self._announced.as_json() if self._announced is not None else None,
        }

    def _answer(self, wish: Wish, step: int, loop: BetweenSteps) -> Answer:
        try:
            act, text = self._carry_out(wish, step, loop)
        except ValueError as problem:
            return refused(str(problem))
        self._journal.note(act)
        self._announced = act
        if act.is_replayed:
            self._replayed.append(act)
        self.announce(self.state())
        if self._run is not None:
            log.msg(f"  {act.by}: {text}")
        return {"ok": True, "text": text, **act.as_json()}

    def _carry_out(self, wish: Wish, step: int, loop: BetweenSteps) -> tuple[Act, str]:
        """Change the training.

        Returns:
            The record of it, and what happened, for people.

        Raises:
            ValueError: The wish cannot be carried out.
        """
        value: Any = None
        old: Any = None
        match wish.act:
            case "lr":
                value = _rate(wish.value)
                old = self._set_rate(value, step)
                text = f"lr is {value:g} from step {step + 1} on, before it was {old:g}"
            case "set":
                value, old = self.settings.set(wish.key, wish.value)
                text = f"{wish.key} is {value!r} from step {step + 1} on, before it was {old!r}"
            case "checkpoint":
                if reason := loop.save_now():
                    raise ValueError(reason)
                text = f"saving a checkpoint of step {step}"
            case "pause":
                if self._paused:
                    raise ValueError("the training is paused already")
                self._paused = True
                text = f"paused after step {step}"
            case "continue":
                if not self._paused:
                    raise ValueError("the training is not paused")
                self._paused = False
                text = f"continues with step {step + 1}"
            case "stop":
                self.stopping = True
                text = f"stops after step {step}"
            case _:
                raise ValueError(f"{wish.act!r} is not an act")
        return Act.now(step, wish.act, wish.key, value, old, wish.by), text

    def _set_rate(self, rate: float, step: int) -> float:
        """Set the learning rate of the next step; return the one before."""
        if self._torch_schedule is not None:
            return self._torch_schedule.ask_for(rate)
        if self._rate.schedule is not None:
            return self._rate.ask_for(rate, step)
        groups = self._optimizer.param_groups
        first = float(groups[0]["lr"])
        for group in groups:
            ratio = float(group["lr"]) / first if first else 1.0
            set_rate(group, rate * ratio)
        return first


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise ValueError(f"lr={text!r}: it must be a number greater than 0, such as 1e-4")
    return rate
