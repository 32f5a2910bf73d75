# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import bunshin_gym.doctor as doctor
from bunshin_gym.cli.app import app
from bunshin_gym.doctor import Finding, Machine, diagnose

FULL_CONFIG = "\n".join(f"CONFIG_{name}=y" for name in doctor._CONFIG)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine where all is well."""
    files = {
        "boot/config-6.1.0": FULL_CONFIG,
        "proc/self/status": "Name:\tpython\nCapEff:\t000001ffffffffff\n",
        "proc/self/mountinfo": "30 20 0:25 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n",
        "proc/filesystems": "nodev\tsysfs\nnodev\toverlay\n",
        "proc/meminfo": "MemTotal:       24000000 kB\nMemAvailable:   20000000 kB\n",
        "proc/sys/fs/inotify/max_user_instances": "8192\n",
        "proc/sys/kernel/pid_max": "4194304\n",
        "proc/sys/fs/file-max": "9223372036854775807\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    criu = tmp_path / "criu"
    criu.touch()
    for name in ("dev/bunshin", "var/run/docker.sock"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return Machine(
        root=tmp_path,
        home=tmp_path / "state",
        criu=criu,
        run=lambda argv: (0, "Looks good."),
        euid=0,
        release="6.1.0",
        arch="x86_64",
        env={"DISPLAY": ":7"},
    )


def _of(machine: Machine, name: str) -> Finding:
    return next(finding for finding in diagnose(machine) if finding.name == name)


def _write(machine: Machine, name: str, text: str) -> None:
    (machine.root / name).write_text(text)


def test_a_good_machine_has_nothing_to_do(machine: Machine) -> None:
    for finding in diagnose(machine):
        if finding.name not in ("C core", "disk", "images"):  # of this machine, not of that one
            assert finding.state == "ok", finding
            assert finding.advice == ""


def test_every_problem_says_what_to_do(machine: Machine) -> None:
    machine.arch, machine.release, machine.euid, machine.env = "aarch64", "5.4.0", 1000, {}
    for name in ("dev/bunshin", "var/run/docker.sock"):
        (machine.root / name).unlink()
    machine.run = lambda argv: (1, "no such feature")
    for name in ("proc/self/mountinfo", "proc/filesystems", "proc/meminfo"):
        _write(machine, name, "")
    _write(machine, "proc/sys/fs/inotify/max_user_instances", "128")
    found = {finding.name: finding for finding in diagnose(machine)}
    for name in ("architecture", "kernel", "root", "cgroup freezer", "overlayfs"):
        assert found[name].state == "fail"
    for name in ("kernel options", "CRIU", "memory", "images", "fs.inotify.max_user_instances"):
        assert found[name].state == "warn"
    for name in ("kernel module (optional)", "docker (optional)", "display (optional)"):
        assert found[name].state == "none"
    assert all(finding.advice for finding in found.values() if finding.state != "ok")
    assert "sysctl -w fs.inotify.max_user_instances=1024" in found["fs.inotify.max_user_instances"].advice


def test_missing_kernel_options_are_named(machine: Machine) -> None:
    _write(machine, "boot/config-6.1.0", FULL_CONFIG.replace("CONFIG_FHANDLE=y", "# CONFIG_FHANDLE is not set"))
    finding = _of(machine, "kernel options")
    assert finding.state == "fail"
    assert finding.detail == "off: CONFIG_FHANDLE"


def test_missing_capabilities_are_named(machine: Machine) -> None:
    _write(machine, "proc/self/status", f"CapEff:\t{0x1FFFFFFFFFF & ~(1 << 21):016x}\n")
    finding = _of(machine, "root")
    assert finding.state == "fail"
    assert "CAP_SYS_ADMIN" in finding.detail
    assert "--privileged" in finding.advice


def test_without_root_criu_is_not_asked(machine: Machine) -> None:
    """Its advice is a file capability, with which it still could not do what we need."""

    def refuse(argv: list[str]) -> tuple[int, str]:
        raise AssertionError(f"{argv} was run")

    machine.euid, machine.run = 1000, refuse
    assert "as root" in _of(machine, "CRIU").advice


def test_criu_that_does_not_work(machine: Machine) -> None:
    machine.run = lambda argv: (1, "Kernel lacks a thing\nLooks bad.")
    finding = _of(machine, "CRIU")
    assert (finding.state, finding.detail) == ("fail", "Looks bad.")
    assert "check -v4" in finding.advice


def test_the_kernel_module_is_optional(machine: Machine) -> None:
    assert _of(machine, "kernel module (optional)").state == "ok"
    (machine.root / "dev/bunshin").unlink()
    finding = _of(machine, "kernel module (optional)")
    assert finding.state == "none"
    assert "make kmod" in finding.advice


def test_criu_that_is_not_built(machine: Machine) -> None:
    machine.criu.unlink()
    assert _of(machine, "CRIU").advice == "run `make criu`"


def test_a_version_1_freezer_is_found(machine: Machine) -> None:
    line = "37 30 0:33 / /sys/fs/cgroup/freezer rw,nosuid - cgroup cgroup rw,freezer\n"
    _write(machine, "proc/self/mountinfo", line)
    assert _of(machine, "cgroup freezer").detail == "version 1 at /sys/fs/cgroup/freezer"


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("none", 0), ("warn", 0), ("fail", 1)])
def test_the_command_fails_only_when_nothing_would_work(
    monkeypatch: pytest.MonkeyPatch, state: doctor.State, code: int
) -> None:
    findings = [Finding(name="thing", state=state, detail="[found]", advice="do [this]" if code else "")]
    monkeypatch.setattr(doctor, "diagnose", lambda: findings)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == code
    assert "thing" in result.output
    assert "[found]" in result.output
    assert ("do [this]" in result.output) == bool(code)


def test_this_machine_can_be_looked_at() -> None:
    assert {finding.state for finding in diagnose()} <= {"ok", "none", "warn", "fail"}
