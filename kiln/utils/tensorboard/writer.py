"""`SummaryWriter`: a folder of event files, as `torch.utils.tensorboard` writes them."""

from __future__ import annotations

import os
import socket
import time
from types import TracebackType
from typing import Any

from kiln.errors import describe, message
from kiln.utils.tensorboard import summaries


class SummaryWriter:
    """Writes events to `log_dir`, or to a new folder under runs/ named by time and machine.

    Events go to one file, flushed every `flush_secs` seconds, by `flush()` and at the end of a `with` block.
    What is written takes tensors, arrays and numbers.

        with SummaryWriter("runs/one") as writer:
            for step in range(100):
                writer.add_scalar("loss", loss(step), step)
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str = "",
    ) -> None:
        if not log_dir:
            stamp = time.strftime("%b%d_%H-%M-%S")
            log_dir = os.path.join("runs", f"{stamp}_{socket.gethostname()}{comment}")
        self.log_dir = os.fspath(log_dir)
        self.purge_step = purge_step
        self._how = (max_queue, flush_secs, filename_suffix)
        self._writers: dict[str, Any] = {}
        main = self._writer("")
        if purge_step is not None:
            main.add_event(summaries.session_start(purge_step))

    def _writer(self, below: str) -> Any:
        """The writer of a folder's file, at its first event or after `close`."""
        if below not in self._writers:
            folder = os.path.join(self.log_dir, below) if below else self.log_dir
            self._writers[below] = summaries.file_writer(folder, *self._how)
        return self._writers[below]

    def _add(self, summary: Any, step: Any, walltime: float | None, below: str = "") -> None:
        step = None if step is None else int(summaries.number(step))
        self._writer(below).add_event(summaries.event(summary, step, walltime))

    def get_logdir(self) -> str:
        """The folder."""
        return self.log_dir

    def add_scalar(
        self,
        tag: str,
        scalar_value: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
    ) -> None:
        """A point of a curve: a number, or a tensor of one element."""
        self._add(summaries.scalar(tag, scalar_value), global_step, walltime)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: dict[str, Any],
        global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:
        """A point of several curves of one picture, each in a file of its own."""
        for tag, value in tag_scalar_dict.items():
            below = f"{main_tag.replace('/', '_')}_{tag}"
            self._add(summaries.scalar(main_tag, value), global_step, walltime, below)

    def add_histogram(
        self,
        tag: str,
        values: Any,
        global_step: int | None = None,
        bins: Any = "tensorflow",
        walltime: float | None = None,
        max_bins: int | None = None,
    ) -> None:
        """How values are distributed; `bins` are edges, their number, or a rule of NumPy's."""
        self._add(summaries.histogram(tag, values, bins), global_step, walltime)

    def add_image(
        self,
        tag: str,
        img_tensor: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        dataformats: str = "CHW",
    ) -> None:
        """A picture of dims C (1, 3 or 4 channels), H and W in the order of `dataformats`: bytes, or floats
        up to 1.
        """
        self._add(summaries.image(tag, img_tensor, dataformats), global_step, walltime)

    def add_images(
        self,
        tag: str,
        img_tensor: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        dataformats: str = "NCHW",
    ) -> None:
        """N pictures, one beside the other."""
        self._add(summaries.image(tag, img_tensor, dataformats), global_step, walltime)

    def add_figure(
        self,
        tag: str,
        figure: Any,
        global_step: int | None = None,
        close: bool = True,
        walltime: float | None = None,
    ) -> None:
        """A figure of Matplotlib's, or several one beside the other; closed then, unless `close` is False."""
        self._add(summaries.figure(tag, figure, close), global_step, walltime)

    def add_text(
        self, tag: str, text_string: str, global_step: int | None = None, walltime: float | None = None
    ) -> None:
        """A text, shown as Markdown."""
        self._add(summaries.text(tag, text_string), global_step, walltime)

    def add_hparams(
        self,
        hparam_dict: dict[str, Any],
        metric_dict: dict[str, Any],
        hparam_domain_discrete: dict[str, list[Any]] | None = None,
        run_name: str | None = None,
        global_step: int | None = None,
    ) -> None:
        """A run's settings and what came of it: numbers, texts and bools, in a file of its own."""
        if not isinstance(hparam_dict, dict) or not isinstance(metric_dict, dict):
            given = describe(hparam_dict if not isinstance(hparam_dict, dict) else metric_dict)
            raise TypeError(message("add_hparams", "dicts of settings and of metrics", given))
        below = run_name or str(time.time())
        for summary in summaries.settings(hparam_dict, metric_dict, hparam_domain_discrete or {}):
            self._add(summary, None, None, below)
        for tag, value in metric_dict.items():
            self._add(summaries.scalar(tag, value), global_step, None, below)

    def add_graph(
        self, model: Any, input_to_model: Any = None, verbose: bool = False, **options: Any
    ) -> None:
        """NotImplementedError: TensorBoard's picture is of a traced program; `kiln.viz` draws models."""
        raise NotImplementedError(
            "SummaryWriter.add_graph: kiln writes no graphs of TensorBoard's; kiln.viz draws a model's graph"
        )

    def flush(self) -> None:
        """Writes what waits."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Writes what waits and closes the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
