# SPDX-License-Identifier: Apache-2.0
"""The kernel module against fork(2) and against a copy, and a snapshot with it against one without.

Runs in a virtual machine on an emulated processor, as tests/kmod does: times are long, ratios are what counts. The
second table freezes live workspaces of two sizes; the difference is what memory costs, the rest (CRIU's work on
processes and files) is the same for both engines.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests" / "kmod"))

import kernels  # noqa: E402
import modbuild  # noqa: E402
import vm  # noqa: E402
import workspace  # noqa: E402

WORK = kernels.CACHE / "bench"
SMALL_MIB, LARGE_MIB = 16, 512


def guest_files(kernel: kernels.Kernel) -> dict[str, Path]:
    """Everything that the guest runs, built."""
    folder = WORK / kernel.series
    module = modbuild.ModuleBuild(kernel, folder / "build").plain()
    program = folder / "kmodbench"
    flags = ["-static", "-O2", "-std=gnu17", "-Wall", "-Wextra", "-Werror", f"-I{modbuild.KMOD}/uapi"]
    subprocess.run(["gcc", *flags, str(REPO / "bench/kmod.c"), "-o", str(program)], check=True)
    return {"/bunshin.ko": module, "/bin/kmodbench": program, **workspace.files(kernel, folder / "programs")}


def boot(kernel: kernels.Kernel, files: dict[str, Path], script: str) -> list[str]:
    """Runs a script in a guest.

    Raises:
        SystemExit: the guest did not come to its end.
    """
    guest = vm.Guest(
        image=kernel.image,
        folder=WORK / kernel.series / "vm",
        files=files,
        script=script,
        memory_mib=4096,
        disk_mib=1024,
        timeout_s=1800,
    )
    result = vm.run(guest)
    if not result.finished:
        raise SystemExit(
            "\n".join(["bench: the guest did not come to its end", *result.output, result.console[-2000:]])
        )
    return result.output


def primitives(output: list[str]) -> list[dict[str, float]]:
    """The lines of kmodbench as rows."""
    rows = [line.split() for line in output if len(line.split()) == 4 and line.split()[0].isdigit()]
    return [
        {"mib": float(mib), "cow_us": float(cow), "fork_us": float(fork), "copy_us": float(copy)}
        for mib, cow, fork, copy in rows
    ]


def frozen_us(output: list[str]) -> dict[tuple[str, int], float]:
    """Median frozen time of first snapshots, by engine and size."""
    times: dict[tuple[str, int], list[float]] = {}
    size = 0
    for line in output:
        words = line.split()
        if words[:1] == ["size"]:
            size = int(words[1])
        elif words[:1] == ["cost"] and words[2] == "first":
            times.setdefault((words[1], size), []).append(float(words[4]))
    return {key: statistics.median(values) for key, values in times.items()}


def show(release: str, rows: list[dict[str, float]], frozen: dict[tuple[str, int], float]) -> None:
    """Both tables."""
    print(f"\nLinux {release}, emulated; milliseconds\n")
    print(f"{'MiB':>5} {'COW_RANGE':>10} {'fork(2)':>9} {'copy':>9} {'copy/COW':>9} {'fork/COW':>9}")
    for row in rows:
        print(
            f"{row['mib']:5.0f} {row['cow_us'] / 1e3:10.2f} {row['fork_us'] / 1e3:9.2f} {row['copy_us'] / 1e3:9.2f}"
            f" {row['copy_us'] / row['cow_us']:9.1f} {row['fork_us'] / row['cow_us']:9.2f}"
        )
    if not frozen:
        return
    print(
        f"\n{'engine':>6} {f'{SMALL_MIB} MiB':>9} {f'{LARGE_MIB} MiB':>9} {'memory':>9}   source frozen, first snapshot"
    )
    memory = {}
    for engine in ("pool", "kmod"):
        small, large = frozen[engine, SMALL_MIB], frozen[engine, LARGE_MIB]
        memory[engine] = large - small
        print(f"{engine:>6} {small / 1e3:9.0f} {large / 1e3:9.0f} {(large - small) / 1e3:9.0f}")
    whole = frozen["kmod", LARGE_MIB] / frozen["pool", LARGE_MIB]
    print(f"\nkmod / pool at {LARGE_MIB} MiB: {whole:.2f} of the frozen time")
    if memory["pool"] > 0:
        print(f"of the part that memory adds: {max(memory['kmod'], 0) / memory['pool']:.2f}")


def flat(rows: list[dict[str, float]], frozen: dict[tuple[str, int], float]) -> dict[str, float]:
    """Both tables by name, with the ratio that counts."""
    found = {f"{name}_{row['mib']:.0f}_mib": row[name] for row in rows for name in ("cow_us", "fork_us", "copy_us")}
    found |= {f"frozen_{engine}_us_{mib}_mib": value for (engine, mib), value in frozen.items()}
    if frozen:
        found["frozen_ratio"] = frozen["kmod", LARGE_MIB] / frozen["pool", LARGE_MIB]
    return found


def script(rounds: int, options: str) -> str:
    """Sizes take turns, so that what else the machine does falls on both engines alike."""
    turn = "\n".join(
        f"echo size {mib}\n{workspace.fork(mib, 'module', 'pool', 'kmod')}" for mib in (SMALL_MIB, LARGE_MIB)
    )
    return "\n".join(
        [workspace.prelude(), f"insmod /bunshin.ko {options}", "kmodbench 5 64 256 1024", *[turn] * rounds]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernel", default="6.12", choices=list(kernels.SERIES))
    parser.add_argument("--rounds", type=int, default=3, help="snapshots of each engine and size (default: 3)")
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    arguments = parser.parse_args()
    kernel = kernels.fetch(kernels.SERIES[arguments.kernel])
    output = boot(kernel, guest_files(kernel), script(arguments.rounds, kernel.options))
    failed = [line for line in output if line.startswith("FAIL")]
    if failed:
        raise SystemExit("\n".join(["bench: the workspace did not fork", *output]))
    rows, frozen = primitives(output), frozen_us(output)
    show(kernel.release, rows, frozen)
    if arguments.json:
        arguments.json.write_text(json.dumps({"kernel": kernel.release, **flat(rows, frozen)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
