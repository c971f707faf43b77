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
from typing import Any, Dict, Generator

import taut
from taut._errors import error_of
from taut._program import Running, command_line, objects_in
from taut._results import _natural, _numpy_of, latency_of  # pyright: ignore[reportPrivateUsage]
from taut._run import Background

NULL: Dict[str, Any] = {"port": "null:", "rate": "10k", "seconds": 0.2, "max_loss": 1, "progress": False}
#: The names of the files by which folders of benchmarks are known.
BENCHES = ["bench", "io", "costs", "generators", "switch"]
LOOP: Dict[str, Any] = {"device": "memif-loop", "rate": "20k", "seconds": 0.3, "progress": False}

EXPERIMENT = """
title = "Latency of a loop"
[loop]
rate = [500]
[plan]
repetitions = 1
[device]
id = "memif-loop"
[traffic]
rate = "{{ rate }}"
seconds = 0.1
[measure]
what = ["latency"]
[[figure]]
name = "cdf"
kind = "cdf"
by = ["rate"]
"""


def has(module: str) -> bool:
    try:
        __import__(module)
    except ImportError:
        return False
    return True


@contextlib.contextmanager
def stand_in(source: str) -> Generator[None, None, None]:
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
            _ = taut.Record({"sent": 1, "lost": 0}).x

    def test_the_summary_is_there_after_the_block_however_slowly_it_is_read(self) -> None:
        class Slow(Background):
            def _take(self, line: str) -> None:
                time.sleep(0.3)
                super()._take(line)

        lines = '{"event": "start"}\\n{"event": "summary", "seconds": 7}'
        with stand_in(f"print('{lines}', flush=True)"), Slow("forward") as forwarder:
            pass
        assert forwarder.summary is not None
        self.assertEqual(forwarder.summary.seconds, 7)

    def test_a_program_that_does_not_end_is_killed_with_an_error(self) -> None:
        with stand_in("import time; time.sleep(60)"):
            running = Running([])
            with self.assertRaisesRegex(taut.TautError, "has not ended within 0.1 s"):
                running.end(timeout=0.1)
            running.kill()
            with self.assertRaises(taut.Interrupted):
                running.end(timeout=10)

    def test_the_latency_of_streams_and_probes_is_found(self) -> None:
        found = {"count": 2, "p50_ns": 7}
        for summary in [{"streams": [{"latency_ns": found}]}, {"rtt_ns": found}]:
            latency = latency_of(summary)
            assert latency is not None
            self.assertEqual((latency.count, latency.p50, latency.p99), (2, 7.0, None))
        self.assertIsNone(latency_of({"streams": [{"latency_ns": None}]}))
        self.assertIsNone(latency_of({"sizes": [{"latency": []}]}))

    def test_each_kind_of_folder_is_known_by_its_files(self) -> None:
        heads = {
            "measurement": ["summary.json"],
            "control": ["rounds.csv", "summary.json"],
            "gate": ["gate.json"],
            "experiment": ["state.json", "summary.json"],
            "comparison": ["experiment.json", "state.json", "summary.json"],
        }
        kinds = list(heads.items())
        kinds += [("benchmark", [f"{name}.json", "summary.json"]) for name in BENCHES]
        for kind, files in kinds:
            with tempfile.TemporaryDirectory() as folder:
                for file in files:
                    pathlib.Path(folder, file).write_text('{"title": "x"}', encoding="utf-8")
                results = taut.results(folder)
                self.assertEqual((results.kind, results.summary.title), (kind, "x"))
                self.assertIsNone(results.latency)
                self.assertEqual(results.report.name, "report.html")
                pathlib.Path(folder, "index.html").touch()
                self.assertEqual(results.report.name, "index.html")

    def test_samples_of_failed_incomplete_and_warm_up_runs_are_left_out(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place, "failed")
            for run in ["runs/v1-r10", "runs/v1-r9", "runs/v1-w1", "runs/v2-r1.partial", "failed/v1-r9-1"]:
                (folder / run / "local").mkdir(parents=True)
                (folder / run / "local/samples.parquet").touch()
            (folder / "state.json").touch()
            results = taut.results(folder)
            runs = [path.relative_to(folder).parts[1] for path in results.sample_files()]
            self.assertEqual(runs, ["v1-r9", "v1-r10"])
            for number in [2, -1]:
                with self.assertRaisesRegex(FileNotFoundError, f"2 files with samples .*, none at {number}"):
                    results.samples(index=number)
            with self.assertRaisesRegex(FileNotFoundError, "no metrics.parquet"):
                results.metrics()

    @unittest.skipUnless(has("pyarrow") and has("numpy"), "needs pyarrow and numpy")
    def test_numbers_without_missing_values_are_not_copied(self) -> None:
        import pyarrow

        whole = pyarrow.chunked_array([[1, 2, 3]])
        self.assertEqual(_numpy_of(whole).ctypes.data, whole.chunk(0).buffers()[1].address)
        for pieces, values in [
            ([[1], [2, 3]], [1, 2, 3]),
            ([[True, False]], [True, False]),
            ([pyarrow.array([], pyarrow.uint64())], []),
        ]:
            self.assertEqual(list(_numpy_of(pyarrow.chunked_array(pieces))), values)
        missing = list(_numpy_of(pyarrow.chunked_array([[1, None]])))
        self.assertEqual(missing[0], 1.0)
        self.assertNotEqual(missing[1], missing[1])
        self.assertEqual(list(_numpy_of(pyarrow.chunked_array([], pyarrow.uint64()))), [])

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
            taut.run("generate", **dict(NULL, max_loss=0))

    def test_a_temporary_folder_lives_as_long_as_its_result(self) -> None:
        result = taut.run("generate", out=True, **LOOP)
        folder = result.results()
        self.assertEqual(folder.kind, "measurement")
        assert result.latency is not None and folder.latency is not None
        self.assertGreater(result.latency.count, 0)
        self.assertEqual(folder.latency.count, result.latency.count)
        self.assertTrue(folder.report.is_file())
        path = folder.path
        del folder, result
        self.assertFalse(path.exists())

    @unittest.skipUnless(has("pyarrow") and has("numpy"), "needs pyarrow and numpy")
    def test_samples_are_tables_of_arrow_and_numpy(self) -> None:
        result = taut.run("generate", out=True, **LOOP)
        table = result.samples()
        self.assertEqual(table.num_rows, result.streams[0].tally.sent)
        arrays = result.samples("numpy")
        self.assertEqual(list(arrays), table.column_names)
        self.assertEqual(list(arrays["sequence"]), list(range(table.num_rows)))
        self.assertEqual(arrays["send_delay_ns"].dtype.kind, "u")

    @unittest.skipUnless(has("pyarrow") and has("pandas"), "needs pyarrow and pandas")
    def test_samples_are_a_frame_of_pandas(self) -> None:
        result = taut.run("generate", out=True, **LOOP)
        frame = result.samples("pandas")
        self.assertEqual(len(frame), result.streams[0].tally.sent)
        assert result.latency is not None
        self.assertEqual(frame["latency_ns"].max(), result.latency.max)

    @unittest.skipUnless(has("polars"), "needs polars")
    def test_samples_are_a_frame_of_polars(self) -> None:
        result = taut.run("generate", out=True, **LOOP)
        frame = result.samples("polars")
        self.assertEqual(frame.height, result.streams[0].tally.sent)
        assert result.latency is not None
        self.assertEqual(frame["latency_ns"].max(), result.latency.max)

    def test_an_experiment_has_runs_metrics_and_samples(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "loop.toml")
            file.write_text(EXPERIMENT, encoding="utf-8")
            results = taut.experiment(file, set={"rate": [1000, 2000]}, out=folder + "/out", progress=False)
            self.assertEqual(results.kind, "experiment")
            runs = list(results.runs())
            self.assertEqual(sorted(run.variables.rate for run in runs), [1000, 2000])
            self.assertEqual([path.name for path in results.figures], ["cdf.svg"])
            self.assertEqual(len(results.sample_files()), 2)
            if has("pyarrow"):
                self.assertEqual(set(results.metrics()["run"].to_pylist()), {"v1-r1", "v2-r1"})
                self.assertEqual(results.samples("arrow", 1).num_rows, 200)
            if has("polars"):
                self.assertIn("value", results.metrics("polars").columns)

    def test_a_forwarder_runs_for_the_time_of_its_block(self) -> None:
        with taut.forward(port=["null:source=32", "null:"]) as forwarder:
            second = next(iter(forwarder))
            self.assertGreater(second.counters.rx_packets, 0)
        assert forwarder.summary is not None
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
