"""The line at the bottom of a terminal, on a real one: nothing of what others print is lost."""

from __future__ import annotations

import fcntl
import io
import os
import re
import struct
import subprocess
import sys
import termios
import textwrap
from pathlib import Path

import pytest

from dagster_jet.observe.reading.terminal_line import TerminalLine

ROOT = Path(__file__).parents[3]


def on_terminal(script: str, *, columns: int = 60, **environment: str) -> str:
    """Output of a program whose standard output and error are a terminal that it owns."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    prelude = "import fcntl, os, termios; fcntl.ioctl(2, termios.TIOCSCTTY, 0)\n"
    child = subprocess.Popen(
        [sys.executable, "-c", prelude + textwrap.dedent(script)],
        stdin=slave, stdout=slave, stderr=slave, start_new_session=True, cwd=ROOT,
        env={**os.environ, "TERM": "xterm", **environment},
    )  # fmt: skip
    os.close(slave)
    written = b""
    while True:
        try:
            written += os.read(master, 65536)
        except OSError:  # the other end is closed
            break
    os.close(master)
    child.wait()
    return written.decode()


def rows(written: str) -> list[str]:
    """Rows that a terminal shows at the end."""
    seen = [""]
    column = 0
    for piece in re.findall(r"\r|\n|\x1b\[K|[^\r\n\x1b]+", written):
        if piece == "\r":
            column = 0
        elif piece == "\n":
            seen.append("")
            column = 0
        elif piece == "\x1b[K":
            seen[-1] = seen[-1][:column]
        else:
            seen[-1] = seen[-1][:column] + piece + seen[-1][column + len(piece) :]
            column += len(piece)
    return seen


LINE = """
    import itertools, logging, os, sys, threading
    from dagster_jet.observe.reading.terminal_line import terminal_line

    logging.basicConfig(level="WARNING", format="%(message)s")

    def draw(line, text):
        if line is not None:
            line._seconds = itertools.count(draw.now).__next__  # long after the last
            draw.now += 10
            line.draw(text)

    draw.now = 0
"""
OTHERS = """
    with terminal_line() as line:
        draw(line, "shop  1 row of many")
        print("printed", end=" ")
        draw(line, "shop  2")
        print("in pieces")
        draw(line, "shop  3 rows")
        logging.warning("logged")
        draw(line, "shop  4")
        sys.stdout.write("")
        draw(line, "shop  5")
        if line is not None:
            line.end("shop  ended")
    print("after it", file=sys.stderr)
"""


def test_it_is_written_again_in_place_and_ends_in_a_row_of_its_own() -> None:
    drawing = """
    with terminal_line() as line:
        for n in (1_000, 20, 3):
            draw(line, f"shop  {n} rows")
        line.end("shop  ended")
    """
    assert on_terminal(LINE + drawing) == (
        "\r\x1b[Kshop  1000 rows \r\x1b[Kshop  20 rows \r\x1b[Kshop  3 rows \r\x1b[Kshop  ended\r\n"
    )


def test_what_others_print_and_log_is_whole() -> None:
    seen = rows(on_terminal(LINE + OTHERS))
    assert seen == ["printed in pieces", "logged", "shop  ended", "after it", ""]


def test_between_the_pieces_of_a_line_of_others_nothing_is_drawn() -> None:
    assert "shop  2" not in on_terminal(LINE + OTHERS)


def test_the_summary_leaves_the_begun_line_of_others_alone() -> None:
    begun = """
    with terminal_line() as line:
        draw(line, "shop  1 row")
        print("begun ...", end="", flush=True)
        line.end("shop  ended")
    """
    assert rows(on_terminal(LINE + begun)) == ["begun ...", "shop  ended", ""]


def test_a_terminal_that_does_not_know_its_width_counts_as_a_usual_one() -> None:
    text = "x" * 100
    drawing = f"""
    with terminal_line() as line:
        draw(line, "{text}")
    """
    assert on_terminal(LINE + drawing, columns=0).count("x") == 78


def test_an_error_finds_no_line_before_it() -> None:
    raising = """
    with terminal_line() as line:
        draw(line, "shop  1 row")
        raise ValueError("the job has failed")
    """
    seen = rows(on_terminal(LINE + raising))
    assert seen[0] == "Traceback (most recent call last):"
    assert seen[-2] == "ValueError: the job has failed"
    assert not any(row.startswith("shop") for row in seen)


def test_another_program_on_the_same_terminal_begins_behind_it() -> None:
    foreign = """
    with terminal_line() as line:
        draw(line, "shop  1 row")
        os.write(2, b"WARN of the JVM\\n")
        draw(line, "shop  2 rows")
        line.end("shop  ended")
    """
    assert rows(on_terminal(LINE + foreign)) == ["shop  1 row WARN of the JVM", "shop  ended", ""]


def test_a_narrow_terminal_is_never_wrapped() -> None:
    assert "shop  1 row of many" in on_terminal(LINE + OTHERS)
    written = on_terminal(LINE + OTHERS.replace("of many", "x" * 30), columns=24)
    lines = re.findall(r"\r\x1b\[K(shop [^\r\n\x1b]*)", written)
    assert lines and max(map(len, lines)) == 23


@pytest.mark.parametrize(
    "environment",
    [{"DAGSTER_JET_PROGRESS": "off"}, {"DAGSTER_JET_PROGRESS": "0"}, {"TERM": "dumb"}],
)
def test_it_can_be_switched_off(environment: dict[str, str]) -> None:
    quiet = ["printed in pieces", "logged", "after it", ""]
    assert rows(on_terminal(LINE + OTHERS, **environment)) == quiet


def test_nothing_is_written_where_there_is_no_terminal() -> None:
    script = textwrap.dedent(LINE + OTHERS)
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert (ran.stdout, ran.stderr) == ("printed in pieces\n", "logged\nafter it\n")


def test_a_process_in_the_background_is_quiet() -> None:
    background = """
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        with terminal_line() as line:
            os._exit(0 if line is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    """
    assert on_terminal(LINE + background) == ""


def test_only_one_of_several_waits_draws() -> None:
    two = """
    with terminal_line() as line, terminal_line() as another:
        assert line is not None and another is None
    with terminal_line() as line:
        assert line is not None
    """
    assert on_terminal(LINE + two) == ""


def test_a_process_that_goes_to_the_background_meanwhile_is_quiet_until_it_is_back() -> None:
    now, stream = 0, io.StringIO()
    line = TerminalLine(stream, lambda: now, lambda: now not in (2, 3))
    for now in range(1, 5):
        line.draw(f"{now} ")
    assert re.findall(r"(\d+) ", stream.getvalue()) == ["1", "4"]


def test_a_stream_that_somebody_else_has_changed_is_as_it_was() -> None:
    changed = """
    upper = lambda text, write=sys.stdout.write: write(text.upper())
    sys.stdout.write = upper
    with terminal_line() as line:
        draw(line, "shop  1 row")
        print("printed")
    assert sys.stdout.write is upper
    """
    assert rows(on_terminal(LINE + changed)) == ["PRINTED", ""]


def test_streams_are_as_they_were() -> None:
    before = """
    with terminal_line() as line:
        assert "write" in vars(sys.stderr) and "write" in vars(sys.stdout)
    assert "write" not in vars(sys.stderr) and "write" not in vars(sys.stdout)
    """
    assert on_terminal(LINE + before) == ""


def test_it_is_drawn_a_few_times_a_second_at_most() -> None:
    now, stream = 0.0, io.StringIO()
    line = TerminalLine(stream, lambda: now)
    for n in range(100):
        now = n / 100
        line.draw(f"{n} ")
    assert re.findall(r"(\d+) ", stream.getvalue()) == ["0", "25", "50", "75"]


# --- waiting --------------------------------------------------------------------------------------

WAIT = """
    import threading
    from dagster_jet.execution.events import EpochCompleted, ExecutionStarted
    from dagster_jet.observe.reading.run_progress import RunProgress
    from dagster_jet.observe.reading.watched_wait import wait

    run, done, looks = RunProgress("shop"), threading.Event(), []
    run.note(ExecutionStarted("shop", 1, 0, None, None, 5))
    run.note(EpochCompleted("shop", 1, 1, 4_000, 20.0))

    def progress():
        looks.append(1)
        if len(looks) == LOOKS:
            done.set()
        return run
"""


def test_who_waits_for_a_job_sees_how_far_it_is_and_what_it_came_to() -> None:
    waiting = "\n    assert wait(done, None, progress, shows=True)\n"
    written = on_terminal(WAIT.replace("LOOKS", "3") + waiting)
    assert "\r\x1b[Kshop  4,000 rows  " in written
    seen = rows(written)
    assert len(seen) == 2 and seen[1] == ""
    assert re.fullmatch(r"shop  ended: 4,000 rows in .* s \(.* rows/s\), 1 epochs", seen[0])


def test_a_wait_that_is_given_up_says_that_the_job_still_runs() -> None:
    waiting = "\n    assert not wait(done, 0.6, progress, shows=True)\n"
    seen = rows(on_terminal(WAIT.replace("LOOKS", "-1") + waiting))
    assert seen[0].startswith("shop  still runs: 4,000 rows in ") and seen[1:] == [""]


def test_a_wait_that_is_over_at_once_and_one_in_silence_show_nothing() -> None:
    over = "\n    done.set(); assert wait(done, None, progress, shows=True)\n"
    silent = "\n    assert not wait(done, 0.6, progress, shows=False)\n"
    assert on_terminal(WAIT.replace("LOOKS", "-1") + over) == ""
    assert on_terminal(WAIT.replace("LOOKS", "-1") + silent) == ""


# --- a job of another process ---------------------------------------------------------------------

ELSEWHERE = """
    import sys
    from dagster_jet import Jet
    from dagster_jet.orchestration import JetResource
    from dagster_jet.ownership.lease import new_lease
    from dagster_jet.ownership.record_keeper import record_register
    from dagster_jet.snapshot.record import Activity, Doing, ExecutionRecord, JobStatus

    with Jet(store=STORE, backup_count=0) as jet:
        lease = new_lease("owner", 60_000, None, Activity(Doing.EPOCH, 5))
        record = ExecutionRecord("shop", 4, JobStatus.RUNNING, lease=lease)
        jet.store.register(record_register("shop")).claim(4, "owner").write(record.to_bytes())
    for opened in (
        lambda: Jet(store=STORE, backup_count=0),
        lambda: Jet(store=STORE, backup_count=0, show_progress=False),
        lambda: JetResource(store=STORE, backup_count=0).jet,
    ):
        with opened() as jet:
            try:
                jet.job("shop").result(timeout=0.5)
            except TimeoutError:
                print("given up")
"""


def test_who_waits_for_a_job_of_another_process(tmp_path: Path) -> None:
    """It sees the job's line by default, and none where that is switched off, nor in Dagster."""
    store = repr([f"file://{tmp_path}/a"])
    written = on_terminal(ELSEWHERE.replace("STORE", store), columns=100)
    seen = [row for row in rows(written) if "arning" not in row]
    assert seen == ["shop  RUNNING", "given up", "given up", "given up", ""]
    by_default, _, others = written.partition("given up")
    assert "shop  RUNNING  running an epoch" in by_default and "shop" not in others
