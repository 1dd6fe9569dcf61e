"""Running Beam pipelines: which runner, with which options, and how results come back.

``DirectRunner`` here means Beam's in-process runner (``FnApiRunner``): the name's own meaning in
Beam is to try and download another runner first. Two workers are two threads; block work releases
the interpreter lock. Results come back through one file, because that works on every runner.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from pipeline import storage

_IN_PROCESS = {"DirectRunner", "direct", "FnApiRunner"}


class Launcher:
    """Launches pipelines with the options of one command line.

    Args:
        options: Beam options as given after ``--``.
    """

    def __init__(self, options: Sequence[str] = ()) -> None:
        from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions

        logging.getLogger("apache_beam").setLevel(logging.ERROR)
        given = list(options)
        parsed = PipelineOptions(given).get_all_options()
        self.runner_name = parsed.get("runner") or "DirectRunner"
        self.num_launches = 0
        if self.runner_name in _IN_PROCESS:
            given = [o for o in given if not o.startswith("--runner")]
            given.append("--runner=FnApiRunner")
            if not any(o.startswith("--direct_num_workers") for o in given):
                given.append("--direct_num_workers=2")
        self._options = PipelineOptions(given)
        if self.runner_name in _IN_PROCESS:
            self._options.view_as(DirectOptions).direct_running_mode = "in_memory"

    def run(self, build: Callable[[Any], Any], result_path: str, *, private: bool) -> Any:
        """Runs the pipeline that ``build`` makes and returns what it ends with.

        Args:
            build: takes the pipeline, returns a PCollection of one picklable element.
            result_path: where the element travels; deleted as soon as it is read.
            private: whether the file may be read by its owner only.
        """
        import apache_beam as beam

        from pipeline.passes import WriteResult

        try:
            with beam.Pipeline(options=self._options) as pipeline:
                result = build(pipeline)
                write = beam.ParDo(WriteResult(result_path, private))
                _ = result | "WriteResult" >> write
            self.num_launches += 1
            return pickle.loads(storage.read_bytes(result_path))
        finally:
            storage.delete(result_path)


def own_error(error: BaseException) -> Exception | None:
    """The ssdp error inside whatever a runner wrapped it in, if there is one."""
    from ssdp_core.errors import SsdpError

    seen: BaseException | None = error
    while seen is not None:
        # Arrow's errors are ValueErrors that quote the value they stumbled over.
        quotes_values = type(seen).__module__.startswith("pyarrow")
        if isinstance(seen, (SsdpError, ValueError)) and not quotes_values:
            return seen
        seen = seen.__cause__ or seen.__context__
    return None
