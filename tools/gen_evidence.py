"""Generates docs/evidence.md, its pictures and its table of runs from the stored results.

The box of the demo in the README is from bench/results/demo.txt.

docs/continues.svg is the picture of the README; docs/evidence.svg has every scene, where no
campaign of --headline --idle is stored.

python -m bench.faults --launcher ... --runs 2 --json bench/results/faults.json
python -m bench.faults --headline --idle --runs 7 --json bench/results/headline.json
python -m bench.faults --idle --runs 5 --json bench/results/busy.json --launcher ... --scene ...
python bench/run.py --json bench/results/speed.json start launcher-memory restart idle warm
python -m bench.soak --minutes 60 --json bench/results/soak.json
python tools/gen_evidence.py [--check]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.faults import headline, picture, report  # noqa: E402
from bench.faults.__main__ import BUSY_MAX, IDLE_S  # noqa: E402
from bench.faults.launchers import LAUNCHERS, chosen  # noqa: E402
from bench.faults.scenes import NOT_COVERED, SCENES  # noqa: E402

RESULTS = ROOT / "bench" / "results"
DOCS = ROOT / "docs"
README, DEMO = ROOT / "README.md", RESULTS / "demo.txt"
PAGE, DRAWING, HEADLINE = DOCS / "evidence.md", DOCS / "evidence.svg", DOCS / "continues.svg"
RUNS, ALONE, BUSY = (RESULTS / f"{name}.csv" for name in ("faults", "headline", "busy"))

HEAD = """\
# Evidence

What launchers do when processes, hosts and networks of a job fail, and what `elastic-launch` \
costs. \
Compare **outcomes**: \
did training go on, did the job end with the right code, was anything left behind. \
`tools/gen_evidence.py` writes this page from [every run](../bench/results/faults.csv) of one \
campaign, which one command repeats on your machine \
([as root](../bench/README.md#faults)):

    python -m bench.faults --runs 5 --json FILE \\
        --launcher torchrun --launcher ft_launcher=PATH --launcher elastic-launch

{machine}

{picture}{headline}{busy}## Outcomes

{totals}{slow}*ok*: training went on with the expected number of ranks, or the job ended as it \
should, the exit \
codes agree, \
no process was left behind, and if the log called a worker failed, the first one was the culprit. \
*wrong*: something else. \
*hang*: nothing of that before the scene's limit. *culprit*: whether the first worker that a log \
called failed is the one that did.

## Scenes

The first node has the rendezvous: the coordinator of `elastic-launch`, the store of the others. \
Where three nodes run, two are enough.{first_step}{later}

{table}

{failures}## Settings

Each launcher has the best settings that we know, the same in every scene but those named below. \
[The script](../bench/faults/worker.py) \
reports its steps to `elastic-launch`, and sends heartbeats to `ft_launcher`. A collective of gloo \
times out after 20 s. `ft_launcher` \
0.4.1 is the newest release for this Python; 0.7.0 (Python 3.12 and 3.14) was not run.

{settings}

{exceptions}
{soak}{speed}## Not covered

{not_covered}

[Where it was run](start.md#where-it-was-run) lists GPUs, machines, schedulers, trainers, versions.
"""
FIRST_STEP = """\
*First step*: least / median / greatest time from the fault to the first training step of new \
workers; \
"-": in a run workers were not restarted, or the job ended."""
SPEED = """\
## Speed

From one run of [`bench/run.py`](../bench/README.md), alone on the machine: commit `{commit}`, \
{date}; {cpu}, {cores} cores, Linux {kernel}, Python {python}, load {load}: least / **median** / \
greatest. [Every sample](../bench/results/speed.json). \
[History](../bench/HISTORY.md) has other machines, and the store.

|  | elastic | torchrun {torchrun} | floor |
| --- | ---: | ---: | ---: |
{rows}

{template}

"""
# Of the scene `warm`; in HISTORY.md while the stored run is without it.
TEMPLATE = ("warm", "proportional memory of the template", "elastic --warm")
TEMPLATE_MEASURED = """\
The process from which `--warm` forks has {figure} MiB a node (its share, PSS, beside two \
workers)."""
TEMPLATE_OF_HISTORY = """\
The process from which `--warm` forks had 181 MiB a node (its share, PSS, beside two workers) on \
2026-11-23, on [another machine](../bench/HISTORY.md#warm-workers)."""
PATHS = {"ft_launcher": "=PATH"}  # it needs an environment of its own
# Restarts of ours that took more than this many times the median of their scene are named.
SLOW = 3
EARLIER = """\
An earlier campaign of five runs on another machine was faster (`git show 7ca0a596:bench/results/\
headline.json`), with these medians in `worker-killed`: torchrun 4.9, ft_launcher 5.1, \
elastic-launch 2.9, elastic-launch --warm 0.10 s. Compare columns, not machines."""
# Scene and case, its words here, and the subject that is the floor, with its words.
SPEED_ROWS = (
    ("start", "exec to exit", "`/bin/true`, exec to exit, ms",
     "python -c pass", "`python -c pass`"),
    ("launcher-memory", "peak (sum of VmHWM)", "8 workers: peak memory, MiB", "", ""),
    ("restart", "8 workers run", "one of 8 killed, to 8 new running, ms",
     "bare fork+exec", "fork+exec of 8"),
    ("idle", "wake-ups per second", "idle, wake-ups per second", "", ""),
)  # fmt: skip

NO_RESULTS = """\
No results are stored yet: this page has only the scenes and the method. Results are added when they
come from an otherwise idle machine and at least two runs of each scene.
"""


def generate(
    campaign: dict[str, Any] | None,
    soak: dict[str, Any] | None,
    alone: dict[str, Any] | None = None,
    speed: dict[str, Any] | None = None,
    busy: dict[str, Any] | None = None,
) -> dict[Path, str]:
    """``alone``: the campaign of --headline --idle, which the picture of the README shows.

    ``busy``: scenes in which the fault comes early, twice, or on a busy host.
    """
    files = {PAGE: page(campaign, soak, alone, speed, busy)}
    if alone is not None:
        files[ALONE] = report.csv_text(alone["results"])
    if busy is not None:
        files[BUSY] = report.csv_text(busy["results"])
    if campaign is not None:
        files[RUNS] = report.csv_text(campaign["results"])
        facts, results = campaign["facts"], campaign["results"]
        source = f"commit {facts['commit']}, {facts['machine']['cpu']}"
        if alone is None:
            files[DRAWING] = picture.svg(results, list(facts["launchers"]), source)
    shown = alone or campaign
    if shown is not None:
        files[HEADLINE] = _headline(shown, _options(shown) if alone else "")
    return files


def _headline(campaign: dict[str, Any], options: str) -> str:
    facts, machine = campaign["facts"], campaign["facts"]["machine"]
    launchers = facts["launchers"]
    versions = {name: launchers[name]["version"] for name in LAUNCHERS if name in launchers}
    return headline.svg(
        campaign["results"],
        versions,
        f"commit {facts['commit']}, {machine['cpu']}, {machine['cores']} cores, "
        + ("alone" if options else f"load {machine['load average'].split()[0]}")
        + f", PyTorch {machine['torch']}; {f'python -m bench.faults {options}'.strip()}",
        {name: launchers[name]["settings"] for name in versions},
    )


def page(
    campaign: dict[str, Any] | None,
    soak: dict[str, Any] | None,
    alone: dict[str, Any] | None = None,
    speed: dict[str, Any] | None = None,
    busy: dict[str, Any] | None = None,
) -> str:
    results = [] if campaign is None else campaign["results"]
    launchers = _launchers() if campaign is None else campaign["facts"]["launchers"]
    names, titles = list(launchers), _titles(launchers)
    return HEAD.format(
        machine=NO_RESULTS.rstrip() if campaign is None else _machine(campaign, alone is None),
        picture="" if campaign is None or alone else f"![Each scene]({DRAWING.name})\n\n",
        headline=_alone(alone),
        busy=_busy(busy, alone),
        totals=f"{report.totals(results, names, titles)}\n\n" if results else "",
        slow=_slow(campaign, alone),
        first_step=f" {FIRST_STEP}" if alone is None else "",
        later=_later(results, busy),
        table=report.table(results, names, has_times=alone is None, titles=titles)
        if results
        else _scenes(),
        failures=_failures(results, "elastic-launch"),
        settings=_settings({**launchers, **_added(launchers, alone)}),
        exceptions=_exceptions(),
        soak=_soak(soak),
        speed=_speed(speed),
        not_covered="\n".join(f"* {what}: {why}" for what, why in NOT_COVERED),
    )


def _options(campaign: dict[str, Any]) -> str:
    """The command that repeats a campaign of the headline scenes."""
    names = campaign["facts"]["launchers"]
    launchers = " ".join(f"--launcher {name}{PATHS.get(name, '')}" for name in names)
    return f"--headline --idle --runs {_most(campaign)} {launchers}"


def _most(campaign: dict[str, Any]) -> int:
    return max(one["run"] for one in campaign["results"])


def _titles(launchers: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: headline.title(name, facts["settings"]) for name, facts in launchers.items()}


def _added(
    launchers: dict[str, dict[str, str]], alone: dict[str, Any] | None
) -> dict[str, dict[str, str]]:
    """Launchers that only the other campaign has."""
    known = {} if alone is None else alone["facts"]["launchers"]
    return {name: facts for name, facts in known.items() if name not in launchers}


def _host(machine: dict[str, str]) -> str:
    return (
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, Python "
        f"{machine['python']}, PyTorch {machine['torch']}; {_load(machine)}"
    )


def _load(machine: dict[str, str]) -> str:
    return f"load average {machine['load average']} when the command began"


def _when_begun(results: list[dict[str, Any]]) -> str:
    busiest = max(one["busy"] for one in results)
    return (
        f"Each run began when at most {BUSY_MAX:g} processors had been busy for {IDLE_S:g} s (at "
        f"most {busiest:.2f} were)"
    )


def _alone(campaign: dict[str, Any] | None) -> str:
    if campaign is None:
        return ""
    facts, results = campaign["facts"], campaign["results"]
    names, titles = list(facts["launchers"]), _titles(facts["launchers"])
    return (
        "## How soon training goes on\n\n"
        f"The faults that users have, alone on the machine: commit `{facts['commit']}`, "
        f"{facts['machine']['date']}; {_host(facts['machine'])}, from the work before it. "
        f"{_when_begun(results)}. "
        f"[Every run](../bench/results/{ALONE.name}). {FIRST_STEP} "
        f"`python -m bench.faults --headline --idle --runs {_most(campaign)}`, of these "
        "launchers:\n\n"
        f"{report.table(results, names, titles=titles)}\n\n{EARLIER}\n\n"
    )


def _busy(campaign: dict[str, Any] | None, alone: dict[str, Any] | None) -> str:
    """The scenes that the campaign of all launchers is without."""
    if campaign is None:
        return ""
    facts, results = campaign["facts"], campaign["results"]
    names, titles = list(facts["launchers"]), _titles(facts["launchers"])
    machine = facts["machine"]
    names_of_host = ("cpu", "cores", "kernel", "python", "torch")
    is_same = alone is not None and all(
        alone["facts"]["machine"][name] == machine[name] for name in names_of_host
    )
    host = f"the same machine; {_load(machine)}" if is_same else _host(machine)
    return (
        "## An early, a second fault, a busy host\n\n"
        f"SIGKILL to a worker, at commit `{facts['commit']}`, {facts['machine']['date']}; {host}. "
        f"{_when_begun(results)}. [Every run](../bench/results/{BUSY.name}).\n\n"
        f"{report.table(results, names, titles=titles)}\n\n"
    )


def _slow(campaign: dict[str, Any] | None, alone: dict[str, Any] | None) -> str:
    """How many restarts of ours were much slower than the others of their scene, and why."""
    slow, timed = _outliers(campaign)
    if not slow:
        return ""
    now, of = _outliers(alone)
    return (
        f"In {slow} of {timed} runs of ours with a restart the first step came after more than "
        f"{SLOW} times the median of its scene: on the busy host the fault came before the "
        "template of `--warm` had imported torch, and a worker was executed, which imported torch "
        "again beside it. Since commit `c3f0a17c` a worker waits for a template that is ahead of "
        f"it; of the {of} runs above {now or 'none'} took so long. The outcomes were not run "
        "again.\n\n"
    )


def _outliers(campaign: dict[str, Any] | None) -> tuple[int, int]:
    """Of the restarts of ours: those that took more than SLOW times the median, and all."""
    slow = timed = 0
    for runs in report.by_scene([] if campaign is None else campaign["results"]).values():
        for launcher, some in runs.items():
            times = [one["first_step"] for one in some if one["first_step"] is not None]
            if launcher.startswith("elastic-launch") and times:
                slow += sum(at > SLOW * statistics.median(times) for at in times)
                timed += len(times)
    return slow, timed


def _later(results: list[dict[str, Any]], busy: dict[str, Any] | None) -> str:
    """The scenes that are newer than the campaign."""
    ran = {one["scene"] for one in results}
    new = [f"`{scene.name}`" for scene in SCENES if scene.name not in ran]
    if not results or not new:
        return ""
    where = "[came later](#an-early-a-second-fault-a-busy-host)" if busy else "came later"
    return f" {len(ran)} of {len(SCENES)} scenes: {', '.join(new)} {where}."


def _machine(campaign: dict[str, Any], has_times: bool) -> str:
    facts, machine = campaign["facts"], campaign["facts"]["machine"]
    found = report.by_scene(campaign["results"])
    counts = {len(runs) for by_launcher in found.values() for runs in by_launcher.values()}
    least, most = min(counts), max(counts)
    times = f"{least} times" if least == most else f"{least} to {most} times"
    times = "once" if most == 1 else times
    return (
        f"Commit `{facts['commit']}`, {machine['date']}; {machine['cpu']}, "
        f"{machine['cores']} cores, Linux {machine['kernel']}, {machine['libc']}, Python "
        f"{machine['python']}, PyTorch {machine['torch']}. Each scene was run {times} with "
        "each launcher. "
        + ("**Durations say little here**: all" if has_times else "All")
        + " hosts share these cores, and the load average "
        f"at the start was {machine['load average'].split()[0]}"
        + ("." if has_times else ", so the page has outcomes only.")
        + (f" {facts['note']}" if "note" in facts else "")
    )


def _launchers() -> dict[str, dict[str, str]]:
    return {name: {"version": "not run", "settings": chosen(name).settings()} for name in LAUNCHERS}


def _scenes() -> str:
    lines = ["| scene | what is done | expected |", "|---|---|---|"]
    lines += [f"| `{s.name}` | {s.what} | {' or '.join(s.expected)} |" for s in SCENES]
    return "\n".join(lines)


def _failures(results: list[dict[str, Any]], launcher: str) -> str:
    found = [
        f"* `{one['scene']}`, run {one['run']}: {one['outcome']}: {one['why']}"
        for one in results
        if one["launcher"] == launcher and one["outcome"] in ("wrong", "hang")
    ]
    if not found:
        return ""
    return f"Outcomes of `{launcher}` that are not ok:\n\n" + "\n".join(found) + "\n\n"


def _settings(launchers: dict[str, dict[str, str]]) -> str:
    lines = ["| launcher | version | settings |", "|---|---|---|"]
    for name in sorted(launchers, key=list(LAUNCHERS).index):
        facts = launchers[name]
        title = headline.title(name, facts["settings"])
        lines.append(f"| {title} | {facts['version']} | `{facts['settings']}` |")
    return "\n".join(lines)


def _exceptions() -> str:
    lines = [
        f"* `{scene.name}`, {name}: `{' '.join((*found.options, found.conf)).strip()}`"
        for scene in SCENES
        for name, found in scene.settings.items()
    ]
    return "\n".join(lines) + "\n" if lines else ""


def _soak(result: dict[str, Any] | None) -> str:
    if result is None:
        return ""
    soak, machine = result["soak"], result["facts"]["machine"]
    faults = ", ".join(f"{name} ({count})" for name, count in sorted(soak["faults"].items()))
    verdict = "; ".join(soak["wrong"]) or "none"
    command = f"python -m bench.soak --minutes {soak['minutes']:g} --seed {soak['seed']}"
    times = soak["recovery_s"] or [0.0]
    spread = " / ".join(f"{at:.1f}" for at in (min(times), statistics.median(times), max(times)))
    return f"""## Random faults

`{command}` at commit `{result["facts"]["commit"]}`: \
`examples/train_digits.py` on four nodes, while one fault after the other hits a node, and agents \
that ended are started again. {machine["cpu"]}, {machine["cores"]} cores, load average \
{machine["load average"]}: the times are of an overloaded host.

| | |
|---|---|
| faults | {sum(soak["faults"].values())}: {faults} |
| rounds | {soak["rounds"]} |
| accuracy | {soak["accuracy"]}; undisturbed {soak["undisturbed"]} |
| from a fault to all four nodes training, least / median / greatest | {spread} s |
| processes left behind | {soak["orphans"]} |
| growth of an agent: descriptors, memory | {soak["descriptors"]}, {soak["memory"] // 1024} KiB |
| wrong | {verdict} |

"""


def _speed(stored: dict[str, Any] | None) -> str:
    if stored is None:
        return ""
    facts = stored["machine"]
    rows = []
    for scene, case, what, floor, of in SPEED_ROWS:
        found = {
            row["subject"]: _triple(row["samples"])
            for row in stored["scenes"][scene]["rows"]
            if row["case"] == case
        }
        least = f"{found[floor]} ({of})" if floor else "-"
        rows.append(f"| {what} | {found['elastic']} | {found['torchrun']} | {least} |")
    load = facts["load average"].split()[0]
    facts = facts | {"torchrun": facts["torchrun"].partition("+")[0]}
    return SPEED.format(rows="\n".join(rows), load=load, template=_template(stored), **facts)


def _template(stored: dict[str, Any]) -> str:
    scene, case, subject = TEMPLATE
    for row in stored["scenes"].get(scene, {"rows": []})["rows"]:
        if (row["case"], row["subject"]) == (case, subject):
            return TEMPLATE_MEASURED.format(figure=_figure(statistics.median(row["samples"])))
    return TEMPLATE_OF_HISTORY


def _triple(samples: list[float]) -> str:
    least, middle, most = min(samples), statistics.median(samples), max(samples)
    return f"{_figure(least)} / **{_figure(middle)}** / {_figure(most)}"


def _figure(value: float) -> str:
    """Three digits, or the whole part if that has more."""
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:,.{digits}f}".replace(",", " ")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing: exit 1 on a change")
    given = parser.parse_args()
    stored = [_stored(f"{name}.json") for name in ("faults", "soak", "headline", "speed", "busy")]
    files = generate(*stored)
    if DEMO.exists():
        files[README] = readme(README.read_text(), DEMO.read_text())
    changed = [path for path, text in files.items() if _read(path) != text]
    if not given.check:
        for path in changed:
            path.write_text(files[path])
    return 1 if given.check and changed else 0


def readme(text: str, demo: str) -> str:
    """The README with lines of the demo's output in the box below its command."""
    begin = text.index("```text\n", text.index("--kill-a-worker")) + len("```text\n")
    return (
        text[:begin]
        + "".join(f"{line}\n" for line in shown(demo))
        + text[text.index("```", begin) :]
    )


def shown(demo: str) -> list[str]:
    """The kill with what the launcher says until training goes on, and the last three lines."""
    lines = demo.splitlines()
    killed = next(at for at, line in enumerate(lines) if "--- killed" in line)
    again = next(at for at in range(killed, len(lines)) if "continuing with epoch" in lines[at])
    told = [one for one in lines[killed:again] if one.startswith("elastic-launch: r")][:2]
    return [*lines[killed - 1 : killed + 1], *told, lines[again], *lines[-3:]]


def _stored(name: str) -> dict[str, Any] | None:
    path = RESULTS / name
    return json.loads(path.read_text()) if path.exists() else None


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
