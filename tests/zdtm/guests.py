#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of CRIU's test suite as guests: in a workspace that is forked, each judging itself on both sides.

usage: guests.py [--engine ENGINE] [--together N] [NAME ...]     NAME as static/pipe00; default: all

Exit code 0: what did not pass is in the file `expected` with its reason, and what is there did not pass.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import programs as suite_programs
from programs import HOME, Program

from bunshin_gym.errors import BunshinError, UnsupportedError
from bunshin_gym.workspace import Core, Workspace, core

EXPECTED = Path(__file__).resolve().parent / "expected"
START_TIMEOUT_S = 30.0
END_TIMEOUT_S = 40.0
TOGETHER = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How one program fared: what is `pass`, `skip`, or the word for what went wrong; why: in its own words."""

    what: str
    why: str = ""


PASS = Verdict(what="pass")


def _report(side: Workspace, program: Program) -> str:
    """What the program has written: to its report if it has judged itself, to the one in progress otherwise."""
    for name in (f"{program.name}.out", f"{program.name}.out.inprogress"):
        path = side.root / HOME[1:] / name
        if path.exists():
            return path.read_text(errors="replace")
    return ""


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it says nothing"


def _cause(text: str) -> str:
    """The first error of its own; that the test ended is what the suite's library adds."""
    errors = [line for line in text.splitlines() if "ERR:" in line and "test.c:" not in line]
    return _last_line(errors[0] if errors else text)


def _start(side: Workspace, program: Program) -> Verdict | None:
    """Returns once the program is ready; a verdict if it does not become so."""
    directory = f"{HOME}/{program.name.partition('/')[0]}"
    # A descriptor table of its own size, as the suite has it, and no file of ours.
    command = f"umask 0; exec {shlex.join(program.arguments)} </dev/null >/dev/null 2>>/tmp/started.log"
    try:
        done = side.exec(["sh", "-c", command], cwd=directory, env=program.environment, timeout_s=START_TIMEOUT_S)
    except BunshinError as error:
        return Verdict(what="start", why=str(error))
    if done.exit_code == 0 and (side.root / HOME[1:] / f"{program.name}.pid").exists():
        return None
    log = (side.root / "tmp" / "started.log").read_text(errors="replace")
    return Verdict(what="start", why=_cause(_report(side, program) or log))


def _pid(side: Workspace, program: Program) -> int | None:
    """None if it has ended by itself: then it removes the file."""
    path = side.root / HOME[1:] / f"{program.name}.pid"
    return int(path.read_text()) if path.exists() else None


def _judge(side: Workspace, running: Sequence[Program]) -> dict[str, str]:
    """Tells the programs to check themselves; for each that did not pass, why."""
    pids = {program: pid for program in running if (pid := _pid(side, program))}
    if pids:
        side.exec(["kill", "-TERM", *map(str, pids.values())])
    deadline = time.monotonic() + END_TIMEOUT_S
    alive = set(pids)
    while alive and time.monotonic() < deadline and side.alive:
        alive = {program for program in alive if (side.root / "proc" / str(pids[program])).exists()}
        time.sleep(0.02)  # another's process, in another namespace: there is no event to wait for
    wrong = {}
    for program in running:
        text = _report(side, program)
        if "PASS" not in text.split():
            wrong[program.name] = "does not end" if program in alive else _last_line(text)
    return wrong


def _fork(source: Workspace, running: Sequence[Program], engine: str) -> dict[str, Verdict]:
    try:
        (branch,) = source.fork(1, engine=engine)
    except BunshinError as error:
        refused = "refused" if isinstance(error, UnsupportedError) else "fork"
        return {
            program.name: PASS if program.refusable else Verdict(what=refused, why=str(error)) for program in running
        }
    with branch:
        verdicts = dict.fromkeys((program.name for program in running), PASS)
        for name, side in (("branch", branch), ("source", source)):
            for program, why in _judge(side, running).items():
                verdicts[program] = Verdict(what=name, why=why)
    return verdicts


def run_together(store: Core, root: Path, together: Sequence[Program], engine: str) -> dict[str, Verdict]:
    """One workspace, one fork, several programs."""
    with Workspace.start(root, argv=["sleep", "1000000"], core=store) as source:
        started = {program: _start(source, program) for program in together}
        verdicts = {program.name: verdict for program, verdict in started.items() if verdict}
        running = [program for program, verdict in started.items() if not verdict]
        if running:
            verdicts |= _fork(source, running, engine)
        return verdicts


def _batches(takers: Sequence[Program], size: int) -> Iterator[list[Program]]:
    together = [program for program in takers if not program.alone]
    for at in range(0, len(together), size):
        yield together[at : at + size]
    for program in takers:
        if program.alone:
            yield [program]


def run(takers: Sequence[Program], engine: str, size: int = TOGETHER) -> dict[str, Verdict]:
    """Every program; one that did not pass among others is tried once more, alone."""
    verdicts = {program.name: Verdict(what="skip", why=program.skipped) for program in takers if program.skipped}
    for name, verdict in verdicts.items():
        print(f"skip     {name}  {verdict.why}")
    takers = [program for program in takers if not program.skipped]
    with tempfile.TemporaryDirectory(prefix="bunshin-zdtm-") as folder:
        root = Path(folder) / "root"
        suite_programs.furnish(root, suite_programs.tree(), takers)
        store = core(Path(folder) / "home")
        for batch in _batches(takers, size):
            found = run_together(store, root, batch, engine)
            for program in batch if len(batch) > 1 else ():
                if found[program.name] != PASS:
                    found |= run_together(store, root, [program], engine)
            verdicts |= found
            for program in batch:
                verdict = verdicts[program.name]
                print(f"{verdict.what:8} {program.name}  {verdict.why}", flush=True)
    return verdicts


def read_expected() -> dict[str, str]:
    lines = (line.partition("#")[0].strip() for line in EXPECTED.read_text().splitlines())
    return {name: reason.strip() for name, _, reason in (line.partition(" ") for line in lines if line)}


def surprises(verdicts: Mapping[str, Verdict]) -> list[str]:
    """What is not as the list of exceptions has it."""
    expected = read_expected()
    failed = {name: verdict for name, verdict in verdicts.items() if verdict.what not in ("pass", "skip")}
    unknown = [f"{name}: {verdict.what}: {verdict.why}" for name, verdict in failed.items() if name not in expected]
    certain = [name for name, reason in expected.items() if not reason.startswith("sometimes:")]
    healed = [f"{name} passes now: take it off the list" for name in certain if verdicts.get(name) == PASS]
    return sorted(unknown) + sorted(healed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--engine", default="pool")
    parser.add_argument("--together", type=int, default=TOGETHER, help="programs in one workspace")
    options = parser.parse_args()
    takers = suite_programs.read_programs(suite_programs.tree(), options.names)
    verdicts = run(takers, options.engine, options.together)
    counts = [sum(1 for verdict in verdicts.values() if verdict.what == what) for what in ("pass", "skip")]
    print(f"{counts[0]} passed, {counts[1]} skipped, {len(verdicts) - sum(counts)} did not pass")
    wrong = surprises(verdicts)
    print(*wrong, sep="\n")
    return 1 if wrong or not verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
