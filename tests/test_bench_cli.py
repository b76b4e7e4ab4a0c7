"""`bench`, `compare` and `summarize` end to end: files, fields, exit status, and the report in a browser."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from servers.process import ServerProcess
from typer.testing import CliRunner, Result

from robostream.bench.compare import Entry, cells, markdown, ratio, verdicts
from robostream.bench.modes import Mode
from robostream.bench.options import Impl
from robostream.bench.report import linear_axis, log_axis, render
from robostream.bench.result import BenchmarkResult, schema
from robostream.bench.summary import Found, find_results, medians
from robostream.cli import app
from robostream.synth import SynthSettings, write_dataset

REPOSITORY = Path(__file__).parents[1]
SCHEMA = REPOSITORY / "docs/benchmark_result.schema.json"
GOLDEN = sorted(p.parent for p in (Path(__file__).parent / "golden").glob("*/expected.json"))
ASKED_FOR = {
    "repo_id", "source", "mode", "batch_size", "num_workers", "buffer_size", "num_cameras", "fps", "device",
    "video_decode_device", "frames_measured", "first_batch_latency_s", "frames_per_s_node", "samples_per_s",
    "p50_sample_latency_ms", "p95_sample_latency_ms", "p99_sample_latency_ms", "wallclock_s",
    "video_decoder_cache",
}  # fmt: skip


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def load(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "dataset"
    write_dataset(
        folder, SynthSettings(episodes=[90, 80, 85], cameras=2, width=64, height=64, fps=10, codec="h264", gop=4)
    )
    return folder


@pytest.fixture(scope="module")
def results(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results: each mode with threads, and one with worker processes."""
    folder = tmp_path_factory.mktemp("results")
    few = ["--root", root, "--batch_size", 8, "--buffer_size", 64, "--num_batches", 40, "--warmup_batches", 1]
    for mode in Mode:
        made = run("bench", *few, "--mode", mode.value, "--out_dir", folder, "--ceiling_seconds", 0.2, "--check_rows")
        assert made.exit_code == 0, made.output
    more = ["--loader", "torch", "--num_workers", 2, "--source", "warmed bucket", "--ceiling_seconds", 0]
    made = run("bench", *few, *more, "--mode", "sarm_images", "--out_dir", folder / "deeper", "--no_return_uint8")
    assert made.exit_code == 0, made.output
    return folder


def test_results_are_named_by_what_was_measured(results: Path) -> None:
    names = sorted(str(path.relative_to(results)) for path in results.rglob("*.*"))
    stems = [f"local_{mode}_bs8_w8_cpu" for mode in ("sarm", "sarm_images", "single")]
    deeper = "deeper/warmed-bucket_sarm_images_bs8_w2_cpu"
    assert names == sorted(f"{stem}.{ending}" for stem in [*stems, deeper] for ending in ("csv", "json"))


def test_results_follow_the_schema_in_the_docs(results: Path) -> None:
    described = load(SCHEMA)
    assert described == schema(), "the schema is old: make schema"
    Draft202012Validator.check_schema(described)
    for path in results.rglob("*.json"):
        Draft202012Validator(described).validate(load(path))
    broken = {**load(next(results.rglob("*.json"))), "frames_measured": 0}
    assert not Draft202012Validator(described).is_valid(broken)
    assert set(described["required"]) >= ASKED_FOR
    fields = {**described["properties"], **described["$defs"]["CacheCounters"]["properties"]}
    assert not [name for name, field in fields.items() if name not in UNDESCRIBED and "description" not in field]


UNDESCRIBED = {
    "schema_version", "mode", "batch_size", "num_cameras", "dataset_frames", "dataset_episodes",
    "video_decode_device", "video_backend", "rank", "world_size", "processes_per_node", "batches_measured",
    "p95_sample_latency_ms", "p99_sample_latency_ms", "cores", "cpu_model", "versions", "video_decoder_cache",
}  # fmt: skip
"""Fields whose names say it all, or that follow one that is described."""


def test_fields_fit_each_other(results: Path) -> None:
    single = load(results / "local_single_bs8_w8_cpu.json")
    assert (single["batch_size"], single["num_workers"], single["buffer_size"]) == (8, 8, 64)
    assert (single["num_cameras"], single["fps"], single["repo_id"]) == (2, 10, "dataset")
    assert single["frames_measured"] == 40 * 8  # far more than is decoded ahead
    assert single["batches_before"] == 1 + 1 + 2 * (64 // 8)
    assert single["samples_per_s"] == pytest.approx(40 * 8 / single["wallclock_s"])
    assert single["frames_per_s_node"] == single["samples_per_s"]
    assert single["camera_frames_shown_per_s"] == pytest.approx(2 * single["samples_per_s"])
    of_ceiling = single["camera_frames_decoded_per_s"] / single["ceiling_camera_frames_per_s"]
    assert single["percent_of_ceiling"] == pytest.approx(100 * of_ceiling)
    assert single["percent_of_ceiling"] > 0
    assert single["rows_delivered"] == single["rows_expected"] == 255
    assert single["video"] == "h264 64×64, keyframe every 4"
    assert single["padded_share"] == 0
    assert single["video_decoder_cache"]["hits"] == 0
    assert single["bottleneck"] in single["stage_use"]
    assert sum(single["episodes_per_batch_counts"].values()) == 40
    low, middle, high = (single["latency_quantiles_ms"][p] for p in ("0", "50", "100"))
    assert low <= middle == single["p50_sample_latency_ms"] <= high
    images = load(results / "deeper/warmed-bucket_sarm_images_bs8_w2_cpu.json")
    assert (images["source"], images["loader"], images["num_workers"]) == ("warmed bucket", "torch", 2)
    assert 0 < images["padded_share"] < 1
    cache = images["video_decoder_cache"]
    assert cache["hit_rate"] == pytest.approx(cache["hits"] / (cache["hits"] + cache["misses"]))
    assert cache["hits"] > cache["misses"] > 0  # a window of eight shows each picture many times
    assert images["percent_of_ceiling"] is None
    assert not images["return_uint8"]


def test_the_csv_holds_the_same_figures(results: Path) -> None:
    path = results / "local_single_bs8_w8_cpu"
    made = load(path.with_suffix(".json"))
    with path.with_suffix(".csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["samples_per_s"]) == made["samples_per_s"]
    assert int(row["video_decoder_cache.misses"]) == made["video_decoder_cache"]["misses"]
    assert row["mode"] == "single"


@pytest.mark.parametrize("flag", ["--root", "--data_files_root"])
def test_a_url_is_measured_and_its_password_kept_secret(
    serve: Callable[..., ServerProcess], root: Path, tmp_path: Path, flag: str
) -> None:
    server = serve("files", folder=str(root), user="ada:s3cr3t")
    url = server.url.replace("http://", "http://ada:s3cr3t@")
    few = ["--batch_size", 4, "--buffer_size", 8, "--num_batches", 2, "--ceiling_seconds", 0.1, "--out_dir", tmp_path]
    made = run("bench", flag, url, "--source", "web", *few)
    assert made.exit_code == 0, made.output
    result = load(tmp_path / "web_single_bs4_w8_cpu.json")
    assert result["repo_id"] == server.url
    assert result["frames_measured"] == 8
    assert "s3cr3t" not in made.output + (tmp_path / "web_single_bs4_w8_cpu.json").read_text()
    assert len(server.record()) > 5


@pytest.mark.parametrize("golden", GOLDEN, ids=[path.name for path in GOLDEN])
def test_every_golden_dataset_can_be_measured(golden: Path, tmp_path: Path) -> None:
    few = ["--batch_size", 4, "--buffer_size", 8, "--num_batches", 2, "--ceiling_seconds", 0.1, "--out_dir", tmp_path]
    for mode in Mode:
        made = run("bench", "--root", golden / "dataset", "--mode", mode.value, *few)
        assert made.exit_code == 0, made.output
        result = load(tmp_path / f"local_{mode.value}_bs4_w8_cpu.json")
        assert result["frames_measured"] == 8
        assert (result["ceiling_camera_frames_per_s"] is None) == (golden.name in ("images_png", "no_camera"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num_batches", 0], "nothing would be measured"),
        (["--batch_size", 0], "batch_size=0 must be at least 1"),
        (["--root", "/no/such/folder"], "/no/such/folder"),
        pytest.param(
            ["--impl", "lerobot", "--num_workers", 0],
            "lerobot is not installed in this Python",
            marks=pytest.mark.skipif(find_spec("lerobot") is not None, reason="lerobot is installed"),
        ),
    ],
)
def test_a_run_that_yields_nothing_fails_and_says_why(
    root: Path, tmp_path: Path, flags: list[object], message: str
) -> None:
    made = run("bench", "--root", root, "--out_dir", tmp_path / "out", *flags)
    assert made.exit_code == 1
    assert message in made.stderr
    assert not (tmp_path / "out").exists()


def test_videos_that_cannot_be_read_fail_the_script_in_a_real_process(root: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(root, broken)
    for video in broken.rglob("*.mp4"):
        video.write_bytes(video.read_bytes()[:2000])
    script = REPOSITORY / "benchmarks/streaming/benchmark_streaming.py"
    command = [sys.executable, str(script), "--root", str(broken), "--out_dir", str(tmp_path / "out")]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 1
    assert made.stderr.startswith("error: ")
    assert "Traceback" not in made.stderr
    assert not (tmp_path / "out").exists()


# Summary and report --------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(results: Path, tmp_path: Path) -> Path:
    """The results, among files that are none."""
    folder = tmp_path / "tree"
    shutil.copytree(results, folder)
    (folder / "cut.json").write_text('{"mode": "single"')
    (folder / "foreign.json").write_text('{"mode": "single", "loss": 0.5}')
    (folder / "list.json").write_text("[1, 2]")
    bad = {**load(folder / "local_single_bs8_w8_cpu.json"), "samples_per_s": "<b>fast</b>"}
    (folder / "odd.json").write_text(json.dumps(bad))
    return folder


def test_summarize_names_what_it_passes_over(tree: Path) -> None:
    made = run("summarize", tree)
    assert made.exit_code == 0, made.output
    said = dict(re.findall(r"passed over \S*/(\w+\.json): (.*)", made.stderr))
    assert sorted(said) == ["cut.json", "foreign.json", "list.json", "odd.json"]
    assert said["cut.json"].startswith("it is not JSON")
    assert "it lacks created, host" in said["foreign.json"]
    assert said["list.json"] == "it is not a benchmark result"
    assert "samples_per_s" in said["odd.json"]
    lines = [line for line in made.stdout.splitlines() if " robostream " in line]
    assert [re.findall(r"sarm_images|sarm|single", line) for line in lines] == [
        ["single"], ["sarm"], ["sarm_images"], ["sarm_images"]
    ]  # fmt: skip
    with (tree / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["mode"] for row in rows] == ["single", "sarm", "sarm_images", "sarm_images"]
    assert [row["source"] for row in rows] == ["local", "local", "local", "warmed bucket"]


def test_summarize_refuses_a_folder_without_results(tmp_path: Path) -> None:
    for folder, message in ((tmp_path, "holds no benchmark result"), (tmp_path / "none", "is not a folder")):
        made = run("summarize", folder)
        assert made.exit_code == 1
        assert message in made.stderr


def test_repeats_are_shown_by_their_median(results: Path) -> None:
    one = find_results(results).results[0][1]
    runs = [one.model_copy(update={"samples_per_s": rate}) for rate in (30.0, 10.0, 20.0)]
    other = one.model_copy(update={"batch_size": 9})
    assert [(r.samples_per_s, n) for r, n in medians([*runs, other])] == [(20.0, 3), (one.samples_per_s, 1)]


class Page(HTMLParser):
    """What a page asks for from elsewhere, and whether its tags are balanced."""

    EMPTY = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_report_stands_alone(tree: Path) -> None:
    assert run("summarize", tree, "--title", "Ours & <theirs>").exit_code == 0
    html = (tree / "report.html").read_text()
    page = Page()
    page.feed(html)
    assert page.open == []
    assert page.links == []
    assert not re.search(r"<script|@import|url\(|https?:", html)
    assert "<b>fast" not in html
    for text in ("Ours & <theirs>", "Throughput against the ceiling", "Time by stage", "Mixing", "foreign.json"):
        assert text in page.text
    widths = [float(value) for value in re.findall(r"(?:left|width):([\d.]+)%", html)]
    assert len(widths) > 40
    assert max(widths) <= 100


def test_bars_are_as_long_as_their_figures(results: Path) -> None:
    one = find_results(results).results[0][1]
    slow = one.model_copy(update={"impl": "lerobot", "samples_per_s": 25.0, "percent_of_ceiling": None})
    fast = one.model_copy(update={"samples_per_s": 100.0, "percent_of_ceiling": 50.0})
    html = render(Found([(Path("a"), slow), (Path("b"), fast)]), "Bars")
    # The scale ends 2 % beyond the ceiling of 200 samples/s.
    assert re.findall(r'class="bar( ours)?" style="width:([\d.]+)%', html)[:2] == [(" ours", "49.02"), ("", "12.25")]
    assert 'class="mark" style="left:98.04%"' in html


def test_axes_have_round_ticks() -> None:
    axis = linear_axis(790)
    assert [label for _, label in axis.ticks] == ["0", "250", "500", "750"]
    assert axis.at(790 * 1.02) == 100
    assert linear_axis(0).ticks[0] == (0, "0.00")
    log = log_axis(0.02, 30)
    assert [label for _, label in log.ticks] == ["0.01", "0.1", "1", "10", "100"]
    assert (log.at(0.001), log.at(1), log.at(1000)) == (0, 50, 100)
    assert log_axis(1, 1).at(1) == 0


@pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium here")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_report_fits_the_screen(tree: Path, tmp_path: Path, width: int) -> None:
    assert run("summarize", tree).exit_code == 0
    (tmp_path / "frame.html").write_text(
        f"""<!DOCTYPE html><iframe id="f" src="tree/report.html" style="width:{width}px;height:900px;border:0"></iframe>
        <script>f.onload = () => {{ const d = f.contentDocument.documentElement;
        document.body.append(`wide ${{d.scrollWidth}} of ${{d.clientWidth}}, high ${{d.scrollHeight}}`) }}</script>"""
    )
    command = "chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking"
    command += " --disable-sync --disable-component-update --allow-file-access-from-files --window-size=1400,1000"
    command += f" --user-data-dir={tmp_path}/profile --dump-dom file://{tmp_path}/frame.html"
    shown = subprocess.run(command.split(), capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r"wide (\d+) of (\d+), high (\d+)", shown.split("</script>")[-1])
    assert found is not None, shown[-500:]
    needed, there, high = map(int, found.groups())
    assert needed <= there <= width
    assert high > 1500  # it was laid out


# Comparison ----------------------------------------------------------------------------------------------------------


def test_compare_interleaves_and_tells_who_failed(root: Path, tmp_path: Path) -> None:
    few = ["--batch_size", 8, "--buffer_size", 64, "--num_batches", 4, "--repeats", 2, "--ceiling_seconds", 0]
    peer = ["--peer_python", tmp_path / "no-python"]
    made = run("compare", "--root", root, "--mode", "single", *few, *peer, "--out_dir", tmp_path / "out")
    assert made.exit_code == 0, made.output
    turns = [line for line in made.stderr.splitlines() if "run" in line]
    assert turns == [
        "single, run 1 of 2: robostream",
        "single, run 1 of 2: lerobot",
        "single, run 1 of 2: lerobot-map",
        "single, run 2 of 2: robostream",
    ]
    results = [load(path) for path in sorted((tmp_path / "out").rglob("*.json"))]
    assert len(results) == 2
    assert [r["omp_num_threads"] for r in results] == ["1", "1"]
    assert [r["rows_delivered"] for r in results] == [255, None]
    page = (tmp_path / "out/comparison.md").read_text()
    assert re.search(r"\| single \| lerobot-map \| failed \|.*no-python could not be started", page)
    assert re.search(r"\| single \| robostream \| [\d,]+ \([\d,]+–[\d,]+\) \|", page)
    assert run("summarize", tmp_path / "out").exit_code == 0


def test_ratios_are_of_pictures_that_are_not_padding(results: Path) -> None:
    one = find_results(results).results[0][1]

    def entry(impl: Impl, *rates: float, **more: Any) -> Entry:
        fields = {"impl": impl.value, **more}
        return Entry(
            Mode.single,
            impl,
            [one.model_copy(update={**fields, "camera_frames_shown_per_s": r, "samples_per_s": r}) for r in rates],
        )

    ours = entry(Impl.robostream, 900.0, 1000.0, 5000.0)
    loses = entry(Impl.lerobot, 100.0, 300.0, 200.0, rows_expected=255, rows_delivered=100)
    whole = entry(Impl.lerobot_map, 250.0)
    entries = [ours, loses, whole, Entry(Mode.sarm, Impl.lerobot, failure="IndexError")]
    assert [ratio(e, entries) for e in entries] == [1.0, 5.0, 4.0, None]
    assert cells(loses, entries)[-2:] == ["5.0 ×", "LOSES 155 rows of an epoch"]
    assert verdicts(entries) == ["single: robostream is 4.0 times as fast as the best other, lerobot-map"]
    page = markdown(entries, "robostream compare")
    assert "| sarm | lerobot | failed |  |  |  |  | IndexError |" in page


def test_file_names_tell_implementations_and_ranks_apart(results: Path) -> None:
    one = find_results(results).results[0][1]
    changed: BenchmarkResult = one.model_copy(
        update={"source": "s3://a b", "impl": "lerobot-map", "device": "cuda:0", "world_size": 4, "rank": 2}
    )
    assert changed.stem == "s3---a-b_single_bs8_w8_cuda-0_lerobot-map_rank2of4"
