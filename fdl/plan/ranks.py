"""Starting an entry in several ranks: ``ddp`` settings become a launch through torchrun.

The settings reach the program in two ways: as flags, and as one JSON object in ``FLODL_DDP`` for a
program that declares no such flags.
"""

from __future__ import annotations

import json

from fdl.base.errors import ManifestError
from fdl.base.hardware import nvidia
from fdl.base.hardware.machine import threads
from fdl.base.units import counted
from fdl.manifest.node import Variable, origin
from fdl.manifest.words import RIVALS, node_range, solo_device
from fdl.plan import torchrun
from fdl.plan.generate import is_marked, settings
from fdl.plan.torchrun import launcher
from fdl.plan.typed_ranks import Setting, Typed, refused
from fdl.plan.value import Flag, Ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fdl.manifest.node import Node
    from fdl.manifest.select.level import Level
    from fdl.plan.value import Plan
    from fdl.programs.parameters.contract import Schema

SETTINGS_VARIABLE = "FLODL_DDP"
"""Passes every ``ddp`` setting to the program, as JSON."""

THREADS_VARIABLE = "OMP_NUM_THREADS"
DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"

_STORE_VARIABLE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Lets ranks of several machines connect again after each restart.

Without it, a launcher of torch 2.13 that once had rank 0 always sends its ranks to itself.
"""

_NODE_VARIABLE = "FDL_NODE"
"""Number of this machine among the hosts of ``fdl --on HOST,HOST``."""

_LAUNCH = ("ranks", "nodes", "rdzv", "max_restarts")
"""Fields of ``ddp`` that tell fdl itself how to start the entry."""

_OF_SEVERAL = ("speed_hint", "partition_ratios", "simulate_ms")
"""Fields that describe each of several ranks, or one rank among others."""

_MAX_RESTARTS = 3


class Distribution:
    """Changes a plan, so far for one process, to start as many ranks as the settings say.

    Raises:
        UsageError: The typed arguments are wrong.
    """

    def __init__(
        self,
        plan: Plan,
        level: Level,
        preset: str | None,
        schema: Schema | None,
        shell: Mapping[str, str],
    ) -> None:
        self._plan = plan
        self._schema = schema
        self._environ = {**({} if plan.service else shell), **plan.env}
        merged = settings(level.manifest.node, level.commands[preset] if preset else None)
        self._ddp: dict[str, Node] = merged["ddp"]
        count = sum(flag.count for flag in plan.flags) + len(plan.typed)
        self._words = len(plan.argv) - count
        self._program = torchrun.read(plan.argv[: self._words])
        self._typed = Typed(plan, schema, launchable=self._program is not None)
        self._asked = {
            name: Setting(node.plain(), origin(node, plan.root), name, secret=bool(node.secret))
            for name, node in self._ddp.items()
            if name in _LAUNCH
        }
        self._asked.update(self._typed.launch)

    @property
    def elastic(self) -> bool:
        """Whether the ranks may come and go."""
        given = "elastic" in self._ddp and self._ddp["elastic"].plain() is True
        return given or "elastic" in self._typed.launch

    def settle(self) -> None:
        """Change the plan.

        Raises:
            ManifestError: The manifest's settings contradict each other, or ask for ranks of an
                entry that cannot be started in ranks. The message has the place.
            UsageError: The typed settings do.
        """
        self._settle_mode()
        device = self._solo()
        if device is not None:
            self._forget(_OF_SEVERAL)
        launched = launcher(self._environ)
        ranks = None if launched or device is not None else self._ranks()
        self._pass_on(solo=device is not None)
        self._leave_out()
        if device is not None:
            self._show_one_device(device)
        elif ranks is not None:
            self._start(ranks)
        elif launched and self._asked:
            self._plan.notes.append(
                f"{launched}: somebody else starts the ranks, so this starts once"
            )

    def _settle_mode(self) -> None:
        """Let a typed ``--mode`` replace ``policy`` and ``backend`` of the manifest, or reverse."""
        for name in self._typed.modes:
            for rival in RIVALS[name]:
                if rival not in self._typed.modes:
                    self._forget((rival,))

    def _forget(self, names: Sequence[str]) -> None:
        """Remove settings of the manifest that do not apply here."""
        fields = {f"ddp.{name}" for name in names if self._ddp.pop(name, None) is not None}
        self._plan.drop([one for one in self._plan.flags if one.field in fields])

    def _solo(self) -> int | None:
        """The one device that the mode names, or None."""
        mode = self._typed.modes.get("mode")
        if mode is None and "mode" in self._ddp:
            node = self._ddp["mode"]
            mode = Setting(node.value, origin(node, self._plan.root), "mode")
        device = None if mode is None else solo_device(str(mode.value))
        ranks = self._typed.launch.get("ranks")
        if mode and device is not None and ranks and ranks.value not in (1, "auto"):
            raise refused(
                ranks,
                f"{ranks.shown} contradicts `{mode.value}`, which trains on one device",
                "leave one of them out",
            )
        return device

    def _ranks(self) -> Ranks | None:
        """The ranks to start, or None for one process."""
        if self.elastic:
            self._refuse_machines()
            self._plan.notes.append("elastic: the program starts its ranks itself")
            return None
        nodes = self._nodes()
        asked = self._asked.get("ranks")
        number = None if asked is None or asked.value == "auto" else int(asked.value)
        if nodes[1] == 1 and (asked is None or number == 1):
            return None
        gpus = self._gpus()
        here = number or max(len(gpus), 1)
        if nodes[1] == 1 and number is None and (here == 1 or self._plan.service):
            found = "one GPU" if gpus else "no GPU"
            self._plan.notes.append(
                "ranks auto: the GPUs of a container are not seen from outside, so this starts once"
                if self._plan.service
                else f"ranks auto: there is {found} here, so this starts once"
            )
            return None
        if 0 < len(gpus) < here:
            self._plan.notes.append(
                f"there are {here} ranks and {counted(len(gpus), 'GPU')}: "
                "each rank needs one of its own"
            )
        rdzv = self._asked.get("rdzv") if nodes[1] > 1 else None
        restarts = self._asked.get("max_restarts")
        return Ranks(
            here,
            nodes,
            str(rdzv.value) if rdzv else "",
            int(restarts.value) if restarts else _MAX_RESTARTS,
            gpus[:here],
            int(self._environ[_NODE_VARIABLE]) if self._environ.get(_NODE_VARIABLE) else None,
        )

    def _refuse_machines(self) -> None:
        """Check that no number of machines is asked for: each would train by itself."""
        for name in ("nodes", "rdzv"):
            asked = self._asked.get(name)
            if asked is not None and str(asked.value) != "1":
                raise refused(
                    asked,
                    f"{asked.shown} contradicts `elastic`, where other machines join the first",
                    "leave it out, and type the command on them with the FLODL_JOIN that the "
                    "first one prints",
                )

    def _nodes(self) -> tuple[int, int]:
        """The minimum and maximum of machines. Several need ``rdzv``."""
        nodes, rdzv = self._asked.get("nodes"), self._asked.get("rdzv")
        if nodes is None:
            if rdzv is not None:
                raise refused(
                    rdzv,
                    f"{rdzv.shown} has no effect without `nodes`, the number of machines",
                    "add `nodes: 2` to `ddp`, or --nodes 2",
                )
            return 1, 1
        found = node_range(str(nodes.value)) or (1, 1)
        if found[1] > 1 and rdzv is None:
            raise refused(
                nodes,
                f"{nodes.shown} needs `rdzv`, the address where the machines meet",
                "add `rdzv: HOST:29400` to `ddp`, or --rdzv HOST:29400, with one machine's name",
            )
        return found

    def _gpus(self) -> list[str]:
        return [gpu.name for gpu in nvidia(self._environ).visible]

    def _not_launchable(self) -> ManifestError:
        asked = self._asked.get("ranks") or self._asked["nodes"]
        entry = " ".join(self._plan.argv[: self._words])
        return ManifestError(
            f"{self._plan.origin}: {asked.shown} ({asked.origin}) cannot start `{entry}`: ranks "
            "need `python script.py` or `python -m module`",
            hint="write the entry as `python main.py`, or take the setting out and let the "
            "program start its ranks itself",
        )

    def _pass_on(self, *, solo: bool) -> None:
        """Set ``FLODL_DDP``."""
        said = {name: node.plain() for name, node in self._ddp.items()}
        said.update({name: one.value for name, one in self._typed.launch.items()})
        if solo:
            said = {name: value for name, value in said.items() if name not in _LAUNCH}
            said["ranks"] = 1
        # fdl or the program's own default sets the number.
        if said.get("ranks") == "auto":
            del said["ranks"]
        if not said:
            return
        text = json.dumps(said, separators=(",", ":"))
        secret = any(map(is_marked, self._ddp.values()))
        self._plan.set(Variable(SETTINGS_VARIABLE, text, "fdl", secret=secret))

    def _leave_out(self) -> None:
        """Remove fdl's own flags, and those that the program refuses but gets in a variable."""
        declared = set() if self._schema is None else set(self._schema.options)
        strict = self._schema is not None and self._schema.strict
        ours = {f"ddp.{name}" for name in _LAUNCH}
        unwanted = [
            flag
            for flag in self._plan.flags
            if flag.name[2:] not in declared
            and (flag.field in ours or (strict and flag.field.startswith("ddp.")))
        ]
        names = [flag.name for flag in unwanted if flag.field not in ours]
        if names:
            self._plan.notes.append(
                f"the program does not declare {', '.join(names)}: {SETTINGS_VARIABLE} tells it"
            )
        self._plan.drop(unwanted)
        self._typed.keep(declared)

    def _show_one_device(self, device: int) -> None:
        """Make only one GPU visible. On a machine without a GPU, change nothing."""
        count = len(self._gpus())
        if not count:
            self._plan.notes.append(f"solo-{device}: there is no GPU here, so nothing is hidden")
            return
        if device >= count:
            mode = self._typed.modes.get("mode")
            place = mode or Setting(
                f"solo-{device}", origin(self._ddp["mode"], self._plan.root), "mode"
            )
            raise refused(
                place,
                f"{place.shown} names a device that is not there: this machine has "
                f"{counted(count, 'usable GPU')}",
                f"the devices are 0 to {count - 1}: `fdl diagnose` lists them",
            )
        shown = self._environ.get(DEVICES_VARIABLE, "")
        chosen = shown.split(",")[device].strip() if shown else str(device)
        losers = [(shown, "shell")] if shown else []
        self._plan.set(Variable(DEVICES_VARIABLE, chosen, "fdl", losers=losers))

    def _start(self, ranks: Ranks) -> None:
        """Put torchrun in front of the entry."""
        program, plan = self._program, self._plan
        if program is None:
            raise self._not_launchable()
        said = torchrun.options(ranks, "-".join(plan.command) or "entry")
        # The plan may have replaced the interpreter by one that exists.
        program.python = plan.argv[0]
        started = program.started([token for token, _ in said], contained=bool(plan.service))
        shift = len(started) - self._words
        plan.argv[: self._words] = started
        for flag in plan.flags:
            flag.index += shift
        first = started.index(said[0][0])
        plan.flags[:0] = [
            Flag(first + place, 1, token.partition("=")[0], f"ddp.{name}", self._asked[name].origin)
            for place, (token, name) in enumerate(said)
            if name in self._asked
        ]
        plan.ranks = ranks
        if ranks.rdzv and ranks.node is None and not self._environ.get(_STORE_VARIABLE):
            plan.set(Variable(_STORE_VARIABLE, "1", "fdl"))
        self._share_processors(ranks)

    def _share_processors(self, ranks: Ranks) -> None:
        """Set the threads of each rank. Otherwise torchrun sets one thread and warns."""
        if ranks.here == 1 or self._environ.get(THREADS_VARIABLE):
            return
        if "simulate_ms" in self._ddp:
            count, why = 1, "simulated ranks use one thread each"
        else:
            cores = threads()
            count = max(1, cores // ranks.here)
            why = f"{counted(cores, 'core')} shared by {counted(ranks.here, 'rank')}"
        self._plan.set(Variable(THREADS_VARIABLE, str(count), "fdl"))
        self._plan.notes.append(f"{THREADS_VARIABLE}={count}: {why}")
