"""The commands end to end on a tiny dataset: what they print, what they write, and how they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from robostream.cli import app
from robostream.cli.common import flags_of, size_text
from robostream.cli.demo import Run, check_rows, demo_dataset
from robostream.contact_sheet import PAD, contact_sheet
from robostream.errors import SettingError
from robostream.metadata import load_metadata
from robostream.source import LocalSource
from robostream.synth import SynthSettings, read_barcode, split_barcode, write_dataset

SMALL = ["--codec", "h264", "--width", "64", "--height", "64", "--cameras", "2", "--gop", "4", "--fps", "10"]
SHORT = ["--episodes", "3", "--min-length", "20", "--max-length", "30", "--episodes-per-file", "2"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A dataset that `synth` wrote, and what it said."""
    root = tmp_path_factory.mktemp("cli") / "dataset"
    result = run("synth", root, *SMALL, *SHORT, "--episodes-per-data-file", 1, "--bframes", 2, "--seed", 3)
    assert result.exit_code == 0, result.output
    return root, result.stdout


@pytest.fixture
def root(made: tuple[Path, str]) -> Path:
    return made[0]


def frames_of(root: Path) -> int:
    return int(json.loads((root / "meta/info.json").read_text())["total_frames"])


def test_synth_writes_what_it_says(made: tuple[Path, str]) -> None:
    root, said = made
    meta = load_metadata(LocalSource(root))
    files = [path for path in root.rglob("*") if path.is_file()]
    assert len(meta.episodes) == 3
    assert meta.fps == 10
    assert meta.camera_keys == ["observation.images.cam0", "observation.images.cam1"]
    assert all(len(placement.files) == 2 for placement in meta.episodes.videos.values())
    assert len([path for path in files if path.match("data/*/*.parquet")]) == 3
    assert 20 <= meta.episodes.length.min() <= meta.episodes.length.max() <= 30
    facts = dict(line.split(None, 1) for line in said.splitlines() if len(line.split()) > 1)
    assert facts["episodes"].strip() == "3"
    assert facts["frames"].startswith(f"{meta.total_frames} rows × 2 cameras")
    assert facts["files"].strip() == str(len(files))
    assert facts["bytes"].strip() == f"{sum(path.stat().st_size for path in files):,}"


def test_synth_refuses_a_folder_in_use(root: Path, tmp_path: Path) -> None:
    before = frames_of(root)
    result = run("synth", root, *SMALL, *SHORT)
    assert result.exit_code == 1
    assert result.stderr == f"error: {root} is not empty; pass --force to delete what is in it\n"
    assert frames_of(root) == before
    (tmp_path / "letters.txt").write_text("precious")
    result = run("synth", tmp_path, *SMALL, *SHORT, "--force")
    assert result.exit_code == 1
    assert "--force deletes datasets only" in result.stderr
    assert (tmp_path / "letters.txt").read_text() == "precious"
    assert run("synth", tmp_path / "letters.txt", *SMALL, *SHORT).exit_code == 1


def test_synth_force_writes_anew(tmp_path: Path) -> None:
    for length in (5, 6):
        size = ["--episodes", 1, "--min-length", length, "--max-length", length, "--version", "v2.1"]
        result = run("synth", tmp_path / "new", *SMALL, *size, "--force")
        assert result.exit_code == 0, result.output
        assert frames_of(tmp_path / "new") == length


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--min-length", 9, "--max-length", 8], "--max-length 8 is below --min-length 9"),
        (["--width", 16], "the barcode needs at least"),
        (["--codec", "av1", "--bframes", 2], "the AV1 encoder writes neither"),
    ],
)
def test_synth_refuses_settings_in_one_line(tmp_path: Path, options: list[object], message: str) -> None:
    result = run("synth", tmp_path / "out", *options)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_peek_tells_what_a_dataset_holds(root: Path, tmp_path: Path) -> None:
    result = run("peek", root, "--out", tmp_path / "sheet.png", "--rows", 4)
    assert result.exit_code == 0, result.output
    assert "LeRobot v3.0" in result.stdout
    assert f"frames    {frames_of(root)} (" in result.stdout
    camera = next(
        line.split() for line in result.stdout.splitlines() if line.split()[:1] == ["observation.images.cam0"]
    )
    assert camera[1:6] == ["64×64", "h264", "4", "yes", "2"]
    assert "3 × 3 × 64 × 64" in result.stdout
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert f"Contact sheet of 4 samples, {sheet.width}×{sheet.height}" in result.stdout
        # cam0 with three steps, cam1, state and action; four rows of 136 pixels
        assert sheet.size == (190 + 3 * 136 + 2 * 4 + 16 + 136 + 2 * (16 + 170) + 18, 18 + 26 + 38 + 4 * 148 - 12 + 18)


def test_peek_shows_the_picture_of_the_row(root: Path, tmp_path: Path) -> None:
    last = frames_of(root) - 1
    result = run(
        "peek", "--root", root, "--index", last, "--out", tmp_path / "sheet.png", "--cameras", "observation.images.cam1"
    )
    assert result.exit_code == 0, result.output
    assert "observation.images.cam0" not in result.stdout
    length = int(load_metadata(LocalSource(root)).episodes.length[-1])
    with Image.open(tmp_path / "sheet.png") as sheet:
        left = 190 + 2 * 140
        picture = np.asarray(sheet.convert("RGB").crop((left, 82, left + 136, 82 + 136)).resize((64, 64)))
    assert split_barcode(read_barcode(picture))[1:] == (2, length - 1)


@pytest.mark.parametrize("index", [-1, 10**6])
def test_peek_refuses_a_row_that_is_not_there(root: Path, tmp_path: Path, index: int) -> None:
    result = run("peek", root, f"--index={index}", "--out", tmp_path / "sheet.png")
    assert result.exit_code == 1
    assert f"--index {index} is outside of the dataset's {frames_of(root)} rows" in result.stderr


def test_peek_wants_one_folder(root: Path) -> None:
    for arguments in ((), (root, "--root", root)):
        result = run("peek", *arguments)
        assert result.exit_code == 2
        assert "ROOT" in result.stderr


def test_demo_streams_each_row_once(root: Path, tmp_path: Path) -> None:
    result = run("demo", "--root", root, "--out", tmp_path, "--batch-size", 7, "--ceiling-seconds", 0)
    assert result.exit_code == 0, result.output
    total = frames_of(root)
    assert f"rows delivered   {total} of {total}, each exactly once" in result.stdout
    assert f"for {-(-total // 7)} batches" in result.stdout
    assert "clock drift      0 episodes" in result.stdout
    assert "skipped          0 samples" in result.stdout
    assert "\x1b" not in result.output
    with Image.open(tmp_path / "contact_sheet.png") as sheet:
        assert f"Contact sheet, {sheet.width}×{sheet.height}" in result.stdout
        assert sheet.height == 18 + 26 + 38 + 7 * 148 - 12 + 18


def test_demo_stops_early_when_told(root: Path, tmp_path: Path) -> None:
    result = run("demo", "--root", root, "--out", tmp_path, "--batch-size", 8, "--batches", 2, "--ceiling-seconds", 0)
    assert result.exit_code == 0, result.output
    assert f"rows delivered   16 of {frames_of(root)} (stopped early), none twice" in result.stdout


def test_errors_are_one_line_and_name_the_flags(tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    write_dataset(root, SynthSettings(episodes=[8], cameras=2, width=64, height=64, codec="h264", fps=10))
    for video in (root / "videos/observation.images.cam0").rglob("*.mp4"):
        video.unlink()
    result = run("demo", "--root", root, "--out", tmp_path / "out")
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("error: the camera 'observation.images.cam0' is declared but has no video")
    assert lines[1] == "  on the command line: --cameras observation.images.cam1"
    assert "Traceback" not in result.output


def test_a_late_clock_is_an_error_that_names_the_way_out(tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    late = SynthSettings(
        episodes=[12, 9],
        cameras=1,
        width=64,
        height=64,
        codec="h264",
        fps=10,
        timestamps=lambda _, length: ((np.arange(length) + 1) / 10).astype(np.float32),
    )
    write_dataset(root, late)
    arguments = ["demo", "--root", root, "--out", tmp_path / "out", "--ceiling-seconds", 0]
    result = run(*arguments)
    assert result.exit_code == 1
    assert "  on the command line: --timestamps index" in result.stderr.splitlines()
    result = run(*arguments, "--timestamps", "index")
    assert result.exit_code == 0, result.output
    assert "21 of 21, each exactly once" in result.stdout


def test_no_dataset_is_an_error_in_a_real_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "robostream", "peek", str(tmp_path / "nothing")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr


def test_help_lists_the_commands() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in ("demo", "peek", "synth"))


def test_demo_dataset_is_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = SynthSettings(episodes=[5], cameras=1, width=64, height=64, codec="h264")
    folder = demo_dataset(tmp_path / "dataset", settings)
    stamp = (folder / "meta/info.json").stat().st_mtime_ns
    assert "Making a dataset" in capsys.readouterr().out
    assert demo_dataset(folder, settings) == folder
    assert (folder / "meta/info.json").stat().st_mtime_ns == stamp
    demo_dataset(folder, SynthSettings(episodes=[6], cameras=1, width=64, height=64, codec="h264"))
    assert frames_of(folder) == 6
    (tmp_path / "own").mkdir()
    with pytest.raises(SettingError, match="was not made by this command"):
        demo_dataset(tmp_path / "own", settings)


def test_rows_that_come_twice_or_never_are_told() -> None:
    twice = Run(expected=3, rows=[np.array([0, 1]), np.array([1])], samples=3)
    assert check_rows(twice, {}) == "1 samples came more than once"
    missing = Run(expected=3, rows=[np.array([0, 1])], samples=2)
    assert check_rows(missing, {}) == "1 rows never came"
    assert check_rows(missing, {"samples_skipped": 1}) == ""
    missing.stopped_early = True
    assert check_rows(missing, {}) == ""


@pytest.mark.parametrize(
    ("message", "flags"),
    [
        ("pass cameras=['a.b', 'c']", "--cameras a.b --cameras c"),
        ('If picture k belongs to row k, pass timestamps="index".', "--timestamps index"),
        ("leave it out with cameras=[…]", "--cameras KEY"),
        ("cameras=['x']: unknown; the cameras of the dataset are: y", ""),
        ("pass buffer_size=100 or more", "--buffer-size 100"),
    ],
)
def test_flags_for_advised_arguments(message: str, flags: str) -> None:
    assert flags_of(message) == flags


def test_sizes_for_people() -> None:
    assert [size_text(n) for n in (0, 1023, 1536, 2**20, 5 * 2**30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "1.0 MiB",
        "5.00 GiB",
    ]


def test_contact_sheet_marks_padding_and_takes_floats_and_grey() -> None:
    sample = {
        "grey": np.full((2, 1, 30, 40), 0.5, np.float32),
        "grey_is_pad": np.array([True, False]),
        "numbers": np.array([[1.0, np.nan], [2.0, 3.0]], np.float32),
        "task": "a very long task that has to be broken into several lines to fit beside the pictures " * 5,
    }
    sheet = contact_sheet([sample], ["grey"], windows={"grey": [-1, 0], "numbers": [0, 1]}, curves=["numbers"])
    assert sheet.getpixel((190, 56)) == PAD
    assert sheet.getpixel((190 + 181 + 4 + 90, 56 + 68)) == (128, 128, 128)


def test_a_contact_sheet_is_a_picture(root: Path, tmp_path: Path) -> None:
    result = run("peek", root, "--out", tmp_path / "sheet.txt")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "sheet.txt" in result.stderr
    assert ".png" in result.stderr


def test_a_plan_for_no_ranks_is_refused(root: Path) -> None:
    result = run("plan", "--root", root, "--world_size", 0)
    assert result.exit_code == 2
    assert "--world_size" in result.stderr
