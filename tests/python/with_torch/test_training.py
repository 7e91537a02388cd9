"""The main job: real torch trains on real digits, loses a worker, and ends as if it had not.

It also continues when a host is lost.
Also modules that compute with torch at import, which a template does not fork.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from support.launching import clean_environment, launched
from support.paths import EXAMPLES
from support.scenes import CI_SCENE, check_scene
from support.warm_template import Template


def digits(*options: str, directory: Path, kill: bool) -> list[str]:
    """The output of the training, with one worker killed after the first epoch."""
    directory.mkdir()
    with launched(
        "--standalone", "--nproc-per-node=2", "--max-restarts=1", *options,
        str(EXAMPLES / "train_digits.py"), "--epochs=3", f"--checkpoint={directory / 'digits.pt'}",
        f"--pid-dir={directory}", f"--delay-per-step={0.1 if kill else 0}",
    ) as job:  # fmt: skip
        lines = [job.stdout.readline()]
        if kill:
            os.kill(int((directory / "rank1.pid").read_text()), signal.SIGKILL)
        stdout, stderr = job.end(0)
    lines += stdout.splitlines(keepends=True)
    if kill:
        assert "killed by signal 9 (SIGKILL); stopping the other workers" in stderr
        assert "restarting, 0 of 1 restarts left" in stderr
        assert "from memory" in stderr
        (continuing,) = [line for line in lines if line.startswith("continuing with epoch")]
        lines.remove(continuing)
    return lines


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    pytest.importorskip("sklearn")
    lines = digits(directory=tmp_path_factory.mktemp("training") / "calm", kill=False)
    assert float(lines[-1].split()[2]) > 0.85, lines  # test_readme.py trains to the end
    return lines


# Six starts of torch, where other tests take the processors.
@pytest.mark.timeout(400)
@pytest.mark.parametrize("options", [[], ["--warm"]])
def test_training_that_loses_a_worker_ends_as_undisturbed_training(
    options: list[str], undisturbed: list[str], tmp_path: Path
) -> None:
    disturbed = digits(*options, directory=tmp_path / "killed", kill=True)
    assert sorted(set(disturbed)) == sorted(undisturbed)


def fsdp(kill: bool) -> list[str]:
    """The losses of the FSDP2 example, with rank 0 killed after step 100."""
    begins, losses = [], []
    with launched(
        *("--standalone", "--nproc-per-node=2", "--max-restarts=1"),
        str(EXAMPLES / "fsdp_snapshots.py"),
    ) as job:
        for line in job.stdout:
            (begins if line.startswith("begins") else losses).append(line)
            if kill and line.startswith("step 100 ") and len(begins) == 1:
                os.kill(int(begins[0].split()[-1]), signal.SIGKILL)
        job.end(0)
    steps = [int(line.split()[3].rstrip(":")) for line in begins]
    assert steps[0] == 0 and len(steps) == 1 + kill
    assert not kill or steps[1] >= 99, steps
    return sorted(set(losses))


def test_a_sharded_training_that_loses_a_worker_ends_as_undisturbed_training() -> None:
    losses = fsdp(kill=False)
    assert len(losses) == 10
    assert fsdp(kill=True) == losses


def test_computing_import_is_found_by_the_trial(tmp_path: Path) -> None:
    (tmp_path / "computing.py").write_text(
        "import torch\nx = torch.ones(8, requires_grad=True)\nx.sum().backward()\n"
        "torch.set_num_threads(4)\ny = torch.ones(512, 512) @ torch.ones(512, 512)\n"
    )
    (tmp_path / "script.py").touch()
    with Template("computing", ["script.py"], clean_environment(), tmp_path) as template:
        message = template.receive()
        assert message.kind == "unfit"
        assert message.text.startswith("the import of computing left a thread")


@pytest.mark.timeout(400)
def test_training_between_hosts_recovers() -> None:
    check_scene(CI_SCENE)
