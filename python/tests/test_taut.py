"""Tests of the Python package against the program that the environment variable TAUT names."""

import contextlib
import doctest
import io
import os
import pathlib
import re
import sys
import tempfile
import time
import unittest
import unittest.mock
from typing import Iterator

import taut
from taut._errors import error_of
from taut._program import Running, command_line, objects_in
from taut._results import _natural
from taut._run import Background

NULL = {"port": "null:", "rate": "10k", "seconds": 0.2, "max_loss": 1, "progress": False}
LOOP = {"device": "memif-loop", "rate": "20k", "seconds": 0.3, "progress": False}


def has(module: str) -> bool:
    try:
        __import__(module)
    except ImportError:
        return False
    return True


@contextlib.contextmanager
def stand_in(source: str) -> Iterator[None]:
    """Lets a Python program stand in for taut."""
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "taut")
        program.write_text(f"#!{sys.executable}\n{source}", encoding="utf-8")
        program.chmod(0o755)
        with unittest.mock.patch.dict(os.environ, TAUT=str(program)):
            yield


class WithoutProgram(unittest.TestCase):
    def test_options_become_words_of_the_command_line(self) -> None:
        options = {"max_loss": 0.1, "json": True, "port": ["a", "b"], "set": {"x": 1}, "out": None, "tap": False}
        words = command_line("bench throughput", ["f.toml"], options)
        self.assertEqual(
            words, ["bench", "throughput", "f.toml", "--max-loss=0.1", "--json", "--port=a", "--port=b", "--set=x=1"]
        )

    def test_each_exit_code_has_an_exception_with_the_printed_line(self) -> None:
        for code, kind in [(1, taut.LimitMissed), (2, taut.InputError), (3, taut.MissingError), (4, taut.Undecided)]:
            error = error_of(code, "warning\ntaut: no such file\n", ["taut"])
            self.assertIs(type(error), kind)
            self.assertEqual((error.message, error.code), ("no such file", code))
        self.assertIs(type(error_of(-9, "", [])), taut.Interrupted)

    def test_objects_over_lines_and_in_each_line_are_read(self) -> None:
        self.assertEqual(objects_in('{"a":\n 1}\n'), [{"a": 1}])
        self.assertEqual(objects_in('starting\n{"a": 1}\n{"b": 2}\n'), [{"a": 1}, {"b": 2}])
        self.assertEqual(objects_in("nothing"), [])

    def test_runs_sort_by_their_numbers(self) -> None:
        self.assertEqual(sorted(["r10", "r9", "q"], key=_natural), ["q", "r9", "r10"])

    def test_unknown_fields_are_reported_with_the_known_ones(self) -> None:
        with self.assertRaisesRegex(AttributeError, "no field 'x'; there are: lost, sent"):
            taut.Record({"sent": 1, "lost": 0}).x

    def test_the_summary_is_there_after_the_block_however_slowly_it_is_read(self) -> None:
        class Slow(Background):
            def _take(self, line: str) -> None:
                time.sleep(0.3)
                super()._take(line)

        lines = '{"event": "start"}\\n{"event": "summary", "seconds": 7}'
        with stand_in(f"print('{lines}', flush=True)"), Slow("forward") as forwarder:
            pass
        self.assertEqual(forwarder.summary.seconds, 7)

    def test_a_program_that_does_not_end_is_killed_with_an_error(self) -> None:
        with stand_in("import time; time.sleep(60)"):
            running = Running([])
            with self.assertRaisesRegex(taut.TautError, "has not ended within 0.1 s"):
                running.end(timeout=0.1)
            running.kill()
            with self.assertRaises(taut.Interrupted):
                running.end(timeout=10)

    def test_a_folder_without_results_is_refused(self) -> None:
        with tempfile.TemporaryDirectory() as folder, self.assertRaises(FileNotFoundError):
            taut.results(folder)


@unittest.skipUnless(os.environ.get("TAUT"), "needs TAUT, the path of the program")
class WithProgram(unittest.TestCase):
    def test_the_examples_of_the_package_work(self) -> None:
        self.assertEqual(doctest.testmod(taut).failed, 0)

    def test_the_blocks_of_the_page_work(self) -> None:
        page = pathlib.Path(__file__).parents[2] / "docs/how-to/use-from-python.md"
        blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        self.assertGreaterEqual(len(blocks), 5)
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile("\n".join(blocks), str(page), "exec"), {})

    def test_a_run_has_typed_results_and_the_counters_of_each_second(self) -> None:
        result = taut.run("generate", **LOOP)
        self.assertEqual(result.streams[0].tally.sent, 6000)
        self.assertEqual(result.streams[0].lost, 0)
        self.assertEqual(result.objects[-1]["event"], "summary")

    def test_errors_are_exceptions_with_the_text_of_the_program(self) -> None:
        with self.assertRaises(taut.InputError) as caught:
            taut.run("generate", port="nosuch:", progress=False)
        self.assertIn("nosuch", caught.exception.message)
        with self.assertRaises(taut.LimitMissed):
            taut.run("generate", **{**NULL, "max_loss": 0})

    def test_samples_of_a_temporary_folder_can_be_read(self) -> None:
        result = taut.run("generate", out=True, **LOOP)
        folder = result.results()
        self.assertEqual(folder.kind, "measurement")
        self.assertGreater(result.latency.p50, 0)
        self.assertEqual(folder.latency.count, result.latency.count)
        self.assertTrue(folder.report.is_file())
        if has("pyarrow"):
            table = result.samples()
            self.assertEqual(table.num_rows, result.streams[0].tally.sent)
            self.assertEqual(len(result.samples("numpy")["sequence"]), table.num_rows)
        if has("polars"):
            self.assertEqual(result.samples("polars").height, result.streams[0].tally.sent)
        path = folder.path
        del folder, result
        self.assertFalse(path.exists())

    def test_a_forwarder_runs_for_the_time_of_its_block(self) -> None:
        with taut.forward(port=["null:source=32", "null:"]) as forwarder:
            second = next(iter(forwarder))
            self.assertGreater(second.counters.rx_packets, 0)
        self.assertGreater(forwarder.summary.counters.rx_packets, 0)
        with self.assertRaises(taut.InputError):
            with taut.forward(port=["nosuch:", "null:"]):
                pass

    def test_commands_without_json_work(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(taut.run("man", folder, progress=False).objects, [])
            self.assertTrue(os.listdir(folder))


if __name__ == "__main__":
    unittest.main()
